"""`work.ask`: ask a person in the middle of a run.

A new question suspends the task: the lease ends, and `Suspended` ends the handler. It derives from
`BaseException`, so that a handler that catches every `Exception` does not continue without an
answer.
"""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from fairlane.core import approvals, validation
from fairlane.core.approvals import ApprovalRequest, AskName
from fairlane.core.errors import ApprovalDenied, InvalidRequest
from fairlane.core.json_types import JsonObject
from fairlane.worker.executors import reporting
from fairlane.worker.executors.base import Run


class Suspended(BaseException):
    """The task waits for a person and will run again; this run has to end."""


def ask(fields: JsonObject, name: str | None) -> object:
    """Return the answer in a thread, and a coroutine that returns it in an async handler.

    Raise `InvalidRequest` for an invalid question.
    """
    request = validation.convert(fields, ApprovalRequest)
    approvals.check(request, "")
    run, loop = reporting.current()
    asking = _asked(run, name or _name(request), request)
    if reporting.is_running(loop):
        return asking
    return asyncio.run_coroutine_threadsafe(asking, loop).result()


def _name(request: ApprovalRequest) -> str:
    """Return a name that is derived from the question, so that only equal questions share it."""
    text = msgspec.json.encode(request, order="sorted")
    return f"q_{hashlib.sha256(text).hexdigest()[:24]}"


async def _asked(run: Run, name: str, request: ApprovalRequest) -> JsonObject:
    try:
        msgspec.convert(name, AskName)
    except msgspec.ValidationError:
        raise InvalidRequest(
            f"name {name!r} must be 1 to 64 letters, digits and characters of _.:-"
        ) from None
    decided = await run.ask(name, request)
    if decided is None:
        raise Suspended
    if decided.state != approvals.APPROVED:
        why = f": {decided.comment}" if decided.comment else ""
        raise ApprovalDenied(
            f"approval_denied: {request.title} ({decided.state}){why}",
            decided.state,
            decided.comment,
        )
    return decided.answer or {}
