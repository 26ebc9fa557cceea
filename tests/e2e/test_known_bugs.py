"""Fifteen bugs that a queue of this kind is known to have had, sixteen weaknesses that a lease
scheduler has, eleven of schedulers of jobs, and the tests that fail on each.

Three tables name them; that every test in them is there is a test itself. Those that nothing else
covers stand below.
"""

from __future__ import annotations

import ast
import asyncio
import signal
from collections import Counter
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e import checks
from tests.e2e.processes import until
from tests.e2e.world import ONE, POLICY, World, talking, world
from tests.fakes.chat_agent import Script
from tests.fakes.waiting import WAIT_SECONDS, TooLate, in_time

if TYPE_CHECKING:
    from tests.e2e.processes import Programs

TESTS = Path(__file__).parents[1]
DEPENDENCIES = "http/test_dependencies.py"
RELEASE = "e2e/test_kill_release.py"

BUGS: dict[str, list[str]] = {
    "a running task that is cancelled fails, is retried, and may end completed": [
        "http/test_retries.py::test_a_running_task_that_is_cancelled_stays_so_and_never_runs_again",
        "http/test_instruction_tasks.py::test_a_cancelled_instruction_is_stopped_and_never_runs_again",
        "e2e/test_instructions.py::test_a_cancel_disconnects_within_a_second_and_is_final",
    ],
    "a cancel during the wait before a retry is undone by its timer": [
        "http/test_retries.py::test_a_cancel_during_the_wait_is_final",
    ],
    "a failure that is retried cancels the dependents for good": [
        f"{DEPENDENCIES}::test_a_parent_that_will_be_tried_again_keeps_its_children_waiting",
        f"{DEPENDENCIES}::test_a_parked_parent_keeps_its_children_waiting_until_it_is_cancelled",
    ],
    "blocked urgent tasks fill the window of candidates and nothing runs any more": [
        f"{DEPENDENCIES}::test_blocked_urgent_tasks_do_not_stall_the_one_they_wait_for",
        f"{DEPENDENCIES}::test_a_waiting_child_holds_no_slot",
    ],
    "the cancel of a completed task rewrites history and its dependents": [
        "http/test_retries.py::test_an_ended_task_cannot_be_cancelled_and_stays_as_it_is",
        f"{DEPENDENCIES}::test_a_refused_cancel_of_a_done_parent_does_not_touch_its_children",
    ],
    "an error inside a stream that began well counts as completed": [
        "http/test_instruction_tasks.py::test_an_error_in_the_stream_is_a_failure",
        "worker/test_instruction.py::test_an_error_event_fails_the_task_with_its_text",
        "e2e/test_instructions.py::test_an_answer_that_is_not_a_success_fails_the_task",
    ],
    "what ran during a crash is never picked up again, and its dependents wait for ever": [
        "e2e/test_kill_waiting.py::test_a_server_that_was_killed_goes_on_where_it_was",
        "e2e/test_kill_waiting.py::test_another_node_goes_on_where_the_killed_one_was",
        "e2e/test_recovery.py::test_a_restart_on_the_same_file_takes_running_tasks_back_at_once",
        f"{RELEASE}::test_no_child_is_stranded_between_the_end_of_its_parent_and_its_turn",
    ],
    "retries are lost by a restart or a stop": [
        "e2e/test_kill_waiting.py::test_a_server_that_was_killed_goes_on_where_it_was",
        "e2e/test_known_bugs.py::test_a_stop_waits_for_no_retry_and_the_next_life_makes_it",
    ],
    "a retry by hand during the wait leads to a second execution": [
        "http/test_again.py::test_a_task_in_its_wait_cannot_be_retried_and_runs_once",
        "http/test_again.py::test_of_many_retries_at_once_exactly_one_succeeds",
    ],
    "a retry by hand leaves the budget spent and the children cancelled": [
        "http/test_again.py::test_a_failed_task_starts_again_with_its_whole_budget",
        "http/test_again.py::test_a_child_cannot_start_again_before_its_parent",
        "http/test_again.py::test_a_parent_brings_back_the_children_it_took_along",
        "http/test_again.py::test_a_child_of_two_failed_parents_waits_for_both_again",
    ],
    "cycles are accepted and wait for ever": [
        f"{DEPENDENCIES}::test_a_cycle_in_a_batch_is_refused_and_shown",
        f"{DEPENDENCIES}::test_an_unknown_id_is_waited_for",
    ],
    "a batch has no parallelism, webhook, status or cancel, and may be there in part": [
        "http/test_batches.py::test_no_more_items_run_at_once_than_the_batch_says",
        "http/test_batches.py::test_a_batch_shows_how_far_it_is",
        "http/test_batches.py::test_the_end_of_a_batch_is_reported_once_as_event_and_as_webhook",
        "http/test_batches.py::test_a_cancelled_batch_ends_whatever_its_tasks_were_doing",
        "http/test_batches.py::test_a_batch_is_there_as_a_whole_or_not_at_all",
        "e2e/test_kill.py::test_nothing_is_lost_or_done_twice_when_the_server_is_killed",
    ],
    "a stop neither drains nor aborts": [
        "e2e/test_instructions.py::test_a_stop_lets_a_stream_finish_or_queues_it_again",
        "e2e/test_signals.py::test_a_signal_lets_what_runs_finish_and_keeps_what_waits",
        "e2e/test_signals.py::test_a_drain_under_load_leaves_no_lease_behind",
    ],
    "an exception of an executor or of the database leaks state": [
        "worker/test_handlers.py::test_what_a_handler_raises_is_the_failure_of_the_task",
        "worker/test_outage.py::test_an_outage_before_the_start_does_not_fail_the_task",
        "store/test_writer.py::test_a_bad_request_does_not_spoil_its_batch",
        "e2e/test_kill.py::test_nothing_is_lost_when_postgresql_is_killed_and_the_server_goes_on",
        "e2e/test_start.py::test_a_disk_that_is_full_for_a_while_loses_nothing",
    ],
    "two processes on one database execute everything twice": [
        "e2e/test_start.py::test_a_second_server_on_one_file_is_refused_and_the_first_goes_on",
        "e2e/test_kill.py::test_nothing_is_lost_or_done_twice_when_nodes_are_killed",
        "e2e/test_known_bugs.py::test_two_nodes_share_the_work_and_the_ceilings",
    ],
}


