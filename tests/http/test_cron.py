"""Cron over HTTP: make jobs, change them, run them by hand and by the clock, read their log."""

from __future__ import annotations

import itertools
import time
from datetime import datetime
from typing import Any

import pytest

from tests.fakes.waiting import TooLate, in_time, judge, steadily
from tests.http.api import Answer, eventually
from tests.http.stage import HELD, Stage, on_sqlite

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOUR = 3_600_000
NEVER_SOON = {"kind": "cron", "expr": "0 0 29 2 *", "tz": "Europe/Berlin"}
ECHO = {"handler": "echo", "params": {"hello": "world"}}
FAST = {"maxRetries": 1, "backoffMs": 0}

_numbers = itertools.count(1)


def new_name() -> str:
    """A name that no other test uses on the server they share."""
    return f"job.{next(_numbers)}"


def document(stage: Stage, **fields: Any) -> dict[str, Any]:
    base = {"name": new_name(), "agentId": stage.agent, "schedule": NEVER_SOON, "task": ECHO}
    return {**base, **fields}


async def post(stage: Stage, **fields: Any) -> Answer:
    return await stage.api.post("/cron/jobs", document(stage, **fields))


async def made(stage: Stage, **fields: Any) -> dict[str, Any]:
    answer = await post(stage, **fields)
    assert answer.status == 201, answer
    job: dict[str, Any] = answer.json
    return job


async def patch(stage: Stage, job: dict[str, Any], **fields: Any) -> Answer:
    return await stage.api.ask("PATCH", f"/cron/jobs/{job['id']}", fields)


async def shown(stage: Stage, job: dict[str, Any]) -> dict[str, Any]:
    answer = await stage.api.get(f"/cron/jobs/{job['id']}")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json
    return found


async def run(stage: Stage, job: dict[str, Any]) -> dict[str, Any]:
    answer = await stage.api.post(f"/cron/jobs/{job['id']}/run")
    assert answer.status == 202, answer
    started: dict[str, Any] = answer.json
    return started


async def runs(stage: Stage, job: dict[str, Any], **query: Any) -> list[dict[str, Any]]:
    answer = await stage.api.get(f"/cron/jobs/{job['id']}/runs", **query)
    assert answer.status == 200, answer
    found: list[dict[str, Any]] = answer.json["runs"]
    assert answer.json["count"] == len(found)
    return found


async def ended(stage: Stage, job: dict[str, Any]) -> dict[str, Any]:
    """Its newest run, when that has ended."""

    async def look() -> dict[str, Any] | None:
        found = await runs(stage, job, limit=1)
        return found[0] if found and "finishedAt" in found[0] else None

    return await eventually(look)


async def made_for_soon(stage: Stage, **fields: Any) -> dict[str, Any]:
    """A job for a moment that is near."""

    async def make(seconds: float) -> dict[str, Any]:
        at = int((time.time() + seconds / 2) * 1000)
        answer = await post(stage, schedule={"kind": "at", "atMs": at}, **fields)
        if answer.status == 400 and "is in the past" in answer.error:
            raise TooLate("its moment was over before it arrived")
        assert answer.status == 201, answer
        job: dict[str, Any] = answer.json
        return job

    return await in_time(make)


# -------------------------------------------------------------------- making


async def test_a_job_is_answered_whole(stage: Stage) -> None:
    name = new_name()
    job = await made(stage, name=name)
    assert job["id"].startswith("job_")
    year, date = job["nextRunAt"][:4], job["nextRunAt"][4:]
    assert int(year) % 4 == 0
    assert date == "-02-28T23:00:00.000Z"
    at = datetime.fromisoformat(job["nextRunAt"]).timestamp() * 1000
    expected = {
        "id": job["id"],
        "name": name,
        "agentId": stage.agent,
        "schedule": NEVER_SOON,
        "task": ECHO,
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
            "backoffMultiplier": 2.0,
            "maxBackoffMs": 30_000,
            "jitter": 0.25,
        },
        "keepRuns": 200,
        "keepDays": 30,
        "nextRunAt": job["nextRunAt"],
        "nextRunAtMs": at,
        "state": {"nextRunAtMs": at, "consecutiveErrors": 0, "runs": 0},
        "createdAt": job["createdAt"],
        "updatedAt": job["createdAt"],
    }
    assert job == expected
    assert await shown(stage, job) == job


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"name": "a b"}, "field 'name'"),
        ({"schedule": {"kind": "cron", "expr": "0 25 * * *"}}, "field 'schedule.expr'"),
        ({"schedule": {"kind": "cron", "expr": "0 0 30 2 *"}}, "never runs"),
        ({"schedule": {**NEVER_SOON, "tz": "Mars/Base"}}, "field 'schedule.tz'"),
        ({"schedule": {"kind": "at", "at": "2020-01-01T00:00:00Z"}}, "field 'schedule.at'"),
        ({"schedule": {"kind": "every", "everyMs": 0}}, "field 'schedule.everyMs'"),
        ({"task": {"handler": "echo", "sessionKey": "x"}}, "'task.sessionKey'"),
        ({"task": {"instruction": " "}}, "field 'task'"),
        ({"overlap": "skipp"}, "did you mean skip?"),
        ({"schedle": 1}, "did you mean schedule?"),
        ({"alertUrl": "http://10.0.0.1/x"}, "field 'alertUrl'"),
        ({"task": {**ECHO, "callbackUrl": "ftp://x"}}, "field 'task.callbackUrl'"),
    ],
)
async def test_a_bad_job_is_refused(stage: Stage, fields: dict[str, Any], told: str) -> None:
    answer = await post(stage, **fields)
    assert (answer.status, answer.code) == (400, "invalid_request"), answer
    assert told in answer.error
    listed = await stage.api.get("/cron/jobs", agentId=stage.agent)
    assert listed.json == {"jobs": [], "count": 0}


