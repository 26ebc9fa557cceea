"""What other schedulers of this kind are known to get wrong, as our own facts, on both databases.

Time is moved by hand; a worker is whoever leases. The table of `e2e/test_known_bugs.py` names the
weakness that each of these tests is about.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest

from fairlane.core.cron import Job, RunRecord
from fairlane.core.errors import Conflict, FairlaneError, InvalidRequest, NotFound
from fairlane.core.jobs import parse
from fairlane.core.model import Task, capability_of
from fairlane.engine.commands import (
    ClaimDeliveries,
    CreateJobs,
    DeleteJob,
    RunJob,
    ToggleJob,
    UpdateJob,
)
from fairlane.schema.wire import moment
from fairlane.store.tables.cron import job_from_row, run_from_row

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.scheduler import Scheduler

MINUTE: Final = 60_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
MAIL: Final = capability_of("handler", "mail")
EVERY_MINUTE: Final = {"kind": "every", "everyMs": MINUTE}


class Jobs:
    """Jobs on a scheduler, in short sentences."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._number = 0

    @property
    def now(self) -> int:
        return self.scheduler.clock.now()

    def create(self, schedule: dict[str, Any] | None = None, **fields: Any) -> str:
        self._number += 1
        id_ = f"job_{self._number}"
        document = {"name": f"name-{self._number}", "task": {"handler": "mail"}, **fields}
        document["schedule"] = schedule or EVERY_MINUTE
        self.scheduler.ask(CreateJobs([id_], [parse(document, self.now)]))
        return id_

    def refused(self, **document: Any) -> FairlaneError:
        shape = {"name": "refused", "task": {"handler": "mail"}, "schedule": EVERY_MINUTE}
        try:
            parsed = parse({**shape, **document}, self.now)
        except InvalidRequest as error:
            return error
        return self.scheduler.refused(CreateJobs(["job_refused"], [parsed]))

    def job(self, id_: str) -> Job | None:
        rows = self.scheduler.reader.run_rows("job_by_id", [(id_,)])
        return job_from_row(rows[0], self.scheduler.store.vault) if rows else None

    def there(self, id_: str) -> Job:
        found = self.job(id_)
        assert found is not None
        return found

    def runs(self, id_: str) -> list[RunRecord]:
        """Oldest first; one that has begun is `running`."""
        rows = self.scheduler.reader.run("run_list_of", job=id_, limit=1000)
        runs = [run_from_row(row) for row in reversed(rows)]
        for run in runs:
            run.status = "running" if run.open and run.started_at else run.status
        return runs

    def pass_time(self, milliseconds: int) -> None:
        self.scheduler.pass_time(milliseconds)

    def lease(self, limit: int = 100) -> list[Task]:
        grants = self.scheduler.lease(
            limit,
            lanes=("cron",),
            capabilities=frozenset({MAIL}),
            started=frozenset({MAIL}),
            ttl_ms=DAY,
        )
        return [grant.task for grant in grants]

    def work(self) -> int:
        """Run whatever there is; how much that was."""
        tasks = self.lease()
        for task in tasks:
            self.scheduler.complete(task, '"ok"')
        return len(tasks)

    def fail(self, error: str = "broken", **fields: Any) -> Task:
        (task,) = self.lease(1)
        return self.scheduler.fail(task, error, **fields)

    def statuses(self, id_: str) -> list[tuple[str, str]]:
        return [(run.trigger, run.status) for run in self.runs(id_)]

    def next_at(self, id_: str) -> int | None:
        return self.there(id_).next_run_at


@pytest.fixture
def jobs(scheduler: Scheduler) -> Jobs:
    return Jobs(scheduler)


# -------------------------------------------------------------------- one job and the others


def test_a_run_of_an_hour_delays_no_other_job(jobs: Jobs) -> None:
    long, short = jobs.create(), jobs.create()
    jobs.pass_time(MINUTE)
    held = {task.session: task for task in jobs.lease()}
    jobs.scheduler.complete(held[f"cron:{short}"])
    for _ in range(60):
        jobs.pass_time(MINUTE)
        jobs.work()
    assert Counter(jobs.statuses(short)) == {("schedule", "ok"): 61}
    runs = jobs.runs(short)
    assert {run.started_at - run.scheduled_at for run in runs if run.started_at} == {0}
    assert Counter(jobs.statuses(long)) == {
        ("schedule", "running"): 1,
        ("schedule", "skipped"): 60,
    }
    jobs.scheduler.complete(held[f"cron:{long}"])
    jobs.pass_time(MINUTE)
    assert jobs.work() == 2


