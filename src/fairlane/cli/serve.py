"""`fairlane serve`: the whole server in one process.

The first signal drains: no new work, what runs may finish, the rest is given back; exit 0. A second
signal ends at once. `kill -9` at any moment is safe.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from fairlane import config, logs, tracing
from fairlane.cli.policy_file import PolicyFile
from fairlane.config import Settings
from fairlane.core.errors import InvalidPolicy, OperatorError
from fairlane.embedded.app import ConfigWatcher, Fairlane, tune
from fairlane.http.app import HttpApp
from fairlane.http.cross_site import LOOPBACK, Doorkeeper, allowed, authorities, bracketed
from fairlane.http.holding import STREAMS_DEFAULT, WAITS_DEFAULT
from fairlane.http.limits import connections_max
from fairlane.http.server import HttpServer
from fairlane.mcp import endpoint as mcp
from fairlane.mcp.endpoint import Endpoint
from fairlane.worker import signals

log = logging.getLogger("fairlane")

POLICY_LOOK_SECONDS: Final = 0.5
# For responses at a stop, when running tasks have ended or were interrupted.
GRACE_SECONDS: Final = 5.0

# What is done while the server runs; it is told the address. Its end is the server's.
Beside = Callable[[str], Awaitable[None]]


def serve(settings: Settings, *, beside: Beside | None = None) -> None:
    """Run until a signal, or until `beside` has ended, which is given the address when it is ready.

    Raises an `OperatorError` when it cannot start.
    """
    logs.begin(settings.log_level, settings.log_format)
    logs.hide(config.secrets_of(settings))
    os.umask(0o077)  # whatever is made here is nobody else's
    listener = _listen(settings.host, settings.port)
    try:
        import uvloop  # noqa: PLC0415 - not on every system, and slow to import
    except ImportError:
        asyncio.run(_serve(settings, listener, beside))
    else:
        uvloop.run(_serve(settings, listener, beside))


async def _serve(settings: Settings, listener: socket.socket, beside: Beside | None) -> None:
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
    app.listens_on(listener.getsockname()[1])
    try:
        await app.start()
    except InvalidPolicy as error:
        raise policy.named(error) from None
    tune()
    watcher = _watch(policy, app)
    try:
        exposed = await _exposed(settings, app)
        hosts = hosts_of(settings, listener)
        agents = _endpoint(settings, app)
        routes = _routes(settings, app, agents, exposed=exposed)
        server = _Server(app, agents, HttpServer(routes, Doorkeeper(hosts)))
        await server.run(listener, _address(settings.host, listener), beside or _announce)
    finally:
        if watcher is not None:
            await watcher.stop()
        await app.stop()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)


async def _exposed(settings: Settings, app: Fairlane) -> bool:
    """Whether others than this machine can reach the server. Raises when nobody would be kept out.

    Where a token was never made, whoever comes is trusted.
    """
    if is_loopback(settings.host):
        return False
    await app.node.tokens.refresh()
    if not app.node.tokens.any:
        raise OperatorError(
            f"{settings.host} can be reached from other machines, and there is no token to keep "
            "them out: make one with fairlane token create --name NAME --store URL, "
            "or listen on 127.0.0.1"
        )
    return True


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name: nobody knows where it will lead


def _watch(policy: PolicyFile, app: Fairlane) -> ConfigWatcher | None:
    if policy.file is None:
        return None
    name = f"the policy file {policy.file}"
    watcher = ConfigWatcher(POLICY_LOOK_SECONDS, policy.load, app, name=name)
    watcher.start()
    return watcher


def _endpoint(settings: Settings, app: Fairlane) -> Endpoint | None:
    """What answers at /mcp; nothing does when the extra is not installed."""
    if settings.mcp_writes:
        mcp.require()
    return Endpoint(app.call_as, writes=settings.mcp_writes) if mcp.installed() else None


def _routes(
    settings: Settings, app: Fairlane, agents: Endpoint | None, *, exposed: bool
) -> HttpApp:
    """Return the routes to serve. Where connections are few, a caller may hold fewer of them."""
    most = connections_max()
    return HttpApp(
        app.node,
        app.guard.check,
        mounts={mcp.PATH: agents} if agents else None,
        exposed=exposed,
        max_streams=settings.max_streams or max(1, min(STREAMS_DEFAULT, most // 4)),
        max_waits=settings.max_waits or max(1, min(WAITS_DEFAULT, most // 2)),
    )


def hosts_of(settings: Settings, listener: socket.socket) -> list[str]:
    """What requests may call this server."""
    port = listener.getsockname()[1]
    return authorities([*LOOPBACK, settings.host], port) + allowed(settings.allowed_hosts, port)


class _Server:
    def __init__(self, app: Fairlane, agents: Endpoint | None, http: HttpServer) -> None:
        self._app = app
        self._agents = agents
        self._http = http
        self._signals = 0
        self._told = asyncio.Event()

    async def run(self, listener: socket.socket, address: str, beside: Beside) -> None:
        loop = asyncio.get_running_loop()
        for number in signals.stopping():
            loop.add_signal_handler(number, self._signalled, number)
        await self._http.start(listener)
        company = asyncio.ensure_future(beside(address))
        await asyncio.wait(
            {company, asyncio.create_task(self._told.wait())},
            return_when=asyncio.FIRST_COMPLETED,
        )
        company.cancel()
        await asyncio.wait({company})
        await self._app.drain()
        await self._http.stop(GRACE_SECONDS)
        if self._agents is not None:
            await self._agents.close()
        if not company.cancelled():
            company.result()

    def _signalled(self, number: signal.Signals) -> None:
        if self._told.is_set() and number == signal.SIGHUP:
            return  # a shell and the system both send it when one terminal is closed
        self._signals += 1
        if self._signals > 1:
            log.warning("ending at once; what was running will be taken up again")
            # Nothing to tidy up: every answer that was given is durable.
            signal.raise_signal(signal.SIGKILL)
        self._app.refuse_new()
        log.info("stopping: no new work; a second signal ends at once")
        self._told.set()


async def _announce(address: str) -> None:
    print(f"fairlane is listening on {address}", flush=True)  # noqa: T201 - for people and scripts
    await asyncio.Event().wait()


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
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def _way_out(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "stop what uses the port, or choose another with --port"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "choose a port from 1024 on with --port"
    return "give an address of this machine with --host"


def _address(host: str, listener: socket.socket) -> str:
    return f"http://{bracketed(host)}:{listener.getsockname()[1]}"
