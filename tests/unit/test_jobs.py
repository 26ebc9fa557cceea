"""The documents of cron jobs: what is refused and in which words, and that nothing is lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core import cron, jobs
from fairlane.core.errors import InvalidRequest
from fairlane.core.job_documents import ScheduleDocument
from fairlane.core.submissions import TaskRequest

NOW = 1_763_000_000_000  # a moment in November 2025
HOUR = 3_600_000
RULE = {"kind": "cron", "expr": "0 9 * * 1-5", "tz": "Europe/Berlin"}
TASK = {"handler": "echo"}


def made(**fields: Any) -> cron.CronDefinition:
    return jobs.create({"name": "a", "schedule": RULE, "task": TASK, **fields}, NOW)


def refused(**fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        made(**fields)
    return caught.value.message


def document_of(definition: cron.CronDefinition) -> dict[str, Any]:
    """The JSON of a job's document."""
    document: dict[str, Any] = msgspec.to_builtins(jobs.document_of(definition))
    return document


def changed(before: cron.CronDefinition, **fields: Any) -> dict[str, Any]:
    return document_of(jobs.update(before, fields, NOW + HOUR))


# -------------------------------------------------------------------- what is said and unsaid


def test_the_least_a_job_can_be() -> None:
    assert document_of(made()) == {
        "name": "a",
        "agentId": "default",
        "schedule": RULE,
        "task": TASK,
        "enabled": True,
        "overlap": "skip",
        "misfire": "once",
        "misfireGraceMs": 60_000,
        "misfireCap": 10,
        "misfireSpreadMs": 0,
        "jitterMs": 0,
        "retryPolicy": {
            "maxRetries": 3,
            "backoffMs": 2000,
            "backoffMultiplier": 2,
            "maxBackoffMs": 30_000,
            "jitter": 0.25,
        },
        "keepRuns": 200,
        "keepDays": 30,
    }


def test_all_that_a_job_can_say_survives_the_way_there_and_back() -> None:
    definition = made(
        agentId="a1",
        task={"instruction": "x", "priority": "high", "lane": "main", "metadata": {"a": [1]}},
        enabled=False,
        overlap="queue",
        misfire="all",
        misfireGraceMs=0,
        misfireCap=1000,
        misfireSpreadMs=1,
        jitterMs=2,
        timeoutMs=3000,
        startAt="2025-12-01T00:00:00+01:00",
        endAt="2026-12-01T00:00:00Z",
        maxRuns=4,
        retryPolicy={"maxRetries": 0},
        alertUrl="https://a.example/x",
        disableAfter=5,
        keepRuns=6,
        keepDays=7,
    )
    assert (definition.retry_policy.max_retries, definition.alert_after) == (0, 1)
    assert jobs.create(document_of(definition), NOW + HOUR) == definition


@pytest.mark.parametrize(
    "schedule",
    [
        {"kind": "at", "at": "2030-01-01T09:00:00.123+01:00"},
        {"kind": "at", "atMs": NOW + 1},
        {"kind": "every", "everyMs": 1000},
        {"kind": "every", "everyMs": 90_000, "anchor": "2020-01-01T00:00:00Z"},
        {"kind": "every", "everyMs": 90_000, "anchor": "0001-01-01T00:00:00Z"},
        {"kind": "cron", "expr": "@daily"},
        {"kind": "cron", "expr": " 0  9 * * MON "},
    ],
)
def test_every_kind_of_schedule_survives_the_way_there_and_back(schedule: dict[str, Any]) -> None:
    definition = made(schedule=schedule)
    assert jobs.create(document_of(definition), NOW) == definition


def test_an_interval_counts_from_its_making_unless_it_names_an_anchor() -> None:
    assert made(schedule={"kind": "every", "everyMs": 1000}).schedule.anchor_at == NOW