@pytest.mark.parametrize(
    ("overlap", "statuses", "together"),
    [
        ("skip", ["running", "skipped", "skipped"], 1),
        ("queue", ["running", "queued", "queued"], 1),
        ("allow", ["running", "running", "running"], 3),
    ],
)
def test_a_job_meets_itself_only_as_its_owner_has_said(
    jobs: Jobs, overlap: str, statuses: list[str], together: int
) -> None:
    job = jobs.create(overlap=overlap)
    held = []
    for _ in range(3):
        jobs.pass_time(MINUTE)
        held += jobs.lease()
    assert [run.status for run in jobs.runs(job)] == statuses
    assert len(held) == together


def test_two_nodes_that_look_at_the_same_moment_fire_a_slot_once(
    new_scheduler: Callable[..., Scheduler],
) -> None:
    first = new_scheduler("one")
    second = new_scheduler("two", first.clock)
    jobs = Jobs(first)
    job = jobs.create(overlap="allow")
    for _ in range(10):
        first.clock.advance(MINUTE)
        for node in (first, second, first):
            node.apply()
    assert len({run.scheduled_at for run in jobs.runs(job)}) == len(jobs.runs(job)) == 10


# -------------------------------------------------------------------- what was missed


@pytest.mark.parametrize(
    ("misfire", "statuses"),
    [
        ("skip", ["missed"]),
        ("once", ["missed", "misfire"]),
        ("all", ["missed", "misfire", "misfire", "misfire"]),
    ],
)
def test_what_fell_due_while_nothing_ran_follows_the_policy_of_the_job(
    jobs: Jobs, misfire: str, statuses: list[str]
) -> None:
    hourly = {"kind": "every", "everyMs": HOUR}
    job = jobs.create(hourly, misfire=misfire, misfireCap=3, misfireSpreadMs=9 * MINUTE)
    start = jobs.now
    jobs.pass_time(10 * HOUR + 30 * MINUTE)
    runs = jobs.runs(job)
    found = [run.status if run.status == "missed" else run.trigger for run in runs]
    assert sorted(found) == sorted(statuses)
    (missed,) = (run for run in runs if run.status == "missed")
    ran = [run.scheduled_at for run in runs if run.status != "missed"]
    assert ran == [start + n * HOUR for n in range(11 - len(ran), 11)]
    assert missed.error is not None
    assert str(10 - len(ran)) in missed.error
    assert jobs.next_at(job) == start + 11 * HOUR
    begin = [
        jobs.scheduler.view(run.task_id or "").task.eligible_at or 0 for run in runs if run.task_id
    ]
    assert [max(0, at - jobs.now) for at in begin] == [n * 3 * MINUTE for n in range(len(ran))]


def test_a_slot_within_its_grace_is_not_late(jobs: Jobs) -> None:
    hourly = {"kind": "every", "everyMs": HOUR}
    job = jobs.create(hourly, misfire="skip", misfireGraceMs=10 * MINUTE)
    jobs.pass_time(HOUR + 10 * MINUTE)
    assert jobs.statuses(job) == [("schedule", "queued")]


def test_a_short_outage_does_not_run_every_slot_of_a_short_interval(jobs: Jobs) -> None:
    """The usual grace of a minute is longer than the outage; the interval is not."""
    job = jobs.create({"kind": "every", "everyMs": 1000}, misfire="skip", overlap="queue")
    jobs.pass_time(20_500)
    (missed, *others) = jobs.runs(job)
    assert (missed.status, (missed.error or "")[:10]) == ("missed", "19 missed,")
    assert [run.scheduled_at for run in others] == [jobs.now - 500]


def test_a_month_of_missed_seconds_is_one_line_and_takes_no_time(jobs: Jobs) -> None:
    job = jobs.create({"kind": "every", "everyMs": 1000})
    jobs.pass_time(30 * DAY)
    (missed,) = (run for run in jobs.runs(job) if run.status == "missed")
    assert (missed.error or "").startswith("more than ")
    next_at = jobs.next_at(job)
    assert next_at is not None
    assert jobs.now < next_at <= jobs.now + 1000


