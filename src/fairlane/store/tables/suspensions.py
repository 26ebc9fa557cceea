"""Suspended runs: what each of them waits for, the tasks that it awaits, and signals."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import astuple

from fairlane.core.suspensions import Signal, Suspension, TaskEnd
from fairlane.store.base import Connection

Awaiting = tuple[str, int]  # the id of an awaited task, and the number of the task that waits


def insert(connection: Connection, one: Suspension) -> None:
    connection.run_rows("suspension_insert", [astuple(one)])


def of_tasks(connection: Connection, seqs: Iterable[int]) -> dict[int, Suspension]:
    rows = connection.run_rows("suspension_of", [(seq,) for seq in seqs])
    return {row[0]: Suspension(*row) for row in rows}


def delete(connection: Connection, seqs: Iterable[int]) -> None:
    connection.run_rows("suspension_delete", [(seq,) for seq in seqs])


def await_tasks(connection: Connection, rows: Iterable[Awaiting]) -> None:
    connection.run_rows("awaiting_insert", list(rows))


def awaiting(connection: Connection, parents: Iterable[str], limit: int) -> list[Awaiting]:
    """Return the tasks that wait for the end of these ones."""
    rows = connection.run_rows("awaiting_find", [(one,) for one in parents], limit=limit)
    return [(row[0], row[1]) for row in rows]


def awaited(connection: Connection, seqs: Iterable[int]) -> dict[int, list[str]]:
    """Return the tasks that each of these still waits for."""
    found: dict[int, list[str]] = {}
    for seq, parent in connection.run_rows("awaiting_of", [(seq,) for seq in seqs]):
        found.setdefault(seq, []).append(parent)
    return found


def arrive(connection: Connection, rows: Iterable[Awaiting]) -> None:
    """Delete the rows of tasks that have ended."""
    connection.run_rows("awaiting_arrive", list(rows))


def stop_awaiting(connection: Connection, seqs: Iterable[int]) -> None:
    connection.run_rows("awaiting_delete", [(seq,) for seq in seqs])


def ends(connection: Connection, ids: Iterable[str]) -> dict[str, TaskEnd]:
    """Return the states, the sizes of results and the errors of tasks."""
    rows = connection.run_rows("awaited_ends", [(id_,) for id_ in ids])
    return {row[1]: TaskEnd(*row) for row in rows}


def awaited_view(
    connection: Connection, seq: int, limit: int
) -> list[tuple[str, str | None, str | None]]:
    """Return the tasks that one waits for: id, state and agent."""
    rows = connection.run("awaited_view", seq=seq, limit=limit)
    return [(row[0], row[1], row[2]) for row in rows]


def listening(connection: Connection, keys: Iterable[str], until: str) -> list[int]:
    """Return the suspended tasks of sessions whose wait is `until`."""
    rows = connection.run_rows("suspension_listening", [(key, until) for key in keys])
    return [row[0] for row in rows]


def save_signal(connection: Connection, one: Signal) -> None:
    connection.run_rows("signal_insert", [astuple(one)])


def signal(connection: Connection, seq: int, name: str) -> Signal | None:
    rows = connection.run_rows("signal_find", [(seq, name)])
    return Signal(*rows[0]) if rows else None


def count_signals(connection: Connection, seq: int) -> int:
    count: int = connection.run("signal_count", seq=seq)[0][0]
    return count


def recount(connection: Connection) -> list[tuple[str, int, int]]:
    """Return each task that is suspended or has a suspension, and whether it is and has."""
    return [(row[0], row[1], row[2]) for row in connection.run("suspension_recount")]