SCHED = "cli/test_sched.py"
QUEUE = "cli/test_queue.py"
ENTRIES = "store/test_queue.py"
GIVEN_BACK = "store/test_given_back.py"
PLANNING = "store/test_planning.py"

WEAKNESSES: dict[str, list[str]] = {
    "W1: two entries of one id are leased and completed as one": [
        f"{QUEUE}::test_an_id_that_is_taken_is_refused",
        f"{ENTRIES}::test_of_two_requests_for_one_id_in_one_transaction_the_first_has_it",
    ],
    "W2: a lease id comes again, so a stale holder can finish another's lease": [
        f"{ENTRIES}::test_a_lease_id_is_never_valid_again",
        f"{SCHED}::test_a_lease_that_ran_out_is_reclaimed_and_counts_an_attempt",
    ],
    "W3: leases are kept that the answer was too large to tell": [
        f"{SCHED}::test_all_granted_leases_are_printed",
    ],
    "W4: work longer than its lease overlaps its successor, and cannot be renewed": [
        f"{SCHED}::test_a_renewed_lease_lasts_longer",
        f"{SCHED}::test_who_holds_a_lease_and_since_when_is_kept",
        f"{ENTRIES}::test_an_imported_lease_keeps_its_slot_until_it_runs_out",
        f"{GIVEN_BACK}::test_a_lease_that_ran_out_keeps_its_slot_where_people_take_it_back",
    ],
    "W5: a ceiling of one and a half gives two, and a lease may be for ever": [
        f"{SCHED}::test_a_rule_out_of_its_range_is_refused_and_changes_nothing",
    ],
    "W6: a rule out of range becomes the default, and a slip in a flag is ignored": [
        f"{SCHED}::test_a_rule_out_of_its_range_is_refused_and_changes_nothing",
        f"{SCHED}::test_rules_may_be_spelled_with_hyphens",
        f"{SCHED}::test_unknown_verbs_and_flags_are_refused_with_the_nearest",
        f"{SCHED}::test_a_reason_without_a_failure_is_refused",
    ],
    "W7: a file of the wrong shape, or of a newer version, is read as empty and lost": [
        f"{QUEUE}::test_a_file_with_something_wrong_brings_in_nothing",
        f"{ENTRIES}::test_a_file_that_is_wrong_is_refused_with_the_place",
    ],
    "W8: a drain goes past the ceiling and the wait before a retry": [
        f"{ENTRIES}::test_a_drain_keeps_to_the_ceiling_and_to_the_wait_before_a_retry",
        f"{QUEUE}::test_a_drain_gives_nothing_beside_a_lease_that_fills_the_ceiling",
    ],
    "W9: what has no attempts left is leased again, and reasons of failures are lost": [
        f"{ENTRIES}::test_what_an_entry_has_behind_it_is_kept",
        f"{SCHED}::test_the_reason_of_every_failure_is_kept",
        f"{SCHED}::test_who_holds_a_lease_and_since_when_is_kept",
    ],
    "W10: entries go to and fro for ever, are not cancelled or reset together, take no inputs": [
        f"{GIVEN_BACK}::test_a_task_that_nobody_finishes_is_parked_in_the_end",
        f"{QUEUE}::test_an_entry_is_a_task_that_every_other_command_knows",
        f"{QUEUE}::test_every_option_of_add_reaches_the_entry",
    ],
    "W11: moments are compared as text, so another zone takes a live lease away": [
        f"{SCHED}::test_a_moment_that_is_none_is_refused",
        f"{SCHED}::test_a_moment_in_another_zone_is_the_same_moment",
        f"{SCHED}::test_only_a_plan_takes_a_time",
    ],
    "W12: a lease of a clock that was ahead blocks its slot for years": [
        f"{ENTRIES}::test_an_imported_lease_does_not_outlive_what_the_policy_gives",
        f"{SCHED}::test_only_a_plan_takes_a_time",
    ],
    "W13: of sixty who lease at once nearly half are turned away": [
        f"{QUEUE}::test_sixty_who_lease_at_once_are_all_served",
        f"{SCHED}::test_sixteen_who_lease_at_once_get_each_their_own",
    ],
    "W14: rules are not durable, and are read beside another state of the queue": [
        f"{SCHED}::test_rules_set_by_many_at_once_are_all_kept",
        f"{PLANNING}::test_a_plan_says_what_the_lease_then_does",
    ],
    "W15: every plan lists the whole queue, and beyond a size nothing": [
        f"{PLANNING}::test_a_long_queue_is_counted_and_not_listed",
        f"{PLANNING}::test_a_plan_of_many_leases_stops_at_its_limit",
        f"{QUEUE}::test_a_long_list_comes_in_pages",
    ],
    "W16: the documents describe another program": [
        "unit/test_docs.py::test_every_command_is_documented",
        "unit/test_docs.py::test_every_route_is_documented",
    ],
}


