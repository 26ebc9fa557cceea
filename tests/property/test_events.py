"""Events: the attempts read from them are the attempts that took place."""

from __future__ import annotations

from hypothesis import given

from fairlane.core import events
from fairlane.core.events import Attempt, Event
from fairlane.core.model import Change
from tests.property.histories import BOUNDED, History, histories

OUTCOMES = {
    "complete": "completed",
    "fail": "failed",
    "expire": "failed",
    "back_off": "retrying",
    "park": "parked",
    "cancel": "cancelled",
    "release": "released",
}


def _written(changes: list[Change]) -> dict[int, list[Event]]:
    """What a store keeps of the changes, for each task. The number of a change is its moment."""
    kept: dict[int, list[Event]] = {}
    for number, change in enumerate(changes):
        fact = events.of(change)
        if fact is not None:
            seq = change.after.seq
            event = Event(number, seq, number, fact[0], change.after.attempts, fact[1])
            kept.setdefault(seq, []).append(event)
    return kept


def _lived(changes: list[Change]) -> dict[int, list[Attempt]]:
    """The attempts of each task, from the states that its row went through."""
    found: dict[int, list[Attempt]] = {}
    for number, change in enumerate(changes):
        after, before = change.after, change.before
        log = found.setdefault(after.seq, [])
        ran = before is not None and before.state == "running"
        if after.state == "running" and not ran:
            log.append(Attempt(after.attempts, number, after.worker))
        elif ran and after.state != "running":
            log[-1].ended_at = number
            log[-1].outcome = OUTCOMES[change.verb]
            log[-1].error = change.error
        elif change.verb in ("back_off", "park"):  # leased, spent, and never said to have begun
            outcome = OUTCOMES[change.verb]
            log.append(Attempt(after.attempts, number, None, number, outcome, change.error))
    return found


@BOUNDED
@given(histories)
def test_the_attempts_read_from_events_are_those_that_were_spent_or_run(history: History) -> None:
    written = _written(history.changes)
    for seq, lived in _lived(history.changes).items():
        assert events.attempts(written.get(seq, [])) == lived


@BOUNDED
@given(histories)
def test_the_newest_event_tells_the_state_of_a_task(history: History) -> None:
    """A leased attempt that has not begun has no event: it may still be released."""
    for seq, written in _written(history.changes).items():
        state = history.tasks[seq].state
        assert written[-1].state == ("queued" if state == "assigned" else state)
