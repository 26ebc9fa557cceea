"""`work.effect`: act on another system at most once per answer that is known.

The intent is recorded before the function runs and the outcome after it. If a run ended in between,
the next one does not act: `check` says what happened, or the task is parked for an operator and
`Suspended` ends the handler.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

from fairlane.core import effects
from fairlane.core.errors import (
    CallerError,
    EffectNotDone,
    EffectUnknown,
    ExecutionFailed,
    LeaseLost,
)
from fairlane.core.json_types import JsonMapping
from fairlane.worker.executors import current, steps
from fairlane.worker.executors.asking import Suspended
from fairlane.worker.executors.steps import StepCall

if TYPE_CHECKING:
    from fairlane.worker.executors.base import Run

Function = Callable[..., object]


def effect(
    name: str,
    function: Function,
    args: tuple[object, ...],
    kwargs: JsonMapping,
    check: Function | None,
) -> object:
    """Return the result in a thread, and a coroutine that returns it in an async handler."""
    run, loop = current.running("have an effect")
    call = run.steps.call(name, effect=True)
    act = functools.partial(_acted, function, args, kwargs)
    if current.is_on(loop):
        return _effected(run, call, act, check)
    if _is_known(call):
        return _recorded(call)
    key = effects.key_of(run.work.task_id, name)
    begun = steps.in_thread(_begin(run, call, checks=check is not None), loop)
    if begun == effects.UNKNOWN and check is not None:
        found = _or_not_done(check, key)
        if not _says_not_done(found):
            return steps.in_thread(steps.record(run, call, found), loop)
    try:
        result = act(key)
    except EffectNotDone:
        steps.in_thread(run.withdraw_effect(call.number, call.name), loop)
        raise
    return steps.in_thread(steps.record(run, call, result), loop)


async def _effected(
    run: Run, call: StepCall, act: Callable[[str], object], check: Function | None
) -> object:
    if _is_known(call):
        return _recorded(call)
    key = effects.key_of(run.work.task_id, call.name)
    begun = await _begin(run, call, checks=check is not None)
    if begun == effects.UNKNOWN and check is not None:
        found = _or_not_done(check, key)
        if inspect.isawaitable(found):
            try:
                found = await found
            except EffectNotDone as error:
                found = error
        if not _says_not_done(found):
            return await steps.record(run, call, found)
    try:
        result = act(key)
        result = await result if inspect.isawaitable(result) else result
    except EffectNotDone:
        await run.withdraw_effect(call.number, call.name)
        raise
    return await steps.record(run, call, result)


def _acted(function: Function, args: tuple[object, ...], kwargs: JsonMapping, key: str) -> object:
    return function(key, *args, **kwargs)


def _is_known(call: StepCall) -> bool:
    return call.recorded is not None and call.recorded.get("effect") in (None, effects.DONE)


def _recorded(call: StepCall) -> object:
    assert call.recorded is not None
    return call.recorded["value"]


async def _begin(run: Run, call: StepCall, *, checks: bool) -> str:
    try:
        return await run.begin_effect(call.number, call.name, checks=checks)
    except EffectUnknown:
        raise Suspended from None
    except LeaseLost:
        raise
    except CallerError as error:
        raise ExecutionFailed(error.message, retryable=False) from error


def _or_not_done(check: Function, key: str) -> object:
    try:
        return check(key)
    except EffectNotDone as error:
        return error


def _says_not_done(found: object) -> bool:
    return found is EffectNotDone or isinstance(found, EffectNotDone)
