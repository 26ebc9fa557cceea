"""Approvals: a person decides before a task starts, or while it waits in the middle of a run.

An approval is open until it is approved, rejected, expired or cancelled; nothing leaves those
states. A decision includes the hash of the content that its author saw (`shown`), and counts only
if the approval still has that hash: an edited request, or a form that another approver has filled
in since, changes it. One rejection rejects; `needed` different people approve. The task's agent,
the token that submitted the task and the token that asked can never decide. Everything here is a
value in and a value out; the engine decides under the write lock, so two decisions never cross.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from fairlane.core import forms, moments, validation
from fairlane.core.errors import (
    ApprovalChanged,
    ApprovalClosed,
    Conflict,
    FairlaneError,
    Forbidden,
    InvalidRequest,
    OwnTask,
)
from fairlane.core.forms import Form
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.secrets import mask_secrets
from fairlane.core.types import YEAR_MS, json_name
from fairlane.core.validation import DEPTH_MAX, Problem, too_deep

TITLE_CHARACTERS_MAX: Final = 200
DETAIL_CHARACTERS_MAX: Final = 10_000
COMMENT_CHARACTERS_MAX: Final = 2000
APPROVERS_MAX: Final = 50
COUNT_MAX: Final = 10

OPEN: Final = "open"
APPROVED: Final = "approved"
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
CANCELLED: Final = "cancelled"
STATES: Final = (OPEN, APPROVED, REJECTED, EXPIRED, CANCELLED)

APPROVE: Final = "approve"
REJECT: Final = "reject"
ON_EXPIRY: Final = "expiry"  # the author of a decision on expiry

# Errors of tasks that were not approved; the code in front is part of the API.
TASK_REJECTED: Final = "approval_rejected"
TASK_EXPIRED: Final = "approval_expired"

Title = Annotated[str, Meta(min_length=1, max_length=TITLE_CHARACTERS_MAX)]
Detail = Annotated[str, Meta(max_length=DETAIL_CHARACTERS_MAX)]
Comment = Annotated[str, Meta(max_length=COMMENT_CHARACTERS_MAX)]
Approver = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:@ -]{0,127}$(?!\n)")]
AskName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}$(?!\n)")]
ExpiresMs = Annotated[int, Meta(ge=1, le=YEAR_MS)]
DecisionWord = Literal["approve", "reject"]


class ApprovalRequest(
    msgspec.Struct, rename=json_name, omit_defaults=True, forbid_unknown_fields=True
):
    """A question to a person."""

    title: Annotated[Title, Meta(description="The question, in one line")]
    detail: Annotated[Detail | None, Meta(description="Background for the person who decides")] = (
        None
    )
    form: Annotated[
        Form | None, Meta(description="Values that the person fills in, as a JSON Schema object")
    ] = None
    approvers: Annotated[
        Annotated[list[Approver], Meta(min_length=1, max_length=APPROVERS_MAX)] | None,
        Meta(description="Names of the tokens or agents that may decide; default: any"),
    ] = None
    count: Annotated[
        Annotated[int, Meta(ge=1, le=COUNT_MAX)] | None,
        Meta(description="Number of different people who must approve; default: 1"),
    ] = None
    expires_ms: Annotated[
        ExpiresMs | None, Meta(description="Decide automatically after this time; default: never")
    ] = None
    on_expiry: Annotated[
        DecisionWord | None, Meta(description="Decision after that time; default: reject")
    ] = None


class Vote(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """One person's decision, as the store keeps it in JSON."""

    by: str
    decision: str
    at: int
    token: str | None = None
    comment: str | None = None


class Voter(msgspec.Struct, frozen=True):
    """The author of a decision: a token's name, agent and id; a link has neither agent nor id."""

    name: str
    agent: str | None = None
    token: str | None = None


