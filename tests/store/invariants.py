"""What must hold in every store at every moment between two transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.core import lifecycle, sessions
from fairlane.core.batches import Batch
from fairlane.core.counts import Line, Tally
from fairlane.core.events import Event
from fairlane.core.model import ORPHANED, Task
from fairlane.core.sessions import Session
from fairlane.engine.reads.recount import recount
from tests.store.scheduler import task_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.core.policy import Policy
    from fairlane.store.base import Connection

FACTS = ("queued", "ready", "urgent", "inflight", "slots", "parked")
_WIDTH = len(Task.__struct_fields__)
TIMED = ("delay", "debounce")
_PAGE = 1000


def assert_sound(reader: Connection, policy: Policy) -> None:
    lines = [Line(*row) for row in reader.run("line_all")]
    assert_counters_equal_a_recount(reader, lines)
    assert_lanes_are_the_sum_of_their_lines(reader, lines)
    assert_shares_are_true(lines, policy)
    assert_sessions_equal_a_recount(reader, policy)
    assert_batches_keep_their_promises(reader)
    assert_events_have_no_gaps(reader)
    assert_events_name_the_policy_of_their_time(reader)
    assert recount(reader) == []
    for row in task_rows(reader):
        assert_makes_sense(Task(*row[:_WIDTH]))


def assert_counters_equal_a_recount(reader: Connection, lines: list[Line]) -> None:
    counted = {
        (line.lane, line.agent, line.capability): tuple(getattr(line, fact) for fact in FACTS)
        for line in lines
    }
    recounted = {row[:3]: row[3:] for row in reader.run("recount")}
    nothing = (0,) * len(FACTS)
    for key in counted.keys() | recounted.keys():
        assert counted.get(key, nothing) == recounted.get(key, nothing), key


def assert_lanes_are_the_sum_of_their_lines(reader: Connection, lines: list[Line]) -> None:
    """Totals may be more than that: an agent of whom nothing is kept has no line any more."""
    for name, *numbers in reader.run("lane_view"):
        lane = Tally(*numbers)
        mine = [line for line in lines if line.lane == name]
        for field in Tally.__struct_fields__:
            counted = sum(getattr(line, field) for line in mine)
            assert counted <= getattr(lane, field), (name, field)
            assert counted == getattr(lane, field) or field not in FACTS, (name, field)
        assert lane.balanced, lane


def assert_shares_are_true(lines: list[Line], policy: Policy) -> None:
    """The order of agents is read from an index, so what is indexed must be right."""
    agents: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        agents.setdefault((line.lane, line.agent), []).append(line)
    for (lane, agent), mine in agents.items():
        share = sum(line.slots for line in mine) / policy.weight(agent)
        assert {line.share for line in mine} == {share}, (lane, agent)
        assert len({line.served for line in mine}) == 1, (lane, agent)


def assert_sessions_equal_a_recount(reader: Connection, policy: Policy) -> None:
    recounted = {row[0]: row[1:] for row in reader.run("session_recount")}
    for key, holders, waiting, debouncing, later, interrupted in reader.run("session_all"):
        *counted, stopped = recounted.pop(key, (0, 0, 0, 0, 0))
        assert counted == [holders, waiting, debouncing, later], key
        assert not interrupted or 0 < stopped == holders, f"{key} waits for nobody"
        limit = _limit(reader, policy, key)
        assert not waiting or holders >= limit or interrupted, f"{key} stands still"
    assert not recounted, f"sessions without a row: {sorted(recounted)}"


def _limit(reader: Connection, policy: Policy, key: str) -> int:
    (row,) = reader.run("session_view", key=key)
    return sessions.limit(policy.sessions, Session(*row))


def assert_batches_keep_their_promises(reader: Connection) -> None:
    for row in reader.run("batch_all"):
        batch = Batch(*row)
        assert batch.parallelism is None or batch.holders <= batch.parallelism, batch
        assert not (batch.free and batch.waiting), f"{batch.id} stands still"
        assert (batch.completed_at is None) == bool(batch.open), batch


def assert_events_have_no_gaps(reader: Connection) -> None:
    """As long as nothing has been forgotten; then only the order is left."""
    (last,) = reader.run("event_last")[0]
    ids = [row[0] for row in _events(reader, last)]
    assert ids == sorted(set(ids))
    assert not ids or ids[-1] <= last


def assert_events_name_the_policy_of_their_time(reader: Connection) -> None:
    """Events are in the order of the commits, and so are versions."""
    fields = len(Event.__struct_fields__)
    versions = [Event(*row[:fields]).policy_version for row in _events(reader, 2**60)]
    kept = reader.run("policy_list", version=None, before=None, limit=1)
    newest = kept[0][0] if kept else 0
    named = [version for version in versions if version is not None]
    assert named == sorted(named)
    assert all(0 <= version <= newest for version in named)


def _events(reader: Connection, until: int) -> Iterator[Sequence[Any]]:
    """Read page by page, as the server does: for one page any plan of the database is fast."""
    after = 0
    while page := reader.run("event_list", after=after, until=until, limit=_PAGE):
        yield from page
        after = page[-1][0]


def assert_makes_sense(task: Task) -> None:
    assert task.terminal == (task.completed_at is not None), task
    assert task.leased or task.state not in lifecycle.IN_FLIGHT, task
    assert not task.leased or task.state not in (lifecycle.QUEUED, lifecycle.PARKED), task
    assert not task.leased or (task.fencing_token > 0 and task.worker), task
    waits = task.state == lifecycle.WAITING
    assert task.gate is None or task.state == lifecycle.QUEUED or waits, task
    assert (task.gate == "dependency") == waits, task
    assert task.terminal or waits == bool(task.unmet), task  # an end leaves the number as it was
    if task.gate != "suspend":  # a run sleeps, or it waits for something else
        assert waits or (task.gate in TIMED) == (task.eligible_at is not None), task
    assert task.unmet != ORPHANED or task.state == lifecycle.CANCELLED, task
    assert task.preempt != 1 or task.leased or task.terminal or task.state == "parked", task
    assert 0 <= task.attempts <= task.max_attempts, task
