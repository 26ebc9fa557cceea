"""The inbox of a run, read without the writer."""

from __future__ import annotations

import msgspec

from fairlane.core import inbox, leases
from fairlane.core.inbox import InboxPage
from fairlane.core.model import Task
from fairlane.engine.verbs.inbox import reaching
from fairlane.store.base import Connection
from fairlane.store.tables import tasks
from fairlane.store.vault import Vault


class InboxView(msgspec.Struct, frozen=True):
    """A run's task, None if it does not exist, and the next messages for the run."""

    task: Task | None
    page: InboxPage


def read(
    connection: Connection,
    vault: Vault,
    lease: tuple[int, int],
    after: int | None,
    now: int,
) -> InboxView:
    """Return what a reader gets that has the first `after` of the taken ones; None: all.

    A run whose lease has ended gets nothing.
    """
    seq, fencing_token = lease
    task = next(iter(tasks.by_seq(connection, [seq])), None)
    if task is None or leases.lost(task, fencing_token) or task.terminal:
        return InboxView(task, InboxPage([], ""))
    body = tasks.requests(connection, vault, [seq]).get(seq, "")
    taken = inbox.taken_by(body)
    waiting = inbox.fitting(body, reaching(connection, vault, task, now))
    return InboxView(task, inbox.page(taken, waiting, len(taken) if after is None else after))
