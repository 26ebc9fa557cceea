"""Tracebacks of failed attempts. The time of the failure, which its event also has, identifies the
attempt, because attempt numbers start again after a reset.
"""

from __future__ import annotations

from collections.abc import Sequence

from fairlane.store.base import Connection


def save(connection: Connection, seq: int, failed_at: int, text: str) -> None:
    connection.run("traceback_save", seq=seq, failed_at=failed_at, text=text)


def of_tasks(connection: Connection, seqs: Sequence[int]) -> dict[tuple[int, int], str]:
    """Return tracebacks by the sequence number of the task and the moment of the failure."""
    if not seqs:
        return {}
    rows = connection.run_rows("traceback_find", [(seq,) for seq in seqs])
    return {(row[0], row[1]): row[2] for row in rows}