class Approval(msgspec.Struct, gc=False):
    """A stored approval. `seq` is its number, `task` the id of its task and `task_seq` its number.

    `name` tells the questions of one run apart, "" is the approval before the task starts.
    `submitter` and `asker` are ids of tokens. `form`, `approvers`, `votes` and `answer` are JSON
    text. `left_ms` is how much of the task's time was left when it asked. An approval that is not
    `in_force` belongs to an earlier life of its task. `resource` is the budget that asks to be
    raised, for an approval without a task.
    """

    seq: int
    id: str
    task_seq: int | None
    task: str | None
    agent: str
    name: str
    title: str
    detail: str | None
    form: str | None
    approvers: str | None
    needed: int
    state: str
    opened_at: int
    expires_at: int | None
    expires_ms: int | None
    on_expiry: str
    submitter: str | None
    asker: str | None
    left_ms: int | None
    in_force: int
    resource: str | None
    votes: str = "[]"
    answer: str | None = None
    comment: str | None = None
    decided_by: str | None = None
    decided_at: int | None = None

    @property
    def is_gate(self) -> bool:
        return self.name == ""

    @property
    def approved(self) -> bool:
        return self.state == APPROVED


# -------------------------------------------------------------------- open


def check(request: ApprovalRequest, path: str) -> None:
    """Raise `InvalidRequest` with every problem of a request whose fields are each valid."""
    problems = _problems(request, path)
    if problems:
        raise validation.refusal(problems)


def _problems(request: ApprovalRequest, path: str) -> list[Problem]:
    prefix = f"{path}." if path else ""
    found: list[Problem] = []
    if not request.title.strip():
        found.append(Problem(f"{prefix}title", f"field '{prefix}title' must not be empty"))
    if request.on_expiry is not None and request.expires_ms is None:
        found.append(
            Problem(f"{prefix}onExpiry", f"field '{prefix}onExpiry' needs '{prefix}expiresMs'")
        )
    names = request.approvers or ()
    if len(names) != len(set(names)):
        found.append(
            Problem(
                f"{prefix}approvers", f"field '{prefix}approvers' must not contain a name twice"
            )
        )
    if names and len(names) < (request.count or 1):
        found.append(
            Problem(
                f"{prefix}count", f"field '{prefix}count' must not exceed the number of approvers"
            )
        )
    if request.form is None:
        return found
    of_form = forms.form_problems(request.form, f"{prefix}form")
    if not of_form and request.on_expiry == APPROVE:
        for name in request.form.required or ():
            if request.form.properties[name].default is None:
                inside = f"{prefix}form.properties.{name}.default"
                text = f"field '{inside}' is needed to approve on expiry"
                found.append(Problem(inside, text))
    return found + of_form


def opened(
    request: ApprovalRequest,
    *,
    seq: int,
    approval_id: str,
    agent: str,
    now: int,
    task: tuple[int, str] | None = None,
    name: str = "",
    submitter: str | None = None,
    asker: str | None = None,
    left_ms: int | None = None,
    resource: str | None = None,
) -> Approval:
    """Return a new open approval. `task` is the number and the id of its task."""
    expires_ms = request.expires_ms
    return Approval(
        seq,
        approval_id,
        None if task is None else task[0],
        None if task is None else task[1],
        agent,
        name,
        request.title.strip(),
        request.detail or None,
        None if request.form is None else _text(request.form),
        None if request.approvers is None else _text(request.approvers),
        request.count or 1,
        OPEN,
        now,
        None if expires_ms is None else moments.later(now, expires_ms),
        expires_ms,
        request.on_expiry or REJECT,
        submitter,
        asker,
        left_ms,
        1,
        resource,
    )


def id_of(seq: int) -> str:
    """Return the id of the approval with this number."""
    return f"apr_{seq}"


def opened_again(before: Approval, *, seq: int, approval_id: str, now: int) -> Approval:
    """Return the same question about the next life of a task that was retried."""
    after = msgspec.structs.replace(
        before,
        seq=seq,
        id=approval_id,
        state=OPEN,
        opened_at=now,
        left_ms=None,
        in_force=1,
        votes="[]",
        answer=None,
        comment=None,
        decided_by=None,
        decided_at=None,
    )
    if after.expires_ms is not None:
        after.expires_at = moments.later(now, after.expires_ms)
    return after


