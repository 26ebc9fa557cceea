"""The audit log over HTTP: who has done what, and the routes whose use is written into it.

The table of routes says which those are: whatever an operator may do and a plain caller may not,
and besides what acts on many tasks at once. So a new route of that kind is in the log by itself.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairlane.core import access
from fairlane.core.access import Caller
from fairlane.core.audit import OUTCOMES, REFUSED, Written
from fairlane.core.errors import (
    FairlaneError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthenticated,
)
from fairlane.engine.node import Node
from fairlane.engine.verbs.audit import Audit, facts
from fairlane.http.messages import (
    Answer,
    Handler,
    Request,
    Route,
    Routes,
    Scope,
    Stream,
    page_cursor,
    page_limit,
    whole_number,
)
from fairlane.schema import wire

_OPERATORS: Final = (access.Scope.OPERATE, access.Scope.ADMIN)
_ALSO: Final = frozenset({"/tasks/cancel", "/sessions/{key}/stopall", "/sessions/{key}/reset"})
_UNSAID: Final = frozenset({"/sessions/{key}/usage"})  # told by every run: numbers, not deeds
# What is worth knowing of an answer; never what was asked, which may hold anything.
_FACTS: Final = (
    *("id", "name", "agentId", "scopes", "version", "enabled", "paused", "maxInflight"),
    *("matched", "changed", "tasks", "stopped", "drained", "count", "taskId"),
)


class AuditLog:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {"/audit": {"GET": Route(self.list, access.Scope.OPERATE, agents=False)}}

    async def list(self, request: Request) -> Answer:
        query = request.query("who", "action", "outcome", "limit", "cursor", "after")
        outcome = query.get("outcome") or None
        if outcome is not None and outcome not in OUTCOMES:
            raise InvalidRequest(f"query parameter 'outcome' must be one of {', '.join(OUTCOMES)}")
        limit = page_limit(query)
        views = self._node.views
        wanted = {
            "who": query.get("who") or None,
            "action": query.get("action") or None,
            "outcome": outcome,
            "before": page_cursor(query),
            "after": whole_number(query, "after", None, low=0, high=2**62),
        }
        page = await views.read(views.audit, wanted, limit)
        shape: dict[str, Any] = {"entries": [_shape(one) for one in page], "count": len(page)}
        if page.more:
            shape["nextCursor"] = str(page[-1].id)
        return Answer(200, shape)


def _shape(one: Written) -> dict[str, Any]:
    shape = {
        "id": one.id,
        "at": wire.moment(one.at),
        "who": one.who,
        "action": one.action,
        "target": one.target or None,
        "outcome": one.outcome,
        "detail": one.detail,
    }
    return {name: value for name, value in shape.items() if value is not None}


def note_denied(audit: Audit, scope: Scope, request: Request, error: FairlaneError) -> None:
    """Count a call that was turned away. What is not there and what is not theirs look the same
    to who has an agent's token, so both count.
    """
    caller = request.caller
    lost = isinstance(error, NotFound) and caller.agent is not None
    if not lost and not isinstance(error, Unauthenticated | Forbidden):
        return
    path = scope["path"]
    for name, value in request.path.items():
        path = path.replace(value, f"{{{name}}}")
    known = not isinstance(error, Unauthenticated)
    address = (scope.get("client") or ("this process",))[0]
    audit.denied(
        caller.name if known else f"unknown at {address}",
        f"{scope['method']} {path}",
        " ".join(request.path.values()),
        reason=_told(caller, error.code) or "",
    )


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
    return path in _ALSO or (route.scope in _OPERATORS and path not in _UNSAID)


def _recorded(route: Route, audit: Audit, action: str) -> Route:
    act: Handler = route.handler

    async def handler(request: Request) -> Answer | Stream:
        who, target = request.caller.name, " ".join(request.path.values())
        try:
            answer = await act(request)
        except FairlaneError as error:
            detail = _told(request.caller, error.code)
            await audit.note(who, action, target, outcome=REFUSED, detail=detail)
            raise
        said = answer.shape if isinstance(answer, Answer) else None
        if not (isinstance(said, dict) and said.get("dryRun")):
            detail = _told(request.caller, facts(said, _FACTS))
            await audit.note(who, action, target, detail=detail)
        return answer

    return msgspec.structs.replace(route, handler=handler)


def _told(caller: Caller, text: str | None) -> str | None:
    """With the token that was used: names can be given again, ids cannot."""
    words = [f"token {caller.token}" if caller.token else None, text]
    return ", ".join(word for word in words if word) or None