# -------------------------------------------------------------------- the schedule does not move


def test_an_interval_does_not_drift_however_long_its_runs_and_retries_take(jobs: Jobs) -> None:
    start = jobs.now
    job = jobs.create({"kind": "every", "everyMs": 10 * MINUTE}, retryPolicy={"maxRetries": 1})
    for turn in range(6):
        jobs.pass_time(start + (turn + 1) * 10 * MINUTE + 777 - jobs.now)
        (task,) = jobs.lease()
        jobs.scheduler.clock.advance(123_456)
        jobs.scheduler.fail(task, "try again") if turn % 2 else jobs.scheduler.complete(task)
        jobs.pass_time(60_000)
        jobs.work()
    assert [run.scheduled_at - start for run in jobs.runs(job)] == [
        n * 10 * MINUTE for n in range(1, 7)
    ]
    assert {run.status for run in jobs.runs(job)} == {"ok"}


def test_a_run_by_hand_moves_nothing_and_uses_nothing_up(jobs: Jobs) -> None:
    at = jobs.now + HOUR
    job = jobs.create({"kind": "at", "atMs": at})
    jobs.pass_time(MINUTE)
    jobs.scheduler.ask(RunJob(job))
    assert jobs.work() == 1
    assert jobs.next_at(job) == at
    jobs.pass_time(HOUR)
    assert jobs.work() == 1
    assert jobs.statuses(job) == [("manual", "ok"), ("schedule", "ok")]


def test_a_run_by_hand_works_on_a_disabled_job_and_says_when_it_cannot(jobs: Jobs) -> None:
    job = jobs.create(enabled=False)
    jobs.scheduler.ask(RunJob(job))
    (task,) = jobs.lease()
    refusal = jobs.scheduler.refused(RunJob(job))
    assert isinstance(refusal, Conflict)
    assert task.id in refusal.message
    assert isinstance(jobs.scheduler.refused(RunJob("job_nobody")), NotFound)
    assert jobs.statuses(job) == [("manual", "running")]


def test_enabling_looks_forward_from_now(jobs: Jobs) -> None:
    start = jobs.now
    job = jobs.create({"kind": "every", "everyMs": HOUR})
    jobs.scheduler.ask(ToggleJob(job, enabled=False))
    jobs.pass_time(5 * HOUR + MINUTE)
    assert jobs.runs(job) == []
    jobs.scheduler.ask(ToggleJob(job, enabled=True))
    assert jobs.runs(job) == []
    assert jobs.next_at(job) == start + 6 * HOUR


def test_a_clock_that_is_set_back_fires_nothing_again(jobs: Jobs) -> None:
    job = jobs.create(overlap="allow")
    jobs.pass_time(MINUTE)
    jobs.pass_time(-10 * MINUTE)
    jobs.scheduler.ask(ToggleJob(job, enabled=False))
    jobs.scheduler.ask(ToggleJob(job, enabled=True))
    for _ in range(11):
        jobs.pass_time(MINUTE)
    slots = [run.scheduled_at for run in jobs.runs(job)]
    assert len(slots) == len(set(slots)) == 2


def test_a_job_that_moves_west_fires_at_the_same_wall_time_once_more(jobs: Jobs) -> None:
    """It is another slot, though a clock on a wall would call it by the same name."""
    job = jobs.create({"kind": "cron", "expr": "30 2 * * *", "tz": "Europe/Berlin"})
    first = jobs.next_at(job) or 0
    jobs.pass_time(first - jobs.now)
    jobs.work()
    jobs.scheduler.ask(UpdateJob(job, {"schedule": {"tz": "America/New_York"}}))
    assert jobs.next_at(job) == first + 6 * HOUR
    jobs.pass_time(6 * HOUR)
    assert [run.scheduled_at - first for run in jobs.runs(job)] == [0, 6 * HOUR]


