"""Approvals: whatever the interleaving, nothing starts unapproved and nothing starts twice.

A small world of one task drives the real core as the engine does, in any order of clicks, edits,
expiry, cancels, retries, revoked approvers, leases and asks of two nodes that read and then decide
on what is stored by then.
"""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.core import approvals, gates, leases, lifecycle
from fairlane.core.approvals import Approval, ApprovalRequest, Voter
from fairlane.core.errors import FairlaneError
from fairlane.core.model import Task
from tests.unit.core import rows

VOTERS = (
    Voter("boss", None, "tok_boss"),
    Voter("cfo", None, "tok_cfo"),
    Voter("ada", "ada", "tok_agent"),  # the task's own agent
    Voter("sub", None, "tok_sub"),  # the token that submitted it
)
STEPS = st.sampled_from(
    [
        *("read", "approve", "reject", "approve_stale", "edit", "cancel", "retry", "lease", "ask"),
        *("complete", "tick", "revoke"),
    ]
)


class World:
    def __init__(self, needed: int, expires_ms: int | None, on_expiry: str) -> None:
        self.now = rows.NOW
        self.body = '{"params":{"version":0}}'
        self.edits = 0
        self.approved_bodies: set[tuple[str, str]] = set()
        self.starts: dict[str, int] = {}
        self.revoked: set[str | None] = set()
        self.seen: str = ""
        document = {"title": "Send?", "count": needed}
        if expires_ms is not None:
            document |= {"expiresMs": expires_ms, "onExpiry": on_expiry}
        self.request = msgspec.convert(document, ApprovalRequest)
        self.task: Task = rows.queued(gate="approval", unapproved=1)
        self.approval: Approval = self._opened("", 1)
        self.number = 1
        self.token = 0
        self.decisions: dict[str, list[str]] = {}

    def _opened(self, name: str, number: int) -> Approval:
        return approvals.opened(
            self.request,
            seq=number,
            approval_id=f"apr_{number}",
            agent="ada",
            task=(1, "tsk_1"),
            name=name,
            submitter="tok_sub",
            now=self.now,
        )

    def take(self, step: str, voter: Voter) -> None:
        self.now += 3
        getattr(self, step)(voter)
        assert self.task.unapproved in (0, 1)
        is_open = self.approval.state == approvals.OPEN
        assert is_open == (self.task.unapproved == 1)

    def read(self, _: Voter) -> None:
        self.seen = approvals.hash_of(self.approval, self.body)

    def approve_stale(self, voter: Voter) -> None:
        self._decide(voter, "approve", self.seen)

    def approve(self, voter: Voter) -> None:
        self.read(voter)
        self._decide(voter, "approve", self.seen)

    def reject(self, voter: Voter) -> None:
        self.read(voter)
        self._decide(voter, "reject", self.seen)

    def _decide(self, voter: Voter, word: str, seen: str) -> None:
        if voter.token in self.revoked:
            return  # the engine refuses it under the lock
        before = self.approval
        decision = approvals.decide(
            before,
            voter,
            word,
            answer=None,
            comment=None,
            given_hash=seen,
            body=self.body,
            now=self.now,
        )
        if decision.change is None:
            return
        assert voter.name in ("boss", "cfo"), "no voter decides on their own task"
        assert seen == approvals.hash_of(before, self.body), "a decision is about what was shown"
        assert before.state == approvals.OPEN, "one decision, final"
        assert before.expires_at is None or self.now < before.expires_at
        names = [vote.by for vote in approvals.votes(decision.change)]
        assert len(names) == len(set(names)), "each person once"
        self._follow(decision.change)

    def _follow(self, after: Approval) -> None:
        self.approval = after
        if after.state == approvals.OPEN:
            return
        self.decisions.setdefault(after.id, []).append(after.state)
        if after.is_gate and not after.approved:
            change = leases.cancel(self.task, "tsk_1", self.now, approvals.task_error(after)).change
            assert change is not None
            self.task = change.after
            return
        if after.approved:
            self.approved_bodies.add((after.id, self.body))
        self.task = gates.approve(self.task, self.now, None).after

    def edit(self, _: Voter) -> None:
        """Messages grow only before their approval; nothing rewrites an approved request."""
        if self.approval.state == approvals.OPEN:
            self.edits += 1
            self.body = f'{{"params":{{"version":{self.edits}}}}}'

    def tick(self, _: Voter) -> None:
        at = self.approval.expires_at
        if self.approval.state == approvals.OPEN and at is not None and at <= self.now:
            self._follow(approvals.expire(self.approval, self.now))

    def cancel(self, _: Voter) -> None:
        change = leases.cancel(self.task, "tsk_1", self.now).change
        if change is not None:
            was_open = self.task.unapproved == 1
            self.task = change.after
            assert was_open == (self.approval.state == approvals.OPEN)
            if was_open:
                self.approval = approvals.close(self.approval, self.now)

    def retry(self, _: Voter) -> None:
        change = leases.retry(self.task, "tsk_1", self.now).change
        if change is None:
            return
        self.number += 1
        base = self.approval if self.approval.is_gate else self._opened("", self.number)
        self.approval = approvals.opened_again(
            base, seq=self.number, approval_id=f"apr_{self.number}", now=self.now
        )
        self.task = change.after
        self.task.gate, self.task.unapproved = "approval", 1

    def lease(self, _: Voter) -> None:
        if not self.task.ready:
            return
        if self.approval.is_gate:
            assert (self.approval.id, self.body) in self.approved_bodies, "an unapproved start"
        assert not self.task.leased, "a doubled start"
        self.token += 1
        self.task = leases.grant(
            self.task, fencing_token=self.token, worker="w", ttl_ms=1000, started=True, now=self.now
        ).after
        self.starts[self.approval.id] = self.starts.get(self.approval.id, 0) + 1

    def ask(self, _: Voter) -> None:
        decision = leases.suspend(self.task, self.token, self.now)
        if isinstance(decision.answer, FairlaneError) or decision.answer.terminal:
            if decision.change is not None:
                self.task = decision.change.after
            return
        self.task = decision.answer
        self.number += 1
        self.approval = self._opened(f"q{self.number}", self.number)

    def complete(self, _: Voter) -> None:
        decision = leases.complete(self.task, self.token, None, self.now)
        if decision.change is not None:
            self.task = decision.change.after

    def revoke(self, voter: Voter) -> None:
        self.revoked.add(voter.token)


@settings(max_examples=400, deadline=None)
@given(
    st.integers(1, 2),
    st.sampled_from([None, 9, 30]),
    st.sampled_from(["reject", "approve"]),
    st.lists(st.tuples(STEPS, st.sampled_from(VOTERS)), max_size=40),
)
def test_nothing_starts_unapproved_and_no_decision_counts_twice(
    needed: int, expires_ms: int | None, on_expiry: str, steps: list[tuple[str, Voter]]
) -> None:
    world = World(needed, expires_ms, on_expiry)
    for step, voter in steps:
        world.take(step, voter)
    assert all(len(states) == 1 for states in world.decisions.values())
    assert all(count == 1 for count in world.starts.values()), "one start for one decision"
    if world.task.state == lifecycle.RUNNING:
        assert world.approval.state != approvals.OPEN
