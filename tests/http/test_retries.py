"""Failures, the wait after one, further attempts, and what a cancel does to them.

Facts of specs/browseros.md section 12: 8, 9, 29, 57-77, 88, 89; weaknesses of section 13: 1 (cancel
of a running task), 2 (cancel during the wait), 5 (cancel of a done one).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.waiting import TooLate, in_time, judge, steadily
from tests.http.stage import HANG, HELD, ONE, on_sqlite
from tests.http.work import AT_ONCE, FOR_EVER, Work, ms_between

pytestmark = pytest.mark.asyncio(loop_scope="session")

REFUSE: dict[str, Any] = {"status": 500, "body": {"error": "not now"}}


# --- how long it waits --------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_nth_retry_waits_base_times_multiplier_to_the_n_minus_one(work: Work) -> None:
    async def waits(base: int, multiplier: float, retries: int) -> list[float]:
        policy = {"maxRetries": retries, "backoffMs": base, "backoffMultiplier": multiplier}
        task_id = await work.submit(fake=REFUSE, retryPolicy=policy, agentId=work.new_agent())
        found = []
        for attempt in range(1, retries + 1):
            task = await work.waits_again(task_id, attempt)
            ended = task["attemptLog"][-1]["endedAt"]
            found.append(ms_between(ended, task["nextEligibleAt"]))
        task = await work.api.end_of(task_id)
        assert (task["state"], task["attempts"]) == ("failed", retries + 1)
        log = task["attemptLog"]
        for wait, before, after in zip(found, log, log[1:], strict=False):
            assert ms_between(before["endedAt"], after["startedAt"]) >= wait
        return found

    async def grow(seconds: float) -> None:
        unit = int(seconds * 1000) // 3
        rows = [(2 * unit, 2, 3), (2 * unit, 3, 2), (3 * unit, 1, 3), (2 * unit, 1.5, 3)]
        found = await asyncio.gather(*(waits(*row) for row in rows))
        expected: list[list[float]] = [[2, 4, 8], [2, 6], [3, 3, 3], [2, 3, 4.5]]
        assert found == [[wait * unit for wait in row] for row in expected]

    await in_time(grow)


@pytest.mark.parametrize(
    ("policy", "wait"),
    [
        ({"backoffMs": 59_999}, 59_999),
        ({"backoffMs": 60_001}, 60_000),
        ({"backoffMs": 86_400_000, "backoffMultiplier": 100}, 60_000),
        ({"backoffMultiplier": 7}, 1_000),
        ({}, 1_000),
    ],
    ids=["below the cap", "above the cap", "far above", "only a multiplier", "defaults"],
)
async def test_the_first_wait_is_the_base_and_at_most_a_minute(
    work: Work, policy: dict[str, int], wait: int
) -> None:
    task_id = await work.submit(fake=REFUSE, retryPolicy={"maxRetries": 1, **policy})
    task = await work.waits_again(task_id)
    assert ms_between(task["attemptLog"][0]["endedAt"], task["nextEligibleAt"]) == wait


async def test_a_handler_waits_a_second_without_a_policy_of_its_own(work: Work) -> None:
    task_id = await work.echo(handler="sleep", params={"ms": 600_000}, timeoutMs=20)
    task = await work.waits_again(task_id)
    assert (task["maxAttempts"], task["retryCount"]) == (3, 0)
    assert ms_between(task["attemptLog"][0]["endedAt"], task["nextEligibleAt"]) == 1_000


async def test_the_wait_an_instance_asks_for_is_kept(work: Work) -> None:
    work.fail_next(1, 503, Retry_After="30")
    short = await work.submit(retryPolicy={"maxRetries": 1, "backoffMs": 10})
    task = await work.waits_again(short)
    assert ms_between(task["attemptLog"][0]["endedAt"], task["nextEligibleAt"]) == 30_000


@pytest.mark.slow
async def test_a_wait_that_was_asked_for_ends_in_a_run(work: Work) -> None:
    work.fail_next(1, 429, Retry_After="1")
    task = await work.run(retryPolicy={"maxRetries": 1, "backoffMs": 0})
    assert task["state"] == "done"
    first, second = task["attemptLog"]
    assert ms_between(first["endedAt"], second["startedAt"]) >= 1_000


async def test_the_slot_is_free_during_the_wait(work: Work) -> None:
    waiting = await work.submit(lane=ONE, fake=REFUSE, retryPolicy=FOR_EVER)
    task = await work.waits_again(waiting)
    assert not {"leaseId", "worker", "completedAt"} & set(task)
    assert (await work.run(lane=ONE))["state"] == "done"
    assert (await work.api.show(waiting))["gate"] == "delay"


# --- how often ----------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1, 4])
async def test_a_task_is_retried_as_often_as_it_says_and_then_fails(
    work: Work, retries: int
) -> None:
    task = await work.run(fake=REFUSE, retryPolicy={"maxRetries": retries, "backoffMs": 0})
    assert (task["state"], task["attempts"]) == ("failed", retries + 1)
    assert (task["maxAttempts"], task["retryCount"]) == (retries + 1, retries)
    assert task["error"].startswith("executor returned 500")
    assert len(work.actions()) == retries + 1


async def test_retries_end_with_the_first_success(work: Work) -> None:
    work.fail_next(2)
    task = await work.run(retryPolicy={"maxRetries": 5, "backoffMs": 0})
    assert (task["state"], task["attempts"], task["retryCount"]) == ("done", 3, 2)
    assert "error" not in task
    assert len(work.actions()) == 3


async def test_a_policy_that_is_not_complete_takes_the_rest_from_the_kind(work: Work) -> None:
    action = await work.submit(lane=HELD, retryPolicy={"backoffMs": 5})
    handler = await work.echo(lane=HELD, retryPolicy={"backoffMultiplier": 3})
    tasks = [await work.api.show(one) for one in (action, handler)]
    assert [task["maxAttempts"] for task in tasks] == [1, 3]
    assert [task["retryPolicy"] for task in tasks] == [{"backoffMs": 5}, {"backoffMultiplier": 3}]


@on_sqlite
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422])
async def test_a_permanent_error_is_not_retried(work: Work, status: int) -> None:
    task = await work.run(fake={"status": status}, retryPolicy=AT_ONCE)
    assert (task["state"], task["attempts"], task["maxAttempts"]) == ("failed", 1, 4)
    assert len(work.actions()) == 1


@on_sqlite
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_an_error_that_may_pass_is_retried(work: Work, status: int) -> None:
    work.fail_next(1, status)
    task = await work.run(retryPolicy=AT_ONCE)
    assert (task["state"], task["attempts"]) == ("done", 2)


@on_sqlite
async def test_a_broken_connection_is_retried(work: Work) -> None:
    task = await work.run(fake={"drop": True}, retryPolicy={"maxRetries": 2, "backoffMs": 0})
    assert (task["state"], task["attempts"]) == ("failed", 3)


async def test_each_attempt_has_its_time_and_running_out_of_it_is_retried(work: Work) -> None:
    async def run(seconds: float) -> float:
        before, span = len(work.actions()), int(seconds * 200)
        policy = {"maxRetries": 1, "backoffMs": 0}
        task = await work.run(lane=ONE, fake=HANG, timeoutMs=span, retryPolicy=policy)
        assert (task["state"], task["attempts"]) == ("failed", 2)
        assert str(span) in task["error"]
        took = [ms_between(one["startedAt"], one["endedAt"]) for one in task["attemptLog"]]
        # The clock on the wall may be set while the other one runs, so a little less than that.
        assert min(took) >= span - 5
        assert (await work.run(lane=ONE))["state"] == "done"
        found = [entry.outcome for entry in work.actions()[before:]]
        if len(found) < 3:
            raise TooLate("the time of an attempt was over before its request had left")
        assert found == ["gone", "gone", "answered"]
        return max(took) - span

    async def judged() -> None:
        judge(await in_time(run) / 1000, 1.4)

    await steadily(judged)


async def test_every_attempt_is_kept_with_its_times_its_error_and_its_worker(work: Work) -> None:
    async def fail(seconds: float) -> tuple[str, dict[str, Any]]:
        work.fail_next(1)
        policy = {"maxRetries": 1, "backoffMs": int(seconds * 1000)}
        task_id = await work.submit(retryPolicy=policy)
        (first,) = (await work.waits_again(task_id))["attemptLog"]
        return task_id, first

    task_id, first = await in_time(fail)
    assert (first["attempt"], first["outcome"]) == (1, "retrying")
    assert first["error"].startswith("executor returned 500")
    assert first["worker"]
    assert first["startedAt"] <= first["endedAt"]
    task = await work.api.end_of(task_id)
    assert task["attemptLog"][0] == first
    second = task["attemptLog"][1]
    assert (second["attempt"], second["outcome"]) == (2, "completed")
    assert "error" not in second
    assert first["endedAt"] <= second["startedAt"] <= second["endedAt"] <= task["completedAt"]


async def test_a_task_that_never_began_has_no_attempts(work: Work) -> None:
    task_id = await work.submit(lane=HELD)
    task = await work.api.show(task_id)
    assert ("attemptLog" in task, task["attempts"], task["retryCount"]) == (False, 0, 0)
    running = await work.submit(fake=HANG)
    await work.arrived(1)
    (attempt,) = (await work.api.until(running, "running"))["attemptLog"]
    assert attempt["attempt"] == 1
    assert not {"endedAt", "outcome", "error"} & set(attempt)


async def test_one_webhook_tells_of_the_end_and_none_of_a_failed_attempt(work: Work) -> None:
    hook, fine, marker = (work.hooks.new() for _ in range(3))
    policy = {"maxRetries": 2, "backoffMs": 0}
    failed = await work.run(fake=REFUSE, retryPolicy=policy, callbackUrl=hook.url)
    work.fail_next(2)
    done = await work.run(retryPolicy=policy, callbackUrl=fine.url)
    await work.run(callbackUrl=marker.url)
    await marker.one()
    (bad,), (good,) = await hook.until(1), await fine.until(1)
    assert (bad.event, good.event) == ("task.failed", "task.completed")
    assert (bad.task, good.task) == (failed, done)
    assert (bad.task["attempts"], good.task["attempts"]) == (3, 3)


# --- cancelling ---------------------------------------------------------------------------------


async def test_a_cancel_during_the_wait_is_final(work: Work) -> None:
    async def cancel(seconds: float) -> None:
        hook, before = work.hooks.new(), len(work.actions())
        policy = {"maxRetries": 3, "backoffMs": int(seconds * 1000)}
        task_id = await work.submit(fake=REFUSE, retryPolicy=policy, callbackUrl=hook.url)
        try:
            due = (await work.waits_again(task_id))["nextEligibleAt"]
        except TooLate:
            await work.api.cancel(task_id)  # it must not go on in the next scene
            raise
        assert (await work.api.cancel(task_id)).status == 200
        cancelled = await work.api.show(task_id)
        if cancelled["completedAt"] >= due:
            raise TooLate("the wait was over before it was cancelled")
        assert (cancelled["state"], cancelled["attempts"]) == ("cancelled", 1)
        await work.passed(due)
        assert await work.api.show(task_id) == cancelled
        assert len(work.actions()) == before + 1
        assert await work.types(task_id) == ["created", "started", "retrying", "cancelled"]
        assert [one.event for one in await hook.until(1)] == ["task.cancelled"]

    await in_time(cancel)


async def test_a_running_task_that_is_cancelled_stays_so_and_never_runs_again(work: Work) -> None:
    hook = work.hooks.new()
    task_id = await work.submit(lane=ONE, fake=HANG, retryPolicy=AT_ONCE, callbackUrl=hook.url)
    (entry,) = await work.arrived(1)
    assert (await work.delete(task_id)).status == 200
    await work.instance.until(lambda: entry.outcome == "gone")
    await work.settled(ONE)
    task = await work.api.show(task_id)
    assert (task["state"], task["attempts"]) == ("cancelled", 1)
    assert [one["outcome"] for one in task["attemptLog"]] == ["cancelled"]
    assert len([one for one in work.actions() if one.tab == entry.tab]) == 1
    assert await work.types(task_id) == ["created", "started", "cancelled"]
    assert [one.event for one in await hook.until(1)] == ["task.cancelled"]


@pytest.mark.parametrize("state", ["done", "failed", "cancelled"])
async def test_an_ended_task_cannot_be_cancelled_and_stays_as_it_is(work: Work, state: str) -> None:
    if state == "failed":
        task_id = (await work.run(fake=REFUSE))["taskId"]
    elif state == "done":
        task_id = (await work.run())["taskId"]
    else:
        task_id = await work.submit(lane=HELD)
        await work.api.cancel(task_id)
    before = await work.api.show(task_id)
    for answer in (await work.delete(task_id), await work.api.cancel(task_id)):
        assert (answer.status, answer.code) == (409, "conflict")
        assert answer.error == f'task "{task_id}" has already ended: it is "{state}"'
    assert await work.api.show(task_id) == before


async def test_delete_cancels(work: Work) -> None:
    task_id = await work.submit(lane=HELD)
    answer = await work.delete(task_id)
    assert answer.status == 200
    assert answer.json == {"taskId": task_id, "cancelled": True, "state": "cancelled"}
    assert await work.states(task_id) == ["cancelled"]


# --- the field ----------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize(
    ("value", "named"),
    [
        (5, "retryPolicy"),
        ([], "retryPolicy"),
        ({"maxRetries": -1}, "maxRetries"),
        ({"maxRetries": 1001}, "maxRetries"),
        ({"maxRetries": 1.5}, "maxRetries"),
        ({"maxRetries": "3"}, "maxRetries"),
        ({"maxRetries": True}, "maxRetries"),
        ({"backoffMs": -1}, "backoffMs"),
        ({"backoffMs": 86_400_001}, "backoffMs"),
        ({"backoffMultiplier": 0.5}, "backoffMultiplier"),
        ({"backoffMultiplier": 101}, "backoffMultiplier"),
        ({"backoffMultiplier": "2"}, "backoffMultiplier"),
        ({"maxRetrys": 3}, "maxRetries"),
    ],
    ids=str,
)
async def test_a_policy_out_of_bounds_is_refused(work: Work, value: Any, named: str) -> None:
    answer = await work.post(lane=HELD, retryPolicy=value)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert named in answer.error


@on_sqlite
@pytest.mark.parametrize(
    "policy",
    [
        {"maxRetries": 0, "backoffMs": 0, "backoffMultiplier": 1},
        {"maxRetries": 1000, "backoffMs": 86_400_000, "backoffMultiplier": 100},
        {"backoffMultiplier": 1.25},
    ],
    ids=["least", "most", "a fraction"],
)
async def test_a_policy_at_its_bounds_is_taken_and_shown(
    work: Work, policy: dict[str, float]
) -> None:
    task = await work.api.show(await work.submit(lane=HELD, retryPolicy=policy))
    assert task["retryPolicy"] == policy
