"""Effects in the store: the intent before, and what operators say about unknown outcomes.

The outcome itself is recorded like the result of any step (`steps.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlane.core import effects, leases, lifecycle
from fairlane.core.effects import HAPPENED, NOT_HAPPENED, EffectDecision
from fairlane.core.errors import Conflict, FairlaneError, NotFound
from fairlane.core.model import Task, copied
from fairlane.core.steps import Step, StepIndex
from fairlane.engine.commands import Reset, Retry
from fairlane.engine.step_commands import BeginEffect, EffectOutcome, ResolveEffect
from fairlane.engine.verbs import requeueing
from fairlane.store.transaction import Transaction

_NOTHING = "null"


def begin_effect(tx: Transaction, requests: Sequence[BeginEffect], now: int) -> Iterator[object]:
    """Record the intent of effects, or that a begun one did not happen."""
    tasks = tx.tasks_by_seq(request.seq for request in requests)
    tx.counters.prepare(tasks.values())
    for request in requests:
        task = tasks.get(request.seq)
        task = None if task is None else tx.task(task.seq)
        problem = leases.lost(task, request.fencing_token)
        if task is None or problem is not None or task.terminal:
            yield problem or leases.ended(task)
            continue
        decision = _decided(task, tx.step_indexes([task])[task.seq], request)
        if isinstance(decision, FairlaneError):
            yield decision
        elif decision.parks is not None:
            tx.apply(leases.give_up_run(task, decision.parks, now))
            yield effects.unknown(task.id, request.name)
        else:
            yield EffectOutcome(
                _saved(tx, task, request, decision), decision.number, decision.state
            )


def _decided(task: Task, known: StepIndex, request: BeginEffect) -> EffectDecision | FairlaneError:
    if request.withdraws:
        return effects.withdraw(
            known, name=request.name, number=request.number, fencing_token=request.fencing_token
        )
    return effects.begin(
        known,
        task_id=task.id,
        name=request.name,
        number=request.number,
        fencing_token=request.fencing_token,
        checks=request.checks,
    )


def _saved(tx: Transaction, task: Task, request: BeginEffect, decision: EffectDecision) -> Task:
    """Save the intent, or that there is none; return the task."""
    intent = effects.intent_of(decision.state, request.fencing_token)
    step = Step(task.seq, decision.number, request.name, _NOTHING, tx.now, intent)
    if decision.new:
        task = copied(task)
        task.steps = (task.steps or 0) + 1
        tx.note_steps(task)
        tx.save_steps([step])
    elif decision.state != effects.DONE:
        tx.settle_steps([step])
    return task


def resolve_effect(
    tx: Transaction, requests: Sequence[ResolveEffect], now: int
) -> Iterator[object]:
    """Record what an operator says about an effect, and run its task again."""
    for request in requests:
        found = tx.tasks_by_id([request.id]).get(request.id)
        yield _resolved(tx, None if found is None else tx.task(found.seq), request, now)


def _resolved(
    tx: Transaction, task: Task | None, request: ResolveEffect, now: int
) -> Task | FairlaneError:
    if task is None:
        return NotFound(f'task "{request.id}" not found')
    if task.leased or task.state not in (lifecycle.PARKED, lifecycle.FAILED):
        message = (
            f'task "{task.id}" is {task.state}: an effect can be decided only while its '
            "task is parked or failed"
        )
        return Conflict(message, details={"state": task.state})
    value = _NOTHING if request.value is None else request.value
    known = tx.step_indexes([task])[task.seq]
    effect = effects.resolve(known, name=request.name, size=len(value))
    if isinstance(effect, FairlaneError):
        return effect
    if task.state == lifecycle.PARKED:
        (answer,) = requeueing.reset(tx, [Reset(task.id)], now)
    else:
        (answer,) = requeueing.retry(tx, [Retry(task.id)], now)
    if isinstance(answer, Task):
        intent = HAPPENED if request.happened else NOT_HAPPENED
        step = Step(task.seq, effect.number, effect.name, value, now, intent)
        tx.settle_steps([step])
        if request.happened:
            tx.tell_step(answer, step)
        return answer
    assert isinstance(answer, FairlaneError)
    return answer
