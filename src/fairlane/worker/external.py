"""`fairlane.Worker`: a program of its own that runs handlers for a server on the network.

It uses the same loop as the server's own worker, with leases that come over HTTP. The first signal
drains: no new tasks, running ones may finish, the rest is released. A second signal ends the
process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from fairlane.client.transport import DEFAULT_URL
from fairlane.core.errors import InvalidSettings
from fairlane.core.model import HANDLER, capability_of, is_node
from fairlane.core.types import IDENTIFIER, WORD
from fairlane.worker import signals
from fairlane.worker.executors.base import Executor
from fairlane.worker.executors.builtin import H, Handler, HandlerExecutor
from fairlane.worker.loop import Loop
from fairlane.worker.remote import RemoteSource

log = logging.getLogger("fairlane.worker")

LEASE_SECONDS: Final = 30.0
RENEW_SECONDS: Final = 5.0
DRAIN_SECONDS: Final = 10.0
CONCURRENCY_MAX: Final = 1000


class Worker:
    """A program that leases tasks for its handlers from a server and runs them.

    If a lease is not renewed within `lease_seconds`, the attempt counts as failed and the task goes
    to another worker.

    Args:
        url: Address of the server
        token: Access token; by default that of FAIRLANE_TOKEN or FAIRLANE_TOKEN_FILE
        lanes: Lanes to lease from; all by default
        concurrency: Maximum number of tasks that run at once
        name: Name of this worker in leases and logs; by default host, process and a random part
        lease_seconds: How long a lease is valid without renewal
        renew_seconds: How often leases are renewed
        drain_seconds: How long running tasks may continue after a stop
        capture_output: Whether what handlers print and log becomes output of their tasks
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
        capture_output: bool = True,
    ) -> None:
        self.url = url
        self.token = token
        self.lanes = lanes
        self.concurrency = concurrency
        self.name = name or _new_name()
        self.lease_seconds = lease_seconds
        self.renew_seconds = renew_seconds
        self.drain_seconds = drain_seconds
        self.capture_output = capture_output
        self._handlers: dict[str, Handler] = {}
        self._loop: Loop | None = None
        self._stopping: asyncio.Event | None = None
        self._events: asyncio.AbstractEventLoop | None = None

    def handler(self, name: str) -> Callable[[H], H]:
        """Register an async or plain function as the handler `name`.

        The function takes a `Work` and returns the result. A plain function runs in a thread.
        """
        if not re.fullmatch(WORD, name):
            raise InvalidSettings([f"handler {name!r} must match ^{WORD}$"])

        def register(function: H) -> H:
            self._handlers[name] = function
            if self._loop is not None:
                self._loop.poke()
            return function

        return register

    @property
    def active(self) -> int:
        """Return the number of tasks that this worker holds."""
        return 0 if self._loop is None else self._loop.active

    async def run(self) -> None:
        """Lease and run tasks until `stop`; wait for a server that does not respond.

        Raise the error that the server responds with if the worker's lanes or name are wrong.
        """
        self._check()
        self._stopping = asyncio.Event()
        await self._run(self._stopping)

    def stop(self) -> None:
        """Drain and let `run` return. Safe to call from any thread and from signal handlers."""
        if self._events is not None and self._stopping is not None:
            self._events.call_soon_threadsafe(self._stopping.set)

    def serve(self, ready: Callable[[], None] = lambda: None) -> None:
        """Run until SIGTERM or Ctrl-C; for a program that is only a worker.

        `ready` is called when signal handlers are installed, before the first request.
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
            log.warning("stopping immediately; other workers will run the interrupted tasks")
            signal.raise_signal(signal.SIGKILL)
        self._stopping.set()
        log.info("stopping: no new tasks are leased; send a second signal to stop immediately")

    async def _run(self, stopping: asyncio.Event) -> None:
        self._events = asyncio.get_running_loop()
        lease_ms = round(self.lease_seconds * 1000)
        source = RemoteSource(
            self.url,
            worker=self.name,
            lanes=self.lanes,
            lease_ms=lease_ms,
            token=self.token,
            slots=self.concurrency,
        )
        executor = HandlerExecutor(
            self._handlers, threads_max=self.concurrency, capture_output=self.capture_output
        )
        loop = Loop(
            source,
            lambda: self._routes(executor),
            lambda: self.concurrency,
            renew_seconds=self.renew_seconds,
        )
        self._loop = loop
        source.keep_presence()
        try:
            await self._work(loop, stopping)
        finally:
            self._loop = None
            await executor.close()
            await source.close()

    async def _work(self, loop: Loop, stopping: asyncio.Event) -> None:
        running = asyncio.create_task(loop.run())
        signalled = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait([running, signalled], return_when=asyncio.FIRST_COMPLETED)
            await loop.drain(self.drain_seconds)
            await running
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            signalled.cancel()
            await loop.drain(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _routes(self, executor: Executor) -> Mapping[str, Executor]:
        return dict.fromkeys((capability_of(HANDLER, name) for name in self._handlers), executor)

    def _check(self) -> None:
        problems = []
        if not self._handlers:
            problems.append("a worker needs at least one handler; register it with @worker.handler")
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            problems.append(f"concurrency must be from 1 to {CONCURRENCY_MAX}")
        if not re.fullmatch(IDENTIFIER, self.name) or is_node(self.name):
            problems.append(f"name must match ^{IDENTIFIER}$ and not start with node_")
        if not 0 < self.renew_seconds < self.lease_seconds <= 86_400:
            problems.append(
                "renew_seconds must be less than lease_seconds, and lease_seconds at most a day"
            )
        if problems:
            raise InvalidSettings(problems)


def _new_name() -> str:
    """Return a name that tells the machine, the process and its start."""
    host = "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname()[:60])
    return f"worker-{host}-{os.getpid()}-{secrets.token_hex(4)}"
