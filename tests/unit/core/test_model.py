"""The nouns: what a row says about itself, and the words made from it."""

from __future__ import annotations

import pytest

from fairlane.core import lifecycle, model
from tests.unit.core import rows


@pytest.mark.parametrize(
    ("task", "ready", "leased", "terminal"),
    [
        (rows.queued(), True, False, False),
        (rows.queued(gate="delay"), False, False, False),
        (rows.queued(gate="session"), False, False, False),
        (rows.queued(gate="batch"), False, False, False),
        (rows.waiting(), False, False, False),
        (rows.assigned(), False, True, False),
        (rows.running(), False, True, False),
        (rows.queued(state="parked"), False, False, False),
        (rows.queued(state="rejected"), False, False, True),
        (rows.stopped(), False, True, True),
    ],
)
def test_a_row_says_what_can_be_done_with_it(
    task: model.Task, *, ready: bool, leased: bool, terminal: bool
) -> None:
    assert (task.ready, task.leased, task.terminal) == (ready, leased, terminal)


@pytest.mark.parametrize("state", lifecycle.STATES)
def test_a_row_is_terminal_exactly_in_the_terminal_states(state: str) -> None:
    assert rows.queued(state=state).terminal == (state in lifecycle.TERMINAL)


def test_priorities_have_the_names_of_the_design_and_normal_is_the_default() -> None:
    assert model.PRIORITY_NAMES == {"critical": -20, "high": -10, "normal": 0, "low": 10}
    assert rows.submission().priority == model.PRIORITY_NAMES["normal"]
    assert model.PRIORITY_NAMES["critical"] == model.CRITICAL


def test_a_route_is_the_kind_or_the_name_of_the_handler() -> None:
    assert model.capability_of("action") == "action"
    assert model.capability_of("handler", "resize") == "handler/resize"


def test_a_lease_id_holds_the_task_and_the_token() -> None:
    assert model.lease_id(12, 345) == "lse_12_345"
    assert model.parse_lease_id("lse_12_345") == (12, 345)


def test_a_lease_id_holds_numbers_of_any_size_that_a_store_counts_to() -> None:
    large = 10**18 - 1
    assert model.parse_lease_id(model.lease_id(large, large)) == (large, large)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lse",
        "lse_",
        "lse_1",
        "lse_1_",
        "lse__1",
        "lse_1_2_3",
        "lse_-1_2",
        "lse_1_+2",
        "lse_ 1_2",
        "lse_1_2 ",
        "lse_1_2\n",
        "lse_1.0_2",
        "lse_0x1_2",
        "lse_\u00b2_1",
        "lse_\u0661_\u0662",
        "LSE_1_2",
        "tsk_1_2",
        "lse_1_" + "9" * 19,
        "lse_" + "9" * 5000 + "_1",
    ],
)
def test_what_is_not_a_lease_id_is_none(text: str) -> None:
    assert model.parse_lease_id(text) is None


def test_a_handler_is_for_any_worker_unless_it_is_a_process_own() -> None:
    assert model.is_open("handler/work")
    assert not model.is_open("handler/(function)@node_1")
    assert not model.is_open("action")