def test_only_a_job_for_one_moment_is_deleted_when_it_has_run() -> None:
    once = {"kind": "at", "atMs": NOW + HOUR}
    assert made(schedule=once).delete_after_run
    assert not made(schedule=once, deleteAfterRun=False).delete_after_run
    assert not made(deleteAfterRun=False).delete_after_run
    assert "'deleteAfterRun' is only for a schedule of kind at" in refused(deleteAfterRun=True)


# -------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": None}, "field 'name'"),
        ({"name": ""}, "field 'name'"),
        ({"name": "two words"}, "field 'name'"),
        ({"name": "job_1"}, "field 'name' must not begin with 'job_'"),
        ({"name": "x" * 129}, "field 'name'"),
        ({"agentId": "a b"}, "field 'agentId'"),
        ({"schedul": RULE}, "unknown field 'schedul'; did you mean schedule?"),
        ({"schedule": None}, "field 'schedule'"),
        ({"schedule": "daily"}, "field 'schedule'"),
        ({"schedule": {}}, "missing required field 'schedule.kind'"),
        ({"schedule": {"kind": "corn"}}, "field 'schedule.kind' must be one of at, cron, every"),
        ({"schedule": {"kind": "cron"}}, "missing required field 'schedule.expr'"),
        ({"schedule": {"kind": "cron", "exp": "x"}}, "'schedule.exp'; did you mean expr?"),
        ({"schedule": {"kind": "cron", "expr": "61 * * * *"}}, "field 'schedule.expr'"),
        ({"schedule": {"kind": "cron", "expr": "* * * *"}}, "field 'schedule.expr'"),
        ({"schedule": {"kind": "cron", "expr": "0 0 30 2 *"}}, "never runs"),
        ({"schedule": {**RULE, "tz": "Europe/Berln"}}, "did you mean Europe/Berlin?"),
        ({"schedule": {**RULE, "everyMs": 1}}, "'schedule.everyMs' is for the kind every"),
        ({"schedule": {"kind": "every"}}, "missing required field 'schedule.everyMs'"),
        ({"schedule": {"kind": "every", "everyMs": 0}}, "field 'schedule.everyMs'"),
        ({"schedule": {"kind": "every", "everyMs": "1m"}}, "field 'schedule.everyMs'"),
        ({"schedule": {"kind": "every", "everyMs": 5000, "anchor": "x"}}, "schedule.anchor"),
        (
            {"schedule": {"kind": "every", "everyMs": 5000, "anchor": "9999-12-31T23:59:59Z"}},
            "field 'schedule.anchor' must not be more than 366 days ahead",
        ),
        ({"schedule": {"kind": "at"}}, "missing required field 'schedule.at'"),
        ({"schedule": {"kind": "at", "at": "tomorrow"}}, "invalid schedule.at format"),
        ({"schedule": {"kind": "at", "atMs": NOW}}, "field 'schedule.at' is in the past"),
        ({"schedule": {"kind": "at", "atMs": -1}}, "field 'schedule.atMs' must be from 0"),
        (
            {"schedule": {"kind": "at", "at": "2030-01-01T00:00:00Z", "atMs": 5}},
            "'schedule.at' and 'schedule.atMs' differ",
        ),
        ({"task": {}}, "field 'task'"),
        ({"task": {"handler": "a", "action": "b"}}, "give either 'action' or 'handler'"),
        ({"task": {"handlr": "a"}}, "unknown field 'task.handlr'; did you mean handler?"),
        (
            {"task": {**TASK, "runAt": "2030-01-01T00:00:00Z"}},
            "'task.runAt' is not allowed in a job",
        ),
        ({"task": {**TASK, "sessionKey": "s"}}, "use 'overlap'"),
        (
            {"agentId": "a", "task": {**TASK, "agentId": "b"}},
            "'agentId' and 'task.agentId' differ",
        ),
        ({"task": {**TASK, "agentId": 7}}, "field 'agentId'"),
        ({"task": {**TASK, "agentId": "a b"}}, "field 'agentId'"),
        ({"task": {"instruction": "x", "llmConfig": {"apiKey": "***"}}}, "is masked"),
        ({"overlap": "skp"}, "must be one of allow, queue, skip; did you mean skip?"),
        ({"misfire": "never"}, "field 'misfire' must be one of all, once, skip"),
        ({"misfireCap": 0}, "field 'misfireCap' must be from 1 to 1000"),
        ({"misfireCap": 1001}, "field 'misfireCap'"),
        ({"misfireGraceMs": -1}, "field 'misfireGraceMs'"),
        ({"jitterMs": -1}, "field 'jitterMs'"),
        ({"maxRuns": 0}, "field 'maxRuns'"),
        ({"enabled": "yes"}, "field 'enabled'"),
        ({"timeoutMs": 0}, "invalid job: field 'timeoutMs'"),
        ({"retryPolicy": {"maxRetries": -1}}, "field 'retryPolicy.maxRetries'"),
        ({"retryPolicy": {"jitter": 1.5}}, "field 'retryPolicy.jitter'"),
        ({"retryPolicy": {"retries": 1}}, "'retryPolicy.retries'; did you mean maxRetries?"),
        ({"alertAfter": 2}, "'alertAfter' needs 'alertUrl'"),
        ({"keepRuns": 0}, "field 'keepRuns'"),
        ({"endAt": "2020-01-01T00:00:00Z"}, "field 'endAt' must be in the future"),
        (
            {"startAt": "2030-01-02T00:00:00Z", "endAt": "2030-01-01T00:00:00Z"},
            "field 'endAt' must be after 'startAt'",
        ),
        (
            {"startAt": "2030-01-05T00:00:00Z", "endAt": "2030-01-06T00:00:00Z"},
            "field 'endAt' leaves no run",
        ),
        ({"timeoutMs": 5, "task": {**TASK, "timeoutMs": 6}}, "differ"),
        ({"task": {**TASK, "params": {"x": "y" * 600_000}}}, "must not be larger"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], told: str) -> None:
    assert told in refused(**fields)


