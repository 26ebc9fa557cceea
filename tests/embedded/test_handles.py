"""Handles of tasks and batches, and the scheduler without an event loop."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from fairlane import Fairlane, SyncFairlane, TaskFailed
from fairlane.testing import MemoryFairlane

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_handle_stands_for_a_parent() -> None:
    async with MemoryFairlane() as app:
        first = await app.submit(handler="echo", params={"n": 1})
        last = await app.submit(handler="echo", depends_on=[first], idempotency_key="a")
        more = await app.submit(handler="echo", depends_on=[first, last.id])
        assert (await more.show()).depends_on == [first.id, last.id]
        batch = await app.submit_batch([{"handler": "echo", "dependsOn": [more]}])
        (one,) = batch.handles
        assert one is not None
        assert (await one.show()).depends_on == [more.id]


async def test_the_field_that_json_cannot_hold_is_named() -> None:
    async with MemoryFairlane() as app:
        where = r"field 'params.job.urls\[1\]' is of type object, which JSON cannot hold"
        with pytest.raises(TypeError, match=where):
            await app.submit(handler="echo", params={"job": {"urls": ["a", object()]}})
        with pytest.raises(TypeError, match=r"field 'params.x' is of type object"):
            await app.submit_batch([{"handler": "echo", "params": {"x": object()}}])


async def test_a_batch_has_handles_and_results() -> None:
    async with MemoryFairlane() as app:
        batch = await app.submit_batch(
            [{"handler": "echo", "params": {"n": n}} for n in range(3)], agent="a1"
        )
        await app.settle()
        assert await batch.results(timeout=10) == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert (batch.id, batch.accepted) == (batch.batch, 3)
        assert (await batch.show()).state == "completed"
        assert "app" not in str(batch.to_dict())


async def test_a_batch_raises_what_was_rejected_or_failed() -> None:
    async with MemoryFairlane(policy={"kinds": {"handler": {"maxAttempts": 1}}}) as app:
        wrong = await app.submit_batch([{"handler": "echo"}, {"handler": "echo", "delayMs": -1}])
        assert [one is None for one in wrong.handles] == [False, True]
        with pytest.raises(TaskFailed, match="of item 1 ended rejected"):
            await wrong.results()
        later = await app.submit_batch([{"handler": "echo", "delayMs": 60_000}])
        with pytest.raises(TimeoutError):
            await later.results(timeout=0.01)
        assert (await later.cancel()).cancelled == 1
        with pytest.raises(TaskFailed, match="ended cancelled"):
            await later.results()


def test_a_script_uses_the_scheduler_without_an_event_loop(tmp_path: Path) -> None:
    with SyncFairlane(f"sqlite:///{tmp_path / 'fairlane.db'}") as app:
        ran_in: list[str] = []

        @app.handler("double")
        def double(work: Any) -> int:
            ran_in.append(threading.current_thread().name)
            return 2 * int(work.params["n"])

        first = app.submit(handler="double", params={"n": 21})
        last = app.submit(handler="double", params={"n": 4}, depends_on=[first])
        assert app.result(last.task_id, timeout=30) == 8
        assert app.wait(first.task_id, timeout=30).result == 42
        assert threading.current_thread().name not in ran_in
        types = [one["type"] for one in app.events(after=0, task=first.task_id, follow=False)]
        assert types[-1] == "task.completed"
        assert "".join(one["text"] for one in app.output(first.task_id, follow=True)) == ""
    with pytest.raises(RuntimeError, match="not running"):
        app.stats()


def test_a_web_application_starts_and_stops_the_scheduler() -> None:
    app = Fairlane("sqlite://:memory:")

    async def submit(request: Request) -> JSONResponse:
        task = await request.state.fairlane.submit(handler="echo", params={"n": 1})
        return JSONResponse(await task.result(timeout=30))

    site = Starlette(routes=[Route("/", submit)], lifespan=app.lifespan)
    with TestClient(site) as client:
        assert client.get("/").json() == {"n": 1}


async def test_the_log_has_a_line_for_each_start_and_end_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level("DEBUG", logger="fairlane.worker"):
        async with MemoryFairlane(policy={"kinds": {"handler": {"maxAttempts": 1}}}) as app:
            good = await app.submit(handler="echo", params={"n": 1})
            bad = await app.submit(handler="sleep", params={"ms": "x"})
            await app.settle()
    lines = [(one.levelname, one.getMessage()) for one in caplog.records]
    attempt = "attempt 1 of 1"
    assert ("DEBUG", f"task {good.id} (handler/echo) starts {attempt}") in lines
    assert ("DEBUG", f"task {good.id} (handler/echo) is done in {attempt}") in lines
    (failed,) = [text for level, text in lines if level == "WARNING"]
    assert failed.startswith(f"task {bad.id} (handler/sleep) failed in {attempt}: sleep: params.ms")
