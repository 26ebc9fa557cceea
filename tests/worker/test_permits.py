"""Permits of runs, in the server's own process and in a worker on the network."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fairlane import AsyncClient, ExecutionFailed, Fairlane, ResourceBusy, Work, Worker
from fairlane.core.errors import TaskFailed
from tests.http.server import Server, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

POLICY = {
    "lanes": {"metered": {"needs": {"total": {"usd": 2}}}},
    "resources": {
        "total": {"limits": [{"unit": "usd", "amount": 100, "resetEvery": "month"}]},
        "spend": {"limits": [{"unit": "usd", "amount": "10", "resetEvery": "month"}], "by": "key"},
        "lock": {"limits": [{"amount": 1}], "by": "key"},
    },
}
_numbers = itertools.count(1)


class Side:
    """Where handlers run: embedded, or in a worker of a server."""

    def __init__(self, app: Fairlane | Worker, client: Any) -> None:
        self.app = app
        self.client = client
        self.key = f"k{next(_numbers)}"

    async def run(self, handler: Any, **fields: Any) -> Any:
        name = f"job-{self.key}-{next(_numbers)}"
        self.app.handler(name)(handler)
        submitted = await self.client.submit(handler=name, agent="ada", **fields)
        if isinstance(self.client, Fairlane):
            return await submitted.result(timeout=60)
        task = await self.client.wait(submitted["taskId"], timeout=60)
        if task.state != "done":
            raise TaskFailed(submitted["taskId"], task.state, task.error)
        return task.result

    async def used(self) -> Any:
        (limit,) = (await self.client.resource("spend", key=self.key)).limits
        assert limit.reserved == 0
        return limit.used


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    async with serving(folder, f"sqlite:///{folder / 'f.db'}", policy=POLICY) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module", params=["embedded", "worker"])
async def side(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[Side]:
    if request.param == "embedded":
        async with Fairlane("sqlite://:memory:", policy=POLICY) as app:
            yield Side(app, app)
        return
    worker = Worker(server.url, lease_seconds=60, drain_seconds=60)

    @worker.handler("none")
    def none(work: Work) -> None:
        raise ExecutionFailed(work.task_id)

    running = asyncio.create_task(worker.run())
    async with AsyncClient(server.url) as client:
        yield Side(worker, client)
    worker.stop()
    await running


async def test_a_permit_is_charged_what_was_used(side: Side) -> None:
    spend = f"spend/{side.key}"

    async def ask(work: Work) -> str:
        async with work.permit({spend: {"usd": 1}}) as permit:
            permit.used(usd="0.25")
        return permit.permit_id

    assert (await side.run(ask)).startswith("pmt_")
    assert await side.used() == "0.25"


async def test_a_plain_function_has_permits_too(side: Side) -> None:
    spend = f"spend/{side.key}"

    def ask(work: Work) -> str:
        with work.permit({spend: {"usd": 1}}) as permit:
            permit.used(usd="0.125")
        return "done"

    assert await side.run(ask) == "done"
    assert await side.used() == "0.125"


async def test_an_unreported_permit_is_charged_as_reserved(side: Side) -> None:
    spend = f"spend/{side.key}"

    async def ask(work: Work) -> None:
        async with work.permit({spend: {"usd": "0.5"}}):
            raise ExecutionFailed("broken", retryable=False)

    with pytest.raises(TaskFailed, match="broken"):
        await side.run(ask)
    assert await side.used() == "0.5"


async def test_calls_wait_for_each_other(side: Side) -> None:
    lock, inside, most = f"lock/{side.key}", 0, 0

    async def ask(work: Work) -> None:
        nonlocal inside, most
        async with work.permit({lock: {}}):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1

    await asyncio.gather(*(side.run(ask) for _ in range(10)))
    assert most == 1


async def test_a_run_need_not_wait_longer_than_it_wants(side: Side) -> None:
    lock = f"lock/{side.key}"

    async def ask(work: Work) -> str:
        async with work.permit({lock: {}}):
            with pytest.raises(ResourceBusy):
                async with work.permit({lock: {}}, wait_seconds=0.05):
                    raise AssertionError("two have the lock")
        return "refused"

    assert await side.run(ask) == "refused"


async def test_a_task_reports_the_use_of_its_own_needs(side: Side) -> None:
    spend = f"spend/{side.key}"

    async def ask(work: Work) -> None:
        work.used(usd="0.75")

    await side.run(ask, needs={spend: {"usd": 2}})
    assert await side.used() == "0.75"


async def test_a_task_reports_the_use_of_the_needs_of_its_lane(side: Side) -> None:
    async def ask(work: Work) -> None:
        work.used(usd="0.75")

    await side.run(ask, lane="metered")
    (limit,) = (await side.client.resource("total")).limits
    assert (limit.used, limit.reserved) == ("0.75", 0)


async def test_a_failure_that_closes_costs_no_attempt(side: Side) -> None:
    spend, calls = f"spend/{side.key}", 0

    async def ask(work: Work) -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            work.used(usd=0)
            raise ExecutionFailed("429", closed={spend: 0.05})
        return work.attempt

    assert await side.run(ask, needs={spend: {"usd": 1}}, retry_policy={"maxRetries": 0}) == 1
    assert calls == 2


async def test_a_wrong_need_fails_the_run_and_says_why(side: Side) -> None:
    async def ask(work: Work) -> None:
        async with work.permit(spent={"usd": 1}):
            raise AssertionError("there is no such resource")

    with pytest.raises(TaskFailed, match="did you mean spend"):
        await side.run(ask, retry_policy={"maxRetries": 0})


async def test_a_resource_must_be_named_if_there_are_several(side: Side) -> None:
    spend, lock = f"spend/{side.key}", f"lock/{side.key}"

    async def ask(work: Work) -> str:
        async with work.permit({spend: {"usd": 1}, lock: {}}) as permit:
            with pytest.raises(Exception, match="pass the name of one"):
                permit.used(usd=1)
            permit.used(spend, usd="0.5")
        return "named"

    assert await side.run(ask) == "named"
    assert await side.used() == "0.5"


async def test_only_a_running_handler_asks_for_permits() -> None:
    work = Work("tsk_1", "ada", "handler", "main", 1, None, {})
    with pytest.raises(RuntimeError, match="only a running handler can ask for a permit"):
        work.permit(gpt={})
