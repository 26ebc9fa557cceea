"""Listeners: functions of this process that are called for every event, in order.

A separate task reads events from the log, so a slow listener delays only the other listeners. Plain
functions run in a thread. An exception in a listener is logged and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from fairlane.core.json_types import JsonObject
from fairlane.worker.executors.threads import DaemonThreads

log = logging.getLogger("fairlane.listeners")

Listener = Callable[[JsonObject], object]
L = TypeVar("L", bound=Listener)
Events = AsyncGenerator[JsonObject, None]


class Listeners:
    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._threads = DaemonThreads(1, name="fairlane-listener")
        self._telling: asyncio.Task[None] | None = None

    def add(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def begin(self, events: Callable[[], Events]) -> None:
        """Start calling the listeners, if there are any and they are not being called yet."""
        if self._listeners and self._telling is None:
            self._telling = asyncio.create_task(self._tell_all(events()), name="fairlane-listeners")

    async def end(self, seconds: float) -> None:
        """Wait up to `seconds` for the listeners to receive the last events."""
        if self._telling is not None:
            await asyncio.wait({self._telling}, timeout=seconds)
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        self._threads.shutdown()

    async def _tell_all(self, events: Events) -> None:
        async with aclosing(events):
            async for event in events:
                for listener in tuple(self._listeners):
                    await self._tell(listener, event)

    async def _tell(self, listener: Listener, event: JsonObject) -> None:
        try:
            await self._called(listener, event)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.warning("a listener was cancelled at event %d (%s)", event["id"], event["type"])
        except (Exception, SystemExit):
            log.exception("a listener failed at event %d (%s)", event["id"], event["type"])

    async def _called(self, listener: Listener, event: JsonObject) -> None:
        if inspect.iscoroutinefunction(listener):
            await listener(event)
            return
        context = contextvars.copy_context()
        answer = await asyncio.wrap_future(self._threads.submit(context.run, listener, event))
        if inspect.isawaitable(answer):  # a plain wrapper around an async function
            await answer
