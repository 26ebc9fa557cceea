"""`work.sleep`, `work.signal`, `work.submit`, `work.results`: runs that wait without a slot."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fairlane import AsyncClient, ChildFailed, ExecutionFailed, Worker
from fairlane.testing import MemoryFairlane
from tests.hostile.inside import Inside
from tests.http.api import eventually
from tests.http.server import serving
from tests.worker.test_steps import Calls, ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from fairlane import TaskHandle, Work


@pytest.fixture
async def app() -> AsyncIterator[MemoryFairlane]:
    async with MemoryFairlane() as app:
        yield app


async def suspended(app: MemoryFairlane, task: TaskHandle) -> None:
    for _ in range(1000):
        await app.settle()
        if (await task.show()).gate == "suspend":
            return
    raise AssertionError(await task.show())


async def until_it_waits_for(word: str, client: AsyncClient, task_id: str) -> None:
    async def waits() -> bool | None:
        return word in (await client.why(task_id)).reason or None

    await eventually(waits)


async def test_a_run_sleeps_without_a_slot_and_continues(app: MemoryFairlane) -> None:
    calls = Calls()

    @app.handler("nap")
    async def nap(work: Work) -> object:
        first = await work.step("before", calls.plain, "before", 1)
        await work.sleep(3600)
        return [first, await work.step("after", calls.plain, "after", work.attempt)]

    task = await app.submit(handler="nap")
    await suspended(app, task)
    assert (await app.why(task.id)).reason.startswith("its run sleeps until")
    assert (await task.show()).worker is None
    await app.advance(3600)
    shown = await ended(app, task)
    assert (shown.state, shown.result, shown.attempts) == ("done", [1, 1], 1)
    assert calls.made == ["before", "after"]


async def test_a_run_submits_children_once_and_gets_their_results(app: MemoryFairlane) -> None:
    runs = []

    @app.handler("parent")
    async def parent(work: Work) -> object:
        runs.append(work.attempt)
        children = [
            await work.submit(handler="echo", params={"n": number}, lane="subagent")
            for number in (1, 2)
        ]
        if len(runs) == 1:
            raise RuntimeError("crash")
        return await work.results(children)

    retry = {"maxRetries": 2, "backoffMs": 500}
    task = await app.submit(handler="parent", agent="ada", retry_policy=retry)
    shown = await ended(app, task)
    assert shown.result == [{"n": 1}, {"n": 2}]
    echoes = [one for one in (await app.tasks()).tasks if one.handler == "echo"]
    assert len(echoes) == 2
    assert {one.agent for one in echoes} == {"ada"}
    assert [(await app.show(one.task_id)).child_of for one in echoes] == [task.id] * 2


async def test_a_fresh_retry_submits_new_children(app: MemoryFairlane) -> None:
    @app.handler("parent")
    async def parent(work: Work) -> object:
        child = await work.submit(handler="echo")
        raise ExecutionFailed(child, retryable=False)

    task = await app.submit(handler="parent")
    first = (await ended(app, task)).error
    await app.retry(task.id)
    assert (await ended(app, task)).error == first
    await app.retry(task.id, fresh=True)
    assert (await ended(app, task)).error != first


async def test_a_failed_child_is_told_and_can_be_caught(app: MemoryFairlane) -> None:
    @app.handler("breaks")
    async def breaks(work: Work) -> object:
        raise ExecutionFailed("no", retryable=False)

    @app.handler("parent")
    async def parent(work: Work) -> object:
        child = await work.submit(handler="breaks")
        try:
            return await work.results([child])
        except ChildFailed as error:
            if work.params.get("catch"):
                return [error.task_id == child, error.state]
            raise

    caught = await app.submit(handler="parent", params={"catch": True})
    assert (await ended(app, caught)).result == [True, "failed"]
    task = await app.submit(handler="parent")
    shown = await ended(app, task)
    assert (shown.state, shown.attempts) == ("failed", 1)
    assert str(shown.error).startswith("child_failed: task ")


async def test_a_signal_reaches_the_run_over_http(app: MemoryFairlane) -> None:
    @app.handler("shop")
    def shop(work: Work) -> object:
        return work.signal("paid")

    task = await app.submit(handler="shop")
    await suspended(app, task)
    inside = Inside(app)
    target = f"/tasks/{task.id}/signals/paid"
    answer = await inside.ask("POST", target, {"value": {"amount": 5}})
    assert (answer.status, answer.json["accepted"]) == (200, True)
    assert (await inside.ask("POST", target, {})).json["accepted"] is False
    assert (await ended(app, task)).result == {"amount": 5}


async def test_a_wait_that_is_not_possible_fails_with_the_reason(app: MemoryFairlane) -> None:
    @app.handler("lonely")
    async def lonely(work: Work) -> object:
        return await work.results(["tsk_nobody"])

    shown = await ended(app, await app.submit(handler="lonely"))
    assert (shown.state, shown.error) == (
        "failed",
        "field 'until.tasks': task \"tsk_nobody\" not found",
    )


@pytest.mark.parametrize(
    ("until", "problem"),
    [
        ({}, "exactly one"),
        ({"at": "2030-01-01T00:00:00Z", "signal": "x"}, "exactly one"),
        ({"at": "soon"}, "until.at"),
        ({"delayMs": -1}, "delayMs"),
        ({"tasks": []}, "tasks"),
        ({"signal": "two words"}, "signal"),
        ({"message": False}, "message"),
    ],
)
async def test_bad_waits_are_refused_and_named(
    app: MemoryFairlane, until: dict[str, object], problem: str
) -> None:
    answer = await Inside(app).ask("POST", "/leases/lse_1_1/suspend", {"until": until})
    assert answer.status == 400
    assert problem in answer.json["error"]


async def test_a_worker_on_the_network_waits_too(tmp_path: Path) -> None:
    calls = Calls()
    async with serving(tmp_path, f"sqlite:///{tmp_path / 'f.db'}") as server:
        worker = Worker(server.url)

        @worker.handler("agent")
        async def agent(work: Work) -> object:
            await work.step("begin", calls.plain, "begin")
            child = await work.submit(handler="echo", params={"n": 1})
            await work.sleep(0.05)
            paid = await work.signal("paid")
            return [paid, await work.results([child])]

        running = asyncio.create_task(worker.run())
        async with AsyncClient(server.url) as client:
            task = await client.submit(handler="agent")
            await until_it_waits_for("signal", client, task.task_id)
            await client.send_signal(task.task_id, "paid", value=7)
            shown = await client.wait(task.task_id)
        worker.stop()
        await running
    assert (shown.state, shown.result, shown.attempts) == ("done", [7, [{"n": 1}]], 1)
    assert calls.made == ["begin"]
    assert shown.steps is not None
    assert [one.name for one in shown.steps] == [
        *("begin", "submit", "sleep", "signal:paid", "results")
    ]


# --- messages -----------------------------------------------------------------------------------


async def test_a_run_takes_the_messages_that_are_sent_to_it(app: MemoryFairlane) -> None:
    said: list[str] = []
    began, sent = asyncio.Event(), asyncio.Event()

    @app.handler("chat")
    async def chat(work: Work) -> object:
        said.append(work.params["message"])
        began.set()
        await sent.wait()
        found = await work.inbox()
        assert await work.inbox() == []
        return [(one["text"], one["sender"], one.get("metadata")) for one in found]

    @app.handler("plain")
    def plain(work: Work) -> object:
        return work.inbox()

    to = {"handler": "chat", "debounce_ms": 0}
    first = await app.message("chat:1", "go", sender="ada", **to)
    await began.wait()
    second = await app.message(
        "chat:1", "stop", sender="ada", mode="steer", metadata={"n": 1}, **to
    )
    sent.set()
    await app.settle()
    done = await app.show(first.task_id)
    assert done.result == [["stop", "ada", {"n": 1}]]
    taken = await app.show(second.task_id)
    assert (taken.state, taken.result) == ("done", {"takenBy": first.task_id})
    assert said == ["go"]
    empty = await app.submit(handler="plain")
    assert (await ended(app, empty)).result == []


async def test_a_worker_takes_messages_and_waits_for_one(tmp_path: Path) -> None:
    """Over HTTP: a further attempt gets what the first took; a wait returns the next message."""
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    async with serving(tmp_path, store) as server, AsyncClient(server.url) as client:
        worker = Worker(server.url)
        reads: list[list[str]] = []

        @worker.handler("chat")
        async def chat(work: Work) -> object:
            found: list[str] = []
            while not found:
                found = [one["text"] for one in await work.inbox()]
                await asyncio.sleep(0.02)
            reads.append(found)
            if len(reads) == 1:
                raise RuntimeError("crash")
            answer = await work.message()
            return [*found, answer["text"]]

        running = asyncio.create_task(worker.run())
        try:
            first = await client.message("chat:1", "go", handler="chat", debounce_ms=0)
            again = {"handler": "chat", "mode": "steer"}
            await client.message("chat:1", "left", **again)
            await until_it_waits_for("message", client, first.task_id)
            await client.message("chat:1", "end", handler="chat", debounce_ms=0)
            done = await client.wait(first.task_id, timeout=30)
        finally:
            worker.stop()
            await running
        assert (done.state, done.result) == ("done", ["left", "end"]), done
        assert reads[:2] == [["left"], ["left"]]
