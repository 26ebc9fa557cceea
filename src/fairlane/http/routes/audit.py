"""The audit log over HTTP: denied requests, and the hand-written routes that operators use.

The table of routes says which those are: whatever an operator may do and a plain caller may not,
and besides what acts on many tasks at once. So a new route of that kind is in the log by itself.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairlane.core import access
from fairlane.core.errors import (
    FairlaneError,
    Unauthenticated,
)
from fairlane.engine.verbs.audit import Audit
from fairlane.http.messages import (
    Answer,
    Handler,
    Request,
    Route,
    Routes,
    Stream,
)
from fairlane.services import trail

_OPERATORS: Final = (access.Scope.OPERATE, access.Scope.ADMIN)
_ALSO: Final = frozenset({"/tasks/cancel"})


def note_denied(audit: Audit, request: Request, error: FairlaneError) -> None:
    """Count a call that was turned away."""
    path = request.full_path
    for name, value in request.path.items():
        path = path.replace(value, f"{{{name}}}")
    who = ""
    if isinstance(error, Unauthenticated):
        who = f"unknown at {request.address or 'this process'}"
    target = " ".join(request.path.values())
    trail.note_denied(audit, request.caller, f"{request.method} {path}", target, error, who=who)


def recorded(routes: Routes, audit: Audit) -> Routes:
    """The same routes; those that operators act through leave a trace."""
    return {
        path: {
            method: _recorded(route, audit, f"{method} {path}")
            if method != "GET" and route.operation is None and is_recorded(path, route)
            else route
            for method, route in methods.items()
        }
        for path, methods in routes.items()
    }


def is_recorded(path: str, route: Route) -> bool:
    return path in _ALSO or route.scope in _OPERATORS


def _recorded(route: Route, audit: Audit, action: str) -> Route:
    act: Handler = route.handler

    async def handler(request: Request) -> Answer | Stream:
        target = " ".join(request.path.values())
        return await trail.recorded(
            audit, request.caller, action, target, lambda: act(request), document=_document
        )

    return msgspec.structs.replace(route, handler=handler)


def _document(answer: Answer | Stream) -> Any:
    return answer.shape if isinstance(answer, Answer) else None
