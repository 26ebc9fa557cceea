"""kill -9 while work waits, streams or makes room: what each scene says holds in the next life.

A scene is told up to the moment of the kill (`yield`) and then from the next life on. On a file
each scene has a server of its own, which is started again. On PostgreSQL all scenes share one node;
it is frozen, another node starts, and then the first is killed: the second has to take over what
the dead one held, and not before its leases have run out.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane.core.model import Task
from fairlane.store.opening import open_store
from tests.e2e import checks
from tests.e2e.checks import GONE
from tests.e2e.processes import until
from tests.e2e.world import (
    AT_ONCE,
    ONE,
    TAKEN_BACK_SECONDS,
    WIDE,
    World,
    talking,
    text,
    world,
)
from tests.fakes.chat_agent import Script
from tests.fakes.waiting import WAIT_SECONDS, TooLate, TooSlow, in_time, judge, steadily
from tests.outbound.receivers import answering, hanging
from tests.postgres import new_database

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.processes import Programs

pytestmark = pytest.mark.slow

Scene = Callable[[World, float], AsyncGenerator[None, None]]

THE_END = "the end"
BEGUN_AGAIN_SECONDS_MAX = 20.0  # what a node ran that is gone, at the next: a lease lasts for 12
LATE_MS_MAX = 3000  # how long after its moment, or after the server is ready, work may begin


def ms(moment: str) -> int:
    return round(datetime.fromisoformat(moment).timestamp() * 1000)


def outcomes(task: dict[str, Any]) -> list[str]:
    return [one.get("outcome", "open") for one in task["attemptLog"]]


def not_late(world: World, began_at_ms: int, due_at_ms: int) -> None:
    """At its moment, or as soon as there was a server again; never before."""
    assert began_at_ms >= due_at_ms
    judge((began_at_ms - max(due_at_ms, world.ready_at_ms)) / 1000, LATE_MS_MAX / 1000)


# -------------------------------------------------------------------- the scenes


async def a_retry_that_waits(world: World, seconds: float) -> AsyncGenerator[None, None]:
    world.agent.scripts["retry once"] = Script(status=503, times=1)
    world.agent.scripts["retry in vain"] = Script(status=503)
    world.agent.scripts["retry soon"] = Script(status=503, times=1)
    wait_ms = int(seconds * 8000)
    once = await world.say("retry once", retryPolicy={"maxRetries": 3, "backoffMs": wait_ms})
    vain = await world.say("retry in vain", retryPolicy={"maxRetries": 2, "backoffMs": 100})
    soon = await world.say("retry soon", retryPolicy={"maxRetries": 3, "backoffMs": 200})
    await until(lambda: _waits(world, once), WAIT_SECONDS, lambda: "it is not tried again")
    before = await world.task(once)
    if "nextEligibleAt" not in before:
        raise TooLate("the wait was over before anybody looked")
    yield
    for task_id, end in ((once, "done"), (vain, "failed"), (soon, "done")):
        task = await world.end_of(task_id, TAKEN_BACK_SECONDS)
        errors = [one["error"] for one in task["attemptLog"] if "error" in one]
        # On a busy machine the kill may meet an attempt instead of a wait: that one counts as well.
        gone = sum(error in GONE for error in errors)
        assert all("503" in error for error in errors if error not in GONE)
        tries = 3 if end == "failed" else len(errors) + 1
        assert tries >= 2
        assert (task["state"], task["attempts"], task["retryCount"]) == (end, tries, tries - 1)
        last = "completed" if end == "done" else "failed"
        assert outcomes(task) == ["retrying"] * (tries - 1) + [last]
        numbers = [one.headers["x-fairlane-attempt"] for one in world.asked(task["instruction"])]
        assert len(set(numbers)) == len(numbers)
        assert tries - gone <= len(numbers) <= tries
    began_at = (await world.task(once))["attemptLog"][1]["startedAt"]
    not_late(world, ms(began_at), ms(before["nextEligibleAt"]))


async def _waits(world: World, task_id: str) -> bool:
    task = await world.task(task_id)
    if task["attempts"] > 1:
        raise TooLate("the wait was over before anybody looked")
    return (task["state"], task.get("gate"), task["attempts"]) == ("queued", "delay", 1)


async def a_stream_in_the_middle(world: World, _: float) -> AsyncGenerator[None, None]:
    message = "stream a long story"
    world.agent.scripts[message] = Script(events=text("Once ", "upon "), hang_after=2)
    task_id = await world.say(message, retryPolicy=AT_ONCE)
    child = await world.say("stream child", dependsOn=[task_id])
    await _until_text(world, task_id, "Once upon ")
    world.agent.scripts[message] = talking("Another ", "story", hang_after=1)
    yield
    assert await world.output(task_id) == {
        "taskId": task_id,
        "attempt": 1,
        "text": "Once upon ",
        "complete": False,
        "truncated": False,
    }
    await world.until_asked(message, 2)
    await _until_text(world, task_id, "Another ", attempt=2)
    world.agent.release()
    task = await world.end_of(task_id)
    assert (task["state"], task["attempts"], task["result"]["text"]) == ("done", 2, "Another story")
    assert (await world.end_of(child))["state"] == "done"
    assert world.asked("stream child")[0].body["inputs"][0]["result"] == task["result"]
    assert outcomes(task) == ["retrying", "completed"]
    assert task["attemptLog"][0]["error"] in GONE
    assert len({one["worker"] for one in task["attemptLog"]}) == 2
    began_again_at = ms(task["attemptLog"][1]["startedAt"])
    judge((began_again_at - world.gone_at_ms) / 1000, BEGUN_AGAIN_SECONDS_MAX)
    first, second = world.asked(message)
    assert (first.outcome, second.outcome) == ("gone", "answered")
    assert first.finished is not None
    assert first.finished < second.arrived, "two runs at once"
    assert first.body["conversationId"] != second.body["conversationId"]
    assert (await world.output(task_id))["text"] == "Another story"
    told = await world.read(f"/tasks/{task_id}/output?follow=1")
    pieces = [msgspec.json.decode(line[6:]) for line in told.splitlines() if line[:6] == "data: "]
    assert pieces.pop() == {"state": "done"}
    said = [(one["attempt"], one["text"]) for one in pieces]
    assert "".join(text for attempt, text in said if attempt == 1) == "Once upon "
    assert "".join(text for attempt, text in said if attempt == 2) == "Another story"
    assert said == sorted(said, key=lambda one: one[0])


async def _until_text(world: World, task_id: str, wanted: str, attempt: int = 1) -> None:
    async def there() -> bool:
        found = await world.output(task_id)
        return bool(found["text"] == wanted and found["attempt"] == attempt)

    await until(there, WAIT_SECONDS, lambda: f"{wanted!r} does not come")


async def a_batch_half_way(world: World, _: float) -> AsyncGenerator[None, None]:
    messages = [f"batch {number}" for number in range(6)]
    items = [{"instruction": one, "lane": WIDE, "retryPolicy": AT_ONCE} for one in messages]
    for message in messages:
        world.agent.scripts[message] = talking("never said", hang_after=0)
    body = {"agentId": "batch", "tasks": items, "parallelism": 2, "webhookUrl": world.hook.url}
    answer = await world.post("/tasks/batch", body)
    assert answer.status == 202, answer
    batch_id = answer.body["batchId"]
    await world.until_asked("batch ", 2)
    assert (await world.get(f"/batches/{batch_id}")).body["byState"] == {"queued": 4, "running": 2}
    for message in messages:
        world.agent.scripts[message] = talking("said", pause_ms=40)
    yield
    ids = [item["taskId"] for item in answer.body["tasks"]]
    ended = [await world.end_of(task_id, TAKEN_BACK_SECONDS) for task_id in ids]
    assert [task["state"] for task in ended] == ["done"] * 6
    assert sorted(task["attempts"] for task in ended) == [1, 1, 1, 1, 2, 2]
    assert world.most_at_once("batch ") == 2
    assert Counter(one.message for one in world.asked("batch ")) == {
        task["instruction"]: task["attempts"] for task in ended
    }
    await until(lambda: bool(world.webhooks("batch.completed")), WAIT_SECONDS, lambda: "none")
    told = world.webhooks("batch.completed")
    assert len({message_id for message_id, _ in told}) == 1
    assert told[0][1]["byState"] == {"done": 6}
    status = (await world.get(f"/batches/{batch_id}")).body
    assert (status["state"], status["open"]) == ("completed", 0)
    ends = await world.events(type="batch.completed", batchId=batch_id)
    assert [one["state"] for one in ends] == ["completed"]


async def a_start_that_is_delayed(world: World, _: float) -> AsyncGenerator[None, None]:
    delays = (50, 700, 1400, 2100)
    ids = [await world.submit(handler="echo", delayMs=delay) for delay in delays]
    created = [ms((await world.task(task_id))["createdAt"]) for task_id in ids]
    yield
    for task_id, delay, created_at in zip(ids, delays, created, strict=True):
        task = await world.end_of(task_id, TAKEN_BACK_SECONDS)
        # The kill may have met its run: that is the only reason for another one.
        *broken, last = task["attemptLog"]
        assert (task["state"], last["outcome"]) == ("done", "completed")
        assert len(broken) == task["attempts"] - 1
        assert all(one["error"] in GONE for one in broken)
        began_at = ms(task["attemptLog"][0]["startedAt"])
        assert began_at >= created_at + delay
        if began_at >= world.ready_at_ms:  # else it had begun before the kill
            not_late(world, began_at, created_at + delay)
            assert not broken


SCENES = [a_retry_that_waits, a_stream_in_the_middle, a_batch_half_way, a_start_that_is_delayed]


# -------------------------------------------------------------------- on a file


@pytest.mark.parametrize("scene", SCENES)
async def test_a_server_that_was_killed_goes_on_where_it_was(
    programs: Programs, tmp_path: Path, scene: Scene
) -> None:
    numbers = itertools.count(1)

    async def play(seconds: float) -> None:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        store = f"sqlite:///{folder / 'fairlane.db'}"
        async with world(programs, folder, store) as one:
            await one.start()
            async with contextlib.aclosing(scene(one, seconds)) as told:
                await anext(told)
                await one.restart()
                assert await anext(told, THE_END) == THE_END
        assert checks.disagreements(store) == []

    await steadily(lambda: in_time(play))


async def test_the_webhook_of_a_batch_keeps_its_id_when_its_answer_was_not_heard(
    programs: Programs, tmp_path: Path
) -> None:
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    async with world(programs, tmp_path, store) as one:
        one.hook.answers = [hanging, answering(200)]
        await one.start()
        body = {"tasks": [{"handler": "echo"}], "webhookUrl": one.hook.url}
        batch_id = (await one.post("/tasks/batch", body)).body["batchId"]
        # The task's own webhook and that of the batch: one of them hangs.
        await one.hook.wait_for(2)
        await one.restart()
        await until(
            lambda: len(one.hook.received) >= 3, WAIT_SECONDS, lambda: "it is not sent again"
        )
        await until(lambda: _owed(store) == 0, WAIT_SECONDS, lambda: "it is not settled")
        ends = await one.events(type="batch.completed", batchId=batch_id)
        assert len(ends) == 1
        for event in ("task.completed", "batch.completed"):
            assert len({message_id for message_id, _ in one.webhooks(event)}) == 1


def _owed(store: str) -> int:
    connection = open_store(store).reader()
    try:
        found = connection.run("delivery_next", now=0)
    finally:
        connection.close()
    return sum(row[0] is not None for row in found)


# -------------------------------------------------------------------- making room


def _calm_in_the_end(world: World, victim: dict[str, Any], urgent: dict[str, Any]) -> None:
    """What must be true of a pre-emption, wherever a kill has interrupted it."""
    assert (victim["state"], urgent["state"]) == ("done", "done")
    for task in (victim, urgent):
        asked = world.asked(task["instruction"])
        log = outcomes(task)
        # A run is written down before its request leaves, and may die in between.
        assert 1 <= len(asked) <= len(log), "a run that nobody knows of"
        assert log[-1] == "completed"
        assert set(log[:-1]) <= {"released", "retrying"}
        assert task["attempts"] == len(log) - log.count("released"), "the budget is wrong"
    both = [*world.asked(victim["instruction"]), *world.asked(urgent["instruction"])]
    last = max(both, key=lambda one: one.arrived)
    assert last.message == victim["instruction"], "the urgent one did not go first"


@pytest.mark.parametrize("pause_ms", [0, 2, 10])
async def test_a_kill_in_the_middle_of_making_room_leaves_nothing_half_done(
    programs: Programs, tmp_path: Path, pause_ms: int
) -> None:
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    async with world(programs, tmp_path, store) as one:
        await one.start()
        one.agent.scripts["room victim"] = talking("long", hang_after=1)
        one.agent.scripts["room urgent"] = talking("short", hang_after=1)
        given = {"lane": ONE, "retryPolicy": {"maxRetries": 3, "backoffMs": 0}}
        victim = await one.say("room victim", preemptible=True, **given)
        await one.until_asked("room victim")
        urgent = await one.say("room urgent", priority="critical", **given)
        await asyncio.sleep(pause_ms / 1000)
        one.server.kill()
        one.agent.scripts.clear()
        await one.start()
        ended = [await one.end_of(task_id) for task_id in (victim, urgent)]
        assert one.most_at_once("room ") == 1
        _calm_in_the_end(one, *ended)
    assert checks.disagreements(store) == []


async def _stopping(store: str) -> None:
    """Wait until somebody has asked a run in the lane to make room."""
    connection = open_store(store).reader()
    try:
        await until(
            lambda: any(
                Task(*row).preempt == 1 for row in connection.run("task_preemptible", lane=ONE)
            ),
            WAIT_SECONDS,
            lambda: "nobody makes room",
        )
    finally:
        connection.close()


# -------------------------------------------------------------------- on a shared database


@pytest.mark.timeout(600)
async def test_another_node_goes_on_where_the_killed_one_was(
    programs: Programs, tmp_path: Path, postgres_url: str
) -> None:
    async def play(seconds: float) -> None:
        with new_database(postgres_url) as url:
            ends = await _take_over(programs, tmp_path, url, seconds)
            assert ends == [THE_END] * (len(SCENES) + 1)
            assert checks.disagreements(url) == []

    await steadily(lambda: in_time(play))


async def _take_over(programs: Programs, folder: Path, store: str, seconds: float) -> list[str]:
    """What becomes of each scene: each looks itself at what comes after its node was killed."""
    async with world(programs, folder, store) as one, contextlib.AsyncExitStack() as stack:
        await one.start()
        told = [scene(one, seconds) for scene in SCENES] + [_room(one, store)]
        for scene in told:
            await stack.enter_async_context(contextlib.aclosing(scene))
        for scene in told:
            await anext(scene)
        frozen = await one.successor(store)
        await anext(told[-1])
        frozen.kill()
        going_on = [anext(scene, THE_END) for scene in told]
        ends = await asyncio.gather(*going_on, return_exceptions=True)
    problems = [end for end in ends if isinstance(end, BaseException)]
    for problem in sorted(problems, key=lambda one: isinstance(one, TooSlow)):
        raise problem
    return [str(end) for end in ends]


async def _room(world: World, store: str) -> AsyncGenerator[None, None]:
    """The node that runs the victim is frozen when it is asked to make room, and then dies."""
    world.agent.scripts["room victim"] = talking("long", hang_after=1)
    given = {"lane": ONE, "retryPolicy": AT_ONCE}
    victim = await world.say("room victim", preemptible=True, **given)
    await world.until_asked("room victim")
    yield
    urgent = await world.say("room urgent", priority="critical", **given)
    await _stopping(store)
    assert (await world.task(victim))["state"] == "running"
    world.agent.scripts["room victim"] = talking("again")
    yield
    ended = [await world.end_of(task_id, TAKEN_BACK_SECONDS) for task_id in (victim, urgent)]
    assert world.most_at_once("room ") == 1
    _calm_in_the_end(world, ended[0], ended[1])
    assert outcomes(ended[0]) == ["retrying", "completed"]
