"""The audit trail of operations: what operators did, and what callers were denied."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec

from fairlane.core.access import Caller
from fairlane.core.audit import REFUSED
from fairlane.core.errors import FairlaneError, Forbidden, NotFound, Unauthenticated
from fairlane.engine.verbs.audit import Audit, facts
from fairlane.schema.operation import Operation

R = TypeVar("R")

# What is worth knowing of a response; never of the request, which may hold anything.
_FACTS: Final = (
    *("id", "name", "agentId", "scopes", "version", "enabled", "paused", "maxInflight"),
    *("matched", "changed", "tasks", "stopped", "drained", "count", "taskId"),
)


def action_of(operation: Operation[Any, Any]) -> str:
    return f"{operation.method} {operation.path}"


def target_of(operation: Operation[Any, Any], request: Any) -> str:
    """Name what a request is about: the parts of its path."""
    names = (name for name, place in operation.places.items() if place == "path")
    return " ".join(str(getattr(request, name)) for name in names)


async def recorded(
    audit: Audit,
    caller: Caller,
    action: str,
    target: str,
    act: Callable[[], Awaitable[R]],
    *,
    document: Callable[[R], Any] = msgspec.to_builtins,
) -> R:
    """Do what was asked and write it to the audit log before it is answered, also a refusal.

    `document` returns the JSON object of a response; a dry run is not written.
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
    """Count a call that was turned away; `who` replaces the caller's name if that is not known.

    To a caller with an agent's token, a task that does not exist and one of another agent look
    the same, so both count.
    """
    lost = isinstance(error, NotFound) and caller.agent is not None
    if lost or isinstance(error, Unauthenticated | Forbidden):
        audit.denied(who or caller.name, action, target, reason=_detail(caller, error.code) or "")


def _detail(caller: Caller, text: str | None) -> str | None:
    """With the id of the token that was used: names can be given again, ids cannot."""
    words = [f"token {caller.token}" if caller.token else None, text]
    return ", ".join(word for word in words if word) or None
