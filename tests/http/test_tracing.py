"""One trace from the submission of a task over its attempts to its webhook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.fakes.collector import Collector
from tests.http.work import AT_ONCE, Work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.fakes.tab_instance import TabInstance
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks

pytestmark = pytest.mark.asyncio(loop_scope="session")

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest_asyncio.fixture(loop_scope="session")
async def collector() -> AsyncIterator[Collector]:
    async with Collector() as collector:
        yield collector


@pytest_asyncio.fixture(loop_scope="session")
async def traced(collector: Collector, serve: Serve, instance: TabInstance, hooks: Hooks) -> Work:
    settings = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        "NO_PROXY": "127.0.0.1",
    }
    return Work((await serve(environment=settings)).api, instance, hooks)


async def submit(work: Work, **fields: Any) -> str:
    answer = await work.api.post("/tasks", work.task(**fields), traceparent=CALLER)
    assert answer.status == 202, answer
    task_id: str = answer.json["taskId"]
    return task_id


async def test_a_task_is_one_trace_of_its_caller(
    traced: Work, collector: Collector, hooks: Hooks
) -> None:
    hook = hooks.new()
    traced.fail_next(1)
    task_id = await submit(traced, retryPolicy=AT_ONCE, callbackUrl=hook.url)
    await traced.api.end_of(task_id)
    delivery = await hook.one()
    (submitted,) = await collector.named("submit", 1)
    attempts = sorted(
        await collector.named("attempt", 2), key=lambda s: s.about["fairlane.attempt"]
    )
    (webhook,) = await collector.named("webhook", 1)
    assert {span.trace for span in (submitted, *attempts, webhook)} == {TRACE}
    assert submitted.parent == "b7ad6b7169203331"
    assert {span.parent for span in (*attempts, webhook)} == {submitted.id}
    assert {span.about["fairlane.task_id"] for span in (submitted, *attempts, webhook)} == {task_id}
    assert {span.service for span in collector.spans} == {"fairlane"}
    # What went wrong is in the trace, and each request carries the step that it belongs to.
    assert [span.failed is not None for span in attempts] == [True, False]
    sent = [one.headers["traceparent"] for one in traced.actions()]
    assert sent == [span.traceparent for span in attempts]
    assert delivery.headers["traceparent"] == webhook.traceparent
    assert (await traced.api.show(task_id))["traceparent"] == submitted.traceparent


async def test_a_task_of_a_caller_without_a_trace_begins_one(
    traced: Work, collector: Collector
) -> None:
    await traced.api.end_of(await traced.echo())
    (submitted,) = await collector.named("submit", 1)
    (attempt,) = await collector.named("attempt", 1)
    assert submitted.parent == ""
    assert (attempt.trace, attempt.parent) == (submitted.trace, submitted.id)


@pytest.mark.parametrize("header", ["", "00-xyz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_trace_that_is_none_is_ignored(
    traced: Work, collector: Collector, header: str
) -> None:
    answer = await traced.api.post("/tasks", {"handler": "echo"}, traceparent=header)
    assert answer.status == 202
    (submitted,) = await collector.named("submit", 1)
    assert submitted.parent == ""


async def test_tasks_of_a_batch_are_of_one_trace(traced: Work, collector: Collector) -> None:
    answer = await traced.batch(traced.echo_item(), traced.echo_item())
    await traced.api.ended(*answer.ids)
    (submitted,) = await collector.named("submit", 1)
    assert submitted.about["fairlane.tasks"] == 2
    assert {one.parent for one in await collector.named("attempt", 2)} == {submitted.id}


async def test_no_traces_are_recorded_by_default(work: Work) -> None:
    task_id = await submit(work)
    await work.api.end_of(task_id)
    assert "traceparent" not in await work.api.show(task_id)
    assert "traceparent" not in work.actions()[-1].headers
