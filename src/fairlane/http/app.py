"""The ASGI application: one table of routes, one place where errors become answers."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fairlane.core.errors import FairlaneError, NotFound
from fairlane.engine.node import Node
from fairlane.http.answers import (
    Answer,
    Handler,
    Receive,
    Request,
    Scope,
    Send,
    Stream,
    refusal,
    send_answer,
    send_stream,
)
from fairlane.http.batches import Batches
from fairlane.http.cron import Cron
from fairlane.http.events import Events
from fairlane.http.lanes import Lanes
from fairlane.http.leases import Leases
from fairlane.http.policy import Policies
from fairlane.http.queue import Queue
from fairlane.http.sessions import Sessions
from fairlane.http.tasks import Tasks
from fairlane.http.templates import Templates
from fairlane.version import __version__

log = logging.getLogger("fairlane.http")

Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_READS: Final = ("GET", "HEAD")
_PARAMETER: Final = re.compile(r"{(\w+)}")


class HttpApp:
    def __init__(
        self,
        node: Node,
        check_url: Callable[[str], object],
        *,
        look_seconds: float | None = None,
        mounts: Mapping[str, Application] | None = None,
    ) -> None:
        """`look_seconds`: how often streams look for what others wrote, when nobody tells.

        `mounts` are applications of their own that answer POST at a path.
        """
        self._node = node
        self._mounts = mounts or {}
        tasks = Tasks(node, check_url)
        self.routes: dict[str, dict[str, Handler]] = {
            "/": {"GET": self._about},
            **tasks.routes(),
            **Events(node, look_seconds).routes(),
            **Batches(node).routes(),
            **Sessions(node, tasks).routes(),
            **Lanes(node).routes(),
            **Leases(node).routes(),
            **Policies(node).routes(),
            **Queue(node).routes(),
            **Templates(node, tasks).routes(),
            **Cron(node, check_url).routes(),
            "/health/live": {"GET": self._live},
            "/health/ready": {"GET": self._ready},
        }
        self._patterns = [
            (re.compile(_PARAMETER.sub(r"(?P<\1>[^/\\0]+)", path)), methods)
            for path, methods in self.routes.items()
            if "{" in path
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        mounted = self._mounts.get(scope["path"])
        if mounted is not None:
            await mounted(scope, receive, send)
            return
        request = Request(scope, receive)
        answer = await self._answer(scope, request)
        if isinstance(answer, Answer):
            await send_answer(send, answer)
        else:
            await send_stream(send, request, answer)

    async def _answer(self, scope: Scope, request: Request) -> Answer | Stream:
        try:
            methods = self._find(scope, request)
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            if method not in methods:
                return _not_allowed(scope["method"], methods)
            return await methods[method](request)
        except FairlaneError as error:
            return refusal(error)
        except Exception:
            log.exception("%s %s went wrong", scope["method"], scope["path"])
            shape = {"code": "internal_error", "error": "something went wrong here; see the log"}
            return Answer(500, shape)

    def _find(self, scope: Scope, request: Request) -> dict[str, Handler]:
        path = scope["path"]
        exact = self.routes.get(path)
        # `/tasks/batch` answers to POST only; a GET there asks for a task of that name.
        if exact is not None and ("GET" in exact or scope["method"] not in _READS):
            return exact
        for pattern, methods in self._patterns:
            found = pattern.fullmatch(path)
            if found:
                request.path = found.groupdict()
                return methods
        raise NotFound(f"there is nothing at {path[:100]}; GET / lists the routes")

    async def _about(self, _: Request) -> Answer:
        routes = {path: sorted(methods) for path, methods in self.routes.items()}
        routes |= {path: ["POST"] for path in self._mounts}
        return Answer(200, {"name": "fairlane", "version": __version__, "routes": routes})

    async def _live(self, _: Request) -> Answer:
        return Answer(200, {"status": "live"})

    async def _ready(self, _: Request) -> Answer:
        if self._node.draining:
            return Answer(503, {"status": "draining"})
        await self._node.views.read(self._node.views.lanes)
        return Answer(200, {"status": "ready"})


def _not_allowed(method: str, methods: dict[str, Handler]) -> Answer:
    allowed = ", ".join(methods)
    error = f"{method} is not allowed here; allowed: {allowed}"
    shape = {"code": "method_not_allowed", "error": error}
    return Answer(405, shape, {"Allow": allowed})