# -------------------------------------------------------------------- dead jobs


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"schedule": {"kind": "cron", "expr": "61 * * * *"}}, "schedule.expr"),
        ({"schedule": {"kind": "cron", "expr": "* * * *"}}, "schedule.expr"),
        ({"schedule": {"kind": "cron", "expr": "0 * * * * *"}}, "schedule.expr"),
        ({"schedule": {"kind": "cron", "expr": "0 0 30 2 *"}}, "schedule.expr"),
        ({"schedule": {"kind": "cron", "expr": "@reboot"}}, "schedule.expr"),
        ({"schedule": {"kind": "cron", "expr": ""}}, "schedule.expr"),
        ({"schedule": {"kind": "cron"}}, "schedule.expr"),
        ({"schedule": {"kind": "cron", "expr": "@daily", "tz": "Mars/Base"}}, "schedule.tz"),
        ({"schedule": {"kind": "cron", "expr": "@daily", "tz": "../UTC"}}, "schedule.tz"),
        ({"schedule": {"kind": "every", "everyMs": 0}}, "schedule.everyMs"),
        ({"schedule": {"kind": "every", "everyMs": -5}}, "schedule.everyMs"),
        ({"schedule": {"kind": "every"}}, "schedule.everyMs"),
        ({"schedule": {"kind": "at", "atMs": 1}}, "schedule.at"),
        ({"schedule": {"kind": "at"}}, "schedule.at"),
        ({"schedule": {"kind": "hourly"}}, "schedule.kind"),
        ({"schedule": "every day at 09:00"}, "schedule"),
        ({"agentId": "not a name"}, "agentId"),
        ({"name": ""}, "name"),
        ({"task": {}}, "task"),
        ({"task": {"handler": ""}}, "task"),
        ({"endAt": "2001-01-01T00:00:00Z"}, "endAt"),
        ({"overlap": "maybe"}, "overlap"),
        ({"misfire": "maybe"}, "misfire"),
        ({"maxRuns": 0}, "maxRuns"),
        ({"deleteAfterRun": True}, "deleteAfterRun"),
        ({"overlaps": "skip"}, "overlap"),
    ],
)
def test_a_job_that_could_never_run_is_refused_by_the_name_of_its_field(
    jobs: Jobs, fields: dict[str, Any], named: str
) -> None:
    refusal = jobs.refused(**fields)
    assert isinstance(refusal, InvalidRequest)
    assert named in refusal.message
    assert "\n" not in refusal.message
    assert jobs.job("job_refused") is None


def test_a_change_to_something_dead_is_refused_and_changes_nothing(jobs: Jobs) -> None:
    job = jobs.create()
    before = jobs.job(job)
    for schedule in ({"kind": "cron", "expr": "nonsense"}, {"kind": "at", "atMs": 5}):
        refusal = jobs.scheduler.refused(UpdateJob(job, {"schedule": schedule}))
        assert isinstance(refusal, InvalidRequest)
    assert jobs.job(job) == before


def test_a_name_is_its_owners_own(jobs: Jobs) -> None:
    jobs.create(name="mine")
    assert isinstance(jobs.refused(name="mine"), Conflict)
    jobs.create(name="mine", agentId="somebody")


# -------------------------------------------------------------------- one-shots


def test_a_one_shot_goes_only_after_a_success_and_its_log_stays(jobs: Jobs) -> None:
    schedule = {"kind": "at", "atMs": jobs.now + HOUR}
    good, bad = jobs.create(schedule), jobs.create(schedule)
    kept = jobs.create(schedule, deleteAfterRun=False)
    jobs.pass_time(HOUR)
    tasks = {task.session: task for task in jobs.lease()}
    assert len(tasks) == 3
    for id_ in (good, kept):
        jobs.scheduler.complete(tasks[f"cron:{id_}"])
    jobs.scheduler.fail(tasks[f"cron:{bad}"], "no good", retryable=False)
    assert jobs.job(good) is None
    for id_ in (bad, kept):
        left = jobs.there(id_)
        assert (left.definition.enabled, left.disabled_reason) == (False, "finished")
    assert jobs.statuses(good) == jobs.statuses(kept) == [("schedule", "ok")]
    assert jobs.statuses(bad) == [("schedule", "error")]


# -------------------------------------------------------------------- retries


