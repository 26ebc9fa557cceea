"""Why a task may have changed: every change needs a request of the same step, or the clock.

A report counts as a cause only with the token of the lease that was open before the step, so a
change that only a stale worker could have brought about has no cause at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.engine.commands import (
    AppendOutput,
    Cancel,
    CancelBatch,
    Complete,
    Fail,
    Lease,
    NewBatch,
    Reclaim,
    Release,
    Renew,
    Reset,
    Retry,
    Start,
    StopSession,
    Submit,
)
from fairlane.engine.engine import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.core.model import Submission, Task

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
    judged_from: int = 0  # before this a lease that has run out may be left alone: an outage
    committed: bool = False  # what was done is durable, whoever knows it
    stepped_ms: int = 0  # by how much the clock had been set before
    fault: str = ""


class Causes:
    """What a batch may bring about, by what it may happen to."""

    def __init__(self, batch: Sequence[Any], now: int) -> None:
        self.now = now
        self.reports: dict[tuple[int, int], list[Any]] = {}
        self.cancelled: set[str] = set()
        self.retried: set[str] = set()
        self.reset: set[str] = set()
        self.submitted: dict[str, Submission] = {}
        self.batches: dict[str, NewBatch] = {}
        self.prefixes: list[str] = []
        self.output: dict[tuple[int, int, int], set[str]] = {}
        self.silencers: dict[str, set[str]] = {}  # by session: why its tasks may be cancelled
        for request in batch:
            if isinstance(request, REPORTS):
                self.reports.setdefault((request.seq, request.fencing_token), []).append(request)
            elif isinstance(request, Cancel | CancelBatch):
                self.cancelled.add(request.id)
            elif isinstance(request, Retry):
                self.retried.add(request.id)
            elif isinstance(request, Reset):
                self.reset.add(request.id)
            elif isinstance(request, Submit):
                self._submit(request)
            elif isinstance(request, StopSession):
                code = "session_reset" if request.reset else "stopped"
                self.silencers.setdefault(request.key, set()).add(code)
            elif isinstance(request, Reclaim):
                self.prefixes.append(request.prefix)
            elif isinstance(request, AppendOutput):
                assert request.part is not None
                place = (request.seq, request.fencing_token, request.part)
                self.output.setdefault(place, set()).add(request.text)

    def _submit(self, request: Submit) -> None:
        self.submitted.update({submission.id: submission for submission in request.submissions})
        if request.batch is not None:
            self.batches[request.batch.id] = request.batch
        for one in request.submissions:
            if one.message is not None and one.session:
                codes = ("queue_dropped", "interrupted")
                self.silencers.setdefault(one.session, set()).update(codes)

    def silenced(self, task: Task, reason: str | None) -> bool:
        """A message or a stop of its session may have ended it for this reason."""
        code = (reason or "").partition(":")[0]
        return code in self.silencers.get(task.session or "", ())

    def of(self, row: Task | None, *kinds: type) -> list[Any]:
        """The reports that carry the token of the row's open lease."""
        if row is None or row.lease_expires_at is None:
            return []
        return [
            r for r in self.reports.get((row.seq, row.fencing_token), ()) if isinstance(r, kinds)
        ]

    def lost(self, row: Task | None) -> bool:
        """The lease ran out, or was taken from a worker that is known to be dead."""
        if row is None or row.lease_expires_at is None:
            return False
        taken = any((row.worker or "").startswith(prefix) for prefix in self.prefixes)
        return taken or row.lease_expires_at <= self.now
