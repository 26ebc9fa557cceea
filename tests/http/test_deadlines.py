"""Deadlines: of tasks that wait, of tasks that run, and what they are counted as.

Facts of specs/pinchtab.md section 17: 29, 40, 116; weakness 7 of section 18 (expiry within a
second, one text, never dispatched afterwards).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.waiting import in_time, judge, steadily, within
from tests.http.stage import HANG, HELD, ONE, Stage, after
from tests.http.work import ms_between

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_queued_task_expires_within_a_second_of_its_deadline(stage: Stage) -> None:
    async def expire() -> None:
        hook = stage.hooks.new()
        task = await stage.api.end_of(await stage.expiring(lane=HELD, callbackUrl=hook.url))
        assert (task["state"], task["error"]) == ("failed", "deadline exceeded while queued")
        assert task["completedAt"] >= task["deadline"]
        assert not {"startedAt", "latencyMs", "result"} & set(task)
        delivery = await hook.one()
        assert (delivery.event, delivery.task["error"]) == ("task.failed", task["error"])
        judge(ms_between(task["deadline"], task["completedAt"]) / 1000, 1)

    await steadily(expire)


async def test_an_expired_task_is_never_carried_out(stage: Stage) -> None:
    await stage.block(ONE)
    late = await stage.expiring(lane=ONE, params={"n": 1})
    fine = await stage.submit(lane=ONE, deadline=after(600), params={"n": 2})
    await stage.api.end_of(late)
    assert (await stage.api.show(fine))["state"] == "queued"
    stage.instance.release()
    assert (await stage.api.end_of(fine))["state"] == "done"
    assert stage.numbers() == [2]


async def test_expiry_is_counted_as_expired_and_as_failed(stage: Stage) -> None:
    before = (await stage.api.stats())["metrics"]
    ids = [await stage.expiring(lane=HELD) for _ in range(2)]
    await stage.api.ended(*ids)
    metrics = (await stage.api.stats())["metrics"]
    rise = {name: metrics[name] - before[name] for name in before if name.startswith("tasks")}
    assert (rise["tasksExpired"], rise["tasksFailed"], rise["tasksSubmitted"]) == (2, 2, 2)
    assert metrics["dispatchCount"] == before["dispatchCount"]
    assert metrics["agents"][stage.agent]["failed"] == 2


async def test_a_running_task_is_stopped_at_its_deadline(stage: Stage) -> None:
    async def stop(seconds: float) -> None:
        hook = stage.hooks.new()
        task = await stage.stopped_at_its_deadline(seconds, lane=ONE, callbackUrl=hook.url)
        assert task["state"] == "failed"
        assert "deadline exceeded" in task["error"]
        assert "queued" not in task["error"]
        assert task["latencyMs"] > 0
        assert task["completedAt"] >= task["deadline"]
        entry = stage.actions()[-1]
        with within(1):
            await stage.instance.until(lambda: entry.outcome == "gone")
        judge(ms_between(task["deadline"], task["completedAt"]) / 1000, 1)
        assert (await stage.run(lane=ONE))["state"] == "done"
        assert len(await hook.until(1)) == 1

    await steadily(lambda: in_time(stop))


async def test_a_deadline_while_running_is_a_failure_but_no_expiry(stage: Stage) -> None:
    async def stop(seconds: float) -> None:
        before = (await stage.api.stats())["metrics"]
        await stage.stopped_at_its_deadline(seconds)
        metrics = (await stage.api.stats())["metrics"]
        assert metrics["tasksFailed"] - before["tasksFailed"] == 1
        assert metrics["tasksExpired"] == before["tasksExpired"]

    await in_time(stop)


async def test_a_deadline_far_away_does_not_disturb(stage: Stage) -> None:
    assert (await stage.run(deadline=after(3600)))["state"] == "done"


async def test_tasks_expire_in_any_order_of_submission(stage: Stage) -> None:
    async def expire(seconds: float) -> list[dict[str, Any]]:
        spans = [seconds + more for more in (0.3, 0, 0.2, 0.1)]
        return await stage.api.ended(*[await stage.expiring_in(one, lane=HELD) for one in spans])

    tasks = await in_time(expire)
    assert {task["error"] for task in tasks} == {"deadline exceeded while queued"}
    by_deadline = sorted(tasks, key=lambda task: task["deadline"])
    assert [t["completedAt"] for t in by_deadline] == sorted(t["completedAt"] for t in tasks)


async def test_a_task_that_waits_for_its_tab_expires_too(stage: Stage) -> None:
    tab = stage.tab()
    await stage.submit(tabId=tab, fake=HANG)
    waiting = await stage.expiring(tabId=tab)
    last = await stage.submit(tabId=tab)
    task = await stage.api.end_of(waiting)
    assert task["error"] == "deadline exceeded while queued"
    await stage.arrived(1)
    stage.instance.release()
    assert (await stage.api.end_of(last))["state"] == "done"
