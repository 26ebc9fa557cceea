"""`fairlane.Worker`: a program of its own that runs handlers for a server on the network.

It is the loop of the server's own worker over leases that come by HTTP. The first signal drains:
nothing new, what runs may finish, the rest is given back; a second one ends at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fairlane import signals
from fairlane.client.transport import DEFAULT_URL
from fairlane.core.errors import InvalidSettings
from fairlane.core.model import HANDLER, is_node, route_of
from fairlane.schema.fields import IDENTIFIER, WORD
from fairlane.worker.executors.base import Executor
from fairlane.worker.executors.builtin import Handler, HandlerExecutor
from fairlane.worker.loop import Loop
from fairlane.worker.remote import RemoteSource

log = logging.getLogger("fairlane.worker")

LEASE_SECONDS: Final = 30.0
RENEW_SECONDS: Final = 5.0
DRAIN_SECONDS: Final = 10.0
CONCURRENCY_MAX: Final = 1000


class Worker:
    """Leases tasks of its handlers and runs up to `concurrency` of them at once.

    No lanes means all. A lease that is not renewed for `lease_seconds` is over: the server then
    counts an attempt and gives the task to another worker.
    `token` None is what FAIRLANE_TOKEN says.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        lanes: Sequence[str] = (),
        concurrency: int = 10,
        name: str | None = None,
        lease_seconds: float = LEASE_SECONDS,
        renew_seconds: float = RENEW_SECONDS,
        drain_seconds: float = DRAIN_SECONDS,
    ) -> None:
        self.url = url
        self.token = token
        self.lanes = lanes
        self.concurrency = concurrency
        self.name = name or _new_name()
        self.lease_seconds = lease_seconds
        self.renew_seconds = renew_seconds
        self.drain_seconds = drain_seconds
        self._handlers: dict[str, Handler] = {}
        self._loop: Loop | None = None
        self._stopping: asyncio.Event | None = None
        self._events: asyncio.AbstractEventLoop | None = None

    def handler(self, name: str) -> Callable[[Handler], Handler]:
        """Register a function, async or plain, for tasks with `handler=name`."""
        if not WORD.fullmatch(name):
            raise InvalidSettings([f"handler {name!r} must match ^{WORD.pattern}$"])

        def register(function: Handler) -> Handler:
            self._handlers[name] = function
            if self._loop is not None:
                self._loop.poke()
            return function

        return register

    @property
    def active(self) -> int:
        """How many tasks it has in hand."""
        return 0 if self._loop is None else self._loop.active

    async def run(self) -> None:
        """Lease and run until `stop`; a server that is away is waited for.

        Raises what the server says is wrong with the worker's lanes or name.
        """
        self._check()
        self._stopping = asyncio.Event()
        await self._run(self._stopping)

    def stop(self) -> None:
        """Drain and let `run` return. Safe from any thread, and from signal handlers."""
        if self._events is not None and self._stopping is not None:
            self._events.call_soon_threadsafe(self._stopping.set)

    def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Run until SIGTERM or Ctrl-C: a program that is nothing but a worker.

        `ready` is called when signals are heeded and it is about to ask for work.
        """
        asyncio.run(self._serve(ready))

    async def _serve(self, ready: Callable[[], None]) -> None:
        self._check()
        loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        for number in signals.stopping():
            loop.add_signal_handler(number, self._signalled, number)
        ready()
        await self._run(self._stopping)

    def _signalled(self, number: signal.Signals) -> None:
        assert self._stopping is not None
        if self._stopping.is_set() and number == signal.SIGHUP:
            return  # a shell and the system both send it when one terminal is closed
        if self._stopping.is_set():
            log.warning("ending at once; what was running will be taken up again")
            signal.raise_signal(signal.SIGKILL)
        self._stopping.set()
        log.info("stopping: no new work; a second signal ends at once")

    async def _run(self, stopping: asyncio.Event) -> None:
        self._events = asyncio.get_running_loop()
        lease_ms = round(self.lease_seconds * 1000)
        source = RemoteSource(
            self.url, worker=self.name, lanes=self.lanes, lease_ms=lease_ms, token=self.token
        )
        executor = HandlerExecutor(self._handlers, threads_max=self.concurrency)
        loop = Loop(
            source,
            lambda: self._routes(executor),
            lambda: self.concurrency,
            renew_seconds=self.renew_seconds,
        )
        self._loop = loop
        try:
            await self._work(loop, stopping)
        finally:
            self._loop = None
            await executor.close()
            await source.close()

    async def _work(self, loop: Loop, stopping: asyncio.Event) -> None:
        running = asyncio.create_task(loop.run())
        told = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([running, told], return_when=asyncio.FIRST_COMPLETED)
            await loop.drain(self.drain_seconds)
            await running
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            told.cancel()
            await loop.drain(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _routes(self, executor: Executor) -> Mapping[str, Executor]:
        return dict.fromkeys((route_of(HANDLER, name) for name in self._handlers), executor)

    def _check(self) -> None:
        problems = []
        if not self._handlers:
            problems.append("a worker needs at least one handler; register it with @worker.handler")
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            problems.append(f"concurrency must be from 1 to {CONCURRENCY_MAX}")
        if not IDENTIFIER.fullmatch(self.name) or is_node(self.name):
            problems.append(f"name must match ^{IDENTIFIER.pattern}$ and not begin with node_")
        if not 0 < self.renew_seconds < self.lease_seconds <= 86_400:
            problems.append(
                "renew_seconds must be smaller than lease_seconds, and that at most a day"
            )
        if problems:
            raise InvalidSettings(problems)


def _new_name() -> str:
    """Which machine, which process, and which start of it."""
    host = "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname()[:60])
    return f"worker-{host}-{os.getpid()}-{secrets.token_hex(4)}"