KNOWN = "store/test_cron_known.py"
E2E = "e2e/test_cron.py"
ZONES = "property/test_cron.py"

# What schedulers of jobs are known to get wrong.
CRON_BUGS: dict[str, list[str]] = {
    "one long job stops all schedules": [
        f"{KNOWN}::test_a_run_of_an_hour_delays_no_other_job",
        f"{E2E}::test_two_nodes_fire_each_second_of_sixty_jobs_once_though_one_is_killed",
    ],
    "no overlap policy; two processes on one database both fire": [
        f"{KNOWN}::test_a_job_meets_itself_only_as_its_owner_has_said",
        f"{KNOWN}::test_two_nodes_that_look_at_the_same_moment_fire_a_slot_once",
        f"{E2E}::test_two_nodes_fire_each_second_of_sixty_jobs_once_though_one_is_killed",
        "simulation/test_cron.py::test_every_slot_becomes_what_it_should_exactly_once",
    ],
    "a crash in a run loses it, disables a one-shot and leaves `running` behind": [
        f"{E2E}::test_a_run_that_a_crash_interrupts_is_run_again_and_its_one_shot_goes_only_then",
        f"{E2E}::test_a_retry_outlives_a_crash_and_does_not_move_the_schedule",
    ],
    "no policy for what was missed: everything overdue fires at once": [
        f"{KNOWN}::test_what_fell_due_while_nothing_ran_follows_the_policy_of_the_job",
        f"{KNOWN}::test_a_slot_within_its_grace_is_not_late",
        f"{KNOWN}::test_a_month_of_missed_seconds_is_one_line_and_takes_no_time",
        f"{KNOWN}::test_jitter_delays_a_run_and_never_its_slot",
        f"{E2E}::test_what_fell_due_while_nothing_ran_is_one_run_and_one_line_about_the_rest",
    ],
    "intervals drift, runs by hand shift them, clocks that change fire twice or never": [
        f"{KNOWN}::test_an_interval_does_not_drift_however_long_its_runs_and_retries_take",
        f"{KNOWN}::test_a_run_by_hand_moves_nothing_and_uses_nothing_up",
        f"{KNOWN}::test_enabling_looks_forward_from_now",
        f"{KNOWN}::test_a_clock_that_is_set_back_fires_nothing_again",
        f"{KNOWN}::test_a_job_that_moves_west_fires_at_the_same_wall_time_once_more",
        f"{ZONES}::test_an_interval_is_anchored_and_does_not_drift",
        f"{ZONES}::test_around_every_change_of_a_clock_each_slot_fires_once_by_the_rule",
        f"{ZONES}::test_a_day_on_which_the_clock_changes",
    ],
    "dead jobs are accepted and shown as enabled": [
        f"{KNOWN}::test_a_job_that_could_never_run_is_refused_by_the_name_of_its_field",
        f"{KNOWN}::test_a_change_to_something_dead_is_refused_and_changes_nothing",
        f"{ZONES}::test_a_day_that_no_month_has_never_comes",
    ],
    "a one-shot is deleted though it failed or was run by hand, and its log with it": [
        f"{KNOWN}::test_a_one_shot_goes_only_after_a_success_and_its_log_stays",
        f"{KNOWN}::test_a_run_by_hand_moves_nothing_and_uses_nothing_up",
    ],
    "retries know no classes, no cancel, no restart and no settings": [
        f"{KNOWN}::test_the_waits_of_a_job_double_from_two_seconds_and_vary_by_a_quarter",
        f"{KNOWN}::test_a_permanent_error_is_not_tried_again",
        f"{KNOWN}::test_a_job_may_have_no_retries_at_all",
        f"{KNOWN}::test_the_wait_for_a_retry_can_be_cancelled",
        f"{E2E}::test_a_retry_outlives_a_crash_and_does_not_move_the_schedule",
    ],
    "a summary is cut inside a character and its entry lost": [
        f"{KNOWN}::test_a_long_summary_is_cut_between_characters",
    ],
    "a thin log, kept for ever; nobody is told of failures": [
        f"{KNOWN}::test_the_log_says_when_why_how_often_and_what_came_of_it",
        f"{KNOWN}::test_the_log_keeps_as_many_runs_as_the_job_says",
        f"{KNOWN}::test_the_log_keeps_runs_as_long_as_the_job_says",
        f"{KNOWN}::test_errors_in_a_row_are_counted_and_may_switch_the_job_off",
        f"{KNOWN}::test_a_streak_of_errors_is_reported_once_and_its_end_too",
    ],
    "no timeout, bounds, preview, import or export; names not unique; `run` answers anything": [
        f"{KNOWN}::test_a_task_has_the_timeout_of_its_job",
        f"{KNOWN}::test_a_job_ends_after_its_last_run",
        f"{KNOWN}::test_a_job_runs_from_its_start_to_its_end",
        f"{KNOWN}::test_a_name_is_its_owners_own",
        f"{KNOWN}::test_a_run_by_hand_works_on_a_disabled_job_and_says_when_it_cannot",
        f"{KNOWN}::test_who_deletes_a_job_says_what_becomes_of_its_runs",
        "http/test_cron.py::test_a_preview_tells_utc_and_local_time",
        "http/test_cron.py::test_a_change_is_laid_over",
        "cli/test_cron.py::test_a_crontab_becomes_jobs",
        "cli/test_cron.py::test_what_is_exported_can_be_imported_as_it_was",
    ],
}


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in tree.body if isinstance(node, functions))


