"""`work.sleep`, `work.signal`, `work.message`, `work.submit` and `work.results`: a run waits
without a slot; `work.inbox` takes messages.

Each wait is a step of the run. If it is not over yet, the lease ends, and `Suspended` ends the
handler; the next run gets what it waited for from the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from fairlane.core.errors import CallerError, ChildFailed, ExecutionFailed, LeaseLost
from fairlane.core.json_types import JsonObject
from fairlane.core.suspensions import Until
from fairlane.engine.verbs.steps import child_key
from fairlane.worker.executors import current, steps
from fairlane.worker.executors.asking import Suspended
from fairlane.worker.executors.steps import StepCall

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine

    from fairlane.worker.executors.base import Run

T = TypeVar("T")


class Waited(NamedTuple):
    """The value of a wait that has ended."""

    value: object


def sleep(seconds: float) -> object:
    return _wait("sleep", Until(delay_ms=max(0, round(seconds * 1000))))


def signal(name: str) -> object:
    return _wait(f"signal:{name}", Until(signal=name))


def message() -> object:
    return _wait("message", Until(message=True))


def inbox() -> object:
    run, loop = current.running("read its inbox")
    return _here(run.inbox(), loop)


def results(children: Sequence[object]) -> object:
    ids = [_task_id(child) for child in children]
    run, loop = current.running("wait for tasks")
    call = run.steps.call("results")
    return _here(_results(run, call, ids), loop)


def submit(fields: JsonObject) -> object:
    run, loop = current.running("submit a task")
    call = run.steps.call("submit")
    return _here(_submitted(run, call, fields), loop)


def _wait(name: str, until: Until) -> object:
    run, loop = current.running("wait")
    return _here(_waited(run, run.steps.call(name), until), loop)


def _here(
    doing: Coroutine[object, None, T], loop: asyncio.AbstractEventLoop
) -> Coroutine[object, None, T] | T:
    """Return the coroutine in an async handler, and its result in the thread of a plain one."""
    return doing if current.is_on(loop) else steps.in_thread(doing, loop)


async def _waited(run: Run, call: StepCall, until: Until) -> object:
    if call.recorded is not None:
        return call.recorded["value"]
    try:
        found = await run.suspend(call.number, call.name, until)
    except LeaseLost:
        raise
    except CallerError as error:
        raise ExecutionFailed(error.message, retryable=False) from error
    if found is None:
        raise Suspended
    return found.value


async def _results(run: Run, call: StepCall, ids: Sequence[str]) -> list[object]:
    if not ids:
        return []
    ends = cast("list[JsonObject]", await _waited(run, call, Until(tasks=[*ids])))
    known = {one["taskId"]: one for one in ends}
    found = []
    for id_ in ids:
        end = known.get(id_)
        if end is None:
            problem = f"the recorded results are not those of task {id_}: the steps have changed"
            raise ExecutionFailed(problem, retryable=False)
        if end["state"] != "done":
            raise ChildFailed(id_, end["state"], end.get("error"))
        if end.get("omitted"):
            problem = f"the result of task {id_} is too large to be recorded; read it from the task"
            raise ExecutionFailed(problem, retryable=False)
        found.append(end.get("result"))
    return found


async def _submitted(run: Run, call: StepCall, fields: JsonObject) -> str:
    """Submit a task once: a repeated run sends the same key."""
    if call.recorded is not None:
        return str(call.recorded["value"])
    key = child_key(run.work.task_id, call.number)
    try:
        mine = {"agent": run.work.agent, "child_of": run.work.task_id}
        task_id = await run.submit({**mine, **fields}, key)
    except LeaseLost:
        raise
    except CallerError as error:
        raise ExecutionFailed(error.message, retryable=False) from error
    return str(await steps.record(run, call, task_id))


def _task_id(child: object) -> str:
    if isinstance(child, str):
        return child
    return str(getattr(child, "task_id", None) or getattr(child, "id", child))
