"""The facts that cool-workflow's own tests state about its scheduler, and the tests that cover
them.

A fact is kept by the tests that are named beside it, or differs here for the reason that stands
there. The numbers and words are those of its behavioural specification: 1 to 118 are facts of its
tests, 119 to 132 were observed. That every test in the table exists is a test itself.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
SCHED = "cli/test_sched.py::test_"
QUEUE = "cli/test_queue.py::test_"
STORE = "store/test_queue.py::test_"
PLAN = "store/test_planning.py::test_"

WAITS = "unit/core/test_retries.py::test_the_default_waits_double_"

LIFE = f"{SCHED}an_entry_is_leased_failed_tried_again_and_parked"
RESET = f"{SCHED}reset_is_the_way_out_of_parking"
RAN_OUT = f"{SCHED}a_lease_that_ran_out_is_reclaimed_and_counts_an_attempt"
DRAIN = f"{QUEUE}a_drain_hands_over_what_goes_first"
ORDER = f"{QUEUE}the_list_is_in_the_order_of_the_queue"
SAME = f"{SCHED}a_plan_is_the_same_bytes_again_and_changes_nothing"
NUMBER = f"{SCHED}a_rule_that_is_not_a_number_is_refused_by_its_name"
LIMIT = f"{SCHED}a_limit_of_nothing_is_refused"
WRONG_FILE = f"{QUEUE}a_file_with_something_wrong_brings_in_nothing"

NO_FILES = "no JSON file is the store here: a database is, and a file is only ever imported, whole"
NO_LOCKS = "no lock file: the database lets one writer in at a time, see store/test_sharing.py"
MCP = "about the MCP server's protocol, not about the scheduler; the official SDK speaks it here"
ELSEWHERE = (
    "not about leases: a registry, a loop scheduler or a clean-up that this project does not have"
)

KEPT: dict[int, tuple[str, ...]] = {
    1: (f"{SCHED}the_rules_are_set_and_shown",),
    2: (NUMBER,),
    3: (LIFE,),
    4: (LIFE,),
    5: (LIFE,),
    6: (LIFE,),
    7: (LIFE,),
    8: (f"{SCHED}a_report_without_a_lease_is_refused",),
    9: (f"{SCHED}only_what_is_parked_can_be_reset",),
    10: (RESET,),
    11: (RAN_OUT, f"{PLAN}the_very_moment_of_expiry_counts"),
    12: (RAN_OUT,),
    13: (f"{QUEUE}every_option_of_add_reaches_the_entry",),
    14: (ORDER,),
    16: (f"{QUEUE}a_priority_that_is_none_is_refused",),
    17: (DRAIN,),
    18: (DRAIN,),
    19: (DRAIN,),
    24: (f"{QUEUE}an_empty_queue_is_an_empty_list",),
    25: (f"{SCHED}a_store_nobody_has_set_has_the_documented_rules",),
    26: (WRONG_FILE, f"{STORE}a_file_that_is_wrong_is_refused_with_the_place"),
    28: (f"{SCHED}unknown_verbs_and_flags_are_refused_with_the_nearest",),
    29: (f"{QUEUE}unknown_verbs_and_flags_are_refused_with_the_nearest",),
    30: (f"{QUEUE}what_is_not_there_cannot_be_shown",),
    31: (
        f"{SCHED}unknown_verbs_and_flags_are_refused_with_the_nearest",
        f"{QUEUE}unknown_verbs_and_flags_are_refused_with_the_nearest",
    ),
    32: (SAME, f"{PLAN}what_goes_first_is_leased_and_the_rest_waits_for_the_ceiling"),
    33: (f"{PLAN}an_empty_lane_has_an_empty_plan",),
    34: (SAME, f"{PLAN}a_plan_changes_nothing_and_says_the_same_again"),
    35: (
        f"{SCHED}what_is_planned_is_what_is_leased",
        f"{PLAN}a_plan_says_what_the_lease_then_does",
    ),
    36: (f"{STORE}leases_that_have_run_out_are_reclaimed_and_named",),
    37: (f"{SCHED}the_last_lease_that_runs_out_parks",),
    38: (LIFE, f"{PLAN}every_reason_is_reported"),
    39: (RESET,),
    40: (f"{STORE}an_older_file_without_scheduling_fields_comes_in_unchanged",),
    41: (SAME,),
    42: (SAME, f"{PLAN}a_plan_changes_nothing_and_says_the_same_again"),
    43: (f"{SCHED}the_ceiling_holds_for_every_worker",),
    44: (f"{SCHED}the_ceiling_holds_for_every_worker",),
    45: (f"{SCHED}a_rule_out_of_its_range_is_refused_and_changes_nothing",),
    46: (NUMBER,),
    47: (NUMBER, f"{SCHED}a_rule_out_of_its_range_is_refused_and_changes_nothing"),
    48: (NUMBER,),
    49: (f"{SCHED}sixteen_who_lease_at_once_get_each_their_own",),
    50: (f"{QUEUE}eight_who_add_at_once_have_eight_ids",),
    51: (f"{SCHED}sixteen_who_lease_at_once_get_each_their_own",),
    52: (f"{SCHED}rules_set_by_many_at_once_are_all_kept",),
    54: (
        f"{QUEUE}an_empty_queue_is_an_empty_list",
        f"{SCHED}a_store_nobody_has_set_has_the_documented_rules",
    ),
    57: (WRONG_FILE,),
    60: (LIMIT,),
    61: (LIMIT,),
    62: (LIMIT,),
    63: (NUMBER,),
    64: (f"{QUEUE}a_drain_of_a_wrong_number_is_refused",),
    65: (f"{QUEUE}a_priority_without_a_value_is_refused",),
    68: (NUMBER,),
    69: (NUMBER, LIMIT),
    72: (f"{SCHED}the_rules_are_set_and_shown",),
    73: (ORDER,),
    74: (DRAIN,),
    107: (f"{QUEUE}entries_of_one_moment_are_ordered_by_the_bytes_of_their_ids",),
    119: (f"{STORE}a_late_report_counts_until_the_lease_is_reclaimed", RAN_OUT),
    120: (f"{SCHED}a_clean_release_counts_no_attempt",),
    123: (
        f"{PLAN}the_very_moment_of_eligibility_counts",
        f"{PLAN}the_very_moment_of_expiry_counts",
    ),
    125: (f"{PLAN}a_plan_does_not_wait_for_the_writer_nor_hold_it_up",),
    126: (RAN_OUT, f"{SCHED}a_live_lease_is_not_reclaimed"),
    127: (f"{STORE}an_imported_lease_without_an_end_has_ended",),
    128: (f"{STORE}a_drain_takes_neither_what_is_leased_nor_what_is_parked",),
    129: (RESET,),
    130: (f"{WAITS}from_one_second_up_to_a_minute", f"{STORE}waits_grow_as_the_rules_say"),
    131: (f"{SCHED}one_failure_parks_when_there_is_one_attempt",),
}

DIFFERS: dict[int, str] = {
    15: "the list for people is a table, as of everything else",
    20: ELSEWHERE,
    21: ELSEWHERE,
    22: ELSEWHERE,
    23: ELSEWHERE,
    27: NO_FILES,
    53: ELSEWHERE,
    55: NO_FILES,
    56: NO_FILES,
    58: NO_FILES,
    59: "a policy that cannot be read is refused by the policy's own tests, cli/test_policy.py",
    66: "an option that is not given is not sent; null in a body is the same as leaving it out",
    67: "a flag without its value is refused by the parser, with the flag's name; facts 60, 64, 65",
    70: "a limit of 0 asks for nothing and is refused, so that a slip is noticed",
    71: "negative limits are refused; negative priorities are kept (store/test_queue.py)",
    75: "CLI and HTTP are one route; the MCP tools are compared with the commands for every verb",
    76: MCP,
    **dict.fromkeys(range(77, 85), NO_LOCKS),
    85: NO_LOCKS,
    86: NO_LOCKS,
    **dict.fromkeys(range(87, 105), MCP),
    105: "no answer is cut: a lease gives no more than it tells, lists and plans have limits",
    106: "every complaint says itself what to do; there are no hints by substring",
    **dict.fromkeys(range(108, 119), ELSEWHERE),
    121: "--failed takes no value; cli/test_sched.py::test_a_reason_without_a_failure_is_refused",
    122: "a limit below 1 is refused, as in fact 70",
    124: "a lease is named in one way, by its place; no second spelling can disagree with it",
    132: "policy and queue are one store: it can be read, or nothing is done",
}


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


def test_every_fact_is_kept_or_differs_for_a_reason() -> None:
    assert not KEPT.keys() & DIFFERS.keys()
    assert KEPT.keys() | DIFFERS.keys() == set(range(1, 133))
    assert all(DIFFERS.values())


@pytest.mark.parametrize("fact", sorted(KEPT))
def test_the_tests_that_keep_a_fact_are_there(fact: int) -> None:
    for name in KEPT[fact]:
        file, _, function = name.partition("::")
        assert function in functions_of(file), f"{name} is gone: what keeps fact {fact} now?"
