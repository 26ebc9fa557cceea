"""Stopping: no new tasks, running ones may finish, waiting ones run after the next start.

Fact 70 of specs/pinchtab.md section 17 as our documents have it (queued tasks survive); weakness 4
of section 18; section 21: submissions are refused with 503 while the server stops.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import aiohttp
import pytest

from tests.fakes.waiting import TooLate, in_time, steadily, within
from tests.http.api import Answer, eventually
from tests.http.stage import HANG, ONE, POLICY, Stage

if TYPE_CHECKING:
    from tests.fakes.tab_instance import TabInstance
    from tests.http.api import Api
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def draining(api: Api) -> None:
    """Wait until the server refuses new work."""

    async def refused() -> bool | None:
        answer = await api.post("/tasks", {"agentId": "late", "action": "click", "lane": ONE})
        if answer.status == 202:
            return None
        assert (answer.status, answer.code) == (503, "draining")
        assert answer.json["retryable"] is True
        return True

    await eventually(refused)


async def test_a_stopping_server_refuses_new_work_finishes_what_runs_and_keeps_the_rest(
    store_url: str, serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    server = await serve(store_url, policy=POLICY, drain_seconds=20)
    stage, hook = Stage(server.api, instance, hooks), hooks.new()
    running = await stage.block(ONE, callbackUrl=hook.url)
    waiting = [
        await stage.submit(lane=ONE, params={"n": n}, callbackUrl=hook.url) for n in range(3)
    ]
    server.signal(signal.SIGTERM)
    await draining(server.api)
    batch = {"agentId": "late", "tasks": [{"action": "click"}]}
    answer = await server.api.post("/tasks/batch", batch)
    assert (answer.status, answer.code) == (503, "draining")
    assert (await server.api.get("/health/ready")).status == 503
    assert (await server.api.get("/health/live")).status == 200
    # It can still be asked, and told to cancel.
    assert (await server.api.show(running))["state"] == "running"
    assert (await server.api.cancel(waiting[1])).status == 200
    instance.release()
    assert await server.exit_code() == 0
    assert stage.numbers() == []

    again = await serve(store_url, policy=POLICY)
    assert (await again.api.show(running))["state"] == "done"
    tasks = await again.api.ended(*waiting)
    assert [task["state"] for task in tasks] == ["done", "cancelled", "done"]
    assert stage.numbers() == [0, 2]
    deliveries = await hook.until(4)
    assert sorted(one.task["taskId"] for one in deliveries) == sorted([running, *waiting])
    metrics = (await again.api.stats())["metrics"]
    assert (metrics["tasksCompleted"], metrics["tasksCancelled"]) == (3, 1)


async def test_work_that_outlasts_the_drain_is_ended_and_not_carried_out_twice(
    serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    async def outlast() -> None:
        server = await serve(drain_seconds=0.3)
        stage = Stage(server.api, instance, hooks)
        task_id = await stage.submit(fake=HANG)
        (entry,) = await stage.arrived(1)
        began = time.monotonic()
        with within(5):
            server.signal()
            assert await server.exit_code() == 0
        assert time.monotonic() - began > 0.25
        assert entry.outcome == "gone"
        again = await serve()
        task = await again.api.show(task_id)
        assert (task["state"], task["attempts"]) == ("failed", 1)
        assert "stopped" in task["error"]
        assert len(stage.actions()) == 1
        await again.stop()

    await steadily(outlast)


async def test_an_idle_server_stops_at_once_though_callers_wait(serve: Serve) -> None:
    """Neither an idle connection nor a waiting caller delays the stop for long."""

    async def stop(_: float) -> None:
        server = await serve(policy={"lanes": {"browser": {"paused": True}}})
        task_id = await server.api.submit(agentId="a", action="click")
        patient = asyncio.create_task(server.api.get(f"/tasks/{task_id}/wait", timeoutMs=60_000))
        assert (await server.api.get("/health/live")).status == 200
        with within(4):
            server.signal(signal.SIGINT)
            assert await server.exit_code() == 0
        (outcome,) = await asyncio.gather(patient, return_exceptions=True)
        if isinstance(outcome, aiohttp.ClientError):
            raise TooLate("it stopped before it had heard of who waits")
        assert isinstance(outcome, Answer), outcome
        assert (outcome.status, outcome.json["state"]) == (200, "queued")

    await steadily(lambda: in_time(stop))


async def test_a_second_signal_ends_it_at_once_and_a_started_action_is_not_repeated(
    serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    async def end() -> None:
        server = await serve(policy=POLICY, drain_seconds=600)
        stage = Stage(server.api, instance, hooks)
        running = await stage.block(ONE)
        waiting = await stage.submit(lane=ONE, params={"n": 1})
        server.signal()
        await draining(server.api)
        with within(2):
            server.signal()
            assert await server.exit_code() != 0
        again: Server = await serve(policy=POLICY)
        assert (await again.api.end_of(running))["state"] == "failed"
        assert (await again.api.end_of(waiting))["state"] == "done"
        assert stage.numbers() == [1]
        assert len(stage.actions()) == 2
        await again.stop()

    await steadily(end)


async def test_a_second_server_on_the_same_file_is_refused(serve: Serve) -> None:
    await serve()
    with pytest.raises(AssertionError, match="does not start") as refusal:
        await serve()
    assert "Traceback" not in str(refusal.value)
