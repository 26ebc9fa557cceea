"""Work for later: `runAt` and `delayMs`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.fakes.waiting import TooLate, in_time, judge, steadily
from tests.http.stage import HELD, ONE, after, on_sqlite
from tests.http.work import Work, ms_between

pytestmark = pytest.mark.asyncio(loop_scope="session")

YEAR_MS = 365 * 24 * 3600 * 1000


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


async def waiting(work: Work, task_id: str) -> dict[str, Any]:
    """The task, whose moment must not have come yet."""
    task = await work.api.show(task_id)
    if task.get("gate") != "delay":
        raise TooLate("its moment came before anybody looked")
    return task


@pytest.mark.parametrize("how", ["runAt", "delayMs"])
async def test_it_runs_when_its_time_has_come_and_no_sooner(work: Work, how: str) -> None:
    async def wait(seconds: float) -> float:
        span = int(seconds * 1000)
        fields: dict[str, Any] = {"runAt": after(seconds)} if how == "runAt" else {"delayMs": span}
        before = len(work.actions())
        task_id = await work.submit(**fields)
        begun = len(work.actions()) - before
        eligible = (await waiting(work, task_id))["nextEligibleAt"]
        assert begun == 0
        task = await work.api.end_of(task_id)
        assert task["state"] == "done"
        assert len(work.actions()) == before + 1
        return ms_between(eligible, task["startedAt"])

    async def judged() -> None:
        late_ms = await in_time(wait)
        assert late_ms >= 0
        judge(late_ms / 1000, 1.5)

    await steadily(judged)


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
    async def run(seconds: float) -> None:
        before = len(work.numbers())
        moments = {n: after(seconds + seconds * n / 2) for n in (3, 1, 2)}
        ids = {n: await work.submit(lane=ONE, runAt=moments[n], params={"n": n}) for n in moments}
        try:
            await waiting(work, ids[1])
        finally:  # a scene that came too late must not end in the next one
            await work.api.ended(*ids.values())
        for n in (1, 2):
            if (await work.api.show(ids[n]))["startedAt"] >= moments[n + 1]:
                raise TooLate("two moments had come before anybody looked")
        assert work.numbers()[before:] == [1, 2, 3]

    await in_time(run)


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
    async def cancel(seconds: float) -> None:
        before = len(work.actions())
        task_id = await work.submit(delayMs=int(seconds * 1000))
        try:
            due = (await waiting(work, task_id))["nextEligibleAt"]
            answer = await work.api.cancel(task_id)
        finally:
            cancelled = await work.api.end_of(task_id)
        if cancelled.get("completedAt", due) >= due:
            raise TooLate("its moment came before it was cancelled")
        assert (answer.status, cancelled["state"]) == (200, "cancelled")
        await work.passed(due)
        assert await work.api.show(task_id) == cancelled
        assert len(work.actions()) == before

    await in_time(cancel)


async def test_a_deadline_counts_while_a_task_is_delayed(work: Work) -> None:
    task = await work.api.end_of(await work.expiring(delayMs=60_000))
    assert (task["state"], task["error"]) == ("failed", "deadline exceeded while queued")


async def test_a_child_waits_for_its_parent_and_for_its_moment(work: Work) -> None:
    async def wait(seconds: float) -> None:
        span = int(seconds * 1000) + 100
        parent = await work.submit(lane=ONE)
        child = await work.submit(dependsOn=[parent], delayMs=span)
        await work.api.end_of(parent)
        task = await waiting(work, child)
        assert task["state"] == "queued"
        task = await work.api.end_of(child)
        assert task["state"] == "done"
        assert ms_between(task["createdAt"], task["startedAt"]) >= span

    await in_time(wait)


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
