"""The fronts of a server: start them, restart them when they die, and distribute connections.

The process that writes accepts all connections and passes them on, as open files. So a front needs
no listening socket, every front gets its share, and the death of a front loses only the connections
that it served. While no front lives, the process that writes serves them itself. Otherwise it does
not: its few requests would be answered sooner than those of fronts, and so come more often, in
small commits.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import fairlane
from fairlane.cli.front import Begin, Stop
from fairlane.config import Settings
from fairlane.core.errors import OperatorError
from fairlane.embedded.app import Fairlane
from fairlane.engine.front_node import ShowMetrics
from fairlane.engine.fronts import Call, FrontLink, FrontLinks
from fairlane.engine.node import News
from fairlane.engine.writing_node import WritingNode
from fairlane.http.routes.metrics import MetricsText
from fairlane.http.server import HttpServer
from fairlane.services.registry import PerformOperation, perform_here
from fairlane.version import __version__

log = logging.getLogger("fairlane.fronts")

START_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 0.1  # before a front is started again; doubles each time
PAUSE_SECONDS_MAX: Final = 10.0
STEADY_SECONDS: Final = 60.0  # a front that has lived this long starts again without a pause
WATCH_SECONDS: Final = 5.0  # between two looks whether all fronts respond
LATE_SECONDS: Final = 2.0  # beyond the grace, until a front that does not stop is killed
_ACCEPTED_MAX: Final = 128  # in one turn of the event loop
_FULL_SECONDS: Final = 0.5  # until connections are accepted again when files have run out
_FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
# The package may not be installed; its folder comes last, so that it hides no other module.
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[3]); from fairlane.cli.front import main; main()"
)


class FrontProcess:
    """One front: its process, its link and the socket for its connections."""

    def __init__(
        self, process: asyncio.subprocess.Process, front: FrontLink, connections: socket.socket
    ) -> None:
        self.process = process
        self.front = front
        self._connections = connections

    def give(self, connection: socket.socket) -> bool:
        """Pass a connection to the front. Return False if the front cannot take it."""
        try:
            socket.send_fds(self._connections, [b"\0"], [connection.fileno()])
        except OSError:
            return False
        return True

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def stop(self, grace_seconds: float) -> None:
        """Let the front answer the requests that have arrived, and wait for its exit."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(grace_seconds + LATE_SECONDS):
                await self.front.link.ask(Stop(grace_seconds))[1]
                await self.process.wait()
        self.kill()
        await self.process.wait()

    def close(self) -> None:
        self._connections.close()


