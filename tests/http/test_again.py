"""Work that is taken up again by hand: `retry` of what has ended, `reset` of what is parked.

Facts of specs/browseros.md section 12: 81, 82; weaknesses of section 13: 9 (a retry in the wait)
and 10 (the budget, the children). The same verbs over many tasks are in test_bulk.py.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.stage import HANG, HELD, ONE
from tests.http.work import Work, ms_between

if TYPE_CHECKING:
    from tests.fakes.tab_instance import TabInstance
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFUSE: dict[str, Any] = {"status": 500, "body": {"error": "not now"}}


async def fail(work: Work, **fields: Any) -> str:
    """A task that has failed for good."""
    task = await work.run(**{"fake": REFUSE, "retryPolicy": {"maxRetries": 0}, **fields})
    assert task["state"] == "failed"
    task_id: str = task["taskId"]
    return task_id


# --- again, by hand -----------------------------------------------------------------------------


async def test_a_failed_task_starts_again_with_its_whole_budget(work: Work) -> None:
    hook = work.hooks.new()
    work.fail_next(4)
    policy = {"maxRetries": 1, "backoffMs": 0}
    first = await work.run(retryPolicy=policy, callbackUrl=hook.url)
    task_id = first["taskId"]
    answer = await work.retry(task_id)
    assert answer.status == 200
    assert (answer.json["taskId"], answer.json["retryCount"]) == (task_id, 0)
    assert answer.json["state"] == "queued"
    second = await work.api.end_of(task_id)
    assert (second["state"], second["attempts"]) == ("failed", 2)
    assert second["createdAt"] == first["createdAt"]
    assert (await work.retry(task_id)).status == 200
    third = await work.api.end_of(task_id)
    assert (third["state"], third["attempts"]) == ("done", 1)
    assert "error" not in third
    outcomes = [one["outcome"] for one in third["attemptLog"]]
    assert outcomes == ["retrying", "failed", "retrying", "failed", "completed"]
    assert len(work.actions()) == 5
    events = [one.event for one in await hook.until(3)]
    assert events == ["task.failed", "task.failed", "task.completed"]
    assert len({one.headers["webhook-id"] for one in hook.deliveries}) == 3


async def test_what_is_to_run_again_shows_nothing_of_its_end(work: Work) -> None:
    task_id = await fail(work, lane=ONE)
    await work.block(ONE)
    await work.retry(task_id)
    task = await work.api.show(task_id)
    assert (task["state"], task["attempts"], task["retryCount"]) == ("queued", 0, 0)
    assert not {"error", "completedAt", "latencyMs", "nextEligibleAt"} & set(task)
    assert (await work.types(task_id))[-1] == "requeued"


async def test_a_cancelled_task_may_start_again(work: Work) -> None:
    await work.block(ONE)
    task_id = await work.submit(lane=ONE, params={"n": 1})
    await work.api.cancel(task_id)
    assert (await work.retry(task_id)).json["state"] == "queued"
    work.instance.release()
    assert (await work.api.end_of(task_id))["state"] == "done"
    assert work.numbers() == [1]


async def test_a_deadline_moves_on_by_the_span_it_had(work: Work) -> None:
    task_id = await fail(work)
    before = await work.api.show(task_id)
    await work.retry(task_id)
    after = await work.api.end_of(task_id)
    requeued = next(e for e in await work.events(task_id) if e["type"] == "task.requeued")
    assert ms_between(before["createdAt"], before["deadline"]) == 60_000
    assert ms_between(requeued["timestamp"], after["deadline"]) == 60_000


async def test_each_parking_is_reported_by_webhook_and_the_end_too(work: Work) -> None:
    hook = work.hooks.new()
    task_id = await work.park(callbackUrl=hook.url)
    told = await hook.one()
    assert (told.event, told.headers["x-pinchtab-task-id"]) == ("task.parked", task_id)
    assert (told.task["state"], told.task["taskId"]) == ("parked", task_id)
    assert told.task["parkedReason"]
    await work.reset(task_id)
    await hook.until(2)
    await work.api.until(task_id, "parked")
    await work.api.cancel(task_id)
    told_all = await hook.until(3)
    assert [one.event for one in told_all] == ["task.parked", "task.parked", "task.cancelled"]
    assert len({one.headers["webhook-id"] for one in told_all}) == 3


@pytest.mark.parametrize("state", ["queued", "running", "done", "parked", "waiting_dependency"])
async def test_only_failed_and_cancelled_tasks_can_be_retried(work: Work, state: str) -> None:
    if state == "parked":
        task_id = await work.park()
    elif state == "waiting_dependency":
        task_id = await work.submit(dependsOn=["tsk_nobody00"])
    else:
        fake = HANG if state == "running" else None
        task_id = await work.submit(lane=HELD if state == "queued" else ONE, fake=fake)
        await work.api.until(task_id, state)
    answer = await work.retry(task_id)
    assert (answer.status, answer.code) == (409, "conflict")
    assert state in answer.error
    assert await work.states(task_id) == [state]


async def test_a_task_in_its_wait_cannot_be_retried_and_runs_once(work: Work) -> None:
    """The retry by hand and the one on time would else both run it."""
    work.fail_next(1)
    task_id = await work.submit(retryPolicy={"maxRetries": 1, "backoffMs": 300})
    await work.waits_again(task_id)
    assert (await work.retry(task_id)).status == 409
    assert (await work.api.end_of(task_id))["state"] == "done"
    assert len(work.actions()) == 2


@pytest.mark.parametrize("verb", ["retry", "reset", "cancel"])
async def test_a_verb_on_an_unknown_task_is_404(work: Work, verb: str) -> None:
    answer = await work.api.post(f"/tasks/tsk_nobody00/{verb}")
    assert (answer.status, answer.code) == (404, "not_found")
    assert (await work.delete("tsk_nobody00")).status == 404


async def test_of_many_retries_at_once_exactly_one_succeeds(work: Work) -> None:
    task_id = await fail(work, lane=ONE)
    await work.block(ONE)
    answers = await asyncio.gather(*(work.retry(task_id) for _ in range(8)))
    assert sorted(answer.status for answer in answers) == [200] + [409] * 7


# --- parents and children again -----------------------------------------------------------------


async def test_a_child_cannot_start_again_before_its_parent(work: Work) -> None:
    parent = await fail(work)
    child = await work.echo(dependsOn=[parent])
    answer = await work.retry(child)
    assert (answer.status, answer.code) == (409, "conflict")
    assert parent in answer.error
    assert await work.states(child) == ["cancelled"]


async def test_a_parent_brings_back_the_children_it_took_along(work: Work) -> None:
    work.fail_next(1)
    await work.block(ONE)
    parent = await work.submit(lane=ONE, retryPolicy={"maxRetries": 0})
    child = await work.submit(dependsOn=[parent], params={"n": 1})
    grandchild = await work.submit(dependsOn=[child], params={"n": 2})
    by_hand = await work.submit(dependsOn=[parent], params={"n": 3})
    await work.api.cancel(by_hand)
    work.instance.release()
    await work.api.ended(parent, child, grandchild)
    assert await work.states(parent, child, grandchild) == ["failed", "cancelled", "cancelled"]

    await work.block(ONE)
    assert (await work.retry(parent)).json["state"] == "queued"
    tasks = [await work.api.show(one) for one in (child, grandchild)]
    assert [task["state"] for task in tasks] == ["waiting_dependency"] * 2
    assert not any({"error", "completedAt"} & set(task) for task in tasks)
    assert await work.states(by_hand) == ["cancelled"]
    work.instance.release()
    tasks = await work.api.ended(parent, child, grandchild)
    assert [task["state"] for task in tasks] == ["done"] * 3
    assert work.numbers() == [1, 2]
    assert await work.states(by_hand) == ["cancelled"]


async def test_a_child_of_two_failed_parents_waits_for_both_again(work: Work) -> None:
    """It was cancelled because of one; bringing back the other alone must not run it."""
    first, second = [await work.submit(lane=HELD) for _ in range(2)]
    child = await work.submit(dependsOn=[first, second], params={"n": 1})
    for parent in (first, second):
        await work.api.cancel(parent)
    await work.retry(second)
    assert await work.states(child) == ["cancelled"]
    await work.retry(first)
    assert await work.states(first, second, child) == ["queued", "queued", "waiting_dependency"]


# --- parked -------------------------------------------------------------------------------------


async def test_a_parked_task_says_why_and_waits_for_a_reset(work: Work) -> None:
    task_id = await work.park()
    task = await work.api.show(task_id)
    assert (task["state"], task["attempts"]) == ("parked", 1)
    assert task["parkedReason"]
    assert task["attemptLog"][0]["outcome"] == "parked"
    answer = await work.reset(task_id)
    assert answer.status == 200
    assert (answer.json["taskId"], answer.json["state"]) == (task_id, "queued")
    await work.api.until(task_id, "parked")
    assert await work.types(task_id) == [
        *("created", "started", "parked"),
        *("requeued", "started", "parked"),
    ]
    assert (await work.api.show(task_id))["attempts"] == 1


@pytest.mark.parametrize("state", ["queued", "done", "failed", "cancelled"])
async def test_only_a_parked_task_can_be_reset(work: Work, state: str) -> None:
    if state == "failed":
        task_id = await fail(work)
    elif state == "done":
        task_id = (await work.run())["taskId"]
    else:
        task_id = await work.submit(lane=HELD)
        if state == "cancelled":
            await work.api.cancel(task_id)
    answer = await work.reset(task_id)
    assert (answer.status, answer.code) == (409, "conflict")
    assert state in answer.error


@pytest.mark.slow
async def test_the_children_of_a_parked_task_run_when_it_has_gone_well_after_all(
    serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    server = await serve(policy={"kinds": {"action": {"whenSpent": "park", "backoffMs": 0}}})
    work = Work(server.api, instance, hooks)
    work.fail_next(2)
    parent = await work.submit(retryPolicy={"maxRetries": 1})
    child = await work.submit(dependsOn=[parent], params={"n": 1})
    parked = await work.api.until(parent, "parked")
    assert (parked["attempts"], parked["attemptLog"][1]["outcome"]) == (2, "parked")
    assert await work.states(child) == ["waiting_dependency"]
    assert (await work.reset(parent)).json["state"] == "queued"
    tasks = await work.api.ended(parent, child)
    assert [(task["state"], task["attempts"]) for task in tasks] == [("done", 1), ("done", 1)]
    await work.clear()
