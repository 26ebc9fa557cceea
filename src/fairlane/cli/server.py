"""The server that `fairlane serve` runs until a signal, and its policy file.

The first signal drains: the server accepts no new work, running tasks may finish, the rest is
released, and the exit code is 0. A second signal ends it immediately. `kill -9` is always safe.
SIGUSR1 drains and starts the program again, in the same process.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from fairlane import config, logs, tracing
from fairlane.cli import edges
from fairlane.cli.commands import Exit
from fairlane.cli.direct import location
from fairlane.cli.output import print_error
from fairlane.compat import policies
from fairlane.config import Settings
from fairlane.core.errors import InvalidPolicy, OperatorError, StoreMoved
from fairlane.core.json_types import JsonObject
from fairlane.core.workers import KnownWorker
from fairlane.embedded.app import ConfigWatcher, Fairlane, tune
from fairlane.http.cross_site import (
    HTTP_PORT,
    LOOPBACK,
    Doorkeeper,
    allowed,
    authorities,
    bracketed,
)
from fairlane.http.limits import UNACCEPTED_MAX
from fairlane.http.server import HttpServer
from fairlane.mcp.endpoint import McpEndpoint
from fairlane.schema import wire
from fairlane.store.opening import MEMORY_URL
from fairlane.version import __version__
from fairlane.worker import signals

if TYPE_CHECKING:
    from fairlane.cli.fronts import Fronts

log = logging.getLogger("fairlane")

POLICY_LOOK_SECONDS: Final = 0.5
# Time for responses at a stop, after running tasks have ended or were interrupted.
GRACE_SECONDS: Final = 5.0

MOVED_SECONDS: Final = 0.5

# Runs beside the server and receives its address. The server stops when it returns.
Beside = Callable[[str], Awaitable[None]]


def serve(settings: Settings, *, beside: Beside | None = None) -> None:
    """Run until a signal, or until `beside` returns; it receives the address of the server.

    Raises `OperatorError` if the server cannot start.
    """
    _check_processes(settings)
    logs.begin(settings.log_level, settings.log_format)
    logs.hide(config.secrets_of(settings))
    os.umask(0o077)  # no other user may read the files that are created
    listener = listen(settings)
    try:
        again = edges.run(_serve(settings, listener, beside))
    finally:
        if settings.uds is not None:
            Path(settings.uds).unlink(missing_ok=True)
    if again:
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - as it was started


async def _serve(settings: Settings, listener: socket.socket, beside: Beside | None) -> bool:
    """Run until a signal. Return whether to start again."""
    tracer = tracing.from_settings(config.variable)
    policy = PolicyFile(settings.policy, settings.lanes)
    app = Fairlane(
        settings.store,
        instances=settings.instance,
        agent=settings.agent,
        allow_outbound=settings.allow_outbound,
        deny_outbound=settings.deny_outbound,
        webhook_secret=settings.webhook_secret,
        secret_key=settings.secret_key,
        allow_secrets=settings.allow_secrets,
        secrets_folder=settings.secrets_folder,
        drain_seconds=settings.drain_seconds,
        policy=policy.load(),
        tracer=tracer,
    )
    if settings.uds is None:
        app.listens_on(listener.getsockname()[1])
    try:
        await app.start()
    except InvalidPolicy as error:
        raise policy.named(error) from None
    tune()
    watcher = _watch(policy, app)
    fronts: Fronts | None = None
    try:
        exposed = await _exposed(settings, app)
        hosts = hosts_of(settings, listener)
        fronts = await _start_fronts(settings, app, hosts, exposed=exposed)
        agents = edges.mcp_endpoint(settings, app.node)
        routes = edges.routes(settings, app.node, app.guard.check, agents, exposed=exposed)
        server = _Server(app, agents, HttpServer(routes, Doorkeeper(hosts)), fronts)
        announce = partial(_announce, settings, app)
        await server.run(listener, _address(settings, listener), beside or announce)
        return server.starts_again
    finally:
        if fronts is not None:
            await fronts.close()
        if watcher is not None:
            await watcher.stop()
        await app.stop()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


async def _exposed(settings: Settings, app: Fairlane) -> bool:
    """Return whether other machines can reach the server.

    Raises `OperatorError` if they can and no token exists: the server would trust every caller.
    """
    if settings.uds is not None or is_loopback(settings.host):
        return False
    await app.node.tokens.refresh()
    if not app.node.tokens.any:
        raise OperatorError(
            f"other machines can reach {settings.host}, but no access token exists: create one "
            "with fairlane token create --name NAME --store URL, or listen on 127.0.0.1"
        )
    return True


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a host name may resolve to any address


def _watch(policy: PolicyFile, app: Fairlane) -> ConfigWatcher | None:
    if policy.file is None:
        return None
    name = f"the policy file {policy.file}"
    watcher = ConfigWatcher(POLICY_LOOK_SECONDS, policy.load, app, name=name)
    watcher.start()
    return watcher


def _check_processes(settings: Settings) -> None:
    """Raise an `OperatorError` if several processes cannot serve here."""
    if settings.processes == 1:
        return
    if settings.store == MEMORY_URL:
        raise OperatorError(
            "several processes need a store that they can share; give one with --store "
            "sqlite:///PATH or postgresql://…, or leave out --processes"
        )
    if not hasattr(socket, "send_fds"):
        raise OperatorError(
            "several processes need an operating system that passes open connections between "
            "them, such as Linux or macOS; leave out --processes here"
        )


async def _start_fronts(
    settings: Settings, app: Fairlane, hosts: list[str], *, exposed: bool
) -> Fronts | None:
    """Start the other processes of the server, if the settings ask for any."""
    if settings.processes == 1:
        return None
    from fairlane.cli import fronts  # noqa: PLC0415 - one process needs none of it

    return await fronts.started(settings, app, hosts, exposed=exposed)


def hosts_of(settings: Settings, listener: socket.socket) -> list[str]:
    """Return the host names under which requests may address this server.

    Requests to a Unix socket name no port.
    """
    if settings.uds is not None:
        return authorities(LOOPBACK, HTTP_PORT) + allowed(settings.allowed_hosts, HTTP_PORT)
    port = listener.getsockname()[1]
    return authorities([*LOOPBACK, settings.host], port) + allowed(settings.allowed_hosts, port)


class _Server:
    def __init__(
        self, app: Fairlane, agents: McpEndpoint | None, http: HttpServer, fronts: Fronts | None
    ) -> None:
        self._app = app
        self._fronts = fronts
        self._agents = agents
        self._http = http
        self._signals = 0
        self.starts_again = False
        self._stop_asked = asyncio.Event()
        self._moved: StoreMoved | None = None

    async def run(self, listener: socket.socket, address: str, beside: Beside) -> None:
        loop = asyncio.get_running_loop()
        for number in signals.stopping():
            loop.add_signal_handler(number, self._signalled, number)
        loop.add_signal_handler(signal.SIGUSR1, self._asked_to_restart)
        self._app.node.writer.on_moved = lambda error: _tell(loop, self._stop_moved, error)
        if self._fronts is None:
            await self._http.start(listener)
        else:
            self._fronts.receive(listener, self._http)
        company = asyncio.ensure_future(beside(address))
        await asyncio.wait(
            {company, asyncio.create_task(self._stop_asked.wait())},
            return_when=asyncio.FIRST_COMPLETED,
        )
        company.cancel()
        await asyncio.wait({company})
        if self._moved is not None:
            await self._leave(self._moved)
        await self._app.drain()
        stopping = [self._http.stop(GRACE_SECONDS)]
        if self._fronts is not None:
            stopping.append(self._fronts.stop(GRACE_SECONDS))
        await asyncio.gather(*stopping)
        if self._agents is not None:
            await self._agents.close()
        if not company.cancelled():
            company.result()

    def _stop_moved(self, error: StoreMoved) -> None:
        self._moved = error
        self._stop_asked.set()

    async def _leave(self, error: StoreMoved) -> NoReturn:
        """End the process without a drain: nothing can be reported to this store any more, and the
        runs start again from the other one.
        """
        await self._http.stop(MOVED_SECONDS)  # requests that wait get their 503
        print_error(error, as_json=False)
        sys.stderr.flush()
        os._exit(Exit.SET_UP)

    def _asked_to_restart(self) -> None:
        """Drain, and start again with the same arguments in the same process."""
        if not self._stop_asked.is_set():
            self.starts_again = True
            log.info("restarting: running tasks may finish first")
            self._signalled(signal.SIGUSR1)

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop_asked.is_set() and number == signal.SIGHUP:
            return  # closing a terminal sends the signal twice: from the shell and from the system
        self._signals += 1
        if self._signals > 1:
            log.warning("second signal: stopping immediately; running tasks will be retried")
            # Nothing to clean up: every response that was sent is durable.
            signal.raise_signal(signal.SIGKILL)
        self._app.refuse_new()
        log.info("stopping: no new work is accepted; send a second signal to stop immediately")
        self._stop_asked.set()


def _tell(
    loop: asyncio.AbstractEventLoop, stop: Callable[[StoreMoved], None], error: StoreMoved
) -> None:
    loop.call_soon_threadsafe(stop, error)


async def _announce(settings: Settings, app: Fairlane, address: str) -> None:
    """Print where the server is and what it runs. Scripts read the first line."""
    lines = [f"fairlane is listening on {address}", *_facts(settings, app, address)]
    print("\n".join(lines), flush=True)  # noqa: T201 - for people and scripts
    await asyncio.Event().wait()


def _facts(settings: Settings, app: Fairlane, address: str) -> Iterator[str]:
    own = KnownWorker(app.node.name, app.node.name, app.node.runs() or frozenset())
    yield f"  version    {__version__}"
    if settings.uds is None:
        yield f"  dashboard  {address}/"
    yield f"  store      {location(settings.store)}"
    yield f"  workers    one inside the server, for {', '.join(own.handlers)}; see fairlane workers"
    yield "  stop       Ctrl-C"


def listen(settings: Settings) -> socket.socket:
    """Return the listening socket. Raise an `OperatorError` if the address cannot be used."""
    if settings.uds is None:
        return _listen(settings.host, settings.port)
    return _listen_unix(settings.uds)


def _listen_unix(path: str) -> socket.socket:
    """Listen on a Unix socket that only this user can connect to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        listener.bind(path)
        Path(path).chmod(0o700)
        listener.listen(UNACCEPTED_MAX)
    except OSError as error:
        listener.close()
        raise OperatorError(
            f"cannot listen on {path}: {error.strerror or error}; choose another path with --uds"
        ) from None
    listener.setblocking(False)
    return listener


