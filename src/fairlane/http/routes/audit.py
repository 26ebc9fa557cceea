"""The audit log over HTTP: requests that were denied."""

from __future__ import annotations

from fairlane.core.errors import FairlaneError, Unauthenticated
from fairlane.engine.verbs.audit import Audit
from fairlane.http.messages import HttpRequest
from fairlane.services import trail


def note_denied(audit: Audit, request: HttpRequest, error: FairlaneError) -> None:
    """Count a request that was denied."""
    path = request.full_path
    for name, value in request.path.items():
        path = path.replace(value, f"{{{name}}}")
    who = ""
    if isinstance(error, Unauthenticated):
        who = f"unknown at {request.address or 'this process'}"
    target = " ".join(request.path.values())
    trail.note_denied(audit, request.caller, f"{request.method} {path}", target, error, who=who)