@on_sqlite
@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"name":"\\u0000"}', b"[" * 100_000])
async def test_what_is_not_an_object_is_refused(stage: Stage, raw: bytes) -> None:
    for method, path in (("POST", ""), ("PATCH", "/x"), ("POST", "/x/toggle")):
        answer = await stage.api.ask(method, f"/cron/jobs{path}", raw=raw)
        assert (answer.status, answer.code) == (400, "invalid_request"), raw[:20]


async def test_a_name_is_taken_once_for_each_agent(stage: Stage) -> None:
    job = await made(stage)
    again = await post(stage, name=job["name"])
    assert (again.status, again.code) == (409, "conflict")
    assert job["name"] in again.error
    other = await made(stage, name=job["name"], agentId=stage.new_agent())
    ambiguous = await stage.api.get(f"/cron/jobs/{job['name']}")
    assert (ambiguous.status, ambiguous.code) == (409, "conflict")
    assert (await patch(stage, other, agentId=stage.agent)).status == 409


async def test_several_are_made_together_or_none(stage: Stage) -> None:
    good, bad = document(stage), document(stage, overlap="x")
    refused = await stage.api.post("/cron/jobs", {"jobs": [good, bad, {}]})
    assert (refused.status, refused.code) == (400, "invalid_request")
    problems = refused.json["details"]["problems"]
    assert [one["index"] for one in problems] == [1, 2]
    assert (await stage.api.get(f"/cron/jobs/{good['name']}")).status == 404

    answer = await stage.api.post("/cron/jobs", {"jobs": [good, document(stage)]})
    assert (answer.status, answer.json["count"]) == (201, 2)
    assert answer.json["jobs"][0]["name"] == good["name"]

    taken = await stage.api.post("/cron/jobs", {"jobs": [document(stage), good]})
    assert (taken.status, taken.code) == (409, "conflict")
    assert [one["index"] for one in taken.json["details"]["problems"]] == [1]
    assert len((await stage.api.get("/cron/jobs", agentId=stage.agent)).json["jobs"]) == 2


@on_sqlite
async def test_a_list_of_jobs_has_bounds_and_nothing_beside_it(stage: Stage) -> None:
    bodies: list[dict[str, Any]] = [
        {"jobs": []},
        {"jobs": [{}] * 1001},
        {"jobs": 5},
        {"jobs": [{}], "name": "x"},
    ]
    for body in bodies:
        assert (await stage.api.post("/cron/jobs", body)).status == 400


# -------------------------------------------------------------------- reading and changing


async def test_a_job_is_found_by_its_name(stage: Stage) -> None:
    job = await made(stage)
    assert (await stage.api.get(f"/cron/jobs/{job['name']}")).json == job
    missing = await stage.api.get("/cron/jobs/nobody")
    assert (missing.status, missing.code) == (404, "not_found")
    assert "nobody" in missing.error


async def test_jobs_are_listed_newest_first_in_pages(stage: Stage) -> None:
    names = [(await made(stage, enabled=number != 1))["name"] for number in range(3)]
    page = (await stage.api.get("/cron/jobs", agentId=stage.agent, limit=2)).json
    assert [job["name"] for job in page["jobs"]] == names[:0:-1]
    rest = await stage.api.get(
        "/cron/jobs", agentId=stage.agent, limit=2, cursor=page["nextCursor"]
    )
    assert [job["name"] for job in rest.json["jobs"]] == names[:1]
    assert "nextCursor" not in rest.json
    off = (await stage.api.get("/cron/jobs", agentId=stage.agent, enabled="false")).json
    assert [job["name"] for job in off["jobs"]] == [names[1]]
    named = (await stage.api.get("/cron/jobs", name=names[2])).json
    assert [job["name"] for job in named["jobs"]] == [names[2]]
    assert (await stage.api.get("/cron/jobs", enabled="yes")).status == 400


