"""Write the audit trail: what operators changed, and which requests were denied."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from fairlane.core.access import Caller
from fairlane.core.audit import REFUSED
from fairlane.core.errors import FairlaneError, Forbidden, NotFound, Unauthenticated
from fairlane.engine.verbs.audit import Audit, facts
from fairlane.schema.operation import AnyOperation

R = TypeVar("R")

# Fields of a response worth recording; never those of a request, which may contain secrets.
_FACTS: Final = (
    *("id", "name", "agentId", "scopes", "version", "enabled", "paused", "maxInflight"),
    *("matched", "changed", "tasks", "stopped", "drained", "count", "taskId"),
)


def action_of(operation: AnyOperation) -> str:
    return f"{operation.method} {operation.path}"


def target_of(operation: AnyOperation, request: object) -> str:
    """Return the target of a request: the variable parts of its path."""
    names = (name for name, place in operation.places.items() if place == "path")
    return " ".join(str(getattr(request, name)) for name in names)


async def recorded(
    audit: Audit,
    caller: Caller,
    action: str,
    target: str,
    act: Callable[[], Awaitable[R]],
    *,
    document: Callable[[R], object] = msgspec.to_builtins,
) -> R:
    """Run an action and write it, or its refusal, to the audit log before responding.

    `document` returns the JSON object of a response; dry runs are not written.
    """
    try:
        response = await act()
    except FairlaneError as error:
        detail = _detail(caller, error.code)
        await audit.note(caller.name, action, target, outcome=REFUSED, detail=detail)
        raise
    said = document(response)
    if not (isinstance(said, dict) and said.get("dryRun")):
        await audit.note(caller.name, action, target, detail=_detail(caller, facts(said, _FACTS)))
    return response


def note_denied(
    audit: Audit, caller: Caller, action: str, target: str, error: FairlaneError, *, who: str = ""
) -> None:
    """Count a denied request; `who` replaces the caller's name if it is unknown.

    For a caller with an agent's token, a task that does not exist and another agent's task look the
    same, so both count.
    """
    lost = isinstance(error, NotFound) and caller.agent is not None
    if lost or isinstance(error, Unauthenticated | Forbidden):
        audit.denied(who or caller.name, action, target, reason=_detail(caller, error.code) or "")


def _detail(caller: Caller, text: str | None) -> str | None:
    """Return the detail with the id of the token: names can be reused, ids cannot."""
    words = [f"token {caller.token}" if caller.token else None, text]
    return ", ".join(word for word in words if word) or None
