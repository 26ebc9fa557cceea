"""The program of a front: a process of `fairlane serve --processes N` that serves requests.

Its parent, the process that writes, passes it two sockets: the link for commands, and one on which
accepted connections arrive. It ignores signals, because the parent tells it when to stop, and exits
as soon as the parent has exited.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Sequence
from typing import Final

import msgspec

from fairlane import config, logs, tracing
from fairlane.cli import edges
from fairlane.clock import SystemClock
from fairlane.config import Settings
from fairlane.core.errors import FairlaneError
from fairlane.core.policy import Policy
from fairlane.engine.front_node import FrontNode, RemoteWriter
from fairlane.engine.fronts import Measure
from fairlane.engine.links import Link
from fairlane.engine.node import News
from fairlane.engine.telemetry import process
from fairlane.engine.writing_node import Measures
from fairlane.http.cross_site import Doorkeeper
from fairlane.http.server import HttpServer
from fairlane.mcp.endpoint import McpEndpoint
from fairlane.outbound.guard import Guard
from fairlane.store.opening import open_store
from fairlane.tracing import Tracer
from fairlane.version import __version__
from fairlane.worker.executors.task_secrets import TaskSecrets

log = logging.getLogger("fairlane.front")

LOST: Final = 1  # the exit code of a front whose parent has ended


class Begin(msgspec.Struct, frozen=True):
    """Answer: None. Serve for the node `name`, under these host names."""

    settings: Settings
    name: str
    hosts: list[str]
    port: int | None
    exposed: bool
    policy: Policy
    draining: bool

    def __repr__(self) -> str:
        return f"Begin({self.name!r})"


class Stop(msgspec.Struct, frozen=True):
    """Answer: None, when the requests that have arrived are answered or the time is up."""

    grace_seconds: float


def main() -> None:
    """Serve with the sockets whose numbers are the first two arguments.

    The others are the folder of the package, and the version of the parent.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.argv[4] != __version__:
        sys.exit(f"fairlane {__version__} was installed over {sys.argv[4]}; restart the server")
    link, connections = (socket.socket(fileno=int(one)) for one in sys.argv[1:3])
    edges.run(_serve(link, connections))


async def _serve(link: socket.socket, connections: socket.socket) -> None:
    await Front(connections).run(link)


class Front:
    def __init__(self, connections: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._connections = connections
        self._link = Link(self._heard, self._lost, self._late)
        self._stopped = asyncio.Event()
        self._node: FrontNode | None = None
        self._http: HttpServer | None = None
        self._agents: McpEndpoint | None = None
        self._tracer: Tracer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, end: socket.socket) -> None:
        """Serve until the parent asks for a stop."""
        await self._link.open(end)
        await self._stopped.wait()
        if self._node is not None:
            await asyncio.to_thread(self._node.close)
        if self._tracer is not None:
            await asyncio.to_thread(self._tracer.close)
        self._link.close()

    # ---------------------------------------------------------------- the parent

    def _heard(self, items: Sequence[tuple[int, object]]) -> None:
        for number, value in items:
            if isinstance(value, News):
                self.node.hear(value)
                self._link.answer(number, None)
            elif isinstance(value, Begin):
                self._link.answer(number, self._begin(value))
            elif isinstance(value, Measure):
                self._link.answer(number, self._measures())
            elif isinstance(value, Stop):
                self._start(self._stop(number, value))

    def _lost(self) -> None:
        if not self._stopped.is_set():
            # Nothing to clean up: the parent, if it lives, releases undelivered leases.
            os._exit(LOST)

    def _late(self, answer: object) -> None:
        """Release leases whose caller has disconnected."""
        self.node.writer.give_back(answer)

    @property
    def node(self) -> FrontNode:
        assert self._node is not None, "the parent begins with Begin"
        return self._node

    def _begin(self, begin: Begin) -> FairlaneError | None:
        """Start the front. Return the error that prevents this, or None."""
        settings = begin.settings
        logs.begin(settings.log_level, settings.log_format)
        logs.hide(config.secrets_of(settings))
        clock = SystemClock()
        references = TaskSecrets(settings.allow_secrets, folder=settings.secrets_folder).references
        try:
            store = open_store(
                settings.store, secret_key=settings.secret_key, references=references
            )
        except FairlaneError as error:
            return error
        writer = RemoteWriter(self._link, begin.policy, clock)
        node = FrontNode(store, clock, name=begin.name, writer=writer, draining=begin.draining)
        node.tracer = self._tracer = tracing.from_settings(config.variable)
        self._node = node
        guard = Guard(
            settings.allow_outbound,
            deny=settings.deny_outbound,
            on_blocked=lambda host, reason: node.audit.blocked("outbound", host, reason=reason),
        )
        if begin.port is not None:
            guard.own_ports.add(begin.port)
        self._agents = edges.mcp_endpoint(settings, node)
        app = edges.routes(settings, node, guard.check, self._agents, exposed=begin.exposed)
        self._http = HttpServer(app, Doorkeeper(begin.hosts))
        self._loop.add_reader(self._connections.fileno(), self._receive)
        gc.freeze()
        return None

    async def _stop(self, number: int, stop: Stop) -> None:
        assert self._http is not None
        self._receive()  # connections that the parent accepted before it stopped
        self._loop.remove_reader(self._connections.fileno())
        await self._http.stop(stop.grace_seconds)
        if self._agents is not None:
            await self._agents.close()
        self._link.answer(number, None)
        self._stopped.set()

    def _measures(self) -> Measures:
        found = {name: value for name, (_, _, value) in process.measures().items()}
        return Measures(self.node.stream_clients, self.node.lease_waits, found)

    # ---------------------------------------------------------------- connections

    def _receive(self) -> None:
        """Take over the connections that the parent has accepted."""
        assert self._http is not None
        while True:
            try:
                data, files, _, _ = socket.recv_fds(self._connections, 1, 1)
            except (BlockingIOError, InterruptedError):
                return
            for file in files:
                self._start(self._http.adopt(socket.socket(fileno=file)))
            if not data:
                self._loop.remove_reader(self._connections.fileno())
                return

    def _start(self, work: Coroutine[object, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
