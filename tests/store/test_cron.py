"""Cron jobs: one transaction fires a slot, once; runs end with their tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.errors import Conflict, InvalidRequest, NotFound, QueueFull
from fairlane.engine.commands import CreateJobs, DeleteJob, RunJob, ToggleJob, UpdateJob
from tests.store.crontab import DAY, HOUR, LANES, MINUTE, Crontab, job_document
from tests.store.scheduler import WORK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.core.cron import Job, RunRecord
    from tests.store.scheduler import Scheduler

NO_RETRY = {"maxRetries": 0}


@pytest.fixture
def crontab(scheduler: Scheduler) -> Iterator[Crontab]:
    crontab = Crontab(scheduler)
    yield crontab
    crontab.views.close()


# -------------------------------------------------------------------- keeping jobs


def test_a_job_is_kept_as_it_was_made(crontab: Crontab) -> None:
    made = crontab.add(jitterMs=500, task={"handler": "work", "params": {"of": "ä"}})
    assert crontab.job() == made
    assert made.next_run_at == crontab.scheduler.clock.now() + MINUTE
    assert made.definition.agent_id == "default"


def test_jobs_are_made_together_or_not_at_all(crontab: Crontab) -> None:
    never = {"kind": "every", "everyMs": 0}
    documents = [job_document("a"), job_document("b", schedule=never)]
    refused = crontab.scheduler.refused(CreateJobs(["job_a", "job_b"], documents))
    assert isinstance(refused, InvalidRequest)
    assert "everyMs" in refused.message
    assert crontab.views.job("job_a") is None
    crontab.add("taken")
    names = CreateJobs(["job_1", "job_2"], [job_document("free"), job_document("taken")])
    error = crontab.scheduler.refused(names)
    assert isinstance(error, Conflict)
    assert error.details is not None
    assert [one["index"] for one in error.details["problems"]] == [1]
    assert error.details["id"] == "job_taken"
    assert crontab.views.job("job_1") is None


def test_a_name_is_free_for_another_agent_and_for_its_own_job(crontab: Crontab) -> None:
    crontab.add("mine")
    other = job_document("mine", agentId="b")
    crontab.scheduler.ask(CreateJobs(["job_other"], [other]))
    crontab.change("mine", name="mine", jitterMs=1)
    refused = crontab.scheduler.refused(UpdateJob("job_other", {"agentId": "default"}))
    assert isinstance(refused, Conflict)
    assert [job.id for job in crontab.views.jobs(None, "mine", None, None, 9)] == [
        "job_other",
        "job_mine",
    ]


def test_jobs_are_listed_newest_first_by_agent_name_and_whether_enabled(crontab: Crontab) -> None:
    for name in ("a", "b", "c"):
        crontab.add(name, agentId="x" if name == "b" else "y", enabled=name != "c")

    def listed(**wanted: Any) -> str:
        asked = {"agent": None, "name": None, "enabled": None, "before": None, "limit": 9, **wanted}
        return "".join(job.definition.name for job in crontab.views.jobs(**asked))

    assert listed() == "cba"
    assert listed(agent="y") == "ca"
    assert listed(name="b") == "b"
    assert listed(enabled=True) == "ba"
    assert listed(enabled=False) == "c"
    assert listed(limit=2) == "cb"
    assert listed(before=crontab.job("b").seq) == "a"


@pytest.mark.parametrize("request_", [UpdateJob("job_x", {}), RunJob("job_x"), DeleteJob("job_x")])
def test_a_job_that_is_not_there_is_not_found(crontab: Crontab, request_: Any) -> None:
    assert isinstance(crontab.scheduler.refused(request_), NotFound)


# -------------------------------------------------------------------- firing


def test_a_slot_fires_one_task_and_advances_the_job(crontab: Crontab) -> None:
    job = crontab.add(agentId="a7", timeoutMs=5000)
    crontab.pass_time(MINUTE - 1)
    assert crontab.runs() == []
    crontab.pass_time(1)
    (run,) = crontab.runs()
    assert (run.status, run.trigger, run.scheduled_at) == ("queued", "schedule", job.next_run_at)
    assert run.task_id is not None
    view = crontab.scheduler.view(run.task_id)
    assert (view.task.lane, view.task.agent, view.task.capability) == ("cron", "a7", WORK)
    assert view.task.session == "cron:job_report"
    assert view.task.max_attempts == 4
    assert view.body["timeoutMs"] == 5000
    assert view.body["retryPolicy"]["jitter"] == 0.25
    assert crontab.job().next_run_at == run.scheduled_at + MINUTE
    assert crontab.job().last_status == "running"
    events = crontab.scheduler.events(run.task_id)
    assert [event.fired for event in events if event.fired] == [("job_report", run.id)]


def test_a_run_follows_its_task_to_its_end(crontab: Crontab) -> None:
    crontab.add()
    crontab.pass_time(MINUTE)
    task = crontab.lease()
    assert crontab.statuses() == ["queued"]
    crontab.scheduler.clock.advance(1000)
    crontab.scheduler.start(task)
    (run,) = crontab.runs()
    assert (run.status, run.attempts) == ("running", 1)
    assert run.started_at == crontab.scheduler.clock.now()
    crontab.scheduler.clock.advance(2000)
    crontab.scheduler.complete(task, '"all is well"')
    (run,) = crontab.runs()
    assert (run.status, run.attempts, run.summary) == ("ok", 1, "all is well")
    assert run.started_at is not None
    assert run.finished_at == run.started_at + 2000
    assert crontab.job().last_status == "ok"


def test_a_failed_run_says_why_and_is_counted_until_one_succeeds(crontab: Crontab) -> None:
    crontab.add()
    for number in (1, 2):
        crontab.pass_time(MINUTE)
        crontab.fail(f"broken {number}")
        assert crontab.job().consecutive_errors == number
        assert crontab.job().last_error == f"broken {number}"
    crontab.pass_time(MINUTE)
    crontab.complete({"n": 1})
    assert crontab.statuses() == ["error", "error", "ok"]
    assert [run.error for run in crontab.runs()] == ["broken 1", "broken 2", None]
    assert crontab.runs()[-1].summary == '{"n":1}'
    assert (crontab.job().consecutive_errors, crontab.job().last_error) == (0, None)


def test_a_cancelled_run_is_neither_a_success_nor_an_error(crontab: Crontab) -> None:
    crontab.add()
    crontab.pass_time(MINUTE)
    crontab.fail()
    crontab.pass_time(MINUTE)
    crontab.scheduler.cancel(crontab.lease().id)
    assert crontab.statuses() == ["error", "cancelled"]
    assert crontab.job().consecutive_errors == 1


def test_retries_belong_to_the_run_and_never_shift_the_schedule(crontab: Crontab) -> None:
    crontab.add(retryPolicy={"maxRetries": 1, "backoffMs": 1000, "jitter": 0})
    crontab.pass_time(MINUTE)
    crontab.scheduler.fail(crontab.lease())
    assert crontab.statuses() == ["queued"]
    assert crontab.idle()
    crontab.pass_time(1000)
    crontab.scheduler.fail(crontab.lease(), "again")
    (run,) = crontab.runs()
    assert (run.status, run.attempts, run.error) == ("error", 2, "again")
    assert crontab.scheduler.view(run.task_id or "").state == "failed"
    assert crontab.job().next_run_at == run.scheduled_at + MINUTE


def test_a_task_that_is_tried_again_by_hand_opens_its_run_again(crontab: Crontab) -> None:
    crontab.add()
    crontab.pass_time(MINUTE)
    task = crontab.fail()
    crontab.scheduler.retry(task.id)
    (run,) = crontab.runs()
    assert (run.status, run.error, run.finished_at) == ("queued", None, None)
    assert crontab.job().last_status == "running"
    crontab.complete()
    assert crontab.statuses() == ["ok"]
    assert crontab.job().consecutive_errors == 0


def test_a_refused_task_is_an_error_of_its_run(crontab: Crontab) -> None:
    crontab.scheduler.set_lane("cron", maxQueueSize=1)
    crontab.add("first")
    crontab.add("second", overlap="allow")
    crontab.pass_time(MINUTE)
    (run,) = crontab.runs("second")
    assert run.status == "error"
    assert run.error is not None
    assert run.error.startswith("queue_full:")
    assert crontab.job("second").consecutive_errors == 1
    assert crontab.statuses("first") == ["queued"]
    refused = crontab.scheduler.refused(RunJob("job_second"))
    assert isinstance(refused, QueueFull)
    assert [run.trigger for run in crontab.runs("second")] == ["schedule", "manual"]


def test_a_handler_of_cron_fails_where_others_are_parked(crontab: Crontab) -> None:
    crontab.add(retryPolicy=NO_RETRY)
    crontab.pass_time(MINUTE)
    crontab.scheduler.fail(crontab.lease())
    assert crontab.statuses() == ["error"]


def test_an_action_of_cron_has_no_deadline_in_the_queue_but_a_timeout(crontab: Crontab) -> None:
    crontab.add(task={"action": "click", "tabId": "t1"})
    crontab.pass_time(MINUTE)
    (run,) = crontab.runs()
    view = crontab.scheduler.view(run.task_id or "")
    assert (view.task.deadline_at, view.task.session) == (None, "cron:job_report")
    assert view.body["timeoutMs"] == 60_000


# -------------------------------------------------------------------- overlap, jitter, misfires


def test_a_job_skips_a_slot_while_its_run_goes_on(crontab: Crontab) -> None:
    crontab.add()
    crontab.pass_time(MINUTE)
    task = crontab.lease()
    crontab.scheduler.renew(task, 10 * MINUTE)
    crontab.pass_time(MINUTE)
    assert crontab.statuses() == ["queued", "skipped"]
    assert crontab.job().last_status == "skipped"
    crontab.scheduler.complete(task)
    crontab.pass_time(MINUTE)
    assert crontab.statuses() == ["ok", "skipped", "queued"]


def test_a_run_that_ends_in_the_same_moment_is_not_in_the_way(crontab: Crontab) -> None:
    crontab.add()
    crontab.pass_time(MINUTE)
    task = crontab.lease()
    crontab.scheduler.renew(task, 10 * MINUTE)
    crontab.scheduler.clock.advance(MINUTE)
    crontab.scheduler.complete(task)
    assert crontab.statuses() == ["ok", "queued"]


@pytest.mark.parametrize(("overlap", "at_once"), [("queue", 1), ("allow", 3)])
def test_runs_of_a_job_wait_for_each_other_unless_they_may_overlap(
    crontab: Crontab, overlap: str, at_once: int
) -> None:
    crontab.scheduler.set_policy(sessions={"maxConcurrent": 2})
    crontab.add(overlap=overlap)
    for _ in range(3):
        crontab.pass_time(MINUTE)
    assert crontab.statuses() == ["queued"] * 3
    assert len(crontab.scheduler.lease(5, lanes=LANES)) == at_once


def test_jitter_moves_the_task_and_not_the_slot(crontab: Crontab) -> None:
    job = crontab.add(jitterMs=20_000)
    crontab.pass_time(MINUTE)
    (run,) = crontab.runs()
    task = crontab.scheduler.view(run.task_id or "").task
    assert run.scheduled_at == job.next_run_at
    assert task.eligible_at is not None
    assert run.scheduled_at < task.eligible_at < run.scheduled_at + 20_000
    assert crontab.idle()
    crontab.pass_time(20_000)
    assert crontab.lease().id == run.task_id


@pytest.mark.parametrize(
    ("misfire", "expected"),
    [
        ("skip", ["missed"]),
        ("once", ["missed", "queued"]),
        ("all", ["missed", "queued", "queued", "queued"]),
    ],
)
def test_what_was_missed_while_nobody_was_there_follows_its_rule(
    crontab: Crontab, misfire: str, expected: list[str]
) -> None:
    job = crontab.add(misfire=misfire, misfireCap=3, misfireGraceMs=1000)
    crontab.pass_time(10 * MINUTE + 30_000)
    assert crontab.statuses() == expected
    missed = crontab.runs()[0]
    count = 11 - len(expected)
    assert missed.error is not None
    assert missed.error.startswith(f"{count} missed, from ")
    assert {run.trigger for run in crontab.runs()} == {"misfire"}
    assert job.next_run_at is not None
    assert crontab.job().next_run_at == job.next_run_at + 10 * MINUTE


def test_missed_runs_are_spread_over_time(crontab: Crontab) -> None:
    crontab.add(misfire="all", misfireCap=3, misfireGraceMs=0, misfireSpreadMs=9000)
    crontab.pass_time(3 * MINUTE + 1)
    now = crontab.scheduler.clock.now()
    tasks = [crontab.scheduler.view(run.task_id or "").task for run in crontab.runs()]
    assert [task.eligible_at for task in tasks] == [None, now + 3000, now + 6000]


def test_a_clock_that_is_set_back_fires_nothing_again(crontab: Crontab) -> None:
    job = crontab.add(overlap="allow")
    assert job.next_run_at is not None
    crontab.pass_time(10 * MINUTE)
    fired = [run.slot for run in crontab.runs() if run.task_id]
    crontab.scheduler.clock.advance(-5 * MINUTE)
    crontab.toggle(enabled=False)
    crontab.toggle(enabled=True)
    crontab.pass_time(5 * MINUTE - 1)
    assert [run.slot for run in crontab.runs() if run.task_id] == fired
    crontab.pass_time(MINUTE + 1)
    assert len([run for run in crontab.runs() if run.task_id]) == len(fired) + 1


# -------------------------------------------------------------------- on, off, over


def test_a_disabled_job_does_not_fire_and_goes_on_from_now(crontab: Crontab) -> None:
    crontab.add()
    off = crontab.toggle(enabled=False)
    assert (off.next_run_at, off.disabled_reason) == (None, "by caller")
    crontab.pass_time(10 * MINUTE + 5)
    on = crontab.toggle(enabled=True)
    assert (crontab.runs(), on.disabled_reason) == ([], None)
    assert on.next_run_at == on.created_at + 11 * MINUTE
    assert crontab.toggle(enabled=True) == crontab.job()


def test_a_changed_schedule_goes_on_from_now_and_other_changes_do_not_move_it(
    crontab: Crontab,
) -> None:
    before = crontab.add()
    crontab.scheduler.clock.advance(30_000)
    assert crontab.change(jitterMs=5).next_run_at == before.next_run_at
    crontab.scheduler.clock.advance(10 * HOUR)  # whatever was missed belonged to the old schedule
    hourly = crontab.change(schedule={"kind": "cron", "expr": "@hourly"})
    crontab.settle()
    assert crontab.runs() == []
    assert hourly.next_run_at == -(-crontab.scheduler.clock.now() // HOUR) * HOUR
    assert hourly.updated_at == crontab.scheduler.clock.now()


def test_a_change_that_is_refused_changes_nothing(crontab: Crontab) -> None:
    before = crontab.add()
    for fields in ({"schedule": {"kind": "every", "everyMs": 5}}, {"overlp": "skip"}):
        assert isinstance(
            crontab.scheduler.refused(UpdateJob("job_report", fields)), InvalidRequest
        )
    assert crontab.job() == before


def test_a_job_is_finished_after_so_many_runs(crontab: Crontab) -> None:
    crontab.add(maxRuns=2, overlap="allow")
    for _ in range(4):
        crontab.pass_time(MINUTE)
    assert len(crontab.runs()) == 2
    job = crontab.job()
    assert (job.definition.enabled, job.disabled_reason, job.runs) == (False, "finished", 2)
    refused = crontab.scheduler.refused(ToggleJob("job_report", enabled=True))
    assert isinstance(refused, InvalidRequest)
    again = crontab.change(maxRuns=3, enabled=True)
    assert again.next_run_at is not None


def test_a_limit_that_has_been_reached_already_finishes_the_job(crontab: Crontab) -> None:
    crontab.add(overlap="allow")
    crontab.pass_time(MINUTE)
    assert crontab.change(maxRuns=1).disabled_reason == "finished"


def test_a_job_is_finished_when_its_last_slot_has_fired(crontab: Crontab) -> None:
    crontab.add(endAt="2023-11-14T22:15:20Z", overlap="allow")
    crontab.pass_time(MINUTE)
    crontab.pass_time(MINUTE)
    assert crontab.job().disabled_reason == "finished"
    assert len(crontab.runs()) == 2


def one_shot(crontab: Crontab, **fields: Any) -> Job:
    at_ms = crontab.scheduler.clock.now() + HOUR
    return crontab.add(schedule={"kind": "at", "atMs": at_ms}, retryPolicy=NO_RETRY, **fields)


def test_a_one_shot_job_goes_after_its_success_and_its_log_stays(crontab: Crontab) -> None:
    one_shot(crontab)
    crontab.pass_time(HOUR)
    assert crontab.job().disabled_reason == "finished"
    crontab.complete()
    assert crontab.views.job("job_report") is None
    assert crontab.statuses() == ["ok"]


def test_a_one_shot_job_stays_after_a_failure_or_a_run_by_hand(crontab: Crontab) -> None:
    one_shot(crontab)
    crontab.scheduler.ask(RunJob("job_report"))
    crontab.complete()
    assert crontab.job().definition.enabled
    crontab.pass_time(HOUR)
    crontab.fail()
    assert crontab.job().disabled_reason == "finished"
    crontab.scheduler.retry(crontab.runs()[-1].task_id or "")
    crontab.complete()
    assert crontab.views.job("job_report") is None


def test_a_one_shot_job_can_be_kept(crontab: Crontab) -> None:
    one_shot(crontab, deleteAfterRun=False)
    crontab.pass_time(HOUR)
    crontab.complete()
    assert crontab.job().disabled_reason == "finished"


# -------------------------------------------------------------------- by hand


def test_a_run_by_hand_does_not_move_the_schedule(crontab: Crontab) -> None:
    before = crontab.add(enabled=False)
    run: RunRecord = crontab.scheduler.ask(RunJob("job_report"))
    assert (run.trigger, run.status) == ("manual", "queued")
    assert run.scheduled_at == crontab.scheduler.clock.now()
    assert crontab.lease().id == run.task_id
    after = crontab.job()
    assert (after.next_run_at, after.slot_at, after.runs) == (None, before.slot_at, 0)


def test_a_run_by_hand_does_not_overlap_another(crontab: Crontab) -> None:
    crontab.add()
    first: RunRecord = crontab.scheduler.ask(RunJob("job_report"))
    refused = crontab.scheduler.refused(RunJob("job_report"))
    assert isinstance(refused, Conflict)
    assert refused.details == {"taskId": first.task_id}
    crontab.change(overlap="queue")
    crontab.scheduler.ask(RunJob("job_report"))
    assert crontab.statuses() == ["queued", "queued"]


# -------------------------------------------------------------------- deletion


@pytest.mark.parametrize(("cancel", "state"), [(False, "queued"), (True, "cancelled")])
def test_tasks_of_a_deleted_job_go_on_unless_they_are_cancelled(
    crontab: Crontab, state: str, *, cancel: bool
) -> None:
    crontab.add()
    crontab.pass_time(MINUTE)
    crontab.scheduler.ask(DeleteJob("job_report", cancel))
    assert crontab.views.job("job_report") is None
    assert crontab.statuses() == [state]
    if not cancel:
        crontab.complete()
        assert crontab.statuses() == ["ok"]
    crontab.pass_time(10 * MINUTE)
    assert len(crontab.runs()) == 1


# -------------------------------------------------------------------- errors in a row


def alerts(crontab: Crontab) -> list[tuple[str, str]]:
    rows = crontab.scheduler.reader.run("delivery_due", now=2**60, limit=100)
    return sorted((row[3], row[2]) for row in rows)


def test_an_alert_is_owed_once_for_a_streak_and_once_when_it_is_over(crontab: Crontab) -> None:
    crontab.add(alertUrl="https://receiver.example/a", alertAfter=2)
    expected: list[list[str]] = [[], ["cron.failing"], ["cron.failing"]]
    for events in expected:
        crontab.pass_time(MINUTE)
        crontab.fail()
        assert [event for event, _ in alerts(crontab)] == events
    for _ in range(2):
        crontab.pass_time(MINUTE)
        crontab.complete()
        assert alerts(crontab) == [
            ("cron.failing", "https://receiver.example/a"),
            ("cron.recovered", "https://receiver.example/a"),
        ]
    crontab.pass_time(MINUTE)
    crontab.fail()
    assert len(alerts(crontab)) == 2


def test_a_job_is_disabled_after_so_many_errors_in_a_row(crontab: Crontab) -> None:
    crontab.add(disableAfter=2)
    for _ in range(2):
        crontab.pass_time(MINUTE)
        crontab.fail()
    job = crontab.job()
    assert (job.definition.enabled, job.disabled_reason, job.next_run_at) == (False, "errors", None)
    assert crontab.toggle(enabled=True).consecutive_errors == 0
    crontab.pass_time(MINUTE)
    crontab.fail()
    assert crontab.job().definition.enabled


# -------------------------------------------------------------------- the log


def test_runs_are_listed_newest_first_by_job_and_status(crontab: Crontab) -> None:
    crontab.add("a")
    crontab.add("b")
    crontab.pass_time(MINUTE)
    crontab.complete()
    task = crontab.lease()
    assert [run.job_name for run in crontab.runs(None, "ok")] == ["a"]
    assert [run.job_name for run in crontab.runs(None, "queued")] == ["b"]
    crontab.scheduler.start(task)
    assert [run.job_name for run in crontab.runs(None, "running")] == ["b"]
    assert crontab.runs(None, "queued") == []
    newest, oldest = crontab.views.runs(None, None, None, None, 9)
    assert crontab.views.runs(None, None, None, newest.seq, 9) == [oldest]
    assert crontab.views.runs_by_seq([newest.seq]) == {newest.seq: newest}


def test_a_log_keeps_so_many_runs_of_a_job(crontab: Crontab) -> None:
    crontab.add(keepRuns=3, overlap="allow")
    crontab.add("other", overlap="allow")
    for _ in range(6):
        crontab.pass_time(MINUTE)
        crontab.complete()
        crontab.complete()
    assert len(crontab.runs()) == 3
    assert len(crontab.runs("other")) == 6
    assert crontab.job().runs == 6


def test_a_log_never_forgets_a_run_that_goes_on(crontab: Crontab) -> None:
    crontab.add(keepRuns=1, overlap="queue")
    for _ in range(3):
        crontab.pass_time(MINUTE)
    assert crontab.statuses() == ["queued"] * 3


def test_a_log_keeps_runs_for_so_long_also_of_a_job_that_is_gone(crontab: Crontab) -> None:
    crontab.add(keepDays=2, schedule={"kind": "every", "everyMs": 366 * DAY})
    crontab.scheduler.ask(RunJob("job_report"))
    crontab.complete()
    crontab.scheduler.ask(DeleteJob("job_report"))
    crontab.pass_time(2 * DAY - 20_000)
    assert crontab.statuses() == ["ok"]
    crontab.pass_time(40_000)
    assert crontab.statuses() == []


def test_a_long_result_is_cut_between_characters(crontab: Crontab) -> None:
    crontab.add()
    crontab.pass_time(MINUTE)
    crontab.complete("x" + "ä" * 20_000)
    summary = crontab.runs()[0].summary
    assert summary is not None
    assert summary.endswith("ä…[truncated]")
    assert 16_384 - 1 <= len(summary.removesuffix("…[truncated]").encode()) <= 16_384
