"""Counters of lanes and of lines: an agent's tasks of one capability in one lane."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import astuple

from fairlane.core.counts import Line, Tally
from fairlane.store.base import Connection, Row

Pair = tuple[str, str]  # a lane and an agent


class Order(NamedTuple):
    """The order of agents in a lane: the statement for lines, and the one for agents only."""

    lines: str
    agents: str


BY_SHARE: Final = Order("line_order", "line_order_agents")
URGENT: Final = Order("line_urgent", "line_urgent_agents")

# -------------------------------------------------------------------- lanes


def lanes(connection: Connection) -> dict[str, Tally]:
    return {row[0]: Tally(*row[1:]) for row in connection.run("lane_all")}


def lanes_by_name(connection: Connection) -> dict[str, Tally]:
    """Return the lanes, ordered by name."""
    return {row[0]: Tally(*row[1:]) for row in connection.run("lane_view")}


def save_lanes(connection: Connection, tallies: Mapping[str, Tally]) -> None:
    rows: list[Row] = [(name, *astuple(tally)) for name, tally in tallies.items()]
    connection.run_rows("lane_save", rows)


def oldest_wait(connection: Connection, lane: str) -> int | None:
    """Return since when the ready task with the longest wait has been waiting."""
    since: int | None = connection.run("lane_oldest", lane=lane)[0][0]
    return since


# -------------------------------------------------------------------- lines


def of_agents(connection: Connection, pairs: Iterable[Pair]) -> list[Line]:
    """Return all lines of agents in lanes."""
    return [Line(*row) for row in connection.run_rows("line_find", list(pairs))]


def first(connection: Connection, order: Order, wanted: Sequence[Pair], limit: int) -> list[Line]:
    """Return all lines of the `limit` first agents of each lane and capability."""
    return [Line(*row) for row in connection.run_rows(order.lines, wanted, limit=limit)]


def first_agents(
    connection: Connection, order: Order, lane: str, capability: str, limit: int
) -> list[Pair]:
    """Return the lane with each of its `limit` first agents."""
    rows = connection.run(order.agents, lane=lane, route=capability, limit=limit)
    return [(row[0], row[1]) for row in rows]


def ready_capabilities(connection: Connection, lane: str) -> list[str]:
    """Return the capabilities of the ready tasks of a lane, each once."""
    return [row[0] for row in connection.run("line_ready_routes", lane=lane)]


def capabilities(connection: Connection, lane: str) -> list[str]:
    return [row[0] for row in connection.run("line_routes", lane=lane)]


def pairs_of(connection: Connection, agents: list[str]) -> list[Pair]:
    """Return the lanes in which agents have lines, with the agents."""
    return [(row[0], row[1]) for row in connection.run("line_agents", agents=agents)]


def insert(connection: Connection, lines: Iterable[Line]) -> None:
    connection.run_rows("line_insert", [astuple(line) for line in lines])


def update(connection: Connection, lines: Iterable[Line]) -> None:
    connection.change_rows("line_update", [astuple(line) for line in lines])


def forget(connection: Connection, pairs: Sequence[Pair]) -> None:
    """Delete the lines of agents that have no tasks left."""
    connection.run_rows("line_forget", pairs)


# -------------------------------------------------------------------- reads


class AgentCounts(NamedTuple):
    agent: str
    queued: int
    inflight: int
    submitted: int
    completed: int
    failed: int
    cancelled: int
    rejected: int


def by_agent(connection: Connection, agent: str | None, limit: int) -> list[AgentCounts]:
    """Return the sums of the busiest agents over all lanes, or those of one agent."""
    rows = connection.run("agent_view", lane=None, agent=agent, limit=limit)
    return [AgentCounts(*row) for row in rows]


class Waiting(NamedTuple):
    """A line with ready tasks, and how many of its tasks were ever leased."""

    line: int
    lane: str
    agent: str
    ready: int
    dispatched: int
    capability: str = ""


def waiting(connection: Connection, limit: int) -> list[Waiting]:
    return [Waiting(*row) for row in connection.run("lines_ready", limit=limit)]


def all_lines(connection: Connection) -> list[Line]:
    return [Line(*row) for row in connection.run("line_all")]


def recount(connection: Connection) -> dict[tuple[str, str, str], tuple[int, ...]]:
    """Recount the tasks of each line: queued, ready, urgent, in flight, slots, parked."""
    return {(row[0], row[1], row[2]): tuple(row[3:]) for row in connection.run("recount")}
