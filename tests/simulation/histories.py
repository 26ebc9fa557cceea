"""The life of each task, read from its events and judged against its row.

The events of a step are walked one by one, from the state before to the state after. Each step of
the walk has to be legal by the table here, which is not the one of the code under test, and each
has to have a cause. Attempts, deadlines and waits are counted along the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.engine.commands import Complete, Fail, Release, Start
from tests.simulation.causes import CLOSERS, Causes, Violation, demand
from tests.simulation.ledger import ENDS, LIVE, Event, Seen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.core.model import Submission, Task
    from fairlane.core.policy import KindPolicy, Policy

CREATED: Final = "task.created"
REJECTED: Final = "task.rejected"
STARTED: Final = "task.started"
COMPLETED: Final = "task.completed"
FAILED: Final = "task.failed"
RETRYING: Final = "task.retrying"
PARKED: Final = "task.parked"
CANCELLED: Final = "task.cancelled"
RELEASED: Final = "task.released"
REQUEUED: Final = "task.requeued"
UNBLOCKED: Final = "task.unblocked"
ENDINGS: Final = {
    COMPLETED: "done",
    FAILED: "failed",
    CANCELLED: "cancelled",
    REJECTED: "rejected",
}

_WAITS: Final = ("delay", "dependency")
_RUNS: Final = ("assigned", "running")
# From where an event may come, and where it leads. Two of them name the other place in `detail`.
_MOVES: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    CREATED: (("new",), "queued"),
    REJECTED: (("new",), "rejected"),
    STARTED: (("queued", "assigned"), "running"),
    COMPLETED: (_RUNS, "done"),
    FAILED: (LIVE, "failed"),
    RETRYING: (_RUNS, "queued"),
    PARKED: (_RUNS, "parked"),
    CANCELLED: ((*LIVE, "parked"), "cancelled"),
    RELEASED: (_RUNS, "queued"),
    REQUEUED: (("failed", "cancelled", "parked"), "queued"),
    UNBLOCKED: (("waiting_dependency",), "queued"),
}
ORPHANED: Final = "dependency "  # how the error of a cancelled child begins


class Life(msgspec.Struct):
    """What is known of one task beside its row."""

    submission: Submission
    base_at: int  # when it was made, or last began again
    span_ms: int | None  # from there to its deadline
    own: dict[str, Any]  # what it says of its retries
    orphaned: bool = False  # its last end was that of a parent
    again: bool = False  # it has begun again: then it starts as soon as it can
    named: bool = False  # its deadline is a moment that its caller named
    moved_ms: int = 0  # by how much the clock was set since `base_at`
    aged_ms: int = 0  # the same, as far as it counts for its age

    def starts_at(self) -> int | None:
        at = None if self.again else _starts_at(self.submission, self.base_at)
        is_span = self.submission.delay_ms is not None
        return at + self.moved_ms if at is not None and is_span else at

    def deadline_at(self) -> int | None:
        if self.span_ms is None:
            return None
        return self.base_at + self.span_ms + (0 if self.named else self.moved_ms)


class Histories:
    def __init__(self) -> None:
        self.lives: dict[int, Life] = {}
        self.seen: dict[str, int] = {}  # how often an event of each type was met

    def judge(self, seen: Seen, causes: Causes, policy: Policy) -> list[tuple[str, Event, str]]:
        """Walk the events of a task. What is left for others: state, event and state, in order."""
        before, after = seen.before, seen.after
        state = before.state if before else "new"
        walk = []
        if before is None:
            self._begin(after, causes, policy)
        for event in seen.word:
            to = _moved(after, state, event)
            demand("events", event.at == causes.now, f"{event} at {causes.now}")
            self._judge_cause(seen, state, event, causes)
            self._judge_moments(after, event, to, causes.now, policy)
            walk.append((state, event, to))
            self.seen[event.type] = self.seen.get(event.type, 0) + 1
            state = to
        self._judge_place(seen, state)
        self._judge_start(seen, causes.now)
        _judge_attempts(seen, causes)
        _judge_closing(seen, causes)
        if seen.has(RETRYING):
            self._judge_wait(seen, causes, policy.kinds[after.kind])
        return walk

    def forget(self, task: Task) -> None:
        del self.lives[task.seq]

    # ------------------------------------------------------------ the state

    def _begin(self, after: Task, causes: Causes, policy: Policy) -> None:
        submission = causes.submitted.get(after.id)
        if submission is None:
            raise Violation("nowhere", f"task {after.seq} was never submitted")
        own = msgspec.json.decode(submission.body).get("retryPolicy", {})
        life = Life(submission, causes.now, None, own)
        self.lives[after.seq] = life
        at = _starts_at(submission, causes.now)
        deadline = submission.deadline_at
        if deadline is None and not submission.depends_on:
            deadline = _deadline(policy.kinds[after.kind], at or causes.now)
        life.span_ms = None if deadline is None else deadline - causes.now
        life.named = submission.deadline_at is not None
        attempts = submission.max_attempts or policy.kinds[after.kind].max_attempts
        demand("budget", after.max_attempts == attempts, f"{after} instead of {attempts}")

    def _judge_place(self, seen: Seen, state: str) -> None:
        """Where the events lead is where the row is."""
        before, after = seen.before, seen.after
        name = f"task {after.seq}: {[event.type for event in seen.word]} to {after.state}"
        if seen.granted and state == "queued":
            state = "assigned"
        if seen.granted:
            demand("history", state in _RUNS, name)
        else:
            demand("history", state == after.state, name)
        if before is not None and before.state in ENDS and not seen.word:
            kept = msgspec.structs.replace(before, lease_expires_at=after.lease_expires_at)
            demand("final", _same(kept, after), f"task {after.seq} ended and became {after}")
        _judge_row(after)

    # ------------------------------------------------------------ causes

    def _judge_cause(self, seen: Seen, state: str, event: Event, causes: Causes) -> None:
        before, after, type_ = seen.before, seen.after, event.type
        name = f"task {after.seq} ({type_})"
        if type_ == STARTED:
            begun = seen.granted and event is seen.word[-1]
            demand("fencing", begun or causes.of(before, Start), f"{name} was started by nobody")
        elif type_ == COMPLETED:
            demand("fencing", causes.of(before, Complete), f"{name} and nobody completed it")
        elif type_ == CANCELLED:
            self.lives[after.seq].orphaned = (event.detail or "").startswith(ORPHANED)
            told = {after.id, after.batch} & causes.cancelled
            orphaned = self.lives[after.seq].orphaned and state == "waiting_dependency"
            silenced = causes.silenced(after, event.detail)
            demand("cancel", told or orphaned or silenced, f"{name} and nobody cancelled it")
        elif type_ == RELEASED:
            idle = causes.lost(before) and state == "assigned" and _tells_of_its_start(before)
            demand("attempts", idle or causes.of(before, Release), f"{name} by nobody")
        elif type_ == REQUEUED:
            asked = causes.reset if state == "parked" else causes.retried
            orphaned = state == "cancelled" and self.lives[after.seq].orphaned
            demand("revival", after.id in asked or orphaned, f"{name} by nobody")
            self.lives[after.seq].orphaned = False
        elif type_ in (FAILED, RETRYING, PARKED):
            self._judge_failure(seen, event, causes)

    def _judge_failure(self, seen: Seen, event: Event, causes: Causes) -> None:
        before, after, type_ = seen.before, seen.after, event.type
        spent = event.attempt >= after.max_attempts
        failed = causes.of(before, Fail)
        began = before is not None and before.state == "running"
        began = began or bool(causes.of(before, Start)) or not _tells_of_its_start(before)
        lost = causes.lost(before) and began
        final = any(not r.retryable for r in failed) or (spent and (failed or lost))
        deadline = self.lives[after.seq].deadline_at()
        late = type_ == FAILED and deadline is not None and deadline <= causes.now
        again = type_ == RETRYING and not spent and (any(r.retryable for r in failed) or lost)
        holds = again if type_ == RETRYING else late or (final and (spent or type_ == FAILED))
        demand("end", holds, f"task {after.seq}: {event} before its time")
        demand("result", event.detail, f"task {after.seq}: {event} gives no reason")

    # ------------------------------------------------------------ moments

    def _judge_moments(self, task: Task, event: Event, to: str, now: int, policy: Policy) -> None:
        """Deadlines: born with the task or when it could first start, moved on when revived."""
        life = self.lives[task.seq]
        if event.type == REQUEUED:
            life.base_at, life.again, life.named, life.moved_ms = now, True, False, 0
            if life.span_ms is not None and life.span_ms < 0:  # the clock had been set back
                life.span_ms = None
        if event.type in (CREATED, UNBLOCKED, REQUEUED) and to == "queued":
            at = life.starts_at()
            if life.span_ms is None:
                deadline = _deadline(policy.kinds[task.kind], max(now, at or now))
                since = life.base_at + life.moved_ms
                life.span_ms = None if deadline is None else deadline - since

    def _judge_start(self, seen: Seen, now: int) -> None:
        """Nobody passes the gate before its moment."""
        before, after = seen.before, seen.after
        if after.state in ENDS or seen.has(REQUEUED):
            return
        if before is not None and not seen.word and before.gate == after.gate in _WAITS:
            waits = f"task {after.seq} waits until {after.eligible_at}, not {before.eligible_at}"
            demand("wait", before.eligible_at == after.eligible_at, waits)
        at = None
        if seen.has(CREATED, UNBLOCKED) and after.state != "waiting_dependency":
            at = self.lives[after.seq].starts_at()
        elif before is not None and before.gate == "delay" and after.gate != "delay":
            at = before.eligible_at
        if at is not None and at > now:
            held = after.gate == "delay" and after.eligible_at == at
            demand("delay", held, f"task {after.seq} does not wait until {at}")

    def judge_deadline(self, task: Task) -> None:
        if task.state != "rejected":
            right = self.lives[task.seq].deadline_at()
            name = f"task {task.seq} ({task.state})"
            demand("deadline", task.deadline_at == right, f"{name} is {task.deadline_at}: {right}")

    def _judge_wait(self, seen: Seen, causes: Causes, kind: KindPolicy) -> None:
        """A retry waits as the task says, or its kind, or its worker if that is longer."""
        before, after = seen.before, seen.after
        assert before is not None
        if seen.word[-1].type != RETRYING or after.state != "queued" or after.gate != "delay":
            return  # it went on in the same step
        own = self.lives[after.seq].own
        base = own.get("backoffMs", kind.backoff_ms)
        factor = own.get("backoffMultiplier", kind.backoff_multiplier)
        wait = min(base * factor ** (before.attempts - 1), kind.max_backoff_ms)
        asked = [r.retry_after_ms or 0 for r in causes.of(before, Fail)] or [0]
        low, high = wait * (1 - kind.jitter) - 1, wait * (1 + kind.jitter) + 1
        assert after.eligible_at is not None
        found = after.eligible_at - causes.now
        holds = any(max(low, one) <= found <= max(high, one) for one in asked)
        demand("backoff", holds, f"task {after.seq} waits {found} ms, not {wait} or {asked}")


def _moved(task: Task, state: str, event: Event) -> str:
    sources, to = _MOVES[event.type]
    if state not in sources:
        raise Violation("history", f"task {task.seq}: {event.type} while {state}")
    if event.type in (CREATED, REQUEUED) and event.detail:
        demand("history", event.detail == "waiting_dependency", f"task {task.seq}: {event}")
        return event.detail
    return to


def _judge_attempts(seen: Seen, causes: Causes) -> None:
    """Each lease is one attempt, unless it was given back; who begins again has all of them."""
    before, after = seen.before, seen.after
    attempts = before.attempts if before else 0
    for event in seen.word:
        if event.type == RELEASED:
            attempts -= 1
        elif event.type in (REQUEUED, CREATED):
            attempts = 0
        begun = int(event.type == STARTED and seen.granted and event is seen.word[-1])
        right = event.attempt == attempts + begun
        demand("attempts", right, f"task {after.seq}: {event}, counted {attempts}")
    attempts += seen.granted
    name = f"task {after.seq}: {after.attempts} attempts, counted {attempts}"
    demand("attempts", after.attempts == attempts, name)
    demand("attempts", 0 <= after.attempts <= after.max_attempts, name)
    given_back = bool(causes.of(before, Release)) and not causes.of(before, Start, Complete, Fail)
    if given_back and before is not None and before.state in _RUNS:
        over = seen.has(RELEASED, CANCELLED, *_by_time(before, causes))
        demand("attempts", over, f"{name}: one was not given back")


def _by_time(before: Task, causes: Causes) -> Sequence[str]:
    late = before.deadline_at is not None and before.deadline_at <= causes.now
    return (FAILED,) if late else ()


def _tells_of_its_start(row: Task | None) -> bool:
    """Workers inside servers do; others need not, so that their leases alone count."""
    return row is not None and (row.worker or "").startswith("node_")


def _judge_closing(seen: Seen, causes: Causes) -> None:
    """A lease ends by a report with its token, by time, or with its worker."""
    row = seen.closed
    if row is not None:
        late = row.state == "assigned" and bool(_by_time(row, causes))
        told = causes.of(row, *CLOSERS)
        told = told or ((row.state in ENDS or late) and causes.of(row, Start))
        message = f"task {row.seq}: lease {row.fencing_token} of {row.worker} was closed by nobody"
        demand("fencing", told or causes.lost(row), message)


def _judge_row(task: Task) -> None:
    """What a row may look like in each state."""
    leased = task.lease_expires_at is not None
    name = f"task {task.seq} ({task.state})"
    demand("state", task.state not in _RUNS or leased, f"{name} has no lease")
    blocked = task.state == "waiting_dependency"
    demand("state", blocked == (task.gate == "dependency"), f"{name} at {task.gate}")
    demand("state", task.gate is None or blocked or task.state == "queued", f"{name}: gate")
    timed = task.gate in ("delay", "debounce")
    demand("state", timed <= (task.eligible_at is not None), f"{name} waits for no moment")
    demand("state", blocked or timed or task.eligible_at is None, f"{name} waits and does not")
    demand("state", (task.completed_at is not None) == (task.state in ENDS), f"{name}: end")


def _starts_at(submission: Submission, now: int) -> int | None:
    at = submission.run_at if submission.delay_ms is None else now + submission.delay_ms
    return at if at is not None and at > now else None


def _deadline(kind: KindPolicy, since: int) -> int | None:
    return None if kind.deadline_sec is None else since + kind.deadline_sec * 1000


def _same(one: Task, other: Task) -> bool:
    """The line and the rank of what has ended mean nothing any more."""
    return msgspec.structs.replace(one, line=other.line, rank=other.rank) == other