def test_the_waits_of_a_job_double_from_two_seconds_and_vary_by_a_quarter(jobs: Jobs) -> None:
    job = jobs.create({"kind": "every", "everyMs": DAY})
    jobs.pass_time(DAY)
    waits = []
    for _ in range(3):
        queued = jobs.fail()
        assert queued.state == "queued"
        assert queued.eligible_at is not None
        waits.append(queued.eligible_at - jobs.now)
        jobs.pass_time(waits[-1])
    assert jobs.fail("the last").state == "failed"
    for wait, plain in zip(waits, (2000, 4000, 8000), strict=True):
        assert 0.75 * plain <= wait <= 1.25 * plain
    assert waits != [2000, 4000, 8000]
    (run,) = jobs.runs(job)
    assert (run.status, run.attempts, run.error) == ("error", 4, "the last")


def test_a_permanent_error_is_not_tried_again(jobs: Jobs) -> None:
    job = jobs.create()
    jobs.pass_time(MINUTE)
    assert jobs.fail(retryable=False).state == "failed"
    (run,) = jobs.runs(job)
    assert (run.status, run.attempts) == ("error", 1)


def test_a_job_may_have_no_retries_at_all(jobs: Jobs) -> None:
    job = jobs.create(retryPolicy={"maxRetries": 0})
    jobs.pass_time(MINUTE)
    assert jobs.fail().state == "failed"
    assert jobs.runs(job)[0].attempts == 1


def test_the_wait_for_a_retry_can_be_cancelled(jobs: Jobs) -> None:
    job = jobs.create()
    jobs.pass_time(MINUTE)
    jobs.scheduler.cancel(jobs.fail().id)
    jobs.pass_time(50_000)
    assert jobs.lease() == []
    assert jobs.statuses(job) == [("schedule", "cancelled")]


def test_who_deletes_a_job_says_what_becomes_of_its_runs(jobs: Jobs) -> None:
    spared, stopped = jobs.create(), jobs.create()
    jobs.pass_time(MINUTE)
    jobs.scheduler.ask(DeleteJob(spared, cancel=False))
    jobs.scheduler.ask(DeleteJob(stopped, cancel=True))
    assert jobs.work() == 1
    assert jobs.statuses(spared) == [("schedule", "ok")]
    assert jobs.statuses(stopped) == [("schedule", "cancelled")]
    jobs.pass_time(HOUR)
    assert jobs.lease() == []


# -------------------------------------------------------------------- the log


@pytest.mark.parametrize("letter", ["é", "語", "🦩", "a"])
def test_a_long_summary_is_cut_between_characters(jobs: Jobs, letter: str) -> None:
    job = jobs.create()
    jobs.pass_time(MINUTE)
    (task,) = jobs.lease()
    jobs.scheduler.complete(task, msgspec.json.encode("x" + letter * 20_000).decode())
    (run,) = jobs.runs(job)
    assert run.summary is not None
    assert run.summary.endswith("…[truncated]")
    kept = run.summary.removesuffix("…[truncated]").strip('"')
    assert set(kept[1:]) == {letter}
    assert 16_300 <= len(kept.encode()) <= 16_384


def test_the_log_says_when_why_how_often_and_what_came_of_it(jobs: Jobs) -> None:
    start = jobs.now
    job = jobs.create(retryPolicy={"jitter": 0})
    jobs.pass_time(MINUTE + 500)
    jobs.fail()
    jobs.pass_time(2000)
    (task,) = jobs.lease()
    jobs.scheduler.clock.advance(700)
    jobs.scheduler.complete(task, '"all went well"')
    (run,) = jobs.runs(job)
    assert run.scheduled_at == start + MINUTE
    assert run.started_at == start + MINUTE + 500
    assert run.finished_at == start + MINUTE + 500 + 2000 + 700
    assert (run.attempts, run.trigger, run.status) == (2, "schedule", "ok")
    assert "all went well" in (run.summary or "")
    assert run.task_id == task.id


def test_the_log_keeps_as_many_runs_as_the_job_says(jobs: Jobs) -> None:
    job = jobs.create(keepRuns=3)
    for _ in range(8):
        jobs.pass_time(MINUTE)
        jobs.work()
    jobs.pass_time(30_000)
    assert [run.scheduled_at for run in jobs.runs(job)] == [
        jobs.now - 30_000 - n * MINUTE for n in (2, 1, 0)
    ]


