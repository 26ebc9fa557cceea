"""Handlers: Python functions by name, and the two built-in ones.

Async functions run on the worker's loop, plain ones in threads of their own. Caution: nothing can
stop a thread. A plain function that is cancelled continues until it returns, and keeps its slot
until then; its result is discarded.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, TypeVar

import msgspec

from fairlane.core.errors import ExecutionFailed
from fairlane.worker.executors import capture, current, failures
from fairlane.worker.executors.asking import Suspended
from fairlane.worker.executors.base import Run, Work
from fairlane.worker.executors.threads import DaemonThreads

SLEEP_MS_MAX: Final = 600_000
THREADS_MAX: Final = 256

Handler = Callable[[Work], Any]
# Decorators return the function that they register with its own type.
H = TypeVar("H", bound=Handler)


async def echo(work: Work) -> object:
    """Return its params unchanged."""
    return work.request.get("params")


async def sleep(work: Work) -> object:
    """Do nothing for `params.ms` milliseconds."""
    params = work.request.get("params")
    ms = params.get("ms") if isinstance(params, dict) else None
    if not isinstance(ms, int) or isinstance(ms, bool) or not 0 <= ms <= SLEEP_MS_MAX:
        raise ExecutionFailed(
            f"sleep: params.ms must be a whole number from 0 to {SLEEP_MS_MAX}", retryable=False
        )
    await asyncio.sleep(ms / 1000)
    return {"sleptMs": ms}


BUILTIN: Final[Mapping[str, Handler]] = {"echo": echo, "sleep": sleep}


_decoder = msgspec.json.Decoder()


class HandlerExecutor:
    """Runs handlers. The mapping is read at each run, so later registrations are found too."""

    starts_itself = False

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        threads_max: int = THREADS_MAX,
        capture_output: bool = False,
    ) -> None:
        """With `capture_output`, what handlers print and log becomes output of their tasks."""
        self._handlers = handlers
        self._capture_output = capture_output
        self._captures = False
        self._threads = DaemonThreads(threads_max, name="fairlane-handler")

    def execute(self, run: Run) -> Coroutine[object, None, Any]:
        current.begin(run)
        if self._capture_output and run.work.request.get("handler") not in BUILTIN:
            self._start_capture()
            capture.begin()
        return self.run(self._handler(run.work), run.work)

    def _start_capture(self) -> None:
        """Replace the streams of the process when the first handler runs."""
        if not self._captures:
            self._captures = True
            capture.CAPTURE.start()

    async def run(self, handler: Handler, work: Work) -> Any:
        """Call the function, and turn its exception into a failure."""
        try:
            result = await (handler(work) if is_async(handler) else self._in_thread(handler, work))
        except ExecutionFailed:
            raise
        except asyncio.CancelledError as error:
            if _cancelled_from_outside():
                raise
            raise failures.from_exception(error) from error
        except (Exception, SystemExit) as error:
            raise failures.from_exception(error) from error
        return _json_able(result)

    async def close(self) -> None:
        """Return at once: functions still running in threads do not hold up the process."""
        self._threads.shutdown()
        if self._captures:
            self._captures = False
            capture.CAPTURE.stop()

    def _handler(self, work: Work) -> Handler:
        name = work.request.get("handler")
        if not isinstance(name, str) or name not in self._handlers:
            # Retryable, because another worker may have it.
            raise ExecutionFailed(failures.one_line(f'no handler "{name}" in this worker'))
        return self._handlers[name]

    async def _in_thread(self, handler: Handler, work: Work) -> object:
        context = contextvars.copy_context()
        thread = self._threads.submit(context.run, _call_plain, handler, work)
        result = await _ended(thread)
        # A plain wrapper around an async function returns its coroutine.
        return await result if inspect.isawaitable(result) else result


async def _ended(thread: concurrent.futures.Future[object]) -> object:
    """Return the function's result. Wait for a cancelled one that has begun: it cannot be stopped,
    and occupies its slot while it runs.
    """
    future = asyncio.wrap_future(thread)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if not thread.cancel():
            await asyncio.wait([future])
        raise


def _call_plain(handler: Handler, work: Work) -> object:
    """Call the function and convert its error in the thread: a future cannot carry StopIteration or
    sys.exit().
    """
    try:
        return handler(work)
    except (ExecutionFailed, Suspended):
        raise
    except BaseException as error:
        raise failures.from_exception(error) from error


def is_async(handler: Handler) -> bool:
    code = getattr(handler, "__code__", None)
    if code is not None and code.co_flags & inspect.CO_COROUTINE:
        return True
    if inspect.iscoroutinefunction(handler):
        return True
    call = getattr(handler, "__call__", None)  # noqa: B004 - an object may have an async __call__
    return inspect.iscoroutinefunction(call)


def _cancelled_from_outside() -> bool:
    """Return False if a handler only let a cancellation of its own through."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _json_able(result: object) -> object:
    """Return the result if its JSON can be read again. Raise `ExecutionFailed` if not."""
    if result is None:
        return None
    try:
        _decoder.decode(msgspec.json.encode(result))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ExecutionFailed(
            failures.one_line(f"the handler's result cannot be encoded as JSON: {error}"),
            retryable=False,
        ) from error
    return result
