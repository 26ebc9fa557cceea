"""Run a coroutine on the event loop like `asyncio.Task`, but start it at once.

Most requests wait for nothing or for one future. For them a task costs more than the rest of the
server's work: it is registered, started in another turn of the loop, and removed again.
`asyncio.current_task`, and so `asyncio.timeout`, see this as a task. Code that needs more, such as
a task group, creates a real one.
"""

from __future__ import annotations

import asyncio
import contextvars
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Coroutine
from typing import Any


class Driver:
    __slots__ = (
        "__weakref__",
        "_cancels",
        "_context",
        "_coroutine",
        "_done",
        "_loop",
        "_must_cancel",
        "_waiting",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[object, None, None]
    ) -> None:
        self._loop = loop
        self._coroutine = coroutine
        self._context = contextvars.copy_context()
        self._waiting: Any = None  # the future that the coroutine waits for
        self._cancels = 0
        self._must_cancel = False
        self._done = False

    def start(self) -> None:
        """Run the coroutine until it waits or ends. Must not be called by a task."""
        self._context.run(self._step)

    def done(self) -> bool:
        return self._done

    def cancel(self, msg: object = None) -> bool:
        """Raise `CancelledError` where the coroutine waits. Return whether it was still running."""
        if self._done:
            return False
        self._cancels += 1
        if self._waiting is None or not self._waiting.cancel(msg=msg):
            self._must_cancel = True
        return True

    def cancelling(self) -> int:
        return self._cancels

    def uncancel(self) -> int:
        self._cancels = max(0, self._cancels - 1)
        if not self._cancels:
            self._must_cancel = False
        return self._cancels

    def _step(self, _: object = None) -> None:
        self._waiting = None
        _enter_task(self._loop, self)  # type: ignore[arg-type]  # made for such classes
        try:
            if self._must_cancel:
                self._must_cancel = False
                future = self._coroutine.throw(asyncio.CancelledError())
            else:
                future = self._coroutine.send(None)
        except (StopIteration, asyncio.CancelledError):
            self._done = True
        except BaseException:
            self._done = True
            raise  # to the loop, which logs it
        else:
            self._wait(future)
        finally:
            _leave_task(self._loop, self)  # type: ignore[arg-type]  # the same

    def _wait(self, future: Any) -> None:
        """Continue when the future is done; without one, in the next turn of the loop."""
        if future is None:
            self._loop.call_soon(self._step, context=self._context)
            return
        assert future._asyncio_future_blocking, "a coroutine may wait for asyncio's futures only"  # noqa: SLF001 - as Task does
        future._asyncio_future_blocking = False  # noqa: SLF001 - the same
        future.add_done_callback(self._step, context=self._context)
        self._waiting = future
        if self._must_cancel and future.cancel():
            self._must_cancel = False
