"""The ASGI application: one table of routes, one place where errors become answers."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import Receive, Scope, Send

from fairlane.core.errors import FairlaneError, NotFound
from fairlane.engine.node import Node
from fairlane.http.answers import send_error, send_json
from fairlane.http.tasks import Tasks
from fairlane.version import __version__

log = logging.getLogger("fairlane.http")

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]
Routes = dict[str, dict[str, Handler]]

_PARAMETER: Final = re.compile(r"{(\w+)}")


class HttpApp:
    def __init__(self, node: Node, check_url: Callable[[str], object]) -> None:
        self._node = node
        tasks = Tasks(node, check_url)
        self.routes: Routes = {
            "/": {"GET": self._about},
            "/tasks": {"POST": tasks.submit, "GET": tasks.list},
            "/tasks/batch": {"POST": tasks.submit_batch},
            "/tasks/{id}": {"GET": tasks.show},
            "/tasks/{id}/cancel": {"POST": tasks.cancel},
            "/tasks/{id}/wait": {"GET": tasks.wait},
            "/scheduler/stats": {"GET": tasks.stats},
            "/health/live": {"GET": self._live},
            "/health/ready": {"GET": self._ready},
        }
        self._patterns = [
            (re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", path)), methods)
            for path, methods in self.routes.items()
            if "{" in path
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            await self._handler(scope)(scope, receive, send)
        except FairlaneError as error:
            await send_error(send, error)
        except Exception:
            log.exception("%s %s went wrong", scope["method"], scope["path"])
            shape = {"code": "internal_error", "error": "something went wrong here; see the log"}
            await send_json(send, 500, shape)

    def _handler(self, scope: Scope) -> Handler:
        methods = self._find(scope)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        handler = methods.get(method)
        if handler is not None:
            return handler

        async def not_allowed(scope: Scope, receive: Receive, send: Send) -> None:
            allowed = ", ".join(methods)
            error = f"{scope['method']} is not allowed here; allowed: {allowed}"
            shape = {"code": "method_not_allowed", "error": error}
            await send_json(send, 405, shape, {"Allow": allowed})

        return not_allowed

    def _find(self, scope: Scope) -> dict[str, Handler]:
        path = scope["path"]
        exact = self.routes.get(path)
        # `/tasks/batch` answers to POST only; a GET there asks for a task of that name.
        if exact is not None and (scope["method"] in exact or path != "/tasks/batch"):
            return exact
        for pattern, methods in self._patterns:
            found = pattern.fullmatch(path)
            if found:
                scope["path_params"] = found.groupdict()
                return methods
        raise NotFound(f"there is nothing at {path[:100]}; see the documentation for the routes")

    async def _about(self, scope: Scope, receive: Receive, send: Send) -> None:
        routes = {path: sorted(methods) for path, methods in self.routes.items()}
        await send_json(send, 200, {"name": "fairlane", "version": __version__, "routes": routes})

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"status": "live"})

    async def _ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._node.draining:
            await send_json(send, 503, {"status": "draining"})
            return
        await self._node.views.read(self._node.views.lanes)
        await send_json(send, 200, {"status": "ready"})