def _remove_stale(path: str) -> None:
    """Remove the socket of a server that was killed. Raise `OSError` if a server responds there."""
    file = Path(path)
    if not file.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            file.unlink()
            return
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OperatorError(
            f"cannot listen on {bracketed(host)}:{port}: {error.strerror}; {_way_out(error)}"
        ) from None
    listener.listen(UNACCEPTED_MAX)
    listener.setblocking(False)
    return listener


def _way_out(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "stop the program that uses the port, or choose another port with --port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "choose a port above 1023 with --port"
    return "use an address of this machine with --host"


def _address(settings: Settings, listener: socket.socket) -> str:
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    return f"http://{bracketed(settings.host)}:{listener.getsockname()[1]}"


# -------------------------------------------------------------------- the policy file


class PolicyFile:
    """The policy file, if there is one. Lane ceilings from the settings override it."""

    def __init__(self, file: str | None, ceilings: Mapping[str, int]) -> None:
        self.file = Path(file) if file else None
        self._ceilings = ceilings
        self._notes: list[str] = []

    def load(self) -> JsonObject:
        """Return the document to apply on top of the policy. Log what it ignores, once."""
        if self.file is None:
            return _with_ceilings({}, self._ceilings)
        document = _read(self.file)
        before, self._notes = self._notes, policies.notes(document)
        if self._notes != before:
            for note in self._notes:
                log.info("the policy file %s: %s", self.file, note)
        return _with_ceilings(policies.reduced(document), self._ceilings)

    def named(self, error: InvalidPolicy) -> InvalidPolicy:
        """Return the error with the file name before each problem."""
        if self.file is None:
            return error
        return InvalidPolicy([f"{self.file}: {problem}" for problem in error.problems])


def _with_ceilings(document: JsonObject, ceilings: Mapping[str, int]) -> JsonObject:
    lanes = document.get("lanes", {})
    if not ceilings or not isinstance(lanes, dict):
        return document  # the policy reports that it is not an object
    lanes = dict(lanes)
    for name, ceiling in ceilings.items():
        lane = lanes.get(name, {})
        if isinstance(lane, dict):
            lanes[name] = {**lane, "maxInflight": ceiling}
    return {**document, "lanes": lanes}


def _read(file: Path) -> JsonObject:
    try:
        document: object = wire.decode(file.read_bytes())
    except OSError as error:
        raise OperatorError(f"cannot read the policy file {file}: {error.strerror}") from None
    except (wire.DecodeError, RecursionError) as error:
        raise InvalidPolicy([f"{file} is not valid JSON: {error}"]) from None
    if not isinstance(document, dict):
        raise InvalidPolicy([f"{file} must contain a JSON object"])
    return document