class Fronts:
    def __init__(
        self,
        node: WritingNode,
        count: int,
        begin: Callable[[], Begin],
        calls: Mapping[type, Call],
    ) -> None:
        self._node = node
        self._count = count
        self._begin = begin
        self._calls = calls
        self._links = FrontLinks(node)
        self._keepers: list[asyncio.Task[None]] = []
        self._reception: Reception | None = None
        self._stopping = False
        self.serving: list[FrontProcess] = []

    async def start(self) -> None:
        """Start all fronts. Raise an `OperatorError` if one of them does not start."""
        first = await asyncio.gather(
            *(self._start() for _ in range(self._count)), return_exceptions=True
        )
        for one in first:
            if isinstance(one, BaseException):
                raise one
            self._keepers.append(asyncio.create_task(self._keep(one), name="fairlane-front"))
        self._keepers.append(asyncio.create_task(self._watch(), name="fairlane-fronts"))

    def receive(self, listener: socket.socket, http: HttpServer) -> None:
        """Accept connections from now on, for this process and its fronts."""
        self._reception = Reception(listener, http, self)

    async def stop(self, grace_seconds: float) -> None:
        """Accept nothing more, and stop all fronts within the grace."""
        self._stopping = True
        if self._reception is not None:
            self._reception.close()
        await asyncio.gather(*(one.stop(grace_seconds) for one in self.serving))
        await self.close()

    async def close(self) -> None:
        """Kill the processes that are still running."""
        self._stopping = True
        for front in self.serving:
            front.kill()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _start(self) -> FrontProcess:
        ours, theirs = socket.socketpair()
        giving, taking = socket.socketpair()
        with theirs, taking:
            files = (theirs.fileno(), taking.fileno())
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", _PROGRAM, *map(str, files)),
                *(str(Path(fairlane.__file__).parents[1]), __version__),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=files,
                start_new_session=True,  # Ctrl-C is for the process that writes
            )
        giving.setblocking(False)
        link = FrontLink(self._node, self._calls, process.kill)
        front = FrontProcess(process, link, giving)
        try:
            await self._until_ready(front, ours)
        except BaseException:
            front.kill()
            front.close()
            await process.wait()
            raise
        self.serving.append(front)
        return front

    async def _until_ready(self, front: FrontProcess, end: socket.socket) -> None:
        await front.front.link.open(end)
        # It receives news from here on, so it misses none after `_begin` reads the node's state.
        self._links.add(front.front)
        try:
            async with asyncio.timeout(START_SECONDS):
                await front.front.link.ask(self._begin())[1]
                front.front.begun = True
                await front.front.link.ask(News())[1]  # it has heard everything before this
        except (TimeoutError, ConnectionError):
            self._links.remove(front.front)
            raise OperatorError(
                "a front process of the server did not start; see the log"
            ) from None
        except BaseException:
            self._links.remove(front.front)
            raise

    async def _keep(self, front: FrontProcess) -> None:
        """Start another front whenever one dies."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        while True:
            began = loop.time()
            code = await front.process.wait()
            self._forget(front)
            if self._stopping:
                return
            pause = 0.0 if loop.time() - began >= STEADY_SECONDS else _longer(pause)
            number = front.process.pid
            log.warning("front process %d ended with code %d; starting another", number, code)
            front = await self._again(pause)

    async def _watch(self) -> None:
        """End fronts that do not respond, so that others take their place."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            await self._links.end_silent()

    async def _again(self, pause: float) -> FrontProcess:
        while True:
            await asyncio.sleep(pause)
            pause = _longer(pause)
            try:
                return await self._start()
            except Exception as error:  # noqa: BLE001 - whatever it is, the others serve
                log.warning(
                    "a front process cannot be started; trying again in %.1f s: %s", pause, error
                )

    def _forget(self, front: FrontProcess) -> None:
        self.serving.remove(front)
        self._links.remove(front.front)
        front.close()


def _longer(pause: float) -> float:
    return min(max(PAUSE_SECONDS, 2 * pause), PAUSE_SECONDS_MAX)


def calls_of(node: WritingNode) -> dict[type, Call]:
    """Return the requests that fronts may make besides the writer's commands."""

    async def show_metrics(_: ShowMetrics) -> str:
        return await MetricsText(node).read()

    async def perform(asked: PerformOperation) -> object:
        return await perform_here(node, asked)

    return {PerformOperation: perform, ShowMetrics: show_metrics}


async def started(settings: Settings, app: Fairlane, hosts: list[str], *, exposed: bool) -> Fronts:
    """Return the running fronts of a server. Raise an `OperatorError` if they cannot start."""
    node = app.node

    def begin() -> Begin:
        return Begin(
            settings,
            name=node.name,
            hosts=hosts,
            port=app.port,
            exposed=exposed,
            policy=node.policy,
            draining=node.draining,
        )

    fronts = Fronts(node, settings.processes - 1, begin, calls_of(node))
    try:
        await fronts.start()
    except BaseException:
        await fronts.close()
        raise
    return fronts


class Reception:
    """Accepts connections and gives them to the fronts in turn."""

    def __init__(self, listener: socket.socket, http: HttpServer, fronts: Fronts) -> None:
        self._listener = listener
        self._http = http
        self._fronts = fronts
        self._loop = asyncio.get_running_loop()
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Accept nothing more."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_MAX):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                self._rest()
                return
            connection.setblocking(False)
            front = self._next()
            if front is not None and front.give(connection):
                connection.close()
            else:
                task = asyncio.ensure_future(self._http.adopt(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _next(self) -> FrontProcess | None:
        """Return the front whose turn it is; None if there is no front."""
        serving = self._fronts.serving
        self._turn += 1
        return serving[self._turn % len(serving)] if serving else None

    def _rest(self) -> None:
        """Pause when no more files can be opened: connections wait in the system's queue."""
        log.warning("no more connections can be accepted: too many open files")
        number = self._listener.fileno()
        self._loop.remove_reader(number)
        self._loop.call_later(_FULL_SECONDS, self._resume)

    def _resume(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)
