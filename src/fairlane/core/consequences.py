"""Consequences of a task's change: decided here, returned as data, saved by the store.

When a task ends, its result is saved, its waiters are notified, a webhook may be due, the edges to
its children change, and its cron run ends with it. A worker may have to stop its run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from fairlane.core import dependencies, events, lifecycle
from fairlane.core.batches import Batch
from fairlane.core.model import SUSPEND_GATE, Change, Task, is_run


class EdgeChange(NamedTuple):
    """A parent's edges in state `leaves` become `becomes`; `state` is that of the parent."""

    leaves: int
    becomes: int
    state: str


class Webhook(msgspec.Struct, frozen=True, gc=False):
    """A webhook to send; `about` is the id, and `seq` the number, of a task, batch or run."""

    about: str
    seq: int
    url: str
    event: str
    agent: str


class Consequences(msgspec.Struct, gc=False):
    """`outcome` is the result and the error to save. `run_changes` says that the task belongs to a
    cron run, which has to follow. `stops_run` says that the worker with its lease has to stop,
    `closes_approval` that its open approval has to be closed, `leaves_wait` that it was suspended.
    """

    outcome: tuple[str | None, str | None] | None = None
    wakes_waiters: bool = False
    webhook: Webhook | None = None
    run_changes: bool = False
    stops_run: bool = False
    edges: EdgeChange | None = None
    closes_approval: bool = False
    leaves_wait: bool = False


# Verbs that do not end a task and have no consequence besides their event.
_QUIET: Final = frozenset(
    {
        lifecycle.SUBMIT,
        lifecycle.LEASE,
        lifecycle.START,
        lifecycle.PROMOTE,
        lifecycle.HOLD,
        lifecycle.MEET,
        lifecycle.BLOCK,
        lifecycle.UNBLOCK,
    }
)
_CLEARS_OUTCOME: Final = frozenset({lifecycle.COMPLETE, lifecycle.RETRY, lifecycle.RESET})
# The event that a webhook reports, by the state in which a task ended or was parked.
_WEBHOOK_EVENTS: Final[Mapping[str, str]] = {
    lifecycle.DONE: events.COMPLETED,
    lifecycle.FAILED: events.FAILED,
    lifecycle.CANCELLED: events.CANCELLED,
    lifecycle.PARKED: events.PARKED,
}


def of(change: Change, *, awaited: bool) -> Consequences | None:
    """Return the consequences of a change, or None if there are none.

    `awaited` says whether any task at all depends on another.
    """
    verb, after = change.verb, change.after
    if verb in _QUIET:
        return None
    found = Consequences()
    if change.result is not None or change.error is not None:
        found.outcome = (change.result, change.error)
    elif verb in _CLEARS_OUTCOME and (after.attempts > 1 or not after.terminal):
        found.outcome = (None, None)
    if after.state == lifecycle.PARKED:
        found.wakes_waiters = True
        found.webhook = _webhook(after)
    elif after.terminal and not (change.before and change.before.terminal):
        found.wakes_waiters = True
        found.webhook = _webhook(after)
        found.run_changes = is_run(after.id)
        found.stops_run = after.leased
        found.closes_approval = change.before is not None and change.before.unapproved == 1
        found.leaves_wait = change.before is not None and change.before.gate == SUSPEND_GATE
        if awaited:
            becomes = dependencies.EDGE_AFTER[after.state]
            found.edges = EdgeChange(dependencies.OPEN, becomes, after.state)
    elif verb == lifecycle.RETRY:
        found.run_changes = is_run(after.id)
        found.edges = EdgeChange(dependencies.BROKEN, dependencies.OPEN, after.state)
    elif verb == lifecycle.PREEMPT:
        found.stops_run = True
    return found


def _webhook(task: Task) -> Webhook | None:
    if not task.callback_url:
        return None
    event = _WEBHOOK_EVENTS[task.state]
    return Webhook(task.id, task.seq, task.callback_url, event, task.agent)


def of_batch_end(batch: Batch) -> Webhook | None:
    """Return the webhook for the end of a batch, if it has a callback URL."""
    if not batch.callback_url:
        return None
    return Webhook(batch.id, batch.seq, batch.callback_url, events.BATCH_COMPLETED, batch.agent)