def is_same_question(one: Approval, other: Approval) -> bool:
    """Return whether two questions are equal, so that a decision about one answers the other."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("title", "detail", "form", "approvers", "needed")
    )


def withdrawn(approval: Approval) -> Approval:
    """Return an approval of an earlier life of its task: its decision no longer counts."""
    return msgspec.structs.replace(approval, in_force=0)


# -------------------------------------------------------------------- content


def shown(approval: Approval, request: JsonObject | None) -> JsonObject:
    """Return the content that a decision is about. `request` is the task's, with masked secrets."""
    return {
        "id": approval.id,
        "taskId": approval.task,
        "agentId": approval.agent,
        "name": approval.name or None,
        "title": approval.title,
        "detail": approval.detail,
        "form": None if approval.form is None else msgspec.json.decode(approval.form),
        "resource": approval.resource,
        "request": request,
        "answer": None if approval.answer is None else msgspec.json.decode(approval.answer),
    }


def digest(content: JsonObject) -> str:
    """Return the hash of the shown content, independent of the order of keys."""
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def request_shown(body: str) -> JsonObject:
    """Return a stored request as people may see it: without secrets. A damaged one is empty."""
    try:
        request: JsonObject = msgspec.json.decode(body, type=dict)
    except (msgspec.DecodeError, RecursionError):
        return {}
    config = request.get("llmConfig")
    if isinstance(config, dict):
        request["llmConfig"] = mask_secrets(config)
    return request


def hash_of(approval: Approval, body: str | None) -> str:
    """Return the hash of an approval and the stored request of its task."""
    return digest(shown(approval, None if body is None else request_shown(body)))


# -------------------------------------------------------------------- decide


class ApprovalDecision(msgspec.Struct, gc=False):
    """The approval after it, if it changes, and the answer: the approval or an error."""

    change: Approval | None
    answer: Approval | FairlaneError


def may_decide(approval: Approval, voter: Voter) -> FairlaneError | None:
    """Return why a person may not decide, or None."""
    if voter.agent is not None and voter.agent == approval.agent:
        return OwnTask(
            f"a token of agent {voter.agent} cannot decide on that agent's own task; "
            "ask a person with another token"
        )
    if voter.token is not None and voter.token in (approval.submitter, approval.asker):
        return OwnTask(
            "the token that submitted the task or asked the question cannot decide on it; "
            "use another token"
        )
    names = approvers(approval)
    if names is None:
        return None
    if voter.name in names or voter.agent in names:
        return None
    return Forbidden(
        f"only {', '.join(names)} may decide on this approval", details={"approvers": [*names]}
    )


def approvers(approval: Approval) -> Sequence[str] | None:
    """Return the names of the approvers; None if every caller with the scope may decide."""
    return None if approval.approvers is None else msgspec.json.decode(approval.approvers)


def votes(approval: Approval) -> list[Vote]:
    return _votes.decode(approval.votes)


_votes = msgspec.json.Decoder(list[Vote])


def decide(
    approval: Approval,
    voter: Voter,
    decision: str,
    *,
    answer: JsonMapping | None,
    comment: str | None,
    given_hash: str,
    body: str | None,
    now: int,
) -> ApprovalDecision:
    """Record one person's decision. `body` is the stored request of the task."""
    problem = may_decide(approval, voter)
    if problem is not None:
        return ApprovalDecision(None, problem)
    mine = next((one for one in votes(approval) if _is_mine(one, voter)), None)
    if mine is not None and mine.decision == decision:
        return ApprovalDecision(None, approval)  # a second click
    problem = _closed(approval, now)
    if problem is None and mine is not None:
        problem = Conflict(f"{voter.name} has already decided to {mine.decision}")
    if problem is None and given_hash != hash_of(approval, body):
        problem = ApprovalChanged(
            "the approval has changed since you read it; read it again, then decide",
            details={"id": approval.id},
        )
    if problem is not None:
        return ApprovalDecision(None, problem)
    try:
        text = _checked_answer(approval, decision, answer)
    except InvalidRequest as error:
        return ApprovalDecision(None, error)
    after = _voted(approval, Vote(voter.name, decision, now, voter.token, comment or None), text)
    return ApprovalDecision(after, after)