def test_all_wrong_values_are_named_at_once() -> None:
    message = refused(overlap="x", misfireCap=0, schedule={"kind": "every"}, endAt="soon")
    for field in ("'overlap'", "'misfireCap'", "'schedule.everyMs'", "endAt"):
        assert field in message


def test_in_a_list_each_wrong_job_is_named_by_its_place() -> None:
    good = {"name": "a", "schedule": RULE, "task": TASK}
    with pytest.raises(InvalidRequest) as caught:
        jobs.parse_all([good, {**good, "name": "b", "overlap": "x"}, good, 5], NOW)
    problems = (caught.value.details or {})["problems"]
    assert [one["index"] for one in problems] == [1, 2, 3]
    assert "'overlap'" in problems[0]["error"]
    assert "jobs[0] has the same name" in problems[1]["error"]


# -------------------------------------------------------------------- changes


def test_a_change_is_laid_over_what_was_and_null_clears() -> None:
    before = made(maxRuns=5, timeoutMs=1000, alertUrl="https://a.example", alertAfter=3)
    after = changed(before, maxRuns=None, overlap="allow", alertUrl=None)
    assert after == document_of(made(timeoutMs=1000, overlap="allow"))


@pytest.mark.parametrize(
    "fields",
    [
        {"endat": None},
        {"schedule": {"tzz": None}},
        {"task": {"lan": None}},
        {"retryPolicy": {"retries": None}},
    ],
)
def test_what_is_not_a_field_cannot_be_cleared(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="unknown field"):
        changed(made(), **fields)


def test_what_has_to_be_there_cannot_be_cleared() -> None:
    for name in ("name", "schedule", "task"):
        with pytest.raises(InvalidRequest, match=f"field '{name}'"):
            changed(made(), **{name: None})


