"""Leases in the embedded API: the verbs of `POST /leases`, without HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fairlane.core.errors import Draining, InvalidRequest, LeaseLost
from fairlane.testing import MemoryFairlane

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def app() -> AsyncIterator[MemoryFairlane]:
    async with MemoryFairlane() as app:
        yield app


async def test_a_task_can_be_leased_and_completed(app: MemoryFairlane) -> None:
    task = await app.submit(handler="elsewhere", params={"n": 1})
    (lease,) = (await app.lease("w1", handlers=["elsewhere"]))["leases"]
    assert (await app.start_lease(lease["leaseId"]))["state"] == "running"
    told = await app.renew_lease(lease["leaseId"], progress=50, output="text", ttl_ms=1000)
    assert told["cancelRequested"] is False
    await app.output_lease(lease["leaseId"], " more", token=lease["token"])
    assert (await app.output(task.id))["text"] == "text more"
    await app.complete_lease(lease["leaseId"], result=[1])
    assert await task.result(10) == [1]


async def test_failing_and_releasing(app: MemoryFairlane) -> None:
    task = await app.submit(handler="elsewhere")
    (first,) = (await app.lease("w1"))["leases"]
    assert (await app.release_lease(first["leaseId"]))["state"] == "queued"
    (second,) = (await app.lease("w1", limit=5, lanes=["main"]))["leases"]
    await app.fail_lease(second["leaseId"], "broken", retry_after_ms=5000)
    assert (await task.show())["attempts"] == 1
    with pytest.raises(LeaseLost):
        await app.fail_lease(first["leaseId"], "late")


async def test_waiting_ends_with_a_task_or_a_withdrawal_or_with_time(app: MemoryFairlane) -> None:
    waiting = asyncio.create_task(app.lease("w1", wait_ms=10_000, ttl_ms=1000))
    await app.settle()
    await app.submit(handler="elsewhere")
    assert len((await waiting)["leases"]) == 1
    waiting = asyncio.create_task(app.lease("w1", wait_ms=10_000))
    await app.settle()
    assert (await app.withdraw_leases("w1"))["withdrawn"] == 1
    assert (await waiting)["leases"] == []
    waiting = asyncio.create_task(app.lease("w1", wait_ms=10_000))
    await app.settle()
    await app.advance(0.5)
    assert not waiting.done()
    await app.advance(9.5)
    assert (await waiting)["leases"] == []


async def test_a_caller_that_stops_waiting_keeps_nothing(app: MemoryFairlane) -> None:
    waiting = asyncio.create_task(app.lease("w1", wait_ms=10_000))
    await app.settle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    task = await app.submit(handler="elsewhere")
    await app.settle()
    assert (await task.show())["state"] == "queued"


async def test_an_expired_lease_is_reclaimed(app: MemoryFairlane) -> None:
    task = await app.submit(handler="elsewhere")
    (lease,) = (await app.lease("w1"))["leases"]
    await app.advance(299.999)
    assert (await task.show())["state"] == "assigned"
    await app.advance(0.001)
    shown = await task.show()
    assert (shown["state"], shown["gate"], shown["attempts"]) == ("queued", "delay", 1)
    with pytest.raises(LeaseLost):
        await app.complete_lease(lease["leaseId"])


async def test_a_node_that_drains_gives_no_more_leases(app: MemoryFairlane) -> None:
    waiting = asyncio.create_task(app.lease("w1", wait_ms=10_000))
    await app.settle()
    await app.drain()
    assert (await waiting)["leases"] == []
    with pytest.raises(Draining):
        await app.lease("w1")


async def test_what_is_wrong_is_raised(app: MemoryFairlane) -> None:
    with pytest.raises(InvalidRequest, match="worker"):
        await app.lease("node_1")
