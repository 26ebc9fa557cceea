"""Gates: which task has a session's turn, which wait for it, and how a gate opens."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.core import gates
from fairlane.core.batches import Batch
from fairlane.core.model import Change, Task
from fairlane.core.sessions import Session
from tests.unit.core import rows
from tests.unit.core.rows import NOW

WAITING = rows.queued(gate="session", session="s")
READY = rows.queued(session="s")


def _gate(session: Session | None = None, batch: Batch | None = None, **given: Any) -> str | None:
    has_turn = given.pop("has_turn", False)
    return gates.next_gate(rows.queued(**given), session, batch, NOW, has_turn=has_turn)


def _batch(parallelism: int | None = 2, **given: Any) -> Batch:
    return Batch("bat_1", 1, "ada", parallelism, 0, NOW, **given)


# ---------------------------------------------------------------- which gate comes first


def test_a_task_without_a_session_has_no_gate() -> None:
    assert _gate() is None


def test_the_first_of_a_session_goes_at_once() -> None:
    assert _gate(Session("s")) is None


def test_the_next_one_waits_for_its_turn() -> None:
    assert _gate(Session("s", holders=1)) == "session"


def test_nobody_enters_past_those_who_wait() -> None:
    assert _gate(Session("s", holders=0, waiting=1)) == "session"


def test_a_session_may_have_several_turns() -> None:
    assert _gate(Session("s", holders=2, limit=3)) is None
    assert _gate(Session("s", holders=3, limit=3)) == "session"


def test_a_task_that_has_the_turn_does_not_wait_for_it_again() -> None:
    assert _gate(Session("s", holders=1, waiting=4), has_turn=True) is None


@pytest.mark.parametrize(("eligible_at", "gate"), [(NOW + 1, "delay"), (NOW, None), (None, None)])
def test_a_moment_that_lies_ahead_is_waited_for(eligible_at: int | None, gate: str | None) -> None:
    assert _gate(eligible_at=eligible_at) == gate


def test_before_its_moment_a_task_asks_for_no_turn_and_no_place() -> None:
    session, batch = Session("s", holders=1), _batch()
    assert _gate(session, batch, eligible_at=NOW + 1) == "delay"
    assert _gate(session, batch) == "session"
    assert _gate(Session("s"), batch) == "batch"


def test_a_place_in_a_batch_is_asked_for_last_and_always() -> None:
    assert _gate(batch=_batch()) == "batch"
    assert _gate(Session("s", holders=1), _batch(), has_turn=True) == "batch"
    assert gates.batch_gate(_batch(holders=0)) == "batch"


def test_a_batch_without_a_limit_of_its_own_holds_nobody() -> None:
    assert _gate(batch=_batch(parallelism=None)) is None
    assert gates.batch_gate(None) is None


# ---------------------------------------------------------------- counting turns


@pytest.mark.parametrize(("holders", "free"), [(0, 2), (1, 1), (2, 0), (5, 0)])
def test_free_turns_are_never_negative(holders: int, free: int) -> None:
    assert Session("s", holders=holders, limit=2).free == free


@pytest.mark.parametrize(
    ("session", "empty"),
    [
        (Session("s"), True),
        (Session("s", holders=1), False),
        (Session("s", waiting=1), False),
    ],
)
def test_a_session_is_empty_when_nobody_runs_and_nobody_waits(
    session: Session, *, empty: bool
) -> None:
    assert session.empty == empty


@pytest.mark.parametrize(
    ("task", "holders", "waiting"),
    [
        (READY, 1, 0),
        (WAITING, 0, 1),
        (rows.queued(session="s", gate="delay", fencing_token=1), 1, 0),  # a retry keeps the turn
        (rows.queued(session="s", gate="delay"), 0, 0),  # it never had one
        (rows.queued(session="s", gate="batch"), 1, 0),  # and waits for a place besides
        (rows.waiting(session="s"), 0, 0),
        (rows.assigned(session="s"), 1, 0),
        (rows.running(session="s"), 1, 0),
        (rows.stopped(session="s"), 1, 0),  # cancelled, but its run has not ended
        (rows.stopped(session="s", lease_expires_at=None), 0, 0),
        (rows.queued(session="s", state="parked"), 0, 0),
        (rows.queued(session="s", state="done"), 0, 0),
    ],
)
def test_each_row_has_the_turn_or_waits_or_neither(task: Task, holders: int, waiting: int) -> None:
    session = Session("s")
    gates.apply(session, Change(None, task, "submit"))
    assert (session.holders, session.waiting) == (holders, waiting)


def test_a_change_moves_a_task_from_waiting_to_having_the_turn() -> None:
    session = Session("s", holders=0, waiting=1)
    gates.apply(session, gates.promote(WAITING, NOW))
    assert (session.holders, session.waiting) == (1, 0)


def test_no_task_gets_the_turn_until_all_interrupted_runs_have_ended() -> None:
    session = Session("s", holders=2, waiting=1, interrupted=1, limit=3)
    assert session.free == 0
    running = rows.stopped(session="s")
    over = rows.stopped(session="s", lease_expires_at=None)
    gates.apply(session, Change(running, over, "close"))
    assert (session.holders, session.free) == (1, 0)
    gates.apply(session, Change(running, over, "close"))
    assert (session.holders, session.interrupted, session.free) == (0, 0, 3)


def test_giving_the_turn_back_is_the_reverse() -> None:
    session = Session("s", holders=1, waiting=0)
    gates.apply(session, gates.hold(READY))
    assert (session.holders, session.waiting) == (0, 1)


@pytest.mark.parametrize(
    "task", [WAITING, rows.queued(gate="delay", eligible_at=NOW - 1)], ids=["session", "delay"]
)
def test_a_promoted_task_is_ready_and_its_wait_counts_from_now(task: Task) -> None:
    change = gates.promote(task, NOW + 50)
    assert (change.before, change.verb) == (task, "promote")
    assert change.after.ready
    assert (change.after.eligible_at, change.after.queued_at) == (None, NOW + 50)
    assert task.gate is not None


@pytest.mark.parametrize("gate", ["session", "batch"])
def test_behind_one_gate_may_stand_another(gate: str) -> None:
    after = gates.promote(rows.queued(gate="delay", eligible_at=NOW - 1), NOW, gate).after
    assert (after.gate, after.eligible_at, after.ready) == (gate, None, False)


def test_a_held_task_is_not_ready() -> None:
    change = gates.hold(READY)
    assert (change.verb, change.after.gate, change.after.ready) == ("hold", "session", False)
    assert READY.ready


def test_a_task_that_waits_for_a_resource_keeps_its_turn() -> None:
    change = gates.wait(rows.queued(session="s"))
    assert (change.verb, change.after.gate) == ("hold", "resource")
    assert gates.holds_turn(change.after)
