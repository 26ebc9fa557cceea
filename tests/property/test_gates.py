"""Sessions: the turn is counted exactly, never given twice, and never lost."""

from __future__ import annotations

from hypothesis import given

from fairlane.core import gates
from fairlane.core.gates import Session
from fairlane.core.model import Change
from tests.property.histories import BOUNDED, History, Step, histories, step_lists


@BOUNDED
@given(step_lists)
def test_a_sessions_counters_equal_a_recount(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
        for session in history.sessions.values():
            own = [task for task in history.tasks.values() if task.session == session.key]
            queued = [task for task in own if task.state == "queued"]
            waiting = [task for task in queued if task.gate == "session"]
            leased = [task for task in own if task.leased]
            assert session.waiting == len(waiting)
            assert session.holders == len(leased) + len(queued) - len(waiting)
            assert session.empty == (not leased and not queued)


@BOUNDED
@given(step_lists)
def test_a_session_never_runs_more_at_once_than_it_may(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
        for session in history.sessions.values():
            leased = [task for task in history.leased() if task.session == session.key]
            assert len(leased) <= session.holders <= session.max_concurrent


@BOUNDED
@given(step_lists)
def test_nobody_waits_for_a_turn_that_is_free(steps: list[Step]) -> None:
    history = History()
    for step in steps:
        history.take(step)
        assert not any(session.free and session.waiting for session in history.sessions.values())


@BOUNDED
@given(histories)
def test_a_task_keeps_its_turn_through_retries_and_releases(history: History) -> None:
    for change in history.changes:
        if change.verb in {"retry", "release"}:
            session = Session("of its own", max_concurrent=1)
            gates.apply(session, Change(None, change.before or change.after, "submit"))
            gates.apply(session, change)
            assert (session.holders, session.waiting) == (1, 0)
