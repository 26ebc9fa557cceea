"""Suspended runs: they give their slots back, and wake in the transaction of what they wait for.

Waking lets the task pass on to its next gate at once. What ended the wait is recorded as a step
before leasing (`save`), so the same transaction can lease the task with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fairlane.core import gates, leases, lifecycle, steps, suspensions
from fairlane.core.errors import Conflict, FairlaneError, InvalidRequest, LeaseLost, NotFound
from fairlane.core.inbox import sessions_with_messages
from fairlane.core.model import SUSPEND_GATE, Task, copied
from fairlane.core.steps import Step, StepBrief, StepIndex
from fairlane.core.suspensions import Signal, Suspension, Until
from fairlane.engine.step_commands import SendSignal, SignalOutcome, Suspend, SuspendOutcome
from fairlane.engine.verbs import inbox, resources
from fairlane.store.tables import checkpoints
from fairlane.store.tables import dependencies as dependency_table
from fairlane.store.tables import suspensions as table
from fairlane.store.tables import tasks as task_table
from fairlane.store.transaction import Transaction

ARRIVALS_MAX: Final = 1000
_LOOK_MAX: Final = 1000  # tasks that are followed to find a circle
NOTHING: Final = "null"

# -------------------------------------------------------------------- suspend


def suspend(tx: Transaction, requests: Sequence[Suspend], now: int) -> Iterator[object]:
    """Release leases until a cause occurs; answer at once if it already has.

    A worker that did not receive the response may suspend again.
    """
    tasks = tx.tasks_by_seq(request.seq for request in requests)
    tx.counters.prepare(tasks[request.seq] for request in requests if request.seq in tasks)
    for request in requests:
        yield _suspend(tx, tasks.get(request.seq), request, now)


def _suspend(
    tx: Transaction, task: Task | None, request: Suspend, now: int
) -> SuspendOutcome | FairlaneError:
    if task is None or task.fencing_token != request.fencing_token:
        return _lost(task, request)
    task = tx.task(task.seq)
    tx.unwritten.write()
    if task.gate == SUSPEND_GATE and task.state == lifecycle.QUEUED:
        return _again(tx, task, request)
    problem = leases.lost(task, request.fencing_token)
    if problem is not None or task.terminal:
        return problem or leases.ended(task)
    known = checkpoints.of_tasks(tx.connection, [task.seq]).get(task.seq, ()) if task.steps else ()
    brief = StepIndex(StepBrief(one.seq, one.number, one.name, len(one.value)) for one in known)
    place = steps.decide(brief, name=request.name, number=request.number, size=0)
    if isinstance(place, FairlaneError):
        return place
    if not place.new:
        recorded = next(one.value for one in known if one.number == place.number)
        return SuspendOutcome(task, place.number, suspended=False, value=recorded)
    if request.until.message and task.session is None:
        return InvalidRequest("field 'until.message' needs a task that belongs to a session")
    awaited = _open_tasks(tx, task, request)
    if isinstance(awaited, FairlaneError):
        return awaited
    span = int(request.until.delay_ms is not None)
    wait = Suspension(task.seq, place.number, request.name, suspensions.text(request.until), span)
    value = _value_now(tx, task, wait, awaited, brief)
    if value is not None:
        return _recorded(tx, task, wait, value, now)
    return _released(tx, task, wait, awaited, now)


def _lost(task: Task | None, request: Suspend) -> LeaseLost:
    return leases.lost(task, request.fencing_token) or leases.ended(task)


def _again(tx: Transaction, task: Task, request: Suspend) -> SuspendOutcome | FairlaneError:
    """Answer a repeated request."""
    wait = table.of_tasks(tx.connection, [task.seq]).get(task.seq)
    if wait is None or wait.name != request.name or request.number not in (None, wait.number):
        return leases.ended(task)
    return SuspendOutcome(task, wait.number, suspended=True)


def _value_now(
    tx: Transaction,
    task: Task,
    wait: Suspension,
    awaited: Sequence[Task],
    known: StepIndex,
) -> str | None:
    """Return the value of a wait that needs no suspension; None if it needs one."""
    until = wait.waits_for
    if until.message:
        return inbox.next_message(tx, task, known, tx.now)
    if until.signal is not None:
        found = table.signal(tx.connection, wait.seq, until.signal)
        return None if found is None else found.value
    wakes_at = suspensions.wakes_at(until, tx.now)
    is_over = not awaited if wakes_at is None else wakes_at <= tx.now
    return _value(tx, wait, known) if is_over else None


def _recorded(
    tx: Transaction, task: Task, wait: Suspension, value: str, now: int
) -> SuspendOutcome:
    step = Step(task.seq, wait.number, wait.name, value, now)
    after = copied(task)
    after.steps = (task.steps or 0) + 1
    tx.count_steps(after, step)
    tx.save_steps([step])
    return SuspendOutcome(after, wait.number, suspended=False, value=value)


def _released(
    tx: Transaction, task: Task, wait: Suspension, awaited: Sequence[Task], now: int
) -> SuspendOutcome:
    wakes_at = suspensions.wakes_at(wait.waits_for, now)
    decision = leases.suspend(
        task, task.fencing_token, now, gate=SUSPEND_GATE, eligible_at=wakes_at
    )
    assert decision.change is not None, "its lease is open"
    tx.apply(decision.change)
    table.insert(tx.connection, wait)
    if awaited:
        table.await_tasks(tx.connection, [(one.id, task.seq) for one in awaited])
        tx.open_edges += len(awaited)
    if wait.waits_for.message and task.session is not None:
        tx.listening.append((task.session, task.seq))
    return SuspendOutcome(decision.change.after, wait.number, suspended=True)


# -------------------------------------------------------------------- awaited tasks


def _open_tasks(tx: Transaction, task: Task, request: Suspend) -> list[Task] | FairlaneError:
    """Return the awaited tasks that have not ended, or why they cannot be awaited."""
    ids = list(dict.fromkeys(request.until.tasks or ()))
    found = tx.tasks_by_id(ids)
    for id_ in ids:
        one = found.get(id_)
        if one is None or request.agent not in (None, one.agent):
            return NotFound(f"field 'until.tasks': task \"{id_[:64]}\" not found")
    every = [tx.task(found[id_].seq) for id_ in ids]
    open_ = [one for one in every if not one.terminal]
    for one in open_:
        if one.session is not None and one.session == task.session and one.gate is not None:
            return Conflict(
                f'task "{one.id}" waits for its turn in session {task.session}, which this run '
                "occupies; submit it without the session or in another one"
            )
    return _circle(tx, task, open_) or open_


def _circle(tx: Transaction, task: Task, awaited: Sequence[Task]) -> FairlaneError | None:
    """Return the error if an awaited task waits, directly or indirectly, for this one."""
    seen: set[str] = set()
    level = [one.id for one in awaited]
    while level and len(seen) <= _LOOK_MAX:
        if task.id in level:
            return InvalidRequest(
                f"field 'until.tasks': one of them waits for \"{task.id}\" itself"
            )
        seen.update(level)
        seqs = [one.seq for one in tx.tasks_by_id(level).values()]
        parents = [id_ for ids in table.awaited(tx.connection, seqs).values() for id_ in ids]
        for edges in dependency_table.of_children(tx.connection, seqs).values():
            parents += edges
        level = [id_ for id_ in dict.fromkeys(parents) if id_ not in seen]
    return None


def arrive(tx: Transaction, ended: Sequence[str], now: int) -> bool:
    """Wake the tasks that have waited for these ends. Return whether more of them may wait."""
    found = table.awaiting(tx.connection, ended, ARRIVALS_MAX)
    if not found:
        return False
    table.arrive(tx.connection, found)
    tx.open_edges -= len(found)
    waiting = dict.fromkeys(seq for _, seq in found)
    left = table.awaited(tx.connection, waiting)
    ready = [seq for seq in waiting if seq not in left]
    tasks = tx.tasks_by_seq(ready)
    tx.counters.prepare(tasks[seq] for seq in ready)
    for seq in ready:
        wake(tx, tx.task(seq), now)
    return len(found) == ARRIVALS_MAX


# -------------------------------------------------------------------- messages


def deliver(tx: Transaction, now: int) -> None:
    """Wake runs that wait for a message, in sessions where a task has begun to wait."""
    keys = sessions_with_messages(tx.changes)
    if not keys:
        return
    found = table.listening(tx.connection, keys, _MESSAGE)
    found += [seq for key, seq in tx.listening if key in keys and seq not in found]
    tasks = tx.tasks_by_seq(found)
    tx.counters.prepare(tasks[seq] for seq in found)
    for seq in sorted(found):
        task = tx.task(seq)
        if task.gate == SUSPEND_GATE and task.state == lifecycle.QUEUED and seq not in tx.woken:
            known = tx.step_indexes([task])[seq]
            value = inbox.next_message(tx, task, known, now)
            if value is not None:
                wake(tx, task, now, value)


_MESSAGE: Final = suspensions.text(Until(message=True))

# -------------------------------------------------------------------- signals


def send_signal(tx: Transaction, requests: Sequence[SendSignal], now: int) -> Iterator[object]:
    """Store signals, and wake the tasks that wait for them."""
    found = tx.tasks_by_id(request.id for request in requests)
    tx.counters.prepare(found.values())
    for request in requests:
        task = found.get(request.id)
        if task is None:
            yield NotFound(f'task "{request.id[:64]}" not found')
            continue
        yield _signalled(tx, tx.task(task.seq), request, now)


def _signalled(
    tx: Transaction, task: Task, request: SendSignal, now: int
) -> SignalOutcome | FairlaneError:
    if table.signal(tx.connection, task.seq, request.name) is not None:
        return SignalOutcome(task, accepted=False)
    if task.terminal:
        message = f'task "{task.id}" has already ended: it is "{task.state}"'
        return Conflict(message, details={"state": task.state})
    if len(request.value) > steps.VALUE_CHARACTERS_MAX:
        return steps.too_large(request.name, len(request.value))
    if table.count_signals(tx.connection, task.seq) >= suspensions.SIGNALS_MAX:
        return Conflict(f"a task can have at most {suspensions.SIGNALS_MAX} signals")
    tx.unwritten.write()
    table.save_signal(tx.connection, Signal(task.seq, request.name, request.value, now))
    tx.tell_signal(task, request.name)
    if task.gate == SUSPEND_GATE and task.state == lifecycle.QUEUED:
        wait = table.of_tasks(tx.connection, [task.seq])[task.seq]
        if wait.waits_for.signal == request.name and task.seq not in tx.woken:
            wake(tx, task, now, request.value)
    return SignalOutcome(tx.task(task.seq), accepted=True)


# -------------------------------------------------------------------- wake


def wake(tx: Transaction, task: Task, now: int, value: str | None = None) -> None:
    """Let a suspended task go on. `value` is what it waited for; None if `save` has to find it."""
    tx.woken[task.seq] = value
    free = copied(task)
    free.eligible_at = None
    session, batch = tx.counters.session_of(task), tx.counters.batch_of(task)
    gate = gates.next_gate(free, session, batch, now, has_turn=True)
    tx.apply(gates.promote(task, now, resources.gate(tx, task, gate)))


def save(tx: Transaction) -> None:
    """Record what woken tasks have waited for, and forget the waits of tasks that have ended."""
    woken, tx.woken = tx.woken, {}
    left, tx.left_waits = tx.left_waits, []
    tx.unwritten.write()
    waits = table.of_tasks(tx.connection, [*woken, *left])
    _stop_awaiting(tx, [seq for seq in left if seq in waits])
    known = tx.step_indexes(tx.task(seq) for seq in woken)
    new = []
    for seq, given in woken.items():
        wait = waits[seq]
        value = given or _value(tx, wait, known[seq])
        step = Step(seq, wait.number, wait.name, value, tx.now)
        after = copied(tx.task(seq))
        after.steps = (after.steps or 0) + 1
        tx.count_steps(after, step)
        new.append(step)
    table.delete(tx.connection, waits)
    if new:
        tx.save_steps(new)


def _stop_awaiting(tx: Transaction, seqs: Sequence[int]) -> None:
    awaited = table.awaited(tx.connection, seqs) if seqs else {}
    if awaited:
        table.stop_awaiting(tx.connection, awaited)
        tx.open_edges -= sum(map(len, awaited.values()))


def _value(tx: Transaction, wait: Suspension, known: StepIndex) -> str:
    """Return the value of a wait that has ended: null for a time, the outcomes of awaited tasks."""
    ids = wait.waits_for.tasks
    if ids is None:
        return NOTHING
    ends: Mapping[str, suspensions.TaskEnd] = table.ends(tx.connection, dict.fromkeys(ids))
    ordered = [ends[id_] for id_ in dict.fromkeys(ids) if id_ in ends]
    wanted = suspensions.fitting(ordered, known.total)
    results = task_table.results(tx.connection, sorted(wanted)) if wanted else {}
    return suspensions.outcomes(ids, dict(ends), results)