def test_there_are_fifteen_and_eleven_of_jobs() -> None:
    assert (len(BUGS), len(CRON_BUGS)) == (15, 11)


@pytest.mark.parametrize("bug", [*BUGS, *CRON_BUGS])
def test_every_known_bug_has_the_tests_that_the_table_names(bug: str) -> None:
    for name in {**BUGS, **CRON_BUGS}[bug]:
        file, _, function = name.partition("::")
        assert function in functions_of(file), f"{name} is gone: what covers {bug!r} now?"


def test_there_are_sixteen_weaknesses() -> None:
    numbers = [weakness.partition(":")[0] for weakness in WEAKNESSES]
    assert numbers == [f"W{number}" for number in range(1, 17)]


@pytest.mark.parametrize("weakness", WEAKNESSES)
def test_every_known_weakness_has_the_tests_that_the_table_names(weakness: str) -> None:
    for name in WEAKNESSES[weakness]:
        file, _, function = name.partition("::")
        assert function in functions_of(file), f"{name} is gone: what covers {weakness!r} now?"


# -------------------------------------------------------------------- what nothing else covers


@pytest.mark.slow
async def test_a_stop_waits_for_no_retry_and_the_next_life_makes_it(
    programs: Programs, tmp_path: Path, store_url: str
) -> None:
    async with world(programs, tmp_path, store_url, "--drain-seconds", "600") as one:
        await one.start()
        parent, child, due = await in_time(lambda seconds: _stopped_in_a_wait(one, seconds))
        found = {task.id: (task.state, task.attempts) for task in checks.finals(store_url)}
        assert (found[parent], found[child]) == (("queued", 1), ("waiting_dependency", 0))
        await one.start()
        ended = [await one.end_of(task_id) for task_id in (parent, child)]
        assert [task["state"] for task in ended] == ["done", "done"]
        assert [task["attempts"] for task in ended] == [2, 1]
        assert ended[0]["attemptLog"][1]["startedAt"] >= due
        asked = [len(one.asked(task["instruction"])) for task in ended]
        assert asked == [2, 1]