async def test_a_change_is_laid_over(stage: Stage) -> None:
    job = await made(stage, maxRuns=5)
    answer = await patch(stage, job, schedule={"expr": "0 1 29 2 *"}, maxRuns=None, misfire="all")
    assert answer.status == 200, answer
    assert answer.json["schedule"] == {**NEVER_SOON, "expr": "0 1 29 2 *"}
    assert answer.json["nextRunAtMs"] == job["nextRunAtMs"] + HOUR
    assert "maxRuns" not in answer.json
    assert answer.json["misfire"] == "all"
    assert (await patch(stage, job, **answer.json)).json["schedule"] == answer.json["schedule"]
    assert await shown(stage, job) == (await patch(stage, job)).json


async def test_a_bad_change_changes_nothing(stage: Stage) -> None:
    job = await made(stage)
    for fields in ({"misfire": "x"}, {"schedule": {"expr": "x"}}, {"name": None}, {"nam": "x"}):
        answer = await patch(stage, job, **fields)
        assert (answer.status, answer.code) == (400, "invalid_request"), fields
    assert await shown(stage, job) == job
    assert (await patch(stage, {"id": "job_none"}, name="x")).status == 404


async def test_a_job_is_switched_off_and_on(stage: Stage) -> None:
    job = await made(stage)
    path = f"/cron/jobs/{job['name']}/toggle"
    off = (await stage.api.post(path, {"enabled": False})).json
    assert (off["enabled"], off["disabledReason"]) == (False, "by caller")
    assert "nextRunAt" not in off
    on = (await stage.api.post(path, {"enabled": True})).json
    assert (on["enabled"], on["nextRunAt"]) == (True, job["nextRunAt"])
    assert "disabledReason" not in on
    for body in ({}, {"enabled": "yes"}, {"enabled": True, "x": 1}):
        assert (await stage.api.post(path, body)).status == 400


async def test_a_deleted_job_is_gone_and_its_log_is_not(stage: Stage) -> None:
    job = await made(stage)
    await run(stage, job)
    assert (await ended(stage, job))["status"] == "ok"
    answer = await stage.api.ask("DELETE", f"/cron/jobs/{job['name']}")
    assert answer.json == {"id": job["id"], "name": job["name"], "deleted": True}
    assert (await stage.api.get(f"/cron/jobs/{job['id']}")).status == 404
    assert (await stage.api.ask("DELETE", f"/cron/jobs/{job['id']}")).status == 404
    assert [one["jobName"] for one in await runs(stage, job)] == [job["name"]]
    assert (await stage.api.get("/cron/jobs/job_none/runs")).status == 404


async def test_what_a_deleted_job_has_started_goes_on_unless_it_is_to_be_cancelled(
    stage: Stage,
) -> None:
    held = {**ECHO, "lane": HELD}
    states = []
    for query in ("", "?cancel=true"):
        job = await made(stage, task=held)
        started = await run(stage, job)
        assert (await stage.api.ask("DELETE", f"/cron/jobs/{job['id']}{query}")).status == 200
        states.append((await stage.api.show(started["taskId"]))["state"])
    assert states == ["queued", "cancelled"]
    assert (await stage.api.ask("DELETE", "/cron/jobs/x?cancel=maybe")).status == 400


async def test_secrets_are_masked_and_kept(stage: Stage) -> None:
    task = {"instruction": "x", "llmConfig": {"apiKey": "sk-1", "model": "m"}}
    job = await made(stage, task=task)
    assert job["task"]["llmConfig"] == {"apiKey": "***", "model": "m"}
    assert (await patch(stage, job, task=job["task"])).status == 200
    refused = await post(stage, task=job["task"])
    assert "field 'task.llmConfig.apiKey' is masked" in refused.error


async def test_a_kept_secret_is_not_sent_where_a_change_says(stage: Stage) -> None:
    job = await made(stage, task={"instruction": "x", "llmConfig": {"apiKey": "sk-12345"}})
    elsewhere = {"apiKey": "***", "baseUrl": "https://evil.example"}
    refused = await patch(stage, job, task={"llmConfig": elsewhere})
    assert (refused.status, refused.code) == (400, "invalid_request")
    assert "field 'task.llmConfig.baseUrl' cannot change" in refused.error
    own = {**elsewhere, "apiKey": "sk-own-12345"}
    assert (await patch(stage, job, task={"llmConfig": own})).status == 200


