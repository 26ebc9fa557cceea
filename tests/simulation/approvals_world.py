"""A world of tasks that ask people, on the real engine, under lost replies and crashes.

Callers submit and retry, workers lease, ask and report, people read and decide with what they have
read, sometimes late, twice, or about their own tasks; requests are edited under their eyes, tokens
are revoked, time passes, and the process dies. After every step the rules are checked from the
tables and from the history of what was decided.
"""

from __future__ import annotations

from random import Random
from typing import Any, Final

import msgspec

from fairlane.clock import ManualClock
from fairlane.core import approvals
from fairlane.core.access import Token
from fairlane.core.approvals import Approval, ApprovalRequest, Voter
from fairlane.core.errors import FairlaneError
from fairlane.core.model import Submission, Task
from fairlane.engine.commands import (
    Ask,
    Cancel,
    Complete,
    CreateToken,
    Decide,
    Fail,
    Grant,
    Lease,
    Release,
    Retry,
    RevokeToken,
    Submit,
)
from fairlane.engine.engine import Engine
from fairlane.engine.reads.recount import recount
from fairlane.store.opening import open_store
from fairlane.store.tables import approvals as table
from fairlane.store.tables import tasks as task_table

CAPABILITY: Final = "handler/work"
AGENTS: Final = ("ada", "bob")
SUBMITTER: Final = "tok_submit00"
VOTERS: Final = (
    Voter("boss", None, "tok_boss0000"),
    Voter("cfo", None, "tok_cfo00000"),
    Voter("ada", "ada", "tok_ada00000"),
    Voter("sub", None, SUBMITTER),
)


class Violation(AssertionError):
    """A rule does not hold."""


def demand(rule: str, *, holds: bool, about: object) -> None:
    if not holds:
        raise Violation(f"{rule}: {about}")


