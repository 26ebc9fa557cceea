"""Cron in the embedded API: jobs whose tasks are run by functions of this process."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Fairlane
from fairlane.core import errors
from fairlane.core.errors import ExecutionFailed
from tests.fakes.waiting import WAIT_SECONDS, TooLate, in_time, judge, steadily

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fairlane.worker.executors.base import Work

MEMORY = "sqlite://:memory:"
YEARLY = {"kind": "cron", "expr": "@yearly"}


@pytest.fixture
async def app() -> AsyncIterator[Fairlane]:
    async with Fairlane(MEMORY, drain_seconds=0) as app:
        yield app


async def made(app: Fairlane, handler: str = "echo", **fields: Any) -> dict[str, Any]:
    task = {"handler": handler}
    return await app.create_cron_job({"name": "a", "schedule": YEARLY, "task": task, **fields})


async def test_every_verb_of_cron_is_there(app: Fairlane) -> None:
    job = await made(app)
    assert (await app.cron_job("a"))["id"] == job["id"]
    assert (await app.update_cron_job("a", {"overlap": "allow"}))["overlap"] == "allow"
    off = await app.toggle_cron_job(job["id"], enabled=False)
    assert (await app.cron_jobs(enabled=False)).jobs == [off]
    assert (await app.cron_jobs(enabled=True))["jobs"] == []
    several = await app.create_cron_jobs(
        [{**job_document(), "name": "b"}, {**job_document(), "name": "c", "agentId": "x"}]
    )
    assert several["count"] == 2
    assert [one["name"] for one in (await app.cron_jobs(agent="x"))["jobs"]] == ["c"]
    assert (await app.delete_cron_job("b", cancel=True))["deleted"] is True
    with pytest.raises(errors.NotFound):
        await app.cron_job("b")
    with pytest.raises(errors.InvalidRequest, match="overlap"):
        await app.update_cron_job("a", {"overlap": "x"})


def job_document() -> dict[str, Any]:
    return {"name": "a", "schedule": YEARLY, "task": {"handler": "echo"}}


async def test_a_run_by_hand_reaches_the_handler(app: Fairlane) -> None:
    @app.handler("greet")
    async def greet(work: Work) -> str:
        return f"hello {work.agent}"

    await made(app, "greet", agentId="ada")
    started = await app.run_cron_job("a")
    await ended(app, started["taskId"])
    (entry,) = (await app.cron_runs("a"))["runs"]
    assert (entry["status"], entry["taskId"]) == ("ok", started["taskId"])
    assert "hello ada" in entry["summary"]
    assert (await app.cron_runs())["runs"] == [entry]
    assert (await app.cron_runs("a", status="error"))["runs"] == []


async def test_a_handler_that_keeps_failing_ends_its_run(app: Fairlane) -> None:
    @app.handler("broken")
    async def broken(_: Work) -> None:
        raise ExecutionFailed("no luck")

    await made(app, "broken", retryPolicy={"maxRetries": 1, "backoffMs": 0})
    started = await app.run_cron_job("a")
    await ended(app, started["taskId"])
    (entry,) = (await app.cron_runs("a"))["runs"]
    assert (entry["status"], entry["attempts"]) == ("error", 2)
    assert "no luck" in entry["error"]
    assert (await app.cron_job("a"))["state"]["consecutiveErrors"] == 1


@pytest.mark.slow
async def test_a_moment_comes(app: Fairlane) -> None:
    heard = asyncio.Event()

    @app.handler("ring")
    async def ring(_: Work) -> None:
        heard.set()

    async def come(seconds: float) -> float:
        heard.clear()
        at = datetime.now(UTC) + timedelta(seconds=seconds / 2)
        try:
            await made(app, "ring", name=f"in-{seconds}", schedule={"kind": "at", "at": at})
        except errors.InvalidRequest as error:
            if "in the past" in error.message:
                raise TooLate("its moment was over before it arrived") from None
            raise
        async with asyncio.timeout(WAIT_SECONDS):
            await heard.wait()
        return (datetime.now(UTC) - at).total_seconds()

    async def judged() -> None:
        late_seconds = await in_time(come)
        assert late_seconds >= 0
        judge(late_seconds, 2)

    await steadily(judged)


async def test_a_preview_takes_moments_of_python(app: Fairlane) -> None:
    at = datetime(2090, 1, 1, tzinfo=UTC)
    found = (await app.cron_preview(at=at, tz="Asia/Tokyo"))["next"]
    expected = {"utc": "2090-01-01T00:00:00.000Z", "local": "2090-01-01T09:00:00+09:00"}
    assert found == [expected]
    assert len((await app.cron_preview("@daily", n=3))["next"]) == 3
    assert len((await app.cron_preview(every_ms=5000))["next"]) == 5


async def ended(app: Fairlane, task_id: str) -> None:
    found = await app.wait_once(task_id, timeout_ms=60_000)
    assert found["state"] in ("done", "failed"), found
