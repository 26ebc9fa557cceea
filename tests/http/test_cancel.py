"""Cancelling: `POST /tasks/{id}/cancel`, of queued, running and ended tasks.

Facts of specs/pinchtab.md section 17: 20, 21, 28, 39, 51, 63, 64, 76, 101, 102, 116; weaknesses of
section 18: 3 (a cancelled run is counted and told once, and nothing is written onto it later).
"""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.waiting import steadily, within
from tests.http.api import eventually
from tests.http.stage import HANG, HELD, ONE, Stage

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_queued_task_is_cancelled_and_stays_readable(stage: Stage) -> None:
    task_id = await stage.submit(lane=HELD)
    answer = await stage.api.cancel(task_id)
    assert (answer.status, answer.json) == (200, {"status": "cancelled", "taskId": task_id})
    task = await stage.api.show(task_id)
    assert task["state"] == "cancelled"
    assert "completedAt" in task
    assert not {"error", "startedAt", "latencyMs", "result"} & set(task)


async def test_a_cancelled_task_leaves_the_queue_and_the_others_stay(stage: Stage) -> None:
    await stage.block(ONE)
    first, second = [await stage.submit(lane=ONE, params={"n": n}) for n in (1, 2)]
    assert (await stage.api.cancel(first)).status == 200
    assert (await stage.api.cancel(first)).status == 409
    stage.instance.release()
    assert (await stage.api.end_of(second))["state"] == "done"
    assert stage.numbers() == [2]


async def test_a_running_task_is_stopped_at_once(stage: Stage) -> None:
    async def stop() -> None:
        before = len(stage.actions())
        task_id = await stage.submit(fake=HANG)
        entry = (await stage.arrived(before + 1))[-1]
        with within(1):
            assert (await stage.api.cancel(task_id)).status == 200
            assert (await stage.api.show(task_id))["state"] == "cancelled"
            await stage.instance.until(lambda: entry.outcome == "gone")

    await steadily(stop)


async def test_nothing_is_written_onto_a_cancelled_run(stage: Stage) -> None:
    task_id = await stage.submit(lane=ONE, fake=HANG)
    await stage.arrived(1)
    await stage.api.cancel(task_id)
    cancelled = await stage.api.show(task_id)
    # The lane's one slot is free again when the run has reported back.
    assert (await stage.run(lane=ONE))["state"] == "done"
    task = await stage.api.show(task_id)
    assert not {"result", "error"} & set(task)
    assert (task["state"], task["completedAt"]) == ("cancelled", cancelled["completedAt"])


async def test_the_slot_of_a_cancelled_run_is_used_again(stage: Stage) -> None:
    blocker = await stage.block(ONE)
    waiting = await stage.submit(lane=ONE)
    await stage.api.cancel(blocker)
    assert (await stage.api.end_of(waiting))["state"] == "done"


@pytest.mark.parametrize(
    ("fake", "state"), [({}, "done"), ({"status": 500}, "failed")], ids=["done", "failed"]
)
async def test_an_ended_task_cannot_be_cancelled(
    stage: Stage, fake: dict[str, int], state: str
) -> None:
    task = await stage.run(fake=fake)
    answer = await stage.api.cancel(task["taskId"])
    assert (answer.status, answer.code) == (409, "conflict")
    assert answer.error == f'task "{task["taskId"]}" has already ended: it is "{state}"'
    assert await stage.api.show(task["taskId"]) == task


async def test_an_unknown_task_cannot_be_cancelled(stage: Stage) -> None:
    answer = await stage.api.cancel("tsk_00000000")
    assert (answer.status, answer.code) == (404, "not_found")
    assert answer.error == 'task "tsk_00000000" not found'


async def test_the_words_terminal_state_in_an_id_do_not_make_it_a_conflict(stage: Stage) -> None:
    answer = await stage.api.cancel("already%20in%20terminal%20state")
    assert (answer.status, answer.code) == (404, "not_found")


async def test_of_many_cancels_at_once_exactly_one_succeeds(stage: Stage) -> None:
    for fake in (None, HANG):
        lane = HELD if fake is None else "browser"
        task_id = await stage.submit(lane=lane, fake=fake)
        answers = await asyncio.gather(*(stage.api.cancel(task_id) for _ in range(16)))
        assert sorted(answer.status for answer in answers) == [200] + [409] * 15


async def test_cancel_against_the_end_of_a_run_is_200_or_409_and_true(stage: Stage) -> None:
    """The answer and the state that stays say the same, whoever was first."""

    async def race() -> None:
        task_id = await stage.submit(fake={"delayMs": 5})
        await stage.api.until(task_id, "assigned", "running", "done")
        answer = await stage.api.cancel(task_id)
        task = await stage.api.end_of(task_id)
        expected = {200: "cancelled", 409: "done"}
        assert task["state"] == expected[answer.status], (answer, task)
        assert ("result" in task) == (task["state"] == "done")

    await asyncio.gather(*(race() for _ in range(25)))


async def test_each_cancel_is_counted_once(stage: Stage) -> None:
    before = (await stage.api.stats())["metrics"]
    queued = await stage.submit(lane=HELD)
    running = await stage.submit(lane=ONE, fake=HANG)
    await stage.arrived(1)
    for task_id in (queued, running):
        await stage.api.cancel(task_id)
    await stage.run(lane=ONE)  # the cancelled run has reported back by now
    after = (await stage.api.stats())["metrics"]
    rise = {name: after[name] - before[name] for name in after if name.startswith("tasks")}
    assert rise == {
        "tasksSubmitted": 3,
        "tasksCompleted": 1,
        "tasksCancelled": 2,
        "tasksFailed": 0,
        "tasksRejected": 0,
        "tasksExpired": 0,
        "tasksParked": 0,
    }
    assert after["agents"][stage.agent]["cancelled"] == 2


async def test_one_webhook_tells_of_a_cancelled_run(stage: Stage) -> None:
    hook, marker = stage.hooks.new(), stage.hooks.new()
    task_id = await stage.submit(lane=ONE, fake=HANG, callbackUrl=hook.url)
    await stage.arrived(1)
    await stage.api.cancel(task_id)
    delivery = await hook.one()
    assert (delivery.event, delivery.task["state"]) == ("task.cancelled", "cancelled")
    # Another webhook of the same run would have been sent before that of a later task.
    await stage.run(lane=ONE, callbackUrl=marker.url)
    await marker.one()
    assert len(hook.deliveries) == 1


async def test_a_cancel_while_the_tab_is_looked_for_ends_it_too(stage: Stage) -> None:
    """Whatever a task is doing when it is cancelled, its slot comes back."""
    ids = [await stage.submit(lane=ONE, fake=HANG) for _ in range(5)]
    for task_id in ids:
        await stage.api.cancel(task_id)

    async def idle() -> bool | None:
        return all(one.finished is not None for one in stage.actions()) or None

    await eventually(idle)
    assert (await stage.run(lane=ONE))["state"] == "done"
