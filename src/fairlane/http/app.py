"""The application: one table of routes, one place where errors become responses."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Final

from fairlane.core.access import Caller
from fairlane.core.errors import FairlaneError, NotFound
from fairlane.engine.node import Node
from fairlane.http import asgi, openapi, operations
from fairlane.http.auth import Gate
from fairlane.http.dashboard import Dashboard, wants_page
from fairlane.http.holding import STREAMS_DEFAULT, WAITS_DEFAULT, Held
from fairlane.http.messages import (
    ENCODED_SLASH,
    JSON,
    Answer,
    HttpRequest,
    Raw,
    Route,
    Routes,
    Stream,
    encoded,
    refusal,
    went_wrong,
)
from fairlane.http.routes.approve import ApprovePage
from fairlane.http.routes.audit import note_denied
from fairlane.http.routes.events import Events
from fairlane.http.routes.metrics import MetricsRoute
from fairlane.http.routes.presence import PresenceRoute
from fairlane.http.routes.reference import ReferencePage
from fairlane.http.routes.task_streams import TaskStreams
from fairlane.http.routes.usage import UsageRoute
from fairlane.schema import json_limits, wire
from fairlane.services.catalog import refused
from fairlane.tracing import Tracer
from fairlane.version import __version__

log = logging.getLogger("fairlane.http")

_READS: Final = ("GET", "HEAD")
_PARAMETER: Final = re.compile(r"{(\w+)}")


class HttpApp:
    def __init__(
        self,
        node: Node,
        check_url: Callable[[str], object],
        *,
        mounts: Mapping[str, asgi.Application] | None = None,
        exposed: bool = False,
        max_streams: int = STREAMS_DEFAULT,
        max_waits: int = WAITS_DEFAULT,
    ) -> None:
        """`mounts` are ASGI applications that handle POST at a path. `exposed`: other machines can
        reach the server, so every caller needs a token. `max_streams` limits the open streams of a
        token or an address, `max_waits` its waiting requests.
        """
        self._node = node
        node.check_url = check_url
        self._mounts = mounts or {}
        self._dashboard = Dashboard()
        self._described: Raw | None = None
        self.gate = Gate(node, exposed=exposed)
        self._streams = Held("streams", "max_streams", max_streams)
        self._waits = Held("waiting requests", "max_waits", max_waits)
        self.routes: Routes = operations.routes(node)
        by_hand = {
            "/": {"GET": Route(self._about, None, open=True)},
            "/openapi.json": {"GET": Route(self._openapi, None)},
            **Events(node).routes(),
            **TaskStreams(node).routes(),
            **self._dashboard.routes(),
            **self.gate.routes(),
            **MetricsRoute(node).routes(),
            **ApprovePage(node).routes(),
            **UsageRoute(node).routes(),
            **PresenceRoute(node).routes(),
            **ReferencePage(lambda: openapi.document(self.routes)).routes(),
        }
        for path, methods in by_hand.items():
            self.routes.setdefault(path, {}).update(methods)
        self._patterns: dict[tuple[str, int], list[tuple[re.Pattern[str], dict[str, Route]]]] = {}
        for path, methods in self.routes.items():
            if "{" in path:
                pattern = re.compile(_PARAMETER.sub(r"(?P<\1>[^/\\0]+)", path))
                self._patterns.setdefault(_family(path), []).append((pattern, methods))

    def __call__(self, request: HttpRequest) -> Coroutine[object, None, Answer | Stream]:
        """Return the response to a request, with its body as bytes."""
        tracer = self._node.tracer
        return self._answer(request) if tracer is None else self._traced(tracer, request)

    async def _traced(self, tracer: Tracer, request: HttpRequest) -> Answer | Stream:
        with tracer.within(request.header(b"traceparent")):
            return await self._answer(request)

    async def _answer(self, request: HttpRequest) -> Answer | Stream:
        try:
            if request.full_path in self._mounts:
                return await self._pass_on(request)
            methods = self._find(request)
            route = methods.get("GET" if request.method == "HEAD" else request.method)
            if route is None:
                await self.gate.admit(request)
                return encoded(_not_allowed(request, methods))
            if not route.open:
                if self.gate.knows(request):
                    self.gate.judge(request, route)
                else:
                    await self.gate.admit(request, route)
            if route.waits:
                with self._waits.place(request):
                    answer = await route.handler(request)
            else:
                answer = await route.handler(request)
            return encoded(answer) if isinstance(answer, Answer) else self._held(request, answer)
        except FairlaneError as error:
            note_denied(self._node.audit, request, error)
            return encoded(refusal(error))
        except Exception:
            number = request.number.decode()
            log.exception("%s %s failed (request %s)", request.method, request.full_path, number)
            return encoded(went_wrong())

    def _held(self, request: HttpRequest, stream: Stream) -> Stream:
        """Return a stream that counts towards its caller's limit and ends when the caller's token
        does.
        """
        place = contextlib.ExitStack()
        place.enter_context(self._streams.place(request))
        pieces = self.gate.while_valid(request, stream.pieces)
        return Stream(pieces, place.close, stream.kind, stream.reads)

    async def _pass_on(self, request: HttpRequest) -> Answer:
        """Let a mounted application handle the request, which may take long."""
        await self.gate.admit(request)
        with self._waits.place(request):
            if request.method == "POST":
                json_limits.check_any(await request.body())
            return await asgi.answer(self._mounts[request.full_path], request)

    def _find(self, request: HttpRequest) -> dict[str, Route]:
        """Return the routes of a path by method; empty if the path is unknown."""
        path = request.route_path
        # a path with a brace would match a pattern
        exact = None if "{" in path else self.routes.get(path)
        # `/tasks/batch` takes POST only; a GET there reads the task with the id `batch`.
        if exact is not None and ("GET" in exact or request.method not in _READS):
            return exact
        for pattern, methods in self._patterns.get(_family(path), ()):
            found = pattern.fullmatch(path)
            if found:
                request.path = {
                    name: value.replace(ENCODED_SLASH, "/")
                    for name, value in found.groupdict().items()
                }
                return methods
        return {}

    async def _about(self, request: HttpRequest) -> Answer:
        if wants_page(request):
            return self._dashboard.serve(request)
        await self.gate.admit(request)
        routes = {path: sorted(methods) for path, methods in self.routes.items()}
        routes |= {path: ["POST"] for path in self._mounts}
        shape = {"name": "fairlane", "version": __version__, "routes": routes}
        return Answer(200, {**shape, "refused": self._refused(request.caller)})

    def _refused(self, caller: Caller) -> dict[str, dict[str, str]]:
        """Return which paths and methods this caller may not use, and why."""
        found: dict[str, dict[str, str]] = {}
        for path, methods in self.routes.items():
            for method, route in methods.items():
                problem = refused(caller, route)
                if problem is not None:
                    found.setdefault(path, {})[method] = problem.message
        return found

    async def _openapi(self, request: HttpRequest) -> Answer:
        request.query()
        if self._described is None:
            self._described = Raw(wire.encode(openapi.document(self.routes)), JSON)
        return Answer(200, self._described)


def _family(path: str) -> tuple[str, int]:
    """Return the key of all paths of one pattern: the first part and the number of parts."""
    return path[: path.find("/", 1)], path.count("/")


def _not_allowed(request: HttpRequest, methods: dict[str, Route]) -> Answer:
    if not methods:
        raise NotFound(f"no route for {request.full_path[:100]}; GET / lists the routes")
    allowed = ", ".join(methods)
    error = f"{request.method} is not allowed here; allowed: {allowed}"
    shape = {"code": "method_not_allowed", "error": error}
    return Answer(405, shape, {"Allow": allowed})
