"""The inbox of a run: take messages that wait in its session, and withdraw them.

A message stays a waiting task until a run takes it, in the transaction that saves it for the run.
What is not taken needs no handling when the run ends: it gets its turn like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from fairlane.core import inbox, leases, lifecycle, sessions, steps
from fairlane.core.errors import FairlaneError, MessageTaken, NotFound
from fairlane.core.inbox import Address, WaitingMessage
from fairlane.core.model import Task
from fairlane.core.steps import StepBrief
from fairlane.engine.inbox_commands import (
    InboxOutcome,
    TakeMessages,
    WithdrawMessage,
    WithdrawOutcome,
)
from fairlane.engine.verbs import ownership, rights
from fairlane.store.base import Connection
from fairlane.store.tables import inboxes
from fairlane.store.tables import sessions as session_table
from fairlane.store.tables import tasks as task_table
from fairlane.store.transaction import Transaction
from fairlane.store.vault import Vault


def reaching(
    connection: Connection, vault: Vault, task: Task, now: int, *, any_mode: bool = False
) -> list[WaitingMessage]:
    """Return the waiting messages that reach a run, oldest first."""
    if task.session is None:
        return []
    rows = inboxes.waiting(connection, vault, task.session, inbox.WAITING_READ_MAX)
    if not rows:
        return []
    submitter = task_table.submitters(connection, [task.seq]).get(task.seq)
    known = rights.of_submitters(connection, (submitter, *(row.submitter for row in rows)), now)
    waiting = [inbox.waiting_message(row.task, row.body, known[row.submitter]) for row in rows]
    run = Address(task.agent, task.capability, known[submitter])
    return inbox.reachable(run, waiting, any_mode=any_mode)


# -------------------------------------------------------------------- take


def take(tx: Transaction, requests: Sequence[TakeMessages], now: int) -> Iterator[object]:
    """Give runs the messages of their inboxes, and end the tasks of the messages taken."""
    tasks = tx.tasks_by_seq(request.seq for request in requests)
    tx.counters.prepare(tasks[request.seq] for request in requests if request.seq in tasks)
    for request in requests:
        task = tasks.get(request.seq)
        problem = leases.lost(task, request.fencing_token)
        if task is None or problem is not None or task.terminal:
            yield problem or leases.ended(task)
        else:
            yield _taken(tx, task, request, now)


def _taken(tx: Transaction, run: Task, request: TakeMessages, now: int) -> InboxOutcome:
    body = tx.lookup.requests([run.seq])[run.seq]
    waiting = reaching(tx.connection, tx.vault, run, now)
    shown = request.shown
    if shown is None:  # as many as fit into the response
        first = inbox.page(inbox.taken_by(body), waiting, request.after)
        shown = inbox.parse_cursor(first.cursor).shown
    chosen = inbox.fitting(body, [one for one in waiting if one.task.seq in shown])
    if chosen:
        body = inbox.with_taken(body, chosen)
        tx.rewrite_request(run.seq, body)
        _end(tx, chosen, run, now)
    taken, left = inbox.taken_by(body), [one for one in waiting if one not in chosen]
    if request.shown is None:
        page = inbox.page(taken, (), request.after)
        more = page.more or bool(chosen and left)
        return InboxOutcome(run, msgspec.structs.replace(page, more=more))
    seen = {task.id for seq, task in tx.tasks_by_seq(shown).items() if seq in shown}
    return InboxOutcome(run, inbox.page(taken, left, inbox.behind(taken, request.after, seen)))


def _end(tx: Transaction, chosen: Sequence[WaitingMessage], run: Task, now: int) -> None:
    tasks = [tx.tasks_by_seq([one.task.seq])[one.task.seq] for one in chosen]
    tx.counters.prepare(tasks)
    for task in tasks:
        tx.apply(inbox.take(task, run.id, now))


# -------------------------------------------------------------------- wait for a message


def next_message(tx: Transaction, run: Task, known: Sequence[StepBrief], now: int) -> str | None:
    """Take the next message for a run that waits for one. Return it as the value of a step."""
    tx.unwritten.write()
    room = min(
        steps.VALUE_CHARACTERS_MAX, steps.TOTAL_CHARACTERS_MAX - sum(one.size for one in known)
    )
    for one in reaching(tx.connection, tx.vault, run, now, any_mode=True):
        value = inbox.as_value(one.messages)
        if len(value) <= room:
            _end(tx, [one], run, now)
            return value
        break  # one that is too large waits for its turn, and those behind it with it
    return None


# -------------------------------------------------------------------- withdraw


def withdraw(tx: Transaction, requests: Sequence[WithdrawMessage], now: int) -> Iterator[object]:
    """Withdraw messages that no run has."""
    for request in requests:
        tx.counters.load_sessions([request.key])
        if not ownership.is_mine(tx, request.key, request.agent):
            yield _unknown(request)
            continue
        yield _withdrawn(tx, request, now)


def _unknown(request: WithdrawMessage) -> NotFound:
    """Return the same error for another agent's message as for one that does not exist."""
    return NotFound(
        f"no such message waits in session {request.key}: it was never sent, or its run has ended"
    )


def _withdrawn(
    tx: Transaction, request: WithdrawMessage, now: int
) -> WithdrawOutcome | FairlaneError:
    for read in (session_table.waiting_tasks, session_table.turn_tasks, session_table.leased_tasks):
        tasks = tx.lookup.tasks(read, session=request.key)
        bodies = tx.lookup.requests(task.seq for task in tasks) if tasks else {}
        for task in tasks:
            ids = [task.id, *inbox.ids_of(bodies[task.seq])]
            if request.message_id in ids and request.agent in (None, task.agent):
                if task.fencing_token:
                    return _too_late(request, task)
                return _without(tx, task, bodies[task.seq], request, now)
    return _ended(tx, request)


def _without(
    tx: Transaction, task: Task, body: str, request: WithdrawMessage, now: int
) -> WithdrawOutcome:
    whole = request.message_id == task.id
    left = None if whole else inbox.without(body, request.message_id)
    tx.counters.prepare([task])
    if left is not None:
        tx.rewrite_request(task.seq, left)
        return WithdrawOutcome(task, len(inbox.ids_of(left)))
    change = leases.cancel(task, task.id, now, sessions.WITHDRAWN).change
    assert change is not None, "it waits"
    tx.apply(change)
    return WithdrawOutcome(change.after, 0)


def _ended(tx: Transaction, request: WithdrawMessage) -> WithdrawOutcome | FairlaneError:
    """Answer about a message that does not wait. Its id may tell its task, or be that of the
    task.
    """
    name = request.message_id
    id_ = f"tsk_{name.removeprefix('msg_')}" if name.startswith("msg_") else name
    task = tx.tasks_by_id([id_]).get(id_)
    if task is None or task.session != request.key or request.agent not in (None, task.agent):
        return _unknown(request)
    error = task_table.errors(tx.connection, [task.seq]).get(task.seq)
    if task.state == lifecycle.CANCELLED and error == sessions.WITHDRAWN:
        return WithdrawOutcome(task, 0)  # a repeated request
    return _too_late(request, task)


def _too_late(request: WithdrawMessage, task: Task) -> MessageTaken:
    return MessageTaken(
        f'message "{request.message_id[:64]}" can no longer be withdrawn: its task is '
        f'"{task.state}"',
        details={"taskId": task.id, "state": task.state},
    )
