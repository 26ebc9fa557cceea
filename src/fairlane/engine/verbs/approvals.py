"""Approvals: a task or a run opens one, and a decision lets the task continue.

`core/approvals.py` defines who may decide and what a decision means. This module applies the
decision to the task in the same transaction: the task passes the gate, resumes, or is cancelled. It
also refuses a token that was revoked while its request was in transit, under the write lock.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from fairlane.core import access, admission, approvals, gates, leases, lifecycle, moments
from fairlane.core.approvals import Approval, ApprovalRequest, Voter
from fairlane.core.errors import (
    ApprovalChanged,
    ApprovalClosed,
    Conflict,
    FairlaneError,
    LeaseLost,
    NotFound,
    Unauthenticated,
)
from fairlane.core.model import APPROVAL_GATE, Submission, Task, copied
from fairlane.engine.commands import Ask, AskOutcome, CreateLink, Decide, DecideByLink
from fairlane.engine.verbs import budgets, redaction, resources
from fairlane.store.tables import approvals as table
from fairlane.store.tables import tasks as task_table
from fairlane.store.tables import tokens as token_table
from fairlane.store.tables.approvals import ApprovalLink
from fairlane.store.transaction import Transaction

STEP: Final = 500
ASKS_MAX: Final = 100  # questions of one task; a run that asks more is probably stuck in a loop
LINKS_ARE_GONE: Final = (
    "this link is not valid: it was used, it has expired, or the approval has changed"
)

# -------------------------------------------------------------------- open


def open_gate(tx: Transaction, task: Task, submission: Submission, now: int) -> None:
    """Open the approval of a task that is being admitted, if its request asks for one."""
    if submission.approval is not None:
        seq = tx.next_seq()
        made = approvals.opened(
            submission.approval,
            seq=seq,
            approval_id=approvals.id_of(seq),
            agent=task.agent,
            task=(task.seq, task.id),
            submitter=submission.submitter,
            now=now,
        )
        tx.save_approval(None, made)


def ask_again(tx: Transaction, task: Task, now: int) -> None:
    """Open a new approval for a task that was queued again: a decision ends with the task."""
    if task.unapproved is None:
        return
    task.unapproved = 0
    for before in tx.lookup.approvals_of([task.seq]):
        tx.save_approval(before, approvals.withdrawn(before))
        if before.is_gate:
            seq = tx.next_seq()
            again = approvals.opened_again(
                before, seq=seq, approval_id=approvals.id_of(seq), now=now
            )
            tx.save_approval(None, again)
            task.unapproved = 1
            if task.deadline_ms is not None:
                task.deadline_at = None  # its time starts when it is approved


def ask(tx: Transaction, requests: Sequence[Ask], now: int) -> Iterator[object]:
    """Release leases until people have decided; answer a question that was decided before.

    A worker that did not receive the response may ask again.
    """
    tasks = tx.tasks_by_seq(request.seq for request in requests)
    tx.counters.prepare(tasks[request.seq] for request in requests if request.seq in tasks)
    for request in redaction.reports(tx, tasks, requests, "request"):
        yield _ask(tx, tasks.get(request.seq), request, now)


def _ask(tx: Transaction, task: Task | None, request: Ask, now: int) -> AskOutcome | FairlaneError:
    if task is None or task.fencing_token != request.fencing_token:
        return _lost(task, request)
    earlier = tx.lookup.approvals_of([task.seq])
    known = next((one for one in earlier if one.name == request.name), None)
    made = _question(tx, task, request, now)
    if known is not None and _is_answered(known, made, task):
        return AskOutcome(task, known)
    if len(earlier) >= ASKS_MAX:
        return Conflict(f"the task has asked {len(earlier)} questions, which is the maximum")
    decision = leases.suspend(task, request.fencing_token, now)
    if decision.change is not None:
        tx.apply(decision.change)
    if isinstance(decision.answer, FairlaneError):
        return decision.answer
    if decision.answer.terminal:
        return _lost(decision.answer, request)
    if known is not None:  # the same name, but a different question
        tx.save_approval(known, approvals.withdrawn(known))
    made.seq = tx.next_seq()
    made.id = approvals.id_of(made.seq)
    tx.save_approval(None, made)
    return AskOutcome(decision.answer, made)


def _is_answered(known: Approval, made: Approval, task: Task) -> bool:
    """Return whether a question was asked before: it is still open, or its run continues."""
    same = approvals.is_same_question(known, made)
    return same and (known.state == approvals.OPEN or task.leased)


def _question(tx: Transaction, task: Task, request: Ask, now: int) -> Approval:
    """Return the approval that a run asks for, without its number."""
    return approvals.opened(
        msgspec.json.decode(request.request, type=ApprovalRequest),
        seq=0,
        approval_id="",
        agent=task.agent,
        task=(task.seq, task.id),
        name=request.name,
        submitter=task_table.submitters(tx.connection, [task.seq]).get(task.seq),
        asker=request.asker,
        left_ms=leases.time_left(task, now),
        now=now,
    )


def _lost(task: Task | None, request: Ask) -> LeaseLost:
    error = leases.lost(task, request.fencing_token) or leases.lost(None, 0)
    assert error is not None
    return error


def answers(tx: Transaction, tasks: Iterable[Task]) -> Mapping[int, tuple[Approval, ...]]:
    """Return the decided approvals of tasks that are being leased."""
    asked = [task.seq for task in tasks if task.unapproved is not None]
    found: dict[int, tuple[Approval, ...]] = {}
    for one in tx.lookup.approvals_of(asked) if asked else ():
        if one.task_seq is not None and one.state != approvals.OPEN:
            found[one.task_seq] = (*found.get(one.task_seq, ()), one)
    return found


# -------------------------------------------------------------------- decide


def decide(tx: Transaction, requests: Sequence[Decide], now: int) -> Iterator[object]:
    for request in requests:
        problem = _revoked(tx, request, now)
        if problem is not None:
            yield problem
            continue
        found = _found(tx, request.id)
        if found is None or _is_hidden(found, request.voter):
            yield not_found(request.id)
            continue
        yield _decided(tx, found, request.voter, request, now)


def not_found(approval_id: str) -> NotFound:
    return NotFound(f'approval "{approval_id[:64]}" not found; GET /approvals lists them')


def _found(tx: Transaction, approval_id: str) -> Approval | None:
    tx.unwritten.write()
    return next(iter(table.by_id(tx.connection, [approval_id])), None)


def _is_hidden(approval: Approval, voter: Voter) -> bool:
    return not sees(approval, voter.agent, voter.name)


def sees(approval: Approval, agent: str | None, name: str) -> bool:
    """Return whether a caller may see an approval: a caller of all agents or of the task's agent,
    or a named approver.
    """
    named = approvals.approvers(approval) or ()
    return agent in (None, approval.agent) or agent in named or name in named


def _revoked(tx: Transaction, request: Decide, now: int) -> Unauthenticated | None:
    ids = {one for one in (request.voter.token, request.login) if one is not None}
    if not ids:
        return None
    valid = {token.id for token in token_table.all_tokens(tx.connection) if token.valid(now)}
    return None if ids <= valid else Unauthenticated(access.NOT_LET_IN)


def _decided(
    tx: Transaction, approval: Approval, voter: Voter, request: Decide | DecideByLink, now: int
) -> Approval | FairlaneError:
    decision = approvals.decide(
        approval,
        voter,
        request.decision,
        answer=request.answer,
        comment=request.comment,
        given_hash=request.hash,
        body=_body(tx, approval),
        now=now,
    )
    if decision.change is not None:
        tx.save_approval(approval, decision.change)
        _follow(tx, approval, decision.change, now)
    return decision.answer


def _follow(tx: Transaction, before: Approval, after: Approval, now: int) -> None:
    """Let the task of a decided approval continue, or cancel it."""
    if after.state in (before.state, approvals.CANCELLED):
        return
    if after.task_seq is None:
        budgets.follow(tx, after)
        return
    task = tx.tasks_by_seq([after.task_seq])[after.task_seq]
    tx.counters.prepare([task])
    if after.is_gate and not after.approved:
        change = leases.cancel(task, task.id, now, approvals.task_error(after)).change
        assert change is not None, "an open approval has an open task"
        tx.apply(change)
        return
    gate = None
    if task.gate == APPROVAL_GATE:
        free = copied(task)
        free.unapproved = 0
        session, batch = tx.counters.session_of(task), tx.counters.batch_of(task)
        gate = gates.next_gate(free, session, batch, now, has_turn=gates.holds_turn(task))
        gate = resources.gate(tx, task, gate)
    change = gates.approve(task, now, gate)
    if task.state != lifecycle.WAITING:
        admission.start_deadline(tx.policy, change.after, now, after.left_ms)
    tx.apply(change)


# -------------------------------------------------------------------- time and ends of tasks


def expire(tx: Transaction, now: int) -> bool:
    """Decide approvals that no person has decided in time. Return whether more may be due."""
    due = tx.lookup.approvals_due(now, STEP)
    for before in due:
        after = approvals.expire(before, now)
        tx.save_approval(before, after)
        _follow(tx, before, after, now)
    return len(due) == STEP


def close(tx: Transaction, now: int) -> None:
    """Close the approvals of tasks that have ended without them."""
    ended = {task.seq for task in tx.closing}
    tx.closing = []
    for before in tx.lookup.approvals_of(sorted(ended)):
        if before.state == approvals.OPEN:
            tx.save_approval(before, approvals.close(before, now))


# -------------------------------------------------------------------- links


def create_link(tx: Transaction, requests: Sequence[CreateLink], now: int) -> Iterator[object]:
    for request in requests:
        found = _found(tx, request.id)
        if found is None:
            yield not_found(request.id)
            continue
        if found.state != approvals.OPEN:
            yield ApprovalClosed(
                f"the approval is closed: it is {found.state}", details={"state": found.state}
            )
            continue
        names = approvals.approvers(found)
        if names is not None and request.approver not in names:
            yield Conflict(
                f"only {', '.join(names)} may decide on this approval; name one of them in "
                "'approver'"
            )
            continue
        expires_at = moments.later(now, request.expires_ms)
        if found.expires_at is not None:
            expires_at = min(expires_at, found.expires_at)
        link = ApprovalLink(
            request.link_id,
            found.seq,
            request.digest,
            approvals.hash_of(found, _body(tx, found)),
            request.approver or f"link {request.link_id}",
            request.created_by,
            now,
            expires_at,
        )
        table.insert_link(tx.connection, link)
        tx.changed = True
        yield link


def _body(tx: Transaction, approval: Approval) -> str | None:
    if approval.task_seq is None:
        return None
    return tx.lookup.requests([approval.task_seq]).get(approval.task_seq)


def decide_by_link(tx: Transaction, requests: Sequence[DecideByLink], now: int) -> Iterator[object]:
    """Decide once with a link. The approval must not have changed since the link showed it."""
    for request in requests:
        link = table.link(tx.connection, request.link_id)
        if link is None or not opens(link, request.digest, now):
            yield NotFound(LINKS_ARE_GONE)
            continue
        tx.unwritten.write()
        found = next(iter(table.by_seq(tx.connection, [link.approval])), None)
        if found is None or request.hash != link.hash:
            yield ApprovalChanged(LINKS_ARE_GONE)
            continue
        answer = _decided(tx, found, Voter(link.approver), request, now)
        if isinstance(answer, Approval):
            table.use_link(tx.connection, link.id, now)
            tx.changed = True
        yield answer


def opens(link: ApprovalLink, digest: str, now: int) -> bool:
    """Return whether a link is valid and its secret is right."""
    right = hmac.compare_digest(link.digest, digest)
    return right and link.used_at is None and now < link.expires_at
