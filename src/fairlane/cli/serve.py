"""`fairlane serve`: the whole server in one process.

The first signal drains: no new work, what runs may finish, the rest is given back; exit 0. A second
signal ends at once. `kill -9` at any moment is safe.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from pathlib import Path
from typing import Any, Final

import uvicorn

from fairlane import wire
from fairlane.app import ConfigWatcher, Fairlane, tune
from fairlane.config import Settings
from fairlane.core.errors import InvalidPolicy, OperatorError
from fairlane.http.app import HttpApp
from fairlane.mcp import endpoint as mcp
from fairlane.mcp.endpoint import Endpoint

log = logging.getLogger("fairlane")

POLICY_LOOK_SECONDS: Final = 0.5
# Longer than clients keep a connection that they do not use, so that theirs is the end: what they
# send at the moment when a server hangs up is lost.
IDLE_SECONDS: Final = 75
LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
HTTP_PORT: Final = 80  # the one that a request need not name


def serve(settings: Settings) -> None:
    """Run until a signal. Raises an `OperatorError` when it cannot start."""
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for library in ("uvicorn", "mcp"):
        logging.getLogger(library).setLevel("WARNING")
    listener = _listen(settings.host, settings.port)
    try:
        import uvloop  # noqa: PLC0415 - not on every system, and slow to import
    except ImportError:
        asyncio.run(_serve(settings, listener))
    else:
        uvloop.run(_serve(settings, listener))


async def _serve(settings: Settings, listener: socket.socket) -> None:
    app = Fairlane(
        settings.store,
        instances=settings.instance,
        agent=settings.agent,
        allow_outbound=settings.allow_outbound,
        webhook_secret=settings.webhook_secret,
        drain_seconds=settings.drain_seconds,
        policy=policy_of(settings),
    )
    await app.start()
    tune()
    watcher = _watch_policy(settings, app)
    agents = _endpoint(settings, app, listener)
    server = _Server(app, listener, agents)
    try:
        await server.run(_address(settings.host, listener))
    finally:
        if watcher is not None:
            await watcher.stop()
        await app.stop()


def _watch_policy(settings: Settings, app: Fairlane) -> ConfigWatcher | None:
    if settings.policy is None:
        return None
    watcher = ConfigWatcher(POLICY_LOOK_SECONDS, lambda: policy_of(settings), app)
    watcher.start()
    return watcher


def _endpoint(settings: Settings, app: Fairlane, listener: socket.socket) -> Endpoint | None:
    """What answers at /mcp; nothing does when the extra is not installed."""
    if settings.mcp_writes:
        mcp.require()
    if not mcp.installed():
        return None
    port = listener.getsockname()[1]
    names = dict.fromkeys((*LOOPBACK, bracketed(settings.host)))
    hosts = [f"{name}:{port}" for name in names] + (list(names) if port == HTTP_PORT else [])
    return Endpoint(app.call, writes=settings.mcp_writes, authorities=hosts)


def policy_of(settings: Settings) -> dict[str, Any]:
    """What the policy file says, with the ceilings that are settings laid over it."""
    document = read_policy(Path(settings.policy)) if settings.policy else {}
    lanes = document.get("lanes", {})
    if not settings.lanes or not isinstance(lanes, dict):
        return document  # the policy complains about what is no object
    lanes = dict(lanes)
    for name, ceiling in settings.lanes.items():
        lane = lanes.get(name, {})
        if isinstance(lane, dict):
            lanes[name] = {**lane, "maxInflight": ceiling}
    return {**document, "lanes": lanes}


def read_policy(file: Path) -> dict[str, Any]:
    try:
        document: Any = wire.decode(file.read_bytes())
    except OSError as error:
        raise OperatorError(f"the policy file {file} cannot be read: {error.strerror}") from None
    except (wire.DecodeError, RecursionError) as error:
        raise InvalidPolicy([f"{file} is not valid JSON: {error}"]) from None
    if not isinstance(document, dict):
        raise InvalidPolicy([f"{file} must hold a JSON object"])
    return document


class _Server:
    def __init__(self, app: Fairlane, listener: socket.socket, agents: Endpoint | None) -> None:
        self._app = app
        self._agents = agents
        self._listener = listener
        self._signals = 0
        self._told = asyncio.Event()
        config = uvicorn.Config(
            HttpApp(app.node, app.guard.check, mounts={mcp.PATH: agents} if agents else None),
            lifespan="off",
            ws="none",
            proxy_headers=False,
            access_log=False,
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=IDLE_SECONDS,
            h11_max_incomplete_event_size=64 * 1024,
        )
        self._uvicorn = uvicorn.Server(config)

    async def run(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        # The public `serve` would put uvicorn's own signal handlers in place of these.
        serving = self._uvicorn._serve([self._listener])  # noqa: SLF001 - for the reason above
        listening = asyncio.create_task(serving)
        print(f"fairlane is listening on {address}", flush=True)  # noqa: T201 - for people and scripts
        await asyncio.wait(
            {listening, asyncio.create_task(self._told.wait())},
            return_when=asyncio.FIRST_COMPLETED,
        )
        await self._app.drain()
        self._uvicorn.should_exit = True
        await listening
        if self._agents is not None:
            await self._agents.close()

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals > 1:
            log.warning("ending at once; what was running will be taken up again")
            # Nothing to tidy up: every answer that was given is durable.
            signal.raise_signal(signal.SIGKILL)
        log.info("stopping: no new work; a second signal ends at once")
        self._told.set()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise OperatorError(
            f"cannot listen on {host}:{port}: {error.strerror}; "
            "stop what uses the port, or choose another with --port"
        ) from None
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def _address(host: str, listener: socket.socket) -> str:
    return f"http://{bracketed(host)}:{listener.getsockname()[1]}"


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
