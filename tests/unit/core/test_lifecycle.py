"""The table of a task's life says what the design draws, and nothing else."""

from __future__ import annotations

import pytest

from fairlane.core import lifecycle
from fairlane.core.lifecycle import IllegalMove, state_from, step

# Drawn from the picture of a task's life: from, verb, to.
LIFE = {
    ("new", "submit", "queued"),
    ("new", "reject", "rejected"),
    ("queued", "block", "waiting_dependency"),
    ("waiting_dependency", "unblock", "queued"),
    ("waiting_dependency", "cancel", "cancelled"),
    ("waiting_dependency", "expire", "failed"),
    ("queued", "lease", "assigned"),
    ("queued", "fail", "failed"),
    ("queued", "park", "parked"),
    ("queued", "cancel", "cancelled"),
    ("queued", "expire", "failed"),
    ("assigned", "start", "running"),
    ("assigned", "complete", "done"),
    ("assigned", "fail", "failed"),
    ("assigned", "back_off", "queued"),
    ("assigned", "park", "parked"),
    ("assigned", "release", "queued"),
    ("assigned", "expire", "failed"),
    ("assigned", "cancel", "cancelled"),
    ("running", "complete", "done"),
    ("running", "fail", "failed"),
    ("running", "back_off", "queued"),
    ("running", "park", "parked"),
    ("running", "release", "queued"),
    ("running", "expire", "failed"),
    ("running", "cancel", "cancelled"),
    ("parked", "reset", "queued"),
    ("parked", "cancel", "cancelled"),
    ("failed", "retry", "queued"),
    ("cancelled", "retry", "queued"),
}
VERBS = sorted({verb for _, verb, _ in LIFE})
PLACES = ("new", *lifecycle.STATES)


@pytest.mark.parametrize("state", PLACES)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_leads_where_the_picture_says_or_nowhere(state: str, verb: str) -> None:
    targets = [to for source, name, to in LIFE if (source, name) == (state, verb)]
    if targets:
        assert [step(state, verb)] == targets
    else:
        with pytest.raises(IllegalMove):
            step(state, verb)


def test_the_terminal_states_are_the_four_of_the_documents() -> None:
    assert {"done", "failed", "cancelled", "rejected"} == lifecycle.TERMINAL


@pytest.mark.parametrize("state", ["done", "rejected"])
def test_nothing_leaves_what_is_done_or_rejected(state: str) -> None:
    assert state not in lifecycle.MOVES


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_only_a_revival_leaves_what_has_failed_or_was_cancelled(state: str) -> None:
    assert lifecycle.MOVES[state] == {"retry": "queued"}


def test_a_task_waits_in_the_queue_for_its_turn_or_for_others() -> None:
    assert {"queued", "waiting_dependency"} == lifecycle.IN_QUEUE


def test_only_a_leased_task_is_in_flight() -> None:
    assert {"assigned", "running"} == lifecycle.IN_FLIGHT
    entered_by = {verb for source, verb, to in LIFE if to == "assigned" and source != "assigned"}
    assert entered_by == {"lease"}


@pytest.mark.parametrize("state", ["queued", "waiting_dependency"])
@pytest.mark.parametrize("target", ["running", "done"])
def test_a_queued_task_cannot_skip_its_lease(state: str, target: str) -> None:
    moves = {verb for verb, to in lifecycle.MOVES[state].items() if to == target}
    assert moves <= {"take"}, "only a message that another run takes ends without one of its own"


def test_an_illegal_move_names_the_verb_and_the_state() -> None:
    with pytest.raises(IllegalMove, match=r"^start does not apply to a task that is done$"):
        step("done", "start")


@pytest.mark.parametrize(("state", "verb"), [("dreaming", "lease"), ("queued", "juggle")])
def test_words_that_do_not_exist_lead_nowhere(state: str, verb: str) -> None:
    with pytest.raises(IllegalMove, match=state):
        step(state, verb)


@pytest.mark.parametrize("verb", ["promote", "hold", "meet", "renew", "stop", "close"])
def test_verbs_that_keep_the_state_are_not_moves(verb: str) -> None:
    assert all(verb not in moves for moves in lifecycle.MOVES.values())


@pytest.mark.parametrize("state", lifecycle.STATES)
def test_a_state_is_called_by_its_name(state: str) -> None:
    assert state_from(state) == state


def test_a_state_may_be_called_as_in_browseros() -> None:
    assert (state_from("pending"), state_from("completed")) == ("queued", "done")


@pytest.mark.parametrize("word", ["new", "", "Queued", "waiting", "unknown"])
def test_a_word_for_no_state_is_nothing(word: str) -> None:
    assert state_from(word) is None
