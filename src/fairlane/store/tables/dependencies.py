"""Edges from a parent's id to a child's sequence number, and parents whose edges are unsettled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fairlane.store.base import Connection


class Parent(NamedTuple):
    """A parent of `child` that has a row; `size` is the length of its result, if it has one."""

    child: int
    seq: int
    id: str
    state: str
    size: int | None


class Unsettled(NamedTuple):
    """A parent that is now in `state`, and what its edges become (`core.dependencies`)."""

    parent: str
    edges: int
    state: str


class EdgeRecount(NamedTuple):
    """Counters of the scheduler, each followed by its recount."""

    open_edges: int
    open_edges_recount: int
    unsettled: int
    unsettled_recount: int


def insert(connection: Connection, edges: Iterable[tuple[int, str, int]]) -> None:
    """Insert edges: child, parent, state."""
    connection.run_rows("dependency_insert", list(edges))


def change(connection: Connection, edges: Iterable[tuple[int, str, int]]) -> None:
    """Give edges another state: child, parent, state."""
    connection.run_rows("dependency_settle", list(edges))


def awaited(connection: Connection, parents: Iterable[str], state: int) -> list[str]:
    """Return the parents that have an edge in this state."""
    rows = [(parent, state) for parent in parents]
    return [row[0] for row in connection.run_rows("dependency_awaited", rows)]


def children(
    connection: Connection, parents: Iterable[tuple[str, int]], limit: int
) -> list[tuple[str, int]]:
    """Return parents with each child to which they have an edge in the given state."""
    rows = connection.run_rows("dependency_children", list(parents), limit=limit)
    return [(row[0], row[1]) for row in rows]


def of_children(connection: Connection, seqs: Iterable[int]) -> dict[int, dict[str, int]]:
    """Return the edges of each child: parent and state."""
    edges: dict[int, dict[str, int]] = {}
    rows = connection.run_rows("dependency_of", [(seq,) for seq in seqs])
    for child, parent, state in rows:
        edges.setdefault(child, {})[parent] = state
    return edges


def parents_of(connection: Connection, seqs: Iterable[int]) -> list[Parent]:
    return [Parent(*row) for row in connection.run_rows("inputs_find", [(seq,) for seq in seqs])]


def open_parents(
    connection: Connection, seq: int, limit: int
) -> list[tuple[str, str | None, str | None]]:
    """Return the parents that a task waits for: id, state and agent, None if unknown."""
    rows = connection.run("why_parents", seq=seq, limit=limit)
    return [(row[0], row[1], row[2]) for row in rows]


# -------------------------------------------------------------------- unsettled parents


def take_unsettled(connection: Connection) -> list[Unsettled]:
    """Return all unsettled parents and delete them."""
    rows = connection.run("unsettled_all")
    connection.run("unsettled_forget")
    return [Unsettled(*row) for row in rows]


def save_unsettled(connection: Connection, parents: Iterable[Unsettled]) -> None:
    connection.run_rows("unsettled_save", list(parents))


# -------------------------------------------------------------------- the recount


def recount(connection: Connection) -> EdgeRecount:
    return EdgeRecount(*connection.run("dependency_recount")[0])


def recount_unmet(connection: Connection) -> list[tuple[str, int | None, int]]:
    """Return each waiting task with its count of open parents and the recount."""
    return [(row[0], row[1], row[2]) for row in connection.run("unmet_recount")]