def test_what_was_read_may_be_sent_back() -> None:
    before = made()
    document = {**document_of(before), "id": "job_1", "state": {}, "nextRunAtMs": 5}
    assert jobs.update(before, document, NOW + HOUR) == before


def test_a_rule_keeps_its_zone_when_only_the_expression_changes() -> None:
    for schedule in ({"expr": "0 8 * * *"}, {"kind": "cron", "expr": "0 8 * * *"}):
        after = changed(made(), schedule=schedule)
        assert after["schedule"] == {"kind": "cron", "expr": "0 8 * * *", "tz": "Europe/Berlin"}
    assert changed(made(), schedule={"tz": "UTC"})["schedule"] == {**RULE, "tz": "UTC"}


def test_a_schedule_of_another_kind_is_a_new_one() -> None:
    after = changed(made(), schedule={"kind": "every", "everyMs": 5000})
    assert after["schedule"]["everyMs"] == 5000
    assert "expr" not in after["schedule"]
    once = changed(made(), schedule={"kind": "at", "atMs": NOW + 2 * HOUR})
    assert once["deleteAfterRun"] is True


def test_a_moment_is_moved_by_either_of_its_names() -> None:
    once = made(schedule={"kind": "at", "atMs": NOW + 2 * HOUR})
    assert changed(once, schedule={"atMs": NOW + 3 * HOUR})["schedule"]["atMs"] == NOW + 3 * HOUR
    moved = changed(once, schedule={"at": "2030-01-01T00:00:00Z"})
    assert moved["schedule"]["at"] == "2030-01-01T00:00:00.000Z"


def test_a_task_is_laid_over_unless_it_is_of_another_kind() -> None:
    before = made(task={"handler": "a", "lane": "main", "params": {"x": 1}})
    same = changed(before, task={"params": {"y": 2}, "lane": None})
    assert same["task"] == {"handler": "a", "params": {"y": 2}}
    assert changed(before, task={"instruction": "x"})["task"] == {"instruction": "x"}


def test_retries_and_timeouts_are_kept_on_the_job_wherever_they_are_set() -> None:
    before = made(task={**TASK, "timeout": 5000, "retryPolicy": {"maxRetries": 1}}, misfireCap=2)
    document = document_of(before)
    assert (document["timeoutMs"], document["retryPolicy"]["maxRetries"]) == (5000, 1)
    assert document["task"] == TASK
    after = changed(before, task={"timeoutMs": 6000}, retryPolicy={"backoffMs": 1})
    assert (after["timeoutMs"], after["retryPolicy"]["backoffMs"]) == (6000, 1)
    assert after["retryPolicy"]["maxRetries"] == 1


def test_a_masked_secret_keeps_the_one_that_is_there() -> None:
    before = made(task={"instruction": "x", "llmConfig": {"apiKey": "k", "model": "m"}})
    assert document_of(before)["task"]["llmConfig"] == {"apiKey": "***", "model": "m"}
    after = jobs.update(before, document_of(before), NOW)
    assert (after.task.llm_config or {})["apiKey"] == "k"


def test_a_moment_that_is_over_does_not_forbid_other_changes_but_switching_on() -> None:
    once = made(schedule={"kind": "at", "atMs": NOW + 1}, deleteAfterRun=False)
    over = jobs.update(once, {"enabled": False, "keepRuns": 5}, NOW + HOUR)
    assert over.keep_runs == 5
    with pytest.raises(InvalidRequest, match="is in the past"):
        jobs.update(over, {"enabled": True}, NOW + HOUR)


def test_the_task_of_a_run_has_what_the_job_says() -> None:
    definition = made(agentId="a1", timeoutMs=5000, retryPolicy={"maxRetries": 7})
    task = jobs.submission(definition, task_id="tsk_1", session="cron:job_1", run_at=NOW)
    assert (task.id, task.agent, task.lane, task.session) == ("tsk_1", "a1", "cron", "cron:job_1")
    assert (task.max_attempts, task.run_at) == (8, NOW)
    assert '"timeoutMs":5000' in task.body
    named = jobs.submission(made(task={**TASK, "lane": "main"}), task_id="tsk_2")
    assert (named.lane, named.session) == ("main", None)


