"""Messages that wait in a session, for the inbox of its run."""

from __future__ import annotations

from typing import NamedTuple

from fairlane.core.model import Task
from fairlane.store.base import Connection
from fairlane.store.tables.tasks import TASK_WIDTH
from fairlane.store.vault import Vault


class WaitingRow(NamedTuple):
    """A waiting task, its request, and the id of the token that submitted it."""

    task: Task
    body: str
    submitter: str | None


def waiting(
    connection: Connection, vault: Vault, session: str, after: int, limit: int
) -> list[WaitingRow]:
    """Return the first tasks behind one that wait for the turn of a session, oldest first."""
    return [
        WaitingRow(Task(*row[:TASK_WIDTH]), vault.open_body(row[TASK_WIDTH]), row[TASK_WIDTH + 1])
        for row in connection.run("inbox_waiting", session=session, after=after, limit=limit)
    ]