def test_the_log_keeps_runs_as_long_as_the_job_says(jobs: Jobs) -> None:
    job = jobs.create({"kind": "every", "everyMs": DAY}, keepDays=2)
    for _ in range(6):
        jobs.pass_time(DAY)
        jobs.work()
    jobs.pass_time(MINUTE)
    oldest = min(run.scheduled_at for run in jobs.runs(job))
    assert oldest >= jobs.now - 2 * DAY - MINUTE
    assert 2 <= len(jobs.runs(job)) <= 3


def test_errors_in_a_row_are_counted_and_may_switch_the_job_off(jobs: Jobs) -> None:
    job = jobs.create(disableAfter=3, retryPolicy={"maxRetries": 0})
    counted = []
    for good in (False, False, True, False, False, False):
        jobs.pass_time(MINUTE)
        if good:
            jobs.work()
        else:
            jobs.fail("no luck")
        found = jobs.there(job)
        counted.append((found.consecutive_errors, found.definition.enabled))
    assert counted == [(1, True), (2, True), (0, True), (1, True), (2, True), (3, False)]
    found = jobs.there(job)
    assert (found.disabled_reason, found.next_run_at) == ("errors", None)
    assert (found.last_status, found.last_error) == ("error", "no luck")
    jobs.pass_time(HOUR)
    assert jobs.lease() == []


def test_a_streak_of_errors_is_reported_once_and_its_end_too(jobs: Jobs) -> None:
    url = "http://127.0.0.1:9/alerts"
    jobs.create(alertUrl=url, alertAfter=2, retryPolicy={"maxRetries": 0})
    for good in (False, False, False, True, True, False, True):
        jobs.pass_time(MINUTE)
        jobs.work() if good else jobs.fail()
    owed = jobs.scheduler.ask(ClaimDeliveries(limit=100))
    assert [(one.url, one.event) for one in owed] == [
        (url, "cron.failing"),
        (url, "cron.recovered"),
    ]


# -------------------------------------------------------------------- bounds


def test_a_job_ends_after_its_last_run(jobs: Jobs) -> None:
    job = jobs.create(maxRuns=2)
    for _ in range(5):
        jobs.pass_time(MINUTE)
        jobs.work()
    assert jobs.statuses(job) == [("schedule", "ok")] * 2
    found = jobs.there(job)
    assert (found.definition.enabled, found.disabled_reason, found.runs) == (False, "finished", 2)


def test_a_job_runs_from_its_start_to_its_end(jobs: Jobs) -> None:
    start = jobs.now
    first, last = start + 3 * MINUTE, start + 5 * MINUTE
    job = jobs.create(startAt=moment(first), endAt=moment(last))
    for _ in range(9):
        jobs.pass_time(MINUTE)
        jobs.work()
    assert [run.scheduled_at - start for run in jobs.runs(job)] == [
        3 * MINUTE,
        4 * MINUTE,
        5 * MINUTE,
    ]
    found = jobs.there(job)
    assert (found.definition.enabled, found.disabled_reason) == (False, "finished")


def test_a_task_has_the_timeout_of_its_job(jobs: Jobs) -> None:
    job = jobs.create(timeoutMs=4321)
    jobs.pass_time(MINUTE)
    (run,) = jobs.runs(job)
    assert jobs.scheduler.view(run.task_id or "").body["timeoutMs"] == 4321


def test_jitter_delays_a_run_and_never_its_slot(jobs: Jobs) -> None:
    start = jobs.now
    hourly = {"kind": "every", "everyMs": HOUR}
    ids = [jobs.create(hourly, jitterMs=10 * MINUTE) for _ in range(20)]
    jobs.pass_time(HOUR)
    runs = [jobs.runs(id_)[0] for id_ in ids]
    assert {run.scheduled_at for run in runs} == {start + HOUR}
    begin = [jobs.scheduler.view(run.task_id or "").task.eligible_at for run in runs]
    late = {(at or 0) - start - HOUR for at in begin}
    assert len(late) > 10
    assert all(0 <= ms < 10 * MINUTE for ms in late)
    assert {jobs.next_at(id_) for id_ in ids} == {start + 2 * HOUR}
    jobs.pass_time(10 * MINUTE)
    assert jobs.work() == 20
