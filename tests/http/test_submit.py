"""Submitting a task and looking at it: `POST /tasks`, `GET /tasks/{id}`.

Facts of specs/pinchtab.md section 17: 13, 14, 16, 18, 19, 50, 54, 55, 59, 60, 61, 62, 79, 80, 97,
98, 107, 109, 110, 111, 116, 117.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from tests.http.stage import HELD, Stage, on_sqlite

pytestmark = pytest.mark.asyncio(loop_scope="session")

MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def moment(text: str) -> datetime:
    assert MOMENT.fullmatch(text), text
    return datetime.fromisoformat(text)


def stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


async def test_a_submission_is_accepted_with_id_state_position_and_time(stage: Stage) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    answer = await stage.post(lane=HELD)
    assert answer.status == 202
    assert answer.headers["Content-Type"].startswith("application/json")
    assert set(answer.json) == {"taskId", "state", "position", "createdAt"}
    assert answer.json["state"] == "queued"
    assert before < moment(answer.json["createdAt"]) <= datetime.now(UTC)


async def test_the_example_of_the_documentation_runs_as_printed(stage: Stage) -> None:
    tab = "8f9c7d4e1234567890abcdef12345678"
    stage.instance.tabs.append(tab)
    deadline = stamp(datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=5))
    answer = await stage.api.post(
        "/tasks",
        {
            "agentId": "agent-crawl-01",
            "action": "click",
            "tabId": tab,
            "ref": "e14",
            "priority": 5,
            "deadline": deadline,
        },
    )
    assert answer.status == 202
    assert answer.json["state"] in {"queued", "assigned", "running", "done"}
    task = await stage.api.end_of(answer.json["taskId"])
    assert (task["agentId"], task["action"], task["tabId"]) == ("agent-crawl-01", "click", tab)
    assert (task["ref"], task["priority"], task["state"]) == ("e14", 5, "done")
    assert moment(task["deadline"]) == datetime.fromisoformat(deadline)
    assert task["result"]["success"] is True
    assert moment(task["createdAt"]) <= moment(task["startedAt"]) <= moment(task["completedAt"])
    span = moment(task["completedAt"]) - moment(task["startedAt"])
    assert task["latencyMs"] == span / timedelta(milliseconds=1)
    assert "error" not in task


async def test_ids_begin_with_tsk_and_differ(stage: Stage) -> None:
    ids = [await stage.submit(lane=HELD) for _ in range(20)]
    assert len(set(ids)) == 20
    assert all(one.startswith("tsk_") and len(one) >= 12 for one in ids)


async def test_position_is_the_length_of_the_queue_with_the_new_task(stage: Stage) -> None:
    places = [(await stage.post(lane=HELD)).json["position"] for _ in range(3)]
    assert places == [1, 2, 3]


async def test_position_stays_what_it_was_at_submission(stage: Stage) -> None:
    first, second = [await stage.submit(lane=HELD) for _ in range(2)]
    await stage.api.cancel(first)
    assert (await stage.api.show(second))["position"] == 2


async def test_a_queued_task_shows_what_is_set_and_nothing_else(stage: Stage) -> None:
    task = await stage.api.show(await stage.submit(lane=HELD, tabId="t1"))
    assert task["state"] == "queued"
    assert (task["priority"], task["kind"], task["lane"]) == (0, "action", HELD)
    assert (task["attempts"], task["maxAttempts"]) == (0, 1)
    absent = {"startedAt", "completedAt", "latencyMs", "result", "error", "callbackUrl", "ref"}
    absent |= {"selector", "params", "batchId", "leaseId", "leaseExpiresAt"}
    assert not absent & set(task)


async def test_everything_that_was_submitted_is_shown(stage: Stage) -> None:
    hook = stage.hooks.new()
    params = {"text": "grüße, 世界 🚀", "nested": {"list": [1, 2.5, None, True]}, "big": 2**53}
    fields = {"ref": "e1", "selector": "#a > b", "params": params, "priority": -7}
    task_id = await stage.submit(lane=HELD, tabId="t1", callbackUrl=hook.url, **fields)
    task = await stage.api.show(task_id)
    assert {name: task[name] for name in fields} == fields
    assert (task["tabId"], task["callbackUrl"]) == ("t1", hook.url)
    assert (task["taskId"], task["agentId"]) == (task_id, stage.agent)


async def test_without_a_lane_an_action_goes_to_the_lane_browser(stage: Stage) -> None:
    assert (await stage.run())["lane"] == "browser"


async def test_an_unknown_lane_falls_back_to_main(stage: Stage) -> None:
    assert (await stage.run(lane="no-such-lane"))["lane"] == "main"


async def test_unknown_task_is_404(stage: Stage) -> None:
    answer = await stage.api.get("/tasks/tsk_00000000")
    assert (answer.status, answer.json) == (404, {"code": "not_found", "error": "task not found"})


@pytest.mark.parametrize("field", ["agentId", "action"])
@pytest.mark.parametrize("value", [None, ""])
async def test_agent_and_action_are_required(stage: Stage, field: str, value: str | None) -> None:
    body = {**stage.task(), field: value}
    answer = await stage.api.post("/tasks", {k: v for k, v in body.items() if v is not None})
    assert (answer.status, answer.code) == (400, "invalid_request")
    others = "; or give 'handler' or 'instruction'" if (field, value) == ("action", None) else ""
    assert answer.error == f"invalid task: missing required field '{field}'{others}"


async def test_the_tab_is_missed_only_at_execution(stage: Stage) -> None:
    task = await stage.run(tabId=None)
    assert (task["state"], task["error"]) == ("failed", "tabId is required for task execution")
    assert stage.actions() == []


async def test_a_body_that_is_not_json_is_400(stage: Stage) -> None:
    answer = await stage.api.ask("POST", "/tasks", raw=b"not json")
    assert (answer.status, answer.code) == (400, "invalid_request")


# --- deadline -----------------------------------------------------------------------------------


async def test_without_a_deadline_it_is_sixty_seconds_after_submission(stage: Stage) -> None:
    task = await stage.api.show(await stage.submit(lane=HELD))
    assert moment(task["deadline"]) - moment(task["createdAt"]) == timedelta(seconds=60)


async def test_an_empty_deadline_is_no_deadline_given(stage: Stage) -> None:
    task = await stage.api.show(await stage.submit(lane=HELD, deadline=""))
    assert moment(task["deadline"]) - moment(task["createdAt"]) == timedelta(seconds=60)


async def test_a_deadline_in_the_past_is_refused_and_leaves_no_trace(stage: Stage) -> None:
    answer = await stage.post(deadline="2020-01-01T00:00:00Z")
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.error.removeprefix("invalid task: ") == "deadline is in the past"
    assert (await stage.api.get("/tasks", agentId=stage.agent)).json["count"] == 0


@on_sqlite
@pytest.mark.parametrize(
    "text",
    [
        "tomorrow",
        "2030-01-01",
        "2030-01-01 00:00:00Z",
        "2030-01-01T00:00:00",
        "2030-13-01T00:00:00Z",
        "2030-02-30T00:00:00Z",
        "2030-01-01T25:00:00Z",
        "2030-01-01T00:00:00+99:99",
        "1893456000",
        "2030-01-01T00:00:00Z ",
        "２０３０-01-01T00:00:00Z",  # noqa: RUF001 - digits, but not those of RFC 3339
        "10000-01-01T00:00:00Z",
    ],
)
async def test_a_deadline_in_another_format_is_refused(stage: Stage, text: str) -> None:
    answer = await stage.post(deadline=text)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "invalid deadline format" in answer.error


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2099-06-01T12:00:00Z", "2099-06-01T12:00:00.000Z"),
        ("2099-06-01T12:00:00.5Z", "2099-06-01T12:00:00.500Z"),
        ("2099-06-01T12:00:00.123456789Z", "2099-06-01T12:00:00.123Z"),
        ("2099-06-01T12:00:00+02:00", "2099-06-01T10:00:00.000Z"),
        ("2099-06-01T12:00:00-11:30", "2099-06-01T23:30:00.000Z"),
        ("9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
    ],
)
async def test_a_deadline_is_shown_in_utc(stage: Stage, text: str, utc: str) -> None:
    task_id = await stage.submit(lane=HELD, deadline=text)
    assert (await stage.api.show(task_id))["deadline"] == utc


async def test_a_deadline_beyond_the_calendar_is_refused_and_not_shown_broken(stage: Stage) -> None:
    """One minute before the end of year 9999, west of Greenwich, is the year 10000 in UTC."""
    answer = await stage.post(lane=HELD, deadline="9999-12-31T23:59:59-23:59")
    assert answer.status == 400
    assert (await stage.api.get("/tasks")).status == 200


# --- priority -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "shown"),
    [(0, 0), (-5, -5), (99, 99), ("critical", -20), ("high", -10), ("normal", 0), ("low", 10)],
)
async def test_a_priority_is_a_number_or_a_name(stage: Stage, given: int | str, shown: int) -> None:
    task_id = await stage.submit(lane=HELD, priority=given)
    assert (await stage.api.show(task_id))["priority"] == shown
