"""Approvals: questions to people before a task starts or continues, and their decisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, field

from fairlane.core import approvals
from fairlane.core.access import Scope
from fairlane.core.approvals import (
    STATES,
    Approval,
    ApprovalRequest,
    Approver,
    AskName,
    Comment,
    DecisionWord,
    ExpiresMs,
)
from fairlane.core.forms import Form
from fairlane.core.json_types import JsonObject
from fairlane.core.types import Cursor, Moment, PageLimit, Url
from fairlane.schema.operation import GET, POST, IdOf, Operation, Request, Response, one_of
from fairlane.schema.wire import moment, moment_or_none

LINK_MS_DEFAULT: Final = 24 * 3_600_000
LINK_MS_MAX: Final = 30 * LINK_MS_DEFAULT

ApprovalState = Annotated[str, one_of(STATES)]
ApprovalId = Annotated[str, IdOf("approval"), Meta(description="Id of the approval")]
Hash = Annotated[
    str,
    Meta(
        max_length=64,
        description="Hash of the approval that the person saw, from GET /approvals/{id}",
    ),
]

# -------------------------------------------------------------------- requests


class ListApprovals(Request):
    state: Annotated[
        str | None, Meta(description=f"Only approvals in one of the states {', '.join(STATES)}")
    ] = None
    task: Annotated[str | None, IdOf("task"), Meta(description="Only approvals of this task")] = (
        None
    )
    limit: PageLimit = 100
    cursor: Cursor | None = None


class NamedApproval(Request):
    """The id of one approval."""

    approval_id: ApprovalId = field(name="id")


class DecideApproval(NamedApproval, kw_only=True):
    decision: Annotated[DecisionWord, Meta(description="approve or reject")]
    hash: Hash
    answer: Annotated[
        JsonObject | None, Meta(description="Values of the form; only with approve")
    ] = None
    comment: Annotated[Comment | None, Meta(description="Reason that the caller will see")] = None


class LinkApproval(NamedApproval):
    expires_ms: Annotated[
        Annotated[int, Meta(ge=1, le=LINK_MS_MAX)],
        Meta(description="How long the link is valid"),
    ] = LINK_MS_DEFAULT
    approver: Annotated[
        Approver | None,
        Meta(description="Name of the person; needed if the approval names its approvers"),
    ] = None
    base_url: Annotated[Url | None, Meta(description="Base URL of the server, for the link")] = None


class AskLease(Request):
    lease_id: Annotated[str, Meta(description="Id of the lease")] = field(name="id")
    name: Annotated[AskName, Meta(description="Name of the question; unique within the task")]
    title: Annotated[approvals.Title, Meta(description="The question, in one line")]
    token: Annotated[
        int | None, Meta(description="Fencing token, checked in addition to the one in the id")
    ] = None
    detail: Annotated[
        approvals.Detail | None, Meta(description="Background for the person who decides")
    ] = None
    form: Annotated[
        Form | None, Meta(description="Values that the person fills in, a JSON Schema")
    ] = None
    approvers: Annotated[
        Annotated[list[Approver], Meta(min_length=1, max_length=approvals.APPROVERS_MAX)] | None,
        Meta(description="Names of the tokens or agents that may decide; default: any"),
    ] = None
    count: Annotated[
        Annotated[int, Meta(ge=1, le=approvals.COUNT_MAX)] | None,
        Meta(description="Number of different people who must approve; default: 1"),
    ] = None
    expires_ms: Annotated[
        ExpiresMs | None, Meta(description="Decide automatically after this time; default: never")
    ] = None
    on_expiry: Annotated[
        DecisionWord | None, Meta(description="Decision after that time; default: reject")
    ] = None


def asked_for(request: AskLease) -> ApprovalRequest:
    return ApprovalRequest(
        **{name: getattr(request, name) for name in ApprovalRequest.__struct_fields__}
    )


# -------------------------------------------------------------------- responses


class ApprovalVote(Response):
    by: str
    decision: str
    at: Moment
    comment: str | None = None


class ApprovalOutcome(Response, kw_only=True):
    """A decision as the task and its worker get it."""

    id: str
    state: ApprovalState
    title: str
    name: str | None = None
    decided_by: str | None = None
    decided_at: Moment | None = None
    answer: JsonObject | None = None
    comment: str | None = None


class ApprovalStatus(ApprovalOutcome, kw_only=True):
    """An approval, with the exact content that a decision is about."""

    hash: Annotated[
        str, Meta(description="Hash of the approval's content; a decision must include it")
    ]
    task: str | None = None
    agent: str
    detail: str | None = None
    form: JsonObject | None = None
    request: Annotated[
        JsonObject | None, Meta(description="The task's request, without its secrets")
    ] = None
    resource: Annotated[
        str | None, Meta(description="Resource whose budget the approval would raise")
    ] = None
    approvers: list[str] | None = None
    count: int
    votes: list[ApprovalVote]
    opened_at: Moment
    expires_at: Moment | None = None
    on_expiry: str | None = None


class ApprovalPage(Response):
    approvals: list[ApprovalStatus]
    count: int
    open: Annotated[int, Meta(description="Number of open approvals, at most 1000")]
    next_cursor: str | None = None


class ApprovalLinkCreated(Response):
    id: str
    url: Annotated[str, Meta(description="Address of the page; only this response shows it")]
    expires_at: Moment


class LeaseAsked(Response):
    """`suspended`: the lease has ended. Otherwise the approval was decided before."""

    lease_id: str
    task_id: str
    state: str
    suspended: bool
    approval: ApprovalOutcome


# -------------------------------------------------------------------- conversions


def approval_outcome(one: Approval) -> ApprovalOutcome:
    return ApprovalOutcome(**_outcome(one))


def _outcome(one: Approval) -> JsonObject:
    return {
        "id": one.id,
        "state": one.state,
        "title": one.title,
        "name": one.name or None,
        "decided_by": one.decided_by,
        "decided_at": moment_or_none(one.decided_at),
        "answer": None if one.answer is None else msgspec.json.decode(one.answer),
        "comment": one.comment,
    }


def answers_of(decided: Sequence[Approval]) -> dict[str, ApprovalOutcome] | None:
    """Return the answers to the questions of a run, by name."""
    return {one.name: approval_outcome(one) for one in decided if not one.is_gate} or None


def gate_of(decided: Sequence[Approval]) -> ApprovalOutcome | None:
    """Return the decision that let the task start."""
    return next((approval_outcome(one) for one in decided if one.is_gate), None)


def newest(found: Sequence[Approval]) -> ApprovalOutcome | None:
    """Return the approval that a task waits for, or else the first one that it needed."""
    waits = [one for one in found if one.state == approvals.OPEN]
    return next((approval_outcome(one) for one in (*waits, *found)), None)


def approval_status(one: Approval, body: str | None) -> ApprovalStatus:
    request = None if body is None else approvals.request_shown(body)
    content = approvals.shown(one, request)
    names = approvals.approvers(one)
    return ApprovalStatus(
        **_outcome(one),
        hash=approvals.digest(content),
        task=one.task,
        agent=one.agent,
        detail=one.detail,
        form=content["form"],
        request=request,
        resource=None if one.resource is None else one.resource.rpartition("#")[0],
        approvers=None if names is None else [*names],
        count=one.needed,
        votes=[
            ApprovalVote(vote.by, vote.decision, moment(vote.at), vote.comment)
            for vote in approvals.votes(one)
        ],
        opened_at=moment(one.opened_at),
        expires_at=moment_or_none(one.expires_at),
        on_expiry=None if one.expires_at is None else one.on_expiry,
    )


# -------------------------------------------------------------------- operations

APPROVALS: Final = Operation(
    "approvals",
    GET,
    "/approvals",
    ListApprovals,
    ApprovalPage,
    Scope.READ,
    "List approvals, newest first",
)
APPROVAL: Final = Operation(
    "approval",
    GET,
    "/approvals/{id}",
    NamedApproval,
    ApprovalStatus,
    Scope.READ,
    "Show an approval with everything needed to decide",
)
DECIDE: Final = Operation(
    "decide",
    POST,
    "/approvals/{id}/decide",
    DecideApproval,
    ApprovalStatus,
    Scope.APPROVE,
    "Approve or reject; the hash identifies the version that the person saw",
    audited=True,
)
LINK_APPROVAL: Final = Operation(
    "link_approval",
    POST,
    "/approvals/{id}/link",
    LinkApproval,
    ApprovalLinkCreated,
    Scope.OPERATE,
    "Create a one-time link that lets a person without a token decide",
    agents=False,
    status=201,
)
ASK_LEASE: Final = Operation(
    "ask_lease",
    POST,
    "/leases/{id}/ask",
    AskLease,
    LeaseAsked,
    Scope.LEASE,
    "Ask a person; until the decision, the task waits without a lease and spends no attempt",
)