# -------------------------------------------------------------------- running


async def test_a_run_by_hand_is_logged_and_moves_nothing(stage: Stage) -> None:
    job = await made(stage)
    started = await run(stage, job)
    entry = await ended(stage, job)
    assert started.keys() == {"runId", "taskId", "state"}
    assert (entry["runId"], entry["taskId"]) == (started["runId"], started["taskId"])
    assert (entry["jobId"], entry["jobName"]) == (job["id"], job["name"])
    assert (entry["trigger"], entry["status"], entry["attempts"]) == ("manual", "ok", 1)
    assert "hello" in entry["summary"]
    assert entry["scheduledAt"] <= entry["startedAt"] <= entry["finishedAt"]
    task = await stage.api.show(started["taskId"])
    assert (task["lane"], task["agentId"]) == ("cron", stage.agent)
    assert task["sessionKey"] == f"cron:{job['id']}"
    after = await shown(stage, job)
    assert after["nextRunAt"] == job["nextRunAt"]
    assert (after["state"]["lastStatus"], after["state"]["consecutiveErrors"]) == ("ok", 0)


async def test_a_job_that_is_off_can_be_run_by_hand(stage: Stage) -> None:
    job = await made(stage, enabled=False)
    await run(stage, job)
    assert (await ended(stage, job))["status"] == "ok"
    assert (await shown(stage, job))["enabled"] is False


async def test_a_run_by_hand_does_not_overlap(stage: Stage) -> None:
    job = await made(stage, task={**ECHO, "lane": HELD})
    started = await run(stage, job)
    again = await stage.api.post(f"/cron/jobs/{job['id']}/run")
    assert (again.status, again.code) == (409, "conflict")
    assert started["taskId"] in again.error
    side_by_side = await made(stage, task={**ECHO, "lane": HELD}, overlap="allow")
    first, second = await run(stage, side_by_side), await run(stage, side_by_side)
    assert first["taskId"] != second["taskId"]
    assert "sessionKey" not in await stage.api.show(first["taskId"])


async def test_a_failure_is_reported_by_the_log_and_by_the_job(stage: Stage) -> None:
    hook = stage.hooks.new()
    task = {"action": "click", "tabId": stage.tab(), "params": {"fake": {"status": 400}}}
    job = await made(stage, task=task, alertUrl=hook.url, alertAfter=2, retryPolicy=FAST)
    for number in (1, 2, 3):
        await run(stage, job)
        entry = await ended(stage, job)
        assert (entry["status"], entry["attempts"]) == ("error", 1)
        assert entry["error"]
        state = (await shown(stage, job))["state"]
        assert (state["lastStatus"], state["consecutiveErrors"]) == ("error", number)
        assert state["lastError"] == entry["error"]
    await patch(stage, job, task={"params": {}})
    await run(stage, job)
    assert (await ended(stage, job))["status"] == "ok"
    failing, recovered = await hook.until(2)
    assert (failing.event, recovered.event) == ("cron.failing", "cron.recovered")
    told = failing.verified()
    assert (told["event"], told["jobId"], told["status"]) == ("cron.failing", job["id"], "error")
    assert recovered.verified()["status"] == "ok"
    assert len(await runs(stage, job, status="error")) == 3


async def test_a_job_that_keeps_failing_is_switched_off(stage: Stage) -> None:
    task = {"action": "click", "tabId": stage.tab(), "params": {"fake": {"status": 400}}}
    job = await made(stage, task=task, disableAfter=1)
    await run(stage, job)
    await ended(stage, job)
    after = await shown(stage, job)
    assert (after["enabled"], after["disabledReason"]) == (False, "errors")


@pytest.mark.slow
async def test_a_moment_comes_and_its_job_goes(stage: Stage) -> None:
    async def come() -> None:
        job = await made_for_soon(stage)
        at = job["schedule"]["atMs"]
        assert (job["nextRunAtMs"], job["deleteAfterRun"]) == (at, True)
        entry = await ended(stage, job)
        assert (entry["trigger"], entry["status"]) == ("schedule", "ok")
        assert datetime.fromisoformat(entry["scheduledAt"]).timestamp() * 1000 == at
        assert (await stage.api.get(f"/cron/jobs/{job['id']}")).status == 404
        late_ms = datetime.fromisoformat(entry["startedAt"]).timestamp() * 1000 - at
        assert late_ms >= 0
        judge(late_ms / 1000, 2)

    await steadily(come)


