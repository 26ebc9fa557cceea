"""`work.step`: run a function once, and return its recorded result in later runs.

The number of a step is its place among the calls of the run. It is taken when `work.step` is
called, not when the result is awaited, so steps that run at the same time keep their numbers.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from fairlane.core import steps
from fairlane.core.errors import CallerError, ExecutionFailed, FairlaneError, LeaseLost
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.steps import StepName
from fairlane.core.validation import DEPTH_MAX, too_deep
from fairlane.worker.executors import current

if TYPE_CHECKING:
    from fairlane.worker.executors.base import Run

T = TypeVar("T")


class StepCall(NamedTuple):
    """A call of a step: its number, its name, and the record of an earlier run, if there is one."""

    number: int
    name: str
    recorded: JsonObject | None


class StepLog:
    """The steps that earlier runs of a task recorded, and the next number of this run."""

    def __init__(self, recorded: Iterable[JsonObject]) -> None:
        self._recorded: Mapping[int, JsonObject] = {one["number"]: one for one in recorded}
        self._numbers = itertools.count(1)

    def call(self, name: str, *, effect: bool = False) -> StepCall:
        """Return the next step. Raise `ExecutionFailed` if another was recorded in its place."""
        try:
            msgspec.convert(name, StepName)
        except msgspec.ValidationError:
            problem = f"the name of a step must be a short word, not {name!r}"
            raise ExecutionFailed(problem, retryable=False) from None
        number = next(self._numbers)
        found = self._recorded.get(number)
        if found is not None and found["name"] != name:
            raise _refused(steps.mismatch(number, found["name"], name))
        if found is not None and found.get("effect") is not None and not effect:
            problem = f'step {number} "{name}" was recorded as an effect; call work.effect for it'
            raise ExecutionFailed(problem, retryable=False)
        return StepCall(number, name, found)


def step(
    name: str, function: Callable[..., object], args: tuple[object, ...], kwargs: JsonMapping
) -> object:
    """Return the result in a thread, and a coroutine that returns it in an async handler."""
    run, loop = current.running("record a step")
    call = run.steps.call(name)
    if current.is_on(loop):
        return _stepped(run, call, function, args, kwargs)
    if call.recorded is not None:
        return call.recorded["value"]
    result = function(*args, **kwargs)
    return in_thread(record(run, call, result), loop)


async def _stepped(
    run: Run,
    call: StepCall,
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: JsonMapping,
) -> object:
    if call.recorded is not None:
        return call.recorded["value"]
    result = function(*args, **kwargs)
    return await record(run, call, await result if inspect.isawaitable(result) else result)


async def record(run: Run, call: StepCall, result: object) -> object:
    """Record the result. Return it as later runs get it: as JSON gives it back."""
    value = _encoded(call.name, result)
    try:
        await run.checkpoint(call.number, call.name, value)
    except LeaseLost:
        raise
    except CallerError as error:
        raise _refused(error) from error
    return msgspec.json.decode(value)


def _encoded(name: str, result: object) -> bytes:
    """Return the JSON of a result. Raise `ExecutionFailed` if it cannot be recorded."""
    try:
        value = msgspec.json.encode(result)
        decoded = msgspec.json.decode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        problem = f'the value of step "{name}" cannot be encoded as JSON: {error}'
        raise ExecutionFailed(problem, retryable=False) from error
    if too_deep(decoded):
        problem = f'the value of step "{name}" must not be nested deeper than {DEPTH_MAX} levels'
        raise ExecutionFailed(problem, retryable=False)
    size = len(value.decode())
    if size > steps.VALUE_CHARACTERS_MAX:
        raise _refused(steps.too_large(name, size))
    return value


def _refused(error: FairlaneError) -> ExecutionFailed:
    """Return the failure of a step that no further attempt can record."""
    return ExecutionFailed(error.message, retryable=False)


def in_thread(doing: Coroutine[object, None, T], loop: asyncio.AbstractEventLoop) -> T:
    """Return the result of a coroutine that runs on the worker's loop."""
    return asyncio.run_coroutine_threadsafe(doing, loop).result()
