"""Approvals: list, show, decide, create links, and ask in the middle of a run."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from fairlane.core import access, approvals
from fairlane.core.access import Caller
from fairlane.core.approvals import Approval, Voter
from fairlane.core.errors import InvalidRequest, NotFound
from fairlane.engine.commands import Ask, AskOutcome, CreateLink, Decide, DecideByLink
from fairlane.engine.node import Node
from fairlane.engine.verbs.approvals import LINKS_ARE_GONE, not_found, opens, sees
from fairlane.schema import approvals as schema
from fairlane.schema.approvals import (
    ApprovalLinkCreated,
    ApprovalPage,
    ApprovalStatus,
    LeaseAsked,
    approval_outcome,
    approval_status,
    asked_for,
)
from fairlane.schema.leases import NamedLease
from fairlane.schema.wire import moment
from fairlane.services.leases import owned_key
from fairlane.services.pages import number
from fairlane.services.registry import implements
from fairlane.store.tables.approvals import ApprovalFilter, ApprovalLink, ApprovalView

COUNTED_MAX: Final = 1000
LINK_PATH: Final = "/approve/"
_LINK_CHARACTERS: Final = 43


# -------------------------------------------------------------------- read


@implements(schema.APPROVALS)
async def list_approvals(node: Node, caller: Caller, request: schema.ListApprovals) -> ApprovalPage:
    if request.state is not None and request.state not in approvals.STATES:
        words = ", ".join(approvals.STATES)
        raise InvalidRequest(f"query parameter 'state' must be one of {words}")
    wanted = ApprovalFilter(
        state=request.state,
        task=request.task,
        agent=caller.agent,
        caller=caller.name,
        before=number(request.cursor),
    )
    views = node.views
    page = await views.read(views.approvals, wanted, request.limit)
    count = await views.read(views.open_approvals, caller.agent, caller.name, COUNTED_MAX)
    return ApprovalPage(
        approvals=[approval_status(view.approval, view.body) for view in page],
        count=len(page),
        open=count,
        next_cursor=str(page[-1].approval.seq) if page.more else None,
    )


@implements(schema.APPROVAL)
async def show_approval(
    node: Node, caller: Caller, request: schema.NamedApproval
) -> ApprovalStatus:
    view = await _visible(node, caller, request.approval_id)
    return approval_status(view.approval, view.body)


async def _visible(node: Node, caller: Caller, approval_id: str) -> ApprovalView:
    """Read an approval. Raise `NotFound` also for one that the caller may not see."""
    view = await node.views.read(node.views.approval, approval_id)
    if view is None or not sees(view.approval, caller.agent, caller.name):
        raise not_found(approval_id)
    return view


# -------------------------------------------------------------------- decide


@implements(schema.DECIDE)
async def decide(node: Node, caller: Caller, request: schema.DecideApproval) -> ApprovalStatus:
    decision = Decide(
        request.approval_id,
        Voter(caller.name, caller.agent, caller.token),
        request.decision,
        request.hash,
        request.answer,
        _comment(request.comment),
        caller.login,
    )
    after: Approval = await node.writer.ask(decision)
    view = await node.views.read(node.views.approval, after.id)
    return approval_status(after, None if view is None else view.body)


def _comment(text: str | None) -> str | None:
    return (text or "").strip() or None


# -------------------------------------------------------------------- links


@implements(schema.LINK_APPROVAL)
async def link(node: Node, caller: Caller, request: schema.LinkApproval) -> ApprovalLinkCreated:
    base = (request.base_url or "").rstrip("/")
    if base and not base.startswith(("http://", "https://")):
        raise InvalidRequest("field 'baseUrl' must start with http:// or https://")
    link_id = access.base62(secrets.token_bytes(16), access.ID_CHARACTERS)
    secret = access.base62(secrets.token_bytes(access.SECRET_BYTES), _LINK_CHARACTERS)
    made: ApprovalLink = await node.writer.ask(
        CreateLink(
            request.approval_id,
            link_id,
            access.digest(secret.encode()),
            request.expires_ms,
            caller.name,
            request.approver,
        )
    )
    return ApprovalLinkCreated(
        id=made.id, url=f"{base}{LINK_PATH}{link_id}.{secret}", expires_at=moment(made.expires_at)
    )


def _presented(word: str) -> tuple[str, str]:
    """Return the id and the digest of the secret of a presented link."""
    link_id, _, secret = word.partition(".")
    return link_id, access.digest(secret.encode())


async def linked(node: Node, word: str) -> ApprovalView:
    """Return the approval that a link is for. Raise `NotFound` if the link is not valid, or no
    longer valid.
    """
    link_id, digest = _presented(word)
    views = node.views
    found = await views.read(views.approval_link, link_id)
    if found is None:
        raise NotFound(LINKS_ARE_GONE)
    one, view = found
    stale = approvals.hash_of(view.approval, view.body) != one.hash
    if stale or view.approval.state != approvals.OPEN:
        raise NotFound(LINKS_ARE_GONE)
    if not opens(one, digest, node.writer.moment()):
        raise NotFound(LINKS_ARE_GONE)
    return view


async def decide_by_link(
    node: Node,
    word: str,
    decision: str,
    *,
    seen: str,
    answer: dict[str, object] | None,
    comment: str,
) -> Approval:
    """Decide with a link, once."""
    link_id, digest = _presented(word)
    if len(comment) > approvals.COMMENT_CHARACTERS_MAX:
        limit = approvals.COMMENT_CHARACTERS_MAX
        raise InvalidRequest(f"field 'comment' must not be longer than {limit} characters")
    command = DecideByLink(link_id, digest, decision, seen, answer, _comment(comment))
    after: Approval = await node.writer.ask(command)
    await node.audit.note(
        f"link {link_id}",
        "POST /approve",
        after.id,
        detail=f"{decision} by {after.decided_by or 'a link'}",
    )
    return after


# -------------------------------------------------------------------- ask


@implements(schema.ASK_LEASE)
async def ask(node: Node, caller: Caller, request: schema.AskLease) -> LeaseAsked:
    wanted = asked_for(request)
    approvals.check(wanted, "")
    key = await owned_key(node, caller, NamedLease(request.lease_id, request.token))
    text = msgspec.json.encode(wanted).decode()
    asked: AskOutcome = await node.writer.ask(Ask(*key, request.name, text, caller.token))
    return LeaseAsked(
        lease_id=request.lease_id,
        task_id=asked.task.id,
        state=asked.task.state,
        suspended=asked.approval.state == approvals.OPEN,
        approval=approval_outcome(asked.approval),
    )