@pytest.mark.slow
async def test_a_moment_that_went_wrong_leaves_its_job(stage: Stage) -> None:
    task = {"action": "click", "tabId": stage.tab(), "params": {"fake": {"status": 400}}}
    job = await made_for_soon(stage, task=task)
    assert (await ended(stage, job))["status"] == "error"
    after = await shown(stage, job)
    assert (after["enabled"], after["disabledReason"]) == (False, "finished")
    on = await stage.api.post(f"/cron/jobs/{job['id']}/toggle", {"enabled": True})
    assert on.status == 400
    assert "field 'schedule.at' is in the past" in on.error


@pytest.mark.slow
async def test_an_interval_comes_again_until_it_has_run_so_often(stage: Stage) -> None:
    every_second = {"kind": "every", "everyMs": 1000}
    job = await made(stage, schedule=every_second, maxRuns=2, overlap="allow")

    async def finished() -> dict[str, Any] | None:
        now = await shown(stage, job)
        return None if now["enabled"] else now

    after = await eventually(finished)
    assert (after["disabledReason"], after["state"]["runs"]) == ("finished", 2)
    found = await runs(stage, job)
    moments = [datetime.fromisoformat(one["scheduledAt"]).timestamp() for one in found]
    assert moments[0] - moments[1] == pytest.approx(1)


# -------------------------------------------------------------------- the log


async def test_the_log_of_all_jobs_is_read_in_pages(stage: Stage) -> None:
    job = await made(stage, overlap="allow")
    started = [(await run(stage, job))["runId"] for _ in range(3)]
    page = (await stage.api.get("/cron/runs", jobId=job["id"], limit=2)).json
    assert [one["runId"] for one in page["runs"]] == started[:0:-1]
    rest = await stage.api.get("/cron/runs", jobId=job["id"], limit=2, cursor=page["nextCursor"])
    assert [one["runId"] for one in rest.json["runs"]] == started[:1]
    newest = (await stage.api.get("/cron/runs", limit=1)).json["runs"]
    assert len(newest) == 1
    assert (await stage.api.get("/cron/runs", status="good")).status == 400


# -------------------------------------------------------------------- preview


@on_sqlite
async def test_a_preview_tells_utc_and_local_time(stage: Stage) -> None:
    answer = await stage.api.get("/cron/preview", expr="0+9+*+*+1-5", tz="Asia/Tokyo", n=3)
    assert answer.status == 200, answer
    found = answer.json["next"]
    assert [one["utc"][10:] for one in found] == ["T00:00:00.000Z"] * 3
    assert [one["local"][10:] for one in found] == ["T09:00:00+09:00"] * 3
    every = (await stage.api.get("/cron/preview", everyMs=60_000)).json["next"]
    assert len(every) == 5
    once = (await stage.api.get("/cron/preview", at="2040-01-01T00:00:00Z", tz="Asia/Tokyo")).json
    expected = {"utc": "2040-01-01T00:00:00.000Z", "local": "2040-01-01T09:00:00+09:00"}
    assert once["next"] == [expected]


@on_sqlite
@pytest.mark.parametrize(
    ("query", "told"),
    [
        ({}, "set exactly one of"),
        ({"expr": "@daily", "everyMs": 5000}, "set exactly one of"),
        ({"expr": "x"}, "field 'expr'"),
        ({"expr": "@daily", "tz": "Mars/Base"}, "field 'tz'"),
        ({"everyMs": 5000, "tz": "Mars/Base"}, "field 'tz'"),
        ({"everyMs": "1m"}, "'everyMs'"),
        ({"everyMs": 1}, "field 'everyMs'"),
        ({"at": "2020-01-01T00:00:00Z"}, "field 'at'"),
        ({"expr": "@daily", "n": 101}, "'n'"),
        ({"exp": "@daily"}, "did you mean expr?"),
    ],
)
async def test_a_preview_of_nonsense_is_refused(
    stage: Stage, query: dict[str, Any], told: str
) -> None:
    answer = await stage.api.get("/cron/preview", **query)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert told in answer.error


async def test_the_task_may_say_whose_job_it_is(stage: Stage) -> None:
    agent = stage.new_agent()
    job = await made(stage, agentId=None, task={**ECHO, "agentId": agent})
    assert (job["agentId"], job["task"]) == (agent, ECHO)
    started = await run(stage, job)
    assert (await stage.api.show(started["taskId"]))["agentId"] == agent
    other = await post(stage, agentId=stage.agent, task={**ECHO, "agentId": agent})
    assert (other.status, other.code) == (400, "invalid_request")
    assert "'agentId' and 'task.agentId' differ" in other.error
