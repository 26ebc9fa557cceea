"""Why a task may have changed: every change needs a request of the same step, or the clock.

A report counts as a cause only with the token of the lease that was open before the step, so a
change that only a stale worker could have brought about has no cause at all.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core.model import Task
from fairlane.engine.engine import Outcome
from fairlane.engine.requests import (
    Cancel,
    Complete,
    Fail,
    Lease,
    Reclaim,
    Release,
    Renew,
    Start,
    Submit,
)
from tests.simulation.ledger import ENDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulation.ledger import Seen

REPORTS: Final = (Start, Renew, Complete, Fail, Release)
CLOSERS: Final = (Complete, Fail, Release)


class Violation(AssertionError):
    """A rule does not hold. `rule` is its name."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


def demand(rule: str, holds: object, message: str) -> None:
    if not holds:
        raise Violation(rule, message)


class Step(msgspec.Struct):
    """What was asked, and what came back: None when nobody knows what was done."""

    number: int
    now: int
    batch: list[Any]
    waiting: list[Lease]
    outcome: Outcome | None = None
    by: str = ""
    neighbour: bool = False  # done by another process beside the server
    due_at: int | None = None  # when the engine wants to be called again
    fault: str = ""


class Causes:
    """What a batch may bring about, by what it may happen to."""

    def __init__(self, batch: Sequence[Any], now: int) -> None:
        self.now = now
        self.reports: dict[tuple[int, int], list[Any]] = {}
        self.cancelled: set[str] = set()
        self.submitted: set[str] = set()
        self.prefixes: list[str] = []
        for request in batch:
            if isinstance(request, REPORTS):
                self.reports.setdefault((request.seq, request.token), []).append(request)
            elif isinstance(request, Cancel):
                self.cancelled.add(request.id)
            elif isinstance(request, Submit):
                self.submitted.update(submission.id for submission in request.submissions)
            elif isinstance(request, Reclaim):
                self.prefixes.append(request.prefix)

    def of(self, row: Task | None, *kinds: type) -> list[Any]:
        """The reports that carry the token of the row's open lease."""
        if row is None or row.lease_expires_at is None:
            return []
        return [r for r in self.reports.get((row.seq, row.token), ()) if isinstance(r, kinds)]

    def lost(self, row: Task | None) -> bool:
        """The lease ran out, or was taken from a worker that is known to be dead."""
        if row is None or row.lease_expires_at is None:
            return False
        taken = any((row.worker or "").startswith(prefix) for prefix in self.prefixes)
        return taken or row.lease_expires_at <= self.now


def demand_final(before: Task, after: Task) -> None:
    kept = copy.copy(before)
    kept.lease_expires_at = after.lease_expires_at
    if kept != after:
        raise Violation("final", f"task {after.seq} ended as {before.state} and became {after}")


def demand_closed(row: Task, causes: Causes) -> None:
    """A lease ends by a report with its token, by time, or with its worker."""
    told = causes.of(row, *CLOSERS) or (row.state in ENDS and causes.of(row, Start))
    message = f"task {row.seq}: lease {row.token} of {row.worker} was closed by nobody"
    demand("fencing", told or causes.lost(row), message)


def demand_attempts(seen: Seen, causes: Causes) -> None:
    """Each lease is one attempt, unless it was given back or never started."""
    before, after = seen.before, seen.after
    counted = after.attempts - (before.attempts if before else 0) - seen.granted
    name = f"task {after.seq}: {counted} attempts beside leases, {after.attempts} in all"
    lost = causes.lost(before)
    idle = lost and before is not None and before.state == "assigned"
    clean = seen.closed is not None and (idle or bool(causes.of(before, Release)))
    if counted == -1:
        demand("attempts", clean, name)
    else:
        demand("attempts", counted == 0, name)
        used = bool(causes.of(before, Start, Complete, Fail)) or (lost and not idle)
        over = after.state in ENDS or after.state == "parked"
        demand("attempts", used or over or not clean, f"{name}: one was not given back")
    demand("attempts", 0 <= after.attempts <= after.max_attempts, name)


def demand_end(before: Task | None, after: Task, causes: Causes) -> None:
    name = f"task {after.seq} is {after.state}"
    spent = after.attempts >= after.max_attempts
    failed = causes.of(before, Fail)
    final = any(not r.retryable for r in failed) or (spent and (failed or causes.lost(before)))
    if after.state == "done":
        demand("fencing", causes.of(before, Complete), f"{name} and nobody completed it")
    elif after.state == "cancelled":
        demand("cancel", after.id in causes.cancelled, f"{name} and nobody cancelled it")
    elif after.state == "failed":
        late = after.deadline_at is not None and after.deadline_at <= causes.now
        demand("end", late or final, f"{name} before its time")
    elif after.state == "parked" and before is not None and before.state != "parked":
        demand("end", spent and final, f"{name} before its time")
    elif after.state == "rejected":
        demand("end", before is None, f"{name} after it was admitted")
