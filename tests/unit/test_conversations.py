"""Known requirements for schedulers of conversations, and the tests that cover them.

`FACTS` are from specs/goclaw.md section 8, as far as they are about scheduling, `WEAKNESSES` from
its section 10. Such a table gets old, so each test that it names must exist.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

LANES = "http/test_lanes.py"
MESSAGES = "http/test_messages.py"
SESSIONS = "http/test_sessions.py"
MODES = "store/test_modes.py"
JOINED = "store/test_messages.py"
STOPS = "store/test_stops.py"
RESERVED = "store/test_reserved.py"
TURNS = "store/test_sessions.py"

FACTS: dict[int, tuple[str, ...]] = {
    1: (f"{LANES}::test_a_lane_of_two_never_runs_more_and_does_run_two",),
    2: (f"{LANES}::test_a_lane_that_policy_adds_begins_empty",),
    3: (
        f"{LANES}::test_unknown_lanes_mean_main",
        f"{MESSAGES}::test_an_unknown_lane_falls_back_to_main",
    ),
    4: (f"{LANES}::test_a_lane_is_made_by_policy_and_keeps_its_ceiling_until_it_is_changed",),
    5: (
        f"{MODES}::test_messages_wait_for_the_run_before_them_in_order",
        f"{MESSAGES}::test_messages_of_a_session_run_one_after_another",
    ),
    6: (
        f"{MODES}::test_two_sessions_run_at_the_same_time",
        f"{SESSIONS}::test_two_sessions_run_at_the_same_time_and_one_does_not",
    ),
    7: (
        f"{MODES}::test_with_drop_old_the_oldest_waiting_message_gives_way",
        f"{MESSAGES}::test_with_drop_old_the_oldest_waiting_message_is_cancelled",
    ),
    8: (
        f"{MODES}::test_an_interrupting_message_cancels_what_runs_and_drains_what_waits",
        f"{MESSAGES}::test_an_interrupting_message_runs_when_the_old_run_has_really_ended",
    ),
    25: (
        f"{MODES}::test_with_drop_new_the_newcomer_is_refused_and_nothing_changes",
        f"{MESSAGES}::test_with_drop_new_the_caller_is_refused_with_a_retry_time",
    ),
    26: (
        f"{STOPS}::test_stop_ends_the_oldest_run_and_the_rest_goes_on",
        f"{SESSIONS}::test_stop_ends_the_oldest_run_and_the_next_one_begins",
    ),
    27: (
        f"{STOPS}::test_stopall_ends_what_runs_waits_and_grows",
        f"{STOPS}::test_after_a_stopall_the_session_is_as_good_as_new",
        f"{SESSIONS}::test_after_a_stopall_later_messages_run",
    ),
    28: (
        f"{STOPS}::test_a_message_that_was_sent_before_the_stop_is_stale",
        f"{MESSAGES}::test_a_message_that_was_sent_before_a_stopall_is_stale",
    ),
    29: (f"{MESSAGES}::test_a_stopping_server_takes_no_messages_and_still_stops_runs",),
    30: (
        f"{STOPS}::test_reset_ends_everything_and_counts_a_generation",
        f"{STOPS}::test_a_late_completion_of_the_old_run_is_harmless",
        f"{SESSIONS}::test_reset_counts_a_generation_and_tells_those_that_waited",
    ),
    31: (
        f"{MODES}::test_from_60_percent_on_one_runs_at_a_time",
        f"{MODES}::test_the_throttle_stops_no_run",
        f"{SESSIONS}::test_from_60_percent_on_one_runs_and_below_the_rest_goes_on",
    ),
    32: (
        f"{MODES}::test_three_at_once_begin_in_order",
        f"{SESSIONS}::test_three_at_once_begin_in_order_and_lowering_stops_nobody",
    ),
    33: (
        f"{JOINED}::test_messages_of_one_sender_inside_the_window_become_one_task",
        f"{JOINED}::test_what_besides_the_text_was_said_last_counts",
        f"{JOINED}::test_other_senders_stay_apart",
        f"{JOINED}::test_what_must_not_be_merged_lets_go_what_was_said_before_and_goes_at_once",
        f"{JOINED}::test_debouncing_can_be_switched_off_by",
        f"{JOINED}::test_a_window_that_ended_while_nobody_was_there_is_over",
    ),
    34: (
        f"{JOINED}::test_the_same_message_twice_is_joined_once",
        f"{MESSAGES}::test_the_same_message_twice_is_one",
    ),
    41: (
        f"{SESSIONS}::test_the_response_lists_stopped_and_drained_tasks",
        f"{MESSAGES}::test_a_stop_as_text_is_never_debounced",
    ),
}

WEAKNESSES: dict[int, tuple[str, ...]] = {
    1: (f"{SESSIONS}::test_a_full_lane_blocks_no_answer",),
    2: (
        f"{RESERVED}::test_a_run_may_begin_in_the_transaction_that_ends_the_last_in_a_lane_of_one",
        f"{MESSAGES}::test_a_lane_of_one_serves_a_session_to_its_end",
    ),
    3: (
        f"{STOPS}::test_stop_reaches_a_run_that_waits_for_a_slot",
        f"{SESSIONS}::test_a_run_that_waits_for_a_slot_can_be_cancelled_and_stopped",
    ),
    4: (
        f"{MODES}::test_it_starts_only_when_the_old_run_has_really_ended",
        f"{TURNS}::test_a_cancelled_run_holds_the_session_until_it_is_reported",
    ),
    5: (f"{SESSIONS}::test_the_same_name_of_a_run_twice_is_two_runs",),
    6: (
        f"{JOINED}::test_what_has_to_run_otherwise_is_a_task_of_its_own",
        f"{SESSIONS}::test_what_failed_does_not_hold_up_the_session",
    ),
    7: (
        f"{JOINED}::test_a_restart_in_the_middle_of_a_window_loses_nothing",
        f"{MESSAGES}::test_a_restart_in_the_middle_of_a_window_loses_nothing",
        f"{STOPS}::test_a_cutoff_and_a_generation_survive_a_restart",
    ),
    8: (
        f"{RESERVED}::test_other_work_never_takes_the_last_slots",
        f"{LANES}::test_background_work_never_takes_the_last_slot",
        f"{TURNS}::test_a_smaller_priority_passes_those_that_wait",
        f"{TURNS}::test_the_turn_goes_on_when_a_run_was",
        "worker/test_handlers.py::test_what_a_handler_raises_is_the_failure_of_the_task",
        "http/test_deadlines.py::test_a_queued_task_expires_within_a_second_of_its_deadline",
    ),
    9: (
        f"{STOPS}::test_an_idle_session_costs_nothing",
        f"{SESSIONS}::test_an_idle_session_disappears",
    ),
    10: (
        f"{JOINED}::test_the_maximum_wait_bounds_what_each_message_prolongs",
        f"{JOINED}::test_other_sessions_stay_apart",
    ),
    11: (
        f"{STOPS}::test_a_stopall_that_only_drains_says_so",
        f"{SESSIONS}::test_the_response_lists_stopped_and_drained_tasks",
    ),
    12: (
        f"{SESSIONS}::test_a_session_shows_who_runs_who_waits_and_why",
        f"{SESSIONS}::test_settings_are_kept_and_laid_over_each_other",
        f"{LANES}::test_a_lane_tells_what_runs_what_waits_and_how_long",
        f"{LANES}::test_a_paused_lane_starts_nothing_until_it_is_resumed",
        f"{LANES}::test_raising_a_ceiling_starts_work_at_once_and_lowering_kills_nothing",
    ),
    13: (f"{STOPS}::test_a_session_over_two_lanes_keeps_its_order_and_can_be_stopped",),
    14: (f"{SESSIONS}::test_every_way_in_stands_in_the_same_line",),
}


@cache
def functions_in(path: str) -> frozenset[str]:
    tree = ast.parse((TESTS / path).read_text("utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


def missing(table: dict[int, tuple[str, ...]]) -> list[str]:
    """The tests of a table that do not exist."""
    named = [name for names in table.values() for name in names]
    parts = [(name, *name.split("::")) for name in named]
    return [name for name, path, function in parts if function not in functions_in(path)]


@pytest.mark.parametrize(
    ("table", "numbers"),
    [(FACTS, {*range(1, 9), *range(25, 35), 41}), (WEAKNESSES, {*range(1, 15)})],
    ids=["facts", "weaknesses"],
)
def test_everything_known_has_a_test(table: dict[int, tuple[str, ...]], numbers: set[int]) -> None:
    assert table.keys() == numbers
    assert all(table.values())
    assert missing(table) == []


def test_a_test_that_is_not_there_would_be_missed() -> None:
    gone = f"{LANES}::test_that_nobody_has_written"
    assert missing({1: (gone,)}) == [gone]
