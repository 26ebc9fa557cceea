"""The audit log: what operators did, which calls were denied, which targets were blocked."""

from __future__ import annotations

from typing import Annotated, Final, get_args

from msgspec import Meta

from fairlane.core.access import Scope
from fairlane.core.audit import AuditRecord, Outcome
from fairlane.core.types import Cursor, Moment, PageLimit, SequenceNumber
from fairlane.schema.operation import GET, Operation, Request, Response, one_of
from fairlane.schema.wire import moment


class ListAudit(Request):
    who: Annotated[str | None, Meta(description="Only entries of this caller")] = None
    action: Annotated[
        str | None, Meta(description="Only this action: a method and a route, as in PUT /policy")
    ] = None
    outcome: Annotated[Outcome | None, Meta(description="Only entries with this outcome")] = None
    limit: PageLimit = 100
    cursor: Cursor | None = None
    after: Annotated[
        SequenceNumber | None, Meta(description="Only entries newer than the one with this id")
    ] = None


class AuditEntry(Response, kw_only=True):
    id: int
    at: Moment
    who: str
    action: str
    target: str | None = None
    outcome: Annotated[str, one_of(get_args(Outcome))]
    detail: str | None = None


class AuditPage(Response):
    entries: list[AuditEntry]
    count: int
    next_cursor: str | None = None


def audit_entry(one: AuditRecord) -> AuditEntry:
    return AuditEntry(
        id=one.id,
        at=moment(one.at),
        who=one.who,
        action=one.action,
        target=one.target or None,
        outcome=one.outcome,
        detail=one.detail,
    )


AUDIT: Final = Operation(
    "audit",
    GET,
    "/audit",
    ListAudit,
    AuditPage,
    Scope.OPERATE,
    "List the audit log, newest first",
    agents=False,
)
