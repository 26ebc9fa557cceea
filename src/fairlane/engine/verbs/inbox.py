"""The inbox of a run: take messages that wait in its session, and withdraw them.

A message stays a waiting task until a run takes it, in the transaction that saves it for the run.
A message that no run took needs no handling when the run ends: it is the next turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from fairlane.core import inbox, leases, lifecycle, sessions, steps
from fairlane.core.errors import FairlaneError, MessageTaken, NotFound
from fairlane.core.inbox import Address, WaitingMessage
from fairlane.core.model import Task
from fairlane.core.steps import StepIndex
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

SEARCHED_MAX: Final = 10_000  # as many as a session's cap can be


def reaching(
    connection: Connection,
    vault: Vault,
    task: Task,
    now: int,
    *,
    any_mode: bool = False,
    limit: int = inbox.WAITING_READ_MAX,
) -> list[WaitingMessage]:
    """Return the waiting messages that reach a run, oldest first."""
    if task.session is None:
        return []
    run = Address(task.agent, task.capability, _SAME)
    waiting = _waiting(connection, vault, task, task.session, now)
    return inbox.reachable(run, waiting, any_mode=any_mode, limit=limit)


_SAME: Final = "those of the run"


def _waiting(
    connection: Connection, vault: Vault, run: Task, session: str, now: int
) -> Iterator[WaitingMessage]:
    """Yield what waits in the session of a run, read a few at a time: requests may be large."""
    after, mine, size = 0, None, inbox.READ_AT_A_TIME
    for start in range(0, inbox.WAITING_READ_MAX, size):
        rows = inboxes.waiting(connection, vault, session, after, size)
        if rows and not start:
            mine = task_table.submitters(connection, [run.seq]).get(run.seq)
        known = rights.of_submitters(connection, (mine, *(row.submitter for row in rows)), now)
        for row in rows:
            theirs = known[row.submitter]
            word = _SAME if theirs == known[mine] else theirs
            yield inbox.waiting_message(row.task, row.body, word)
        if len(rows) < size:
            return
        after = rows[-1].task.seq


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
        first = inbox.page(inbox.taken_by(body), inbox.fitting(body, waiting), request.after)
        shown = inbox.parse_cursor(first.cursor).shown
    chosen = inbox.fitting(body, [one for one in waiting if one.task.seq in shown])
    if chosen:
        body = inbox.with_taken(body, chosen)
        tx.rewrite_request(run.seq, body)
        _end(tx, chosen, run, now)
    left = inbox.fitting(body, [one for one in waiting if one not in chosen])
    taken = inbox.taken_by(body)
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


def next_message(tx: Transaction, run: Task, known: StepIndex, now: int) -> str | None:
    """Take the next message for a run that waits for one. Return it as the value of a step."""
    tx.unwritten.write()
    room = min(steps.VALUE_CHARACTERS_MAX, steps.TOTAL_CHARACTERS_MAX - known.total)
    for one in reaching(tx.connection, tx.vault, run, now, any_mode=True, limit=1):
        value = inbox.as_value(one.messages)
        if len(value) <= room:
            _end(tx, [one], run, now)
            return value
    return None  # one that is too large waits for its turn, and those behind it with it


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
        f"session {request.key} has no such message: it was never sent, or its run has ended"
    )


def _withdrawn(
    tx: Transaction, request: WithdrawMessage, now: int
) -> WithdrawOutcome | FairlaneError:
    for task, body in _open_messages(tx, request):
        ids = [task.id, *inbox.ids_of(body)]
        if request.message_id in ids and request.agent in (None, task.agent):
            if task.fencing_token:
                return _too_late(request, task)
            return _without(tx, task, body, request, now)
    return _ended(tx, request)


def _open_messages(tx: Transaction, request: WithdrawMessage) -> Iterator[tuple[Task, str]]:
    """Yield the tasks of a session that have not ended, with their requests: first the task that
    the id may name, then the newest. A session has fewer messages than are searched.
    """
    named = _named(tx, request)
    if named is not None and not (named.terminal or named.state == lifecycle.PARKED):
        yield named, tx.lookup.requests([named.seq])[named.seq]
    reads = (session_table.waiting_tasks, session_table.turn_tasks, session_table.leased_tasks)
    for read in reads:
        newest_first = tx.lookup.tasks(read, session=request.key)[::-1][:SEARCHED_MAX]
        for start in range(0, len(newest_first), inbox.READ_AT_A_TIME):
            part = newest_first[start : start + inbox.READ_AT_A_TIME]
            bodies = tx.lookup.requests(task.seq for task in part)
            yield from ((task, bodies[task.seq]) for task in part)


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
    """Answer about a message that does not wait."""
    task = _named(tx, request)
    if task is None or request.agent not in (None, task.agent):
        return _unknown(request)
    error = task_table.errors(tx.connection, [task.seq]).get(task.seq)
    if task.state == lifecycle.CANCELLED and error == sessions.WITHDRAWN:
        return WithdrawOutcome(task, 0)  # a repeated request
    return _too_late(request, task)


def _named(tx: Transaction, request: WithdrawMessage) -> Task | None:
    """Return the task of the session that the id of a message names, if it does."""
    name = request.message_id
    id_ = f"tsk_{name.removeprefix('msg_')}" if name.startswith("msg_") else name
    task = tx.tasks_by_id([id_]).get(id_)
    return task if task is not None and task.session == request.key else None


def _too_late(request: WithdrawMessage, task: Task) -> MessageTaken:
    return MessageTaken(
        f'message "{request.message_id[:64]}" can no longer be withdrawn: its task is '
        f'"{task.state}"',
        details={"taskId": task.id, "state": task.state},
    )
