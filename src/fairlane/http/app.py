"""The ASGI application: one table of routes, one place where errors become answers."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fairlane.core.access import CALLER, Caller
from fairlane.core.errors import FairlaneError, NotFound, TooManyConnections
from fairlane.engine.node import Node
from fairlane.http import openapi, operations
from fairlane.http.auth import Gate
from fairlane.http.cross_site import went_wrong
from fairlane.http.dashboard import Dashboard, wants_page
from fairlane.http.holding import STREAMS_DEFAULT, WAITS_DEFAULT, Held
from fairlane.http.messages import (
    Answer,
    Raw,
    Receive,
    Request,
    Route,
    Routes,
    Scope,
    Send,
    Stream,
    encoded,
    refusal,
    send_answer,
    send_stream,
)
from fairlane.http.routes.audit import note_denied, recorded
from fairlane.http.routes.cron import Cron
from fairlane.http.routes.events import Events
from fairlane.http.routes.health import Health
from fairlane.http.routes.leases import Leases
from fairlane.http.routes.metrics import MetricsRoute
from fairlane.http.routes.queue import Queue
from fairlane.http.routes.sessions import Sessions
from fairlane.http.routes.tasks import Tasks
from fairlane.http.routes.templates import Templates
from fairlane.schema import json_limits, wire
from fairlane.services.catalog import refused
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
        exposed: bool = False,
        max_streams: int = STREAMS_DEFAULT,
        max_waits: int = WAITS_DEFAULT,
    ) -> None:
        """`look_seconds`: how often streams look for what others wrote, when nobody tells.

        `mounts` are applications of their own that answer POST at a path. `exposed`: others than
        this machine can reach it, so that every caller needs a token. `max_streams` is how many
        streams a token or an address may have open, `max_waits` how many requests that wait.
        """
        self._node = node
        node.check_url = check_url
        self._mounts = mounts or {}
        self._dashboard = Dashboard()
        self._described: Raw | None = None
        self.gate = Gate(node, exposed=exposed)
        self._streams = Held("streams", "max_streams", max_streams)
        self._waits = Held("waiting requests", "max_waits", max_waits)
        tasks = Tasks(node, check_url)
        self.routes: Routes = {
            "/": {"GET": Route(self._about, None, open=True)},
            "/openapi.json": {"GET": Route(self._openapi, None)},
            **tasks.routes(),
            **Events(node, look_seconds).routes(),
            **operations.routes(node),
            **Sessions(node, tasks).routes(),
            **Leases(node).routes(),
            **Queue(node).routes(),
            **Templates(node, tasks).routes(),
            **Cron(node, check_url).routes(),
            **self._dashboard.routes(),
            **self.gate.routes(),
            **MetricsRoute(node).routes(),
            **Health(node).routes(),
        }
        self.routes = recorded(self.routes, node.audit)
        self._patterns = [
            (re.compile(_PARAMETER.sub(r"(?P<\1>[^/\\0]+)", path)), methods)
            for path, methods in self.routes.items()
            if "{" in path
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        mounted = self._mounts.get(scope["path"])
        if mounted is not None:
            await self._pass_on(mounted, scope, request, send)
            return
        tracer = self._node.tracer
        if tracer is None:
            answer = await self._answer(scope, request)
        else:
            with tracer.within(request.header(b"traceparent")):
                answer = await self._answer(scope, request)
        if isinstance(answer, Answer):
            await _send(send, answer)
            return
        try:
            with self._streams.place(scope, request.caller):
                pieces = self.gate.while_valid(scope, request, answer.pieces)
                await send_stream(send, request, Stream(pieces))
        except TooManyConnections as error:
            await send_answer(send, refusal(error))

    async def _pass_on(
        self, mounted: Application, scope: Scope, request: Request, send: Send
    ) -> None:
        """Let an application of its own answer, which may take long."""
        with contextlib.ExitStack() as place:
            problem = await self._let_in(scope, request, place)
            if problem is None:
                await mounted(scope, request.again, send)
                return
        await send_answer(send, problem)

    async def _answer(self, scope: Scope, request: Request) -> Answer | Stream:
        try:
            methods = self._find(scope, request)
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            route = methods.get(method)
            if route is None:
                await self.gate.admit(scope, request)
                return _not_allowed(scope, methods)
            if not route.open:
                await self.gate.admit(scope, request, route)
            waits = (
                self._waits.place(scope, request.caller)
                if route.waits
                else contextlib.nullcontext()
            )
            with waits:
                answer = await route.handler(request)
            return encoded(answer) if isinstance(answer, Answer) else answer
        except FairlaneError as error:
            note_denied(self._node.audit, scope, request, error)
            return refusal(error)
        except Exception:
            number = scope.get("request_id", b"of this process").decode()
            log.exception("%s %s went wrong (request %s)", scope["method"], scope["path"], number)
            return went_wrong()

    async def _let_in(
        self, scope: Scope, request: Request, place: contextlib.ExitStack
    ) -> Answer | None:
        """For what answers for itself: why not, or None and the caller's name in the scope.

        The caller holds a place until `place` is closed.
        """
        try:
            await self.gate.admit(scope, request)
            place.enter_context(self._waits.place(scope, request.caller))
            if scope["method"] == "POST":
                json_limits.check_any(await request.body())
        except FairlaneError as error:
            note_denied(self._node.audit, scope, request, error)
            return refusal(error)
        scope[CALLER] = request.caller
        return None

    def _find(self, scope: Scope, request: Request) -> dict[str, Route]:
        """What answers there, by method; nothing for a path that nobody knows."""
        path = scope["path"]
        exact = None if "{" in path else self.routes.get(path)  # or a caller could name a pattern
        # `/tasks/batch` answers to POST only; a GET there asks for a task of that name.
        if exact is not None and ("GET" in exact or scope["method"] not in _READS):
            return exact
        for pattern, methods in self._patterns:
            found = pattern.fullmatch(path)
            if found:
                request.path = found.groupdict()
                return methods
        return {}

    async def _about(self, request: Request) -> Answer:
        if wants_page(request):
            return self._dashboard.serve(request)
        await self.gate.admit(request.scope, request)
        routes = {path: sorted(methods) for path, methods in self.routes.items()}
        routes |= {path: ["POST"] for path in self._mounts}
        shape = {"name": "fairlane", "version": __version__, "routes": routes}
        return Answer(200, {**shape, "refused": self._refused(request.caller)})

    def _refused(self, caller: Caller) -> dict[str, dict[str, str]]:
        """By path and method: what this caller may not do, and why."""
        found: dict[str, dict[str, str]] = {}
        for path, methods in self.routes.items():
            for method, route in methods.items():
                problem = refused(caller, route)
                if problem is not None:
                    found.setdefault(path, {})[method] = problem.message
        return found

    async def _openapi(self, request: Request) -> Answer:
        request.query()
        if self._described is None:
            self._described = Raw(wire.encode(openapi.document(self.routes)), openapi.JSON)
        return Answer(200, self._described)


async def _send(send: Send, answer: Answer) -> None:
    try:
        await send_answer(send, answer)
    except BaseException:
        if answer.undo is not None:
            answer.undo()
        raise


def _not_allowed(scope: Scope, methods: dict[str, Route]) -> Answer:
    if not methods:
        raise NotFound(f"there is nothing at {scope['path'][:100]}; GET / lists the routes")
    allowed = ", ".join(methods)
    error = f"{scope['method']} is not allowed here; allowed: {allowed}"
    shape = {"code": "method_not_allowed", "error": error}
    return Answer(405, shape, {"Allow": allowed})
