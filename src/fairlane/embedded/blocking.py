"""The scheduler inside a program without an event loop, such as a script or a WSGI application.

A thread runs the loop, and each call waits for its answer from there.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Self, TypeVar

from fairlane.client.base import AsyncShapes, BaseClient, Shape, Shapes
from fairlane.client.methods import Q, R
from fairlane.core import lifecycle
from fairlane.core.access import TRUSTED
from fairlane.embedded.app import Fairlane
from fairlane.embedded.handles import TaskHandle
from fairlane.schema.events import LIST_EVENTS, ListEvents
from fairlane.schema.operation import Operation
from fairlane.schema.tasks import TaskAccepted
from fairlane.services import catalog, following
from fairlane.worker.executors.builtin import H

T = TypeVar("T")


class SyncFairlane(BaseClient):
    """`Fairlane` with the methods of `Client`; use it as `with SyncFairlane(...) as app:`.

    It takes the arguments of `Fairlane`. Any number of threads may use it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.app = Fairlane(*arguments, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fairlane", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._call(self.app.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def close(self) -> None:
        """Let running tasks finish within the drain limit, and stop the thread."""
        if self._loop.is_closed():
            return
        try:
            self._call(self.app.__aexit__(None, None, None))
        finally:
            self._end()

    def handler(self, name: str) -> Callable[[H], H]:
        """Register a plain or async function as the handler `name`; a plain one gets a thread."""
        return self.app.handler(name)

    def result(self, task_id: str, timeout: float | None = None) -> Any:
        """Wait for the end of a task and return its result.

        Raise `TaskFailed` if it did not end done, `TimeoutError` after `timeout` seconds.
        """
        handle = TaskHandle(self.app, TaskAccepted(task_id, lifecycle.QUEUED, 0, ""))
        return self._call(handle.result(timeout))

    def perform(self, operation: Operation[Q, R], request: Q) -> R:
        """Carry out a declared operation and return its typed response."""
        return self._call(self.app.perform(operation, request))

    def _follow_events(self, request: ListEvents) -> Shapes:
        wanted = catalog.checked(LIST_EVENTS, request)
        if wanted.after is None:
            wanted.after = self.app.node.views.last_event()
        return self._each(following.each_event(self.app.node, TRUSTED, wanted))

    def _follow_output(self, task_id: str) -> Shapes:
        return self._each(following.each_piece(self.app.node, TRUSTED, task_id))

    def _each(self, stream: AsyncShapes) -> Generator[Shape, None, None]:
        async def following() -> Shape | None:
            return await anext(stream, None)

        async def close() -> None:
            await stream.aclose()

        try:
            while (shape := self._call(following())) is not None:
                yield shape
        finally:
            if not self._loop.is_closed():
                self._call(close())

    def _call(self, coroutine: Coroutine[object, None, T]) -> T:
        if self._loop.is_closed() or not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("this SyncFairlane is not running; use `with`")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