class ApprovalsWorld:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.clock = ManualClock()
        self.store = open_store("sqlite://:memory:")
        self.store.migrate()
        self.engine = self._engine()
        self.reader = self.store.reader()
        self.held: list[Task] = []
        self.read: list[tuple[Approval, str]] = []
        self.revoked: set[str | None] = set()
        # What was decided: the state, and the hash of what people were shown.
        self.decided: dict[str, tuple[str, str]] = {}
        self.before: dict[str, Approval] = {}
        self.gate_starts: dict[str, int] = {}
        self.number = 0
        for voter in VOTERS:
            token = Token(0, str(voter.token), voter.name, "d", "approve", 0, voter.agent)
            self.engine.apply([CreateToken(token)])

    def _engine(self) -> Engine:
        return Engine(self.store, self.clock, name=f"node_{id(self)}_{self.clock.now()}")

    def close(self) -> None:
        self.engine.close()
        self.reader.close()
        self.store.close()

    # ------------------------------------------------------------ steps

    def step(self) -> None:
        names = ("submit", "lease", "look", "decide", "decide", "report", "ask", "wait", "trouble")
        getattr(self, self.rng.choice(names))()
        self.check()

    def submit(self) -> None:
        self.number += 1
        question: Any = {"title": "Send?", "count": self.rng.choice((1, 1, 2))}
        if self.rng.random() < 0.3:
            question |= {"expiresMs": 5000, "onExpiry": self.rng.choice(("reject", "approve"))}
        body = msgspec.json.encode({"params": {"n": self.number}}).decode()
        made = Submission(
            f"t{self.number}",
            "handler",
            self.rng.choice(AGENTS),
            CAPABILITY,
            body,
            session=self.rng.choice((None, "s")),
            delay_ms=self.rng.choice((None, None, 2000)),
            max_attempts=2,
            approval=msgspec.convert(question, ApprovalRequest),
            submitter=SUBMITTER,
        )
        self.apply([Submit([made])])

    def lease(self) -> None:
        request = Lease(f"w{self.number}", None, frozenset({CAPABILITY}), 3, 8000, start=True)
        for grant in self.apply([], [request]).grants[0]:
            self.granted(grant)

    def granted(self, grant: Grant) -> None:
        task, found = grant.task, table.of_tasks(self.reader, [grant.task.seq])
        self.held.append(task)
        (gate,) = [one for one in found if one.is_gate]
        state, seen = self.decided.get(gate.id, ("none", ""))
        demand("unapproved", holds=gate.approved and state == "approved", about=(task.id, gate))
        blank = msgspec.structs.replace(gate, answer=None)
        shown = approvals.hash_of(blank, grant.body)
        demand("covers", holds=seen in ("", shown), about=task.id)
        demand("open", holds=all(one.state != "open" for one in found), about=task.id)
        told = {one.name for one in grant.approvals}
        demand("answers", holds=told == {one.name for one in found}, about=(told, task.id))

    def look(self) -> None:
        for view in table.page(self.reader, self.store.vault, table.ApprovalFilter("open"), 50):
            self.read.append((view.approval, approvals.hash_of(view.approval, view.body)))
        self.read = self.read[-40:]

    def decide(self) -> None:
        if not self.read:
            return
        approval, seen = self.rng.choice(self.read)
        voter, word = self.rng.choice(VOTERS), self.rng.choice(("approve", "approve", "reject"))
        decide = Decide(approval.id, voter, word, seen)
        batch: list[object] = [decide] * self.rng.choice((1, 1, 2))
        if self.rng.random() < 0.05:
            batch.append(RevokeToken(voter.name))
            self.revoked.add(voter.token)
        self.apply(batch)

    def ask(self) -> None:
        if self.held:
            task = self.rng.choice(self.held)
            text = msgspec.json.encode(ApprovalRequest("Really?")).decode()
            self.apply([Ask(task.seq, task.fencing_token, f"q{self.rng.randrange(3)}", text)])

    def report(self) -> None:
        if not self.held:
            return
        task = self.held.pop(self.rng.randrange(len(self.held)))
        key = (task.seq, task.fencing_token)
        self.apply([self.rng.choice((Complete(*key), Fail(*key, "no"), Release(*key)))])

    def wait(self) -> None:
        self.clock.advance(self.rng.choice((10, 1000, 6000, 20_000)))
        self.apply([])

    def trouble(self) -> None:
        """A cancel, a retry, an edited request, or a crash."""
        name = f"t{self.rng.randrange(self.number + 1)}"
        kind = self.rng.randrange(4)
        if kind == 0:
            self.apply([Cancel(name)])
        elif kind == 1:
            self.apply([Retry(name)])
        elif kind == 2:
            self.edit(name)
        else:
            self.engine.close()
            self.engine = self._engine()

    def edit(self, name: str) -> None:
        """Change the request of a task that is still asked about, behind the engine's back."""
        for task in task_table.by_id(self.reader, [name]):
            if task.unapproved:
                connection = self.store.writer()
                connection.begin()
                body = f'{{"params":{{"n":{self.rng.randrange(99)}}}}}'
                task_table.rewrite_request(connection, self.store.vault, task.seq, body)
                connection.commit()
                connection.close()

    def apply(self, batch: list[Any], waiting: list[Lease] | None = None) -> Any:
        outcome = self.engine.apply(batch, waiting or [])
        once = any(isinstance(one, Submit | Retry) for one in batch)
        if (
            batch and not once and self.rng.random() < 0.1
        ):  # the reply was lost: the caller asks again
            outcome.answers = self.engine.apply(batch).answers
        for request, answer in zip(batch, outcome.answers, strict=True):
            if isinstance(request, Decide) and isinstance(answer, Approval):
                self.accepted(request, answer)
        return outcome

    def accepted(self, request: Decide, answer: Approval) -> None:
        mine = [one for one in approvals.votes(answer) if one.by == request.voter.name]
        demand("votes", holds=len(mine) <= 1, about=answer)
        demand("own", holds=request.voter.name in ("boss", "cfo"), about=request)
        fresh = bool(mine) and mine[0].at == self.clock.now()
        demand("revoked", holds=not (fresh and self.was_revoked(request)), about=request)
        if answer.state != "open" and answer.id not in self.decided:
            self.decided[answer.id] = (answer.state, request.hash)

    def was_revoked(self, request: Decide) -> bool:
        return request.voter.token in self.revoked

    # ------------------------------------------------------------ rules

    def check(self) -> None:
        found = {view.approval.id: view.approval for view in self._all()}
        for id_, one in found.items():
            before = self.before.get(id_)
            if before is not None and before.state != "open":
                same = (one.state, one.answer, one.decided_by) == (
                    before.state, before.answer, before.decided_by,
                )  # fmt: skip
                demand("final", holds=same, about=(before, one))
            if one.state not in ("open", "cancelled") and id_ not in self.decided:
                by_time = one.decided_by == approvals.ON_EXPIRY
                demand("decision", holds=by_time, about=one)
                self.decided[id_] = (one.state, "")
            if one.state == "approved" and one.decided_by != approvals.ON_EXPIRY:
                votes = [vote for vote in approvals.votes(one) if vote.decision == "approve"]
                names = {vote.by for vote in votes}
                demand("count", holds=len(names) >= one.needed, about=one)
            late = one.state == "open" and (one.expires_at or 2**62) <= self.clock.now() - 20_000
            demand("expiry", holds=not late, about=one)
        self.before = found
        demand("recount", holds=recount(self.reader) == [], about=recount(self.reader))
        self.one_lease_each()

    def _all(self) -> list[table.ApprovalView]:
        return list(table.page(self.reader, self.store.vault, table.ApprovalFilter(), 1000))

    def one_lease_each(self) -> None:
        leased = [task.id for task in task_table.leased(self.reader)]
        demand("doubled", holds=len(leased) == len(set(leased)), about=leased)
        waits = [task for task in task_table.leased(self.reader) if task.unapproved]
        demand("slot", holds=not waits, about=waits)


def run(seed: int, steps: int) -> ApprovalsWorld:
    """Run one history. Raise `Violation` if a rule does not hold."""
    world = ApprovalsWorld(seed)
    try:
        for _ in range(steps):
            world.step()
    finally:
        world.close()
    return world


def refused(answer: object) -> bool:
    return isinstance(answer, FairlaneError)