def test_a_preview_tells_the_next_moments() -> None:
    every = ScheduleDocument(kind="every", every_ms=1000)
    assert jobs.preview(every, "UTC", 3, NOW) == [NOW + 1000, NOW + 2000, NOW + 3000]
    assert jobs.preview(ScheduleDocument(kind="at", at_ms=NOW + 5), "UTC", 3, NOW) == [NOW + 5]


# -------------------------------------------------------------------- how late is too late


def test_the_usual_grace_follows_the_schedule() -> None:
    every_second = {"kind": "every", "everyMs": 1000}
    assert document_of(made(schedule=every_second))["misfireGraceMs"] == 1000
    before = made(schedule=every_second)
    assert changed(before, schedule={"everyMs": HOUR})["misfireGraceMs"] == 60_000
    assert changed(made(), schedule=every_second)["misfireGraceMs"] == 1000


def test_a_grace_that_the_job_names_stays() -> None:
    every_second = {"kind": "every", "everyMs": 1000}
    own = made(schedule=every_second, misfireGraceMs=60_000)
    assert document_of(own)["misfireGraceMs"] == 60_000
    assert changed(own, schedule={"everyMs": 2000})["misfireGraceMs"] == 60_000
    assert changed(own, misfireGraceMs=None)["misfireGraceMs"] == 1000
    assert jobs.create(document_of(own), NOW) == own


# -------------------------------------------------------------------- whose job it is


@pytest.mark.parametrize("own", [{}, {"agentId": None}, {"agentId": ""}, {"agentId": "ada"}])
def test_the_task_of_a_job_may_say_whose_it_is(own: dict[str, Any]) -> None:
    definition = made(task={**TASK, "agentId": "ada"}, **own)
    assert (definition.agent_id, definition.task) == ("ada", TaskRequest(handler="echo"))


@pytest.mark.parametrize("unsaid", [None, ""])
def test_a_task_that_names_no_agent_leaves_it_to_the_job(unsaid: str | None) -> None:
    definition = made(agentId="ada", task={**TASK, "agentId": unsaid})
    assert (definition.agent_id, definition.task) == ("ada", TaskRequest(handler="echo"))


def test_a_change_of_the_task_does_not_change_whose_job_it_is() -> None:
    before = made(agentId="ada")
    same = changed(before, task={"agentId": "ada", "priority": "high"})
    assert (same["agentId"], same["task"]) == ("ada", {**TASK, "priority": "high"})
    with pytest.raises(InvalidRequest, match=r"'agentId' and 'task\.agentId' differ"):
        changed(before, task={"agentId": "bob"})
    assert changed(before, agentId="bob", task={"agentId": "bob"})["agentId"] == "bob"


def test_good_documents_of_a_list_are_typed() -> None:
    good = {"name": "a", "schedule": RULE, "task": TASK}
    parsed = jobs.parse_all([good, {**good, "agentId": "b"}], NOW)
    assert [(job.name, job.agent_id) for job in parsed] == [("a", None), ("a", "b")]


def test_a_secret_that_is_kept_does_not_move_to_another_address() -> None:
    config = {"apiKey": "a-long-secret", "baseUrl": "https://a.example"}
    before = made(task={"instruction": "x", "llmConfig": config})
    moved = {"apiKey": "***", "baseUrl": "https://b.example"}
    with pytest.raises(InvalidRequest, match=r"'task\.llmConfig\.baseUrl' cannot change"):
        changed(before, task={"llmConfig": moved})


def test_both_names_of_a_timeout_have_to_agree() -> None:
    assert "'timeout'" in refused(task={**TASK, "timeout": 1, "timeoutMs": 2})
