"""Work for later: `runAt` and `delayMs`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.http.stage import HELD, ONE, on_sqlite
from tests.http.work import Work, ms_between

pytestmark = pytest.mark.asyncio(loop_scope="session")

YEAR_MS = 365 * 24 * 3600 * 1000


def after(seconds: float) -> str:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def test_a_delayed_task_waits_and_says_until_when(work: Work) -> None:
    answer = await work.post(delayMs=60_000)
    assert (answer.status, answer.json["state"]) == (202, "queued")
    task = await work.api.show(answer.json["taskId"])
    assert (task["state"], task["gate"]) == ("queued", "delay")
    assert ms_between(task["createdAt"], task["nextEligibleAt"]) == 60_000
    assert task["attempts"] == 0


async def test_a_task_for_a_moment_shows_that_moment(work: Work) -> None:
    at = after(60)
    task = await work.api.show(await work.submit(runAt=at))
    assert (task["gate"], task["nextEligibleAt"]) == ("delay", at)
    west = datetime.fromisoformat(at).astimezone().isoformat()
    task = await work.api.show(await work.submit(runAt=west))
    assert task["nextEligibleAt"] == at


@pytest.mark.parametrize("how", ["runAt", "delayMs"])
async def test_it_runs_when_its_time_has_come_and_no_sooner(work: Work, how: str) -> None:
    fields: dict[str, Any] = {"runAt": after(0.3)} if how == "runAt" else {"delayMs": 300}
    task_id = await work.submit(**fields)
    eligible = (await work.api.show(task_id))["nextEligibleAt"]
    assert work.actions() == []
    task = await work.api.end_of(task_id)
    assert task["state"] == "done"
    assert 0 <= ms_between(eligible, task["startedAt"]) < 1_500
    assert len(work.actions()) == 1


@pytest.mark.parametrize(
    "fields", [{"delayMs": 0}, {"runAt": "2020-01-01T00:00:00Z"}], ids=["no delay", "the past"]
)
async def test_what_is_due_already_runs_at_once(work: Work, fields: dict[str, Any]) -> None:
    task = await work.run(**fields)
    assert task["state"] == "done"
    held = await work.api.show(await work.submit(lane=HELD, **fields))
    assert held.get("gate") != "delay"


async def test_a_delayed_task_holds_no_slot_and_no_place(work: Work) -> None:
    delayed = await work.submit(lane=ONE, delayMs=60_000, priority="critical")
    for _ in range(3):
        assert (await work.run(lane=ONE))["state"] == "done"
    assert (await work.api.show(delayed))["gate"] == "delay"


async def test_delayed_tasks_run_in_the_order_of_their_moments(work: Work) -> None:
    spans = {3: 500, 1: 200, 2: 350}
    ids = [await work.submit(lane=ONE, delayMs=span, params={"n": n}) for n, span in spans.items()]
    await work.api.ended(*ids)
    assert work.numbers() == [1, 2, 3]


async def test_those_of_one_moment_run_by_priority_and_submission(work: Work) -> None:
    at = after(0.4)
    await work.block(ONE)
    ids = [
        await work.submit(lane=ONE, runAt=at, priority=priority, params={"n": n})
        for n, priority in ((3, 5), (1, -5), (4, 5), (2, 0))
    ]
    await work.passed(at)
    work.instance.release()
    await work.api.ended(*ids)
    assert work.numbers() == [1, 2, 3, 4]


async def test_a_delayed_task_that_is_cancelled_never_runs(work: Work) -> None:
    task_id = await work.submit(delayMs=300)
    due = (await work.api.show(task_id))["nextEligibleAt"]
    assert (await work.api.cancel(task_id)).status == 200
    cancelled = await work.api.show(task_id)
    assert cancelled["state"] == "cancelled"
    await work.passed(due)
    assert await work.api.show(task_id) == cancelled
    assert work.actions() == []


async def test_a_deadline_counts_while_a_task_is_delayed(work: Work) -> None:
    task = await work.run(delayMs=60_000, deadline=after(0.2))
    assert (task["state"], task["error"]) == ("failed", "deadline exceeded while queued")


async def test_a_child_waits_for_its_parent_and_for_its_moment(work: Work) -> None:
    parent = await work.submit(lane=ONE)
    child = await work.submit(dependsOn=[parent], delayMs=400)
    due = ms_between("1970-01-01T00:00:00.000Z", (await work.api.show(child))["createdAt"]) + 400
    await work.api.end_of(parent)
    task = await work.api.show(child)
    assert (task["state"], task["gate"]) == ("queued", "delay")
    task = await work.api.end_of(child)
    assert task["state"] == "done"
    assert ms_between("1970-01-01T00:00:00.000Z", task["startedAt"]) >= due


async def test_a_moment_that_has_passed_does_not_let_a_child_go_before_its_parent(
    work: Work,
) -> None:
    parent = await work.submit(lane=HELD)
    due = after(0.2)
    child = await work.submit(dependsOn=[parent], runAt=due)
    await work.passed(due)
    assert (await work.api.show(child))["gate"] == "dependency"
    assert work.actions() == []


async def test_delays_go_with_items_of_a_batch(work: Work) -> None:
    answer = await work.batch(
        work.action_item(delayMs=60_000), work.action_item(runAt=after(60)), work.action_item()
    )
    tasks = [await work.api.show(one) for one in answer.ids]
    assert [task.get("gate") for task in tasks[:2]] == ["delay", "delay"]
    assert (await work.api.end_of(answer.ids[2]))["state"] == "done"


@on_sqlite
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"delayMs": -1}, "delayMs"),
        ({"delayMs": YEAR_MS + 1}, "delayMs"),
        ({"delayMs": 1.5}, "delayMs"),
        ({"delayMs": "5"}, "delayMs"),
        ({"delayMs": True}, "delayMs"),
        ({"runAt": "tomorrow"}, "runAt"),
        ({"runAt": "2099-01-01"}, "runAt"),
        ({"runAt": "2099-01-01T00:00:00"}, "runAt"),
        ({"runAt": "2099-02-30T00:00:00Z"}, "runAt"),
        ({"runAt": 4_070_908_800}, "runAt"),
        ({"runAt": "2099-01-01T00:00:00Z", "delayMs": 5}, "runAt"),
        ({"runAt": "2020-01-01T00:00:00Z", "delayMs": 0}, "runAt"),
    ],
    ids=str,
)
async def test_a_delay_that_is_none_is_refused(
    work: Work, fields: dict[str, Any], named: str
) -> None:
    answer = await work.post(lane=HELD, **fields)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert named in answer.error
    assert (await work.api.get("/tasks", agentId=work.agent)).json["count"] == 0


async def test_a_year_is_the_longest_delay(work: Work) -> None:
    task = await work.api.show(await work.echo(delayMs=YEAR_MS))
    assert ms_between(task["createdAt"], task["nextEligibleAt"]) == YEAR_MS
