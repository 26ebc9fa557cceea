"""The timeline of a task: when it waited and for what, ran, was suspended or parked, as spans.

Everything follows from the events of the task, so an ended task has the same timeline for as long
as its events are kept. Only the reason of the wait that is going on comes from the task itself: the
log does not say at which gate a past wait was spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fairlane.core import events, lifecycle
from fairlane.core.events import Event
from fairlane.core.model import APPROVAL_GATE, DELAY_GATE, DEPENDENCY_GATE, Task
from fairlane.core.suspensions import Suspension, Until

RUN: Final = "run"
WAIT: Final = "wait"
SUSPENDED: Final = "suspended"
PARKED: Final = "parked"
KINDS: Final = (RUN, WAIT, SUSPENDED, PARKED)

QUEUE: Final = "queue"  # reason of a wait: for its turn
RETRY: Final = "retry"  # reason of a wait: for the next attempt
SPANS_MAX: Final = 200
MARKS_MAX: Final = 200

_ENDS: Final = {
    events.COMPLETED: "completed",
    events.FAILED: "failed",
    events.CANCELLED: "cancelled",
    events.REJECTED: "rejected",
}
# The outcome of the run, and the kind and reason of the span that follows.
_INTERRUPTIONS: Final[Mapping[str, tuple[str, str, str | None]]] = {
    events.RETRYING: ("retrying", WAIT, RETRY),
    events.PARKED: ("parked", PARKED, None),
    events.RELEASED: ("released", WAIT, QUEUE),
    events.SUSPENDED: ("suspended", SUSPENDED, None),
}


class TimelineSpan(msgspec.Struct):
    """`end_at` is None while it lasts. `reason` is what a wait or a suspension waits for; `outcome`
    and `error` are those of a run.
    """

    kind: str
    start_at: int
    end_at: int | None = None
    reason: str | None = None
    attempt: int | None = None
    outcome: str | None = None
    error: str | None = None
    worker: str | None = None


class TimelineMark(msgspec.Struct, frozen=True):
    """Something that happened at a moment: a step, a signal, a message, a decision."""

    kind: str
    at: int
    name: str | None = None


class Timeline(msgspec.Struct, frozen=True):
    spans: list[TimelineSpan]
    marks: list[TimelineMark]
    omitted: int = 0


def timeline(
    task: Task,
    log: Iterable[Event],
    wait: Suspension | None = None,
    taken: Iterable[tuple[int, str]] = (),
) -> Timeline:
    """Return the timeline of a task from its events, oldest first. `wait` is what it waits for now,
    if it is suspended; `taken` are times and senders of the messages that its runs have taken. Of
    very many spans and marks, the newest are returned.
    """
    drawing = _Drawing(task)
    for event in log:
        drawing.take(event)
    drawing.explain(wait)
    messages = [TimelineMark("message", at, sender) for at, sender in taken]
    spans, marks = drawing.spans, sorted([*drawing.marks, *messages], key=lambda mark: mark.at)
    omitted = max(0, len(spans) - SPANS_MAX) + max(0, len(marks) - MARKS_MAX)
    return Timeline(spans[-SPANS_MAX:], marks[-MARKS_MAX:], omitted)


class _Drawing:
    def __init__(self, task: Task) -> None:
        self.task = task
        self.spans: list[TimelineSpan] = []
        self.marks: list[TimelineMark] = []
        self._asking = False  # an approval is open
        self._delayed_until = 0

    def take(self, event: Event) -> None:
        kind = event.type
        if kind == events.CREATED:
            self._created(event)
        elif kind == events.STARTED:
            self._close(event.at)
            self._open(RUN, event.at, attempt=event.attempt, worker=event.worker)
        elif kind in (events.UNBLOCKED, events.REQUEUED):
            self._close(event.at)
            self._open(WAIT, event.at, _reason(event))
        elif kind in _INTERRUPTIONS:
            self._interrupted(event)
        elif kind in _ENDS:
            self._close(event.at, _ENDS[kind], event.error)
        elif kind in events.APPROVALS:
            self._approval(event)
        elif kind == events.STEP and event.step is not None:
            self._step(event.at, event.step[1])
        else:
            self.marks.append(TimelineMark(kind.partition(".")[2], event.at, event.signal))

    def explain(self, wait: Suspension | None) -> None:
        """Give the wait that is going on its reason."""
        last = self._last
        if last is None or last.kind == RUN:
            return
        if last.kind == SUSPENDED:
            last.reason = last.reason or (_waits_for(wait.waits_for) if wait else None)
        elif last.kind == WAIT and self.task.state == lifecycle.QUEUED:
            if last.reason == DELAY_GATE and self.task.gate != DELAY_GATE:
                self._wait_on(self._delayed_until, QUEUE)
            self.spans[-1].reason = self.task.gate or self.spans[-1].reason

    @property
    def _last(self) -> TimelineSpan | None:
        """Return the span that is going on."""
        return self.spans[-1] if self.spans and self.spans[-1].end_at is None else None

    def _open(
        self,
        kind: str,
        at: int,
        reason: str | None = None,
        *,
        attempt: int | None = None,
        worker: str | None = None,
    ) -> None:
        self.spans.append(
            TimelineSpan(kind, at, reason=reason, attempt=attempt or None, worker=worker)
        )

    def _close(self, at: int, outcome: str | None = None, error: str | None = None) -> None:
        last = self._last
        if last is None:
            return
        if last.reason == DELAY_GATE and at > self._delayed_until:
            last.end_at = self._delayed_until
            last = TimelineSpan(WAIT, self._delayed_until, reason=QUEUE)
            self.spans.append(last)
        last.end_at = max(last.start_at, at)
        if last.kind == RUN:
            last.outcome, last.error = outcome, error

    def _created(self, event: Event) -> None:
        reason = _reason(event)
        if reason == QUEUE and self.task.delay_ms:
            reason = DELAY_GATE
            self._delayed_until = event.at + self.task.delay_ms
        self._open(WAIT, event.at, reason)

    def _interrupted(self, event: Event) -> None:
        outcome, kind, reason = _INTERRUPTIONS[event.type]
        self._close(event.at, outcome, event.error)
        if kind == SUSPENDED and self._asking:
            reason = APPROVAL_GATE
        self._open(kind, event.at, reason)

    def _approval(self, event: Event) -> None:
        self._asking = event.type == events.APPROVAL_OPENED
        self.marks.append(TimelineMark(event.type.replace(".", " "), event.at))
        last = self._last
        if self._asking:
            if last is not None and last.kind == SUSPENDED:
                last.reason = APPROVAL_GATE
            elif last is not None and last.kind == WAIT:
                self._wait_on(event.at, APPROVAL_GATE)
        elif last is not None and last.reason == APPROVAL_GATE:
            self._wait_on(event.at, QUEUE)

    def _step(self, at: int, name: str) -> None:
        """A step is recorded by a run, or by what ends a suspension."""
        last = self._last
        if last is not None and last.kind == SUSPENDED:
            last.reason = last.reason or name
            self._wait_on(at, QUEUE)
        self.marks.append(TimelineMark("step", at, name))

    def _wait_on(self, at: int, reason: str) -> None:
        """Begin another wait; one that took no time is replaced."""
        last = self._last
        if last is not None and last.kind == WAIT and last.start_at >= at:
            last.reason = reason
            return
        self._close(at)
        self._open(WAIT, at, reason)


def _reason(event: Event) -> str:
    return DEPENDENCY_GATE if event.state == lifecycle.WAITING else QUEUE


def _waits_for(until: Until) -> str:
    """Return what a suspended run waits for, in a few words."""
    if until.tasks is not None:
        return f"{len(until.tasks)} task{'' if len(until.tasks) == 1 else 's'}"
    if until.signal is not None:
        return f"signal {until.signal}"
    return "a message" if until.message else "a time"


def children(values: Sequence[str]) -> list[str]:
    """Return the ids of the tasks that the recorded values of steps name: tasks that the run has
    submitted or waited for. `values` are JSON texts.
    """
    found: dict[str, None] = {}
    for text in values:
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            continue
        items = value if isinstance(value, list) else [value]
        for item in items:
            named = item.get("taskId") if isinstance(item, dict) else item
            if isinstance(named, str) and named.startswith("tsk_") and len(named) == _ID_LENGTH:
                found[named] = None
    return list(found)


_ID_LENGTH: Final = len("tsk_") + 28