def _is_mine(vote: Vote, voter: Voter) -> bool:
    return vote.by == voter.name or (vote.token is not None and vote.token == voter.token)


def _closed(approval: Approval, now: int) -> ApprovalClosed | None:
    state = approval.state
    if state == OPEN and approval.expires_at is not None and approval.expires_at <= now:
        state = EXPIRED
    if state == OPEN:
        return None
    by = f" by {approval.decided_by}" if approval.decided_by else ""
    return ApprovalClosed(
        f"the approval is closed: it is {state}{by}", details={"id": approval.id, "state": state}
    )


def _checked_answer(approval: Approval, decision: str, answer: JsonMapping | None) -> str | None:
    """Return the answer to store as JSON text. Raise `InvalidRequest` with every problem."""
    if decision == REJECT:
        if answer:
            raise InvalidRequest(
                "field 'answer' is only for the decision approve; use 'comment' instead"
            )
        return approval.answer
    if approval.form is None:
        if answer:
            raise InvalidRequest("field 'answer' must be absent: this approval has no form")
        return None
    form = form_of(approval)
    if approval.answer is not None and not answer:
        return approval.answer  # it was shown with the answer of the previous approver
    full = forms.filled(form, answer)
    if too_deep(full):
        raise InvalidRequest(f"field 'answer' must not be nested deeper than {DEPTH_MAX} levels")
    problems = forms.answer_problems(form, full)
    if problems:
        raise validation.refusal(problems)
    text = _text(full)
    if approval.answer is not None and text != approval.answer:
        raise InvalidRequest(
            "field 'answer' differs from the answer of an earlier approver; leave it out to "
            "approve that answer, or reject"
        )
    return text


def form_of(approval: Approval) -> Form:
    assert approval.form is not None
    return _form.decode(approval.form)


_form = msgspec.json.Decoder(Form)


def _voted(approval: Approval, vote: Vote, answer: str | None) -> Approval:
    cast = [*votes(approval), vote]
    state = OPEN
    if vote.decision == REJECT:
        state = REJECTED
    elif sum(one.decision == APPROVE for one in cast) >= approval.needed:
        state = APPROVED
    after = msgspec.structs.replace(
        approval, votes=_text(cast), answer=answer, comment=vote.comment or approval.comment
    )
    if state != OPEN:
        after.state, after.decided_at = state, vote.at
        after.decided_by = ", ".join(one.by for one in cast if one.decision == vote.decision)
    return after


# -------------------------------------------------------------------- time, cancel


def expire(approval: Approval, now: int) -> Approval:
    """Apply the request's `onExpiry` decision, because no person has decided in time."""
    after = msgspec.structs.replace(approval, decided_by=ON_EXPIRY, decided_at=now)
    after.state = APPROVED if approval.on_expiry == APPROVE else EXPIRED
    if after.approved and approval.form is not None and approval.answer is None:
        after.answer = _text(forms.filled(form_of(approval), None))
    return after


def close(approval: Approval, now: int) -> Approval:
    """Close the approval of a task that has ended without a decision."""
    return msgspec.structs.replace(approval, state=CANCELLED, decided_at=now)


def task_error(approval: Approval) -> str:
    """Return the error of a task that was not approved."""
    if approval.state == EXPIRED:
        return f"{TASK_EXPIRED}: no decision in time"
    reason = f": {approval.comment}" if approval.comment else ""
    return f"{TASK_REJECTED}: rejected by {approval.decided_by}{reason}"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
