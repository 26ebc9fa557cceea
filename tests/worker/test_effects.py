"""`work.effect`: acts once, and parks rather than acting twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import AsyncClient, EffectNotDone, Worker
from fairlane.testing import MemoryFairlane
from tests.http.server import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fairlane import TaskHandle, Work
    from fairlane.schema.task_status import TaskStatus

AGAIN = {"maxRetries": 5, "backoffMs": 0}


@pytest.fixture
async def app() -> AsyncIterator[MemoryFairlane]:
    async with MemoryFairlane() as app:
        yield app


async def at_rest(app: MemoryFairlane, task: TaskHandle) -> TaskStatus:
    for _ in range(100):
        await app.settle()
        shown = await task.show()
        if shown.state in ("done", "failed", "parked"):
            return shown
        await app.advance(1)
    raise AssertionError(shown)


class Bank:
    """Counts charges by key; the connection may break before or after a charge."""

    def __init__(self, *breaks: str) -> None:
        self.keys: list[str] = []
        self._breaks = list(breaks)

    async def charge(self, key: str, amount: int = 1) -> Any:
        await asyncio.sleep(0)
        return self.plain(key, amount)

    def plain(self, key: str, amount: int = 1) -> Any:
        when = self._breaks.pop(0) if self._breaks else ""
        if when == "refused":
            raise EffectNotDone("the bank is closed")
        if when != "before":
            self.keys.append(key)
        if when:
            raise ConnectionError("no answer")
        return {"paid": amount}

    async def find(self, key: str) -> Any:
        if key not in self.keys:
            raise EffectNotDone
        return {"found": True}

    def look(self, key: str) -> Any:
        return {"found": True} if key in self.keys else EffectNotDone


async def test_an_effect_runs_once_under_one_key(app: MemoryFairlane) -> None:
    bank = Bank()

    @app.handler("pay")
    async def pay(work: Work) -> object:
        paid = await work.effect("charge:42", bank.charge, amount=7)
        if work.attempt == 1:
            raise RuntimeError("crash after the outcome was recorded")
        return paid

    task = await app.submit(handler="pay", retry_policy=AGAIN)
    shown = await at_rest(app, task)
    assert (shown.state, shown.result) == ("done", {"paid": 7})
    assert bank.keys == [f"{task.id}:charge:42"]
    assert shown.steps is not None
    assert [(one.name, one.effect) for one in shown.steps] == [("charge:42", "done")]


@pytest.mark.parametrize("breaks", ["before", "after"])
async def test_an_unknown_outcome_parks_the_task_until_an_operator_decides(
    app: MemoryFairlane, breaks: str
) -> None:
    bank = Bank(breaks)

    @app.handler("pay")
    async def pay(work: Work) -> object:
        return await work.effect("charge:42", bank.charge)

    task = await app.submit(handler="pay", retry_policy=AGAIN)
    shown = await at_rest(app, task)
    assert (shown.state, shown.attempts) == ("parked", 2)
    assert shown.parked_reason is not None
    assert shown.parked_reason.startswith("effect_unknown")
    assert '"charge:42"' in (await app.why(task.id)).reason
    assert shown.steps is not None
    assert shown.steps[0].effect == "unknown"
    happened = bool(bank.keys)
    value = {"paid": 1} if happened else None
    done = await app.resolve_effect(task.id, "charge:42", happened=happened, value=value)
    assert done.state == "queued"
    shown = await at_rest(app, task)
    assert (shown.state, shown.result) == ("done", {"paid": 1})
    assert bank.keys == [f"{task.id}:charge:42"]


@pytest.mark.parametrize("breaks", ["before", "after"])
@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_check_finds_out_instead(
    app: MemoryFairlane, breaks: str, *, in_thread: bool
) -> None:
    bank = Bank(breaks)

    @app.handler("async")
    async def later(work: Work) -> object:
        return await work.effect("charge:42", bank.charge, check=bank.find)

    @app.handler("plain")
    def plain(work: Work) -> object:
        return work.effect("charge:42", bank.plain, check=bank.look)

    task = await app.submit(handler="plain" if in_thread else "async", retry_policy=AGAIN)
    shown = await at_rest(app, task)
    expected = {"found": True} if breaks == "after" else {"paid": 1}
    assert (shown.state, shown.result) == ("done", expected)
    assert bank.keys == [f"{task.id}:charge:42"]


async def test_an_effect_that_says_it_did_not_happen_is_tried_again(app: MemoryFairlane) -> None:
    banks = {name: Bank("refused") for name in ("async", "plain")}

    @app.handler("async")
    async def later(work: Work) -> object:
        return await work.effect("charge:42", banks["async"].charge)

    @app.handler("plain")
    def plain(work: Work) -> object:
        return work.effect("charge:42", banks["plain"].plain)

    for handler, bank in banks.items():
        task = await app.submit(handler=handler, retry_policy=AGAIN)
        shown = await at_rest(app, task)
        assert shown.state == "done"
        assert shown.attempt_log is not None
        assert shown.attempt_log[0].error == "the bank is closed"
        assert bank.keys == [f"{task.id}:charge:42"]


async def test_a_step_in_the_place_of_an_effect_fails_the_task(app: MemoryFairlane) -> None:
    bank = Bank("after")

    @app.handler("pay")
    async def pay(work: Work) -> object:
        if work.attempt == 1:
            return await work.effect("charge", bank.charge)
        return await work.step("charge", bank.charge, "key")

    task = await app.submit(handler="pay", retry_policy=AGAIN)
    shown = await at_rest(app, task)
    assert shown.state == "failed"
    assert shown.error == 'step 1 "charge" was recorded as an effect; call work.effect for it'


async def test_a_worker_on_the_network_has_effects_too(tmp_path: Path) -> None:
    bank = Bank("after", "refused")
    async with serving(tmp_path, f"sqlite:///{tmp_path / 'f.db'}") as server:
        worker = Worker(server.url)

        @worker.handler("remote")
        async def remote(work: Work) -> object:
            return await work.effect("charge:42", bank.charge)

        running = asyncio.create_task(worker.run())
        async with AsyncClient(server.url) as client:
            task = await client.submit(handler="remote", retry_policy=AGAIN)
            shown = await client.wait(task.task_id)
            assert shown.state == "parked"
            await client.resolve_effect(task.task_id, "charge:42", happened=False)
            shown = await client.wait(task.task_id)
        worker.stop()
        await running
    assert (shown.state, shown.result) == ("done", {"paid": 1})
    assert len(bank.keys) == 2, "the operator was wrong the first time"