async def _stopped_in_a_wait(one: World, seconds: float) -> tuple[str, str, str]:
    """A task whose server has stopped before it is tried again, its child, and when that is."""
    message, wait_ms = f"retry {seconds}", int(seconds * 10_000)
    one.agent.scripts[message] = Script(status=503, times=1)
    policy = {"maxRetries": 1, "backoffMs": wait_ms, "jitter": 0}
    parent = await one.say(message, retryPolicy=policy, params={"key": message})
    child = await one.say(f"child {seconds}", dependsOn=[parent], params={"key": "child"})
    await one.until_task(parent, attempts=1)
    await until(lambda: _is_not_running(one, parent), WAIT_SECONDS, lambda: "it goes on")
    due = (await one.task(parent)).get("nextEligibleAt", "")
    one.server.send(signal.SIGTERM)
    assert await one.server.end() == 0
    if due <= datetime.now(UTC).isoformat():
        await one.start()
        for task_id in (parent, child):
            await one.end_of(task_id)
        raise TooLate("the wait was over before the server had stopped")
    return parent, child, due


async def _is_not_running(one: World, task_id: str) -> bool:
    return (await one.task(task_id))["state"] not in {"assigned", "running"}


@pytest.mark.slow
async def test_two_nodes_share_the_work_and_the_ceilings(
    programs: Programs, tmp_path: Path, fresh_postgres: str
) -> None:
    """Each instruction goes to the agent once, and never more at a time than the lane allows."""
    lanes = {**POLICY["lanes"], ONE: {"maxInflight": 3, "strategy": "priority"}}
    async with world(programs, tmp_path, fresh_postgres, policy={"lanes": lanes}) as one:
        one.agent.script = talking("hello", hang_after=0)
        await asyncio.gather(*(server.start() for server in one.servers))
        messages = [f"hello {number}" for number in range(40)]
        # Who submits has the lease in the same transaction: each node gets one of the first two.
        ids = [await one.say(message, lane=ONE) for message in messages[:1]]
        one.turn_to_the_other()
        ids += [await one.say(message, lane=ONE) for message in messages[1:]]
        await one.until_asked("hello", 3)
        assert len({(await one.task(task_id))["worker"] for task_id in ids[:2]}) == 2
        one.agent.script = talking("hello", pause_ms=4)
        one.agent.release()
        tasks = [await one.end_of(task_id, 120) for task_id in ids]
        assert {(task["state"], task["attempts"]) for task in tasks} == {("done", 1)}
        assert Counter(entry.message for entry in one.agent.requests) == dict.fromkeys(messages, 1)
        assert one.agent.max_concurrent == 3
    assert checks.disagreements(fresh_postgres) == []
