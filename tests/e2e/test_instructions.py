"""Instructions through the whole system: `fairlane serve --agent URL`, on both databases.

What a stream may look like in detail is tested with the executor; here it is what callers, the
agent and the receiver of webhooks see of it.
"""

from __future__ import annotations

import itertools
import signal
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from tests.e2e import checks
from tests.e2e.processes import Programs, until
from tests.e2e.world import AT_ONCE, NEVER, World, talking, text, world
from tests.fakes.chat_agent import Script
from tests.fakes.tab_instance import TabInstance
from tests.fakes.waiting import WAIT_SECONDS, TooLate, in_time, judge, steadily, within
from tests.http.work import Stream, ms_between
from tests.postgres import new_database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SECRETS = {
    "apiKey": "sk-0123456789",
    "accessKeyId": "AKIA-0123456789",
    "secretAccessKey": "wJalr/0123456789",
    "sessionToken": "FwoGZX-0123456789",
}
LLM: dict[str, Any] = {"provider": "anthropic", "model": "m-1", "inner": {**SECRETS}, **SECRETS}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def shared_store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('store') / 'fairlane.db'}"
        return
    with new_database(request.getfixturevalue("postgres_url")) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tabs() -> AsyncIterator[TabInstance]:
    async with TabInstance(["tab-1"]) as tabs:
        yield tabs


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(
    shared_store: str, tabs: TabInstance, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("server")
    flags = ("--instance", tabs.url, "--log-level", "debug")
    with Programs(folder) as programs:
        async with world(programs, folder, shared_store, *flags, policy={}) as one:
            await one.start()
            yield one
    assert checks.disagreements(shared_store) == []


@pytest_asyncio.fixture(loop_scope="module")
async def talk(shared: World) -> AsyncIterator[World]:
    """The server that the tests of this module share, without anything of another test."""
    yield shared
    await shared.post("/tasks/cancel", {"kind": "instruction"})
    shared.agent.scripts.clear()
    shared.agent.release()
    await until(lambda: _nothing_runs(shared), WAIT_SECONDS, lambda: "a run does not stop")
    shared.agent.requests.clear()
    shared.agent.max_concurrent = 0
    assert "Traceback" not in shared.server.output()


async def _nothing_runs(world: World) -> bool:
    found = (await world.get("/scheduler/stats")).body["queue"]
    return not (found["totalInflight"] or found["totalQueued"])


async def instruct(world: World, message: str, **body: Any) -> str:
    """In the lane that instructions have by default."""
    return await world.say(message, **{"lane": None, **body})


# -------------------------------------------------------------------- what comes back


async def test_the_last_event_is_the_result_and_the_text_is_kept(talk: World) -> None:
    task = await talk.end_of(await instruct(talk, "Extract page title"))
    assert (task["state"], task["attempts"], task["lane"]) == ("done", 1, "instruction")
    assert task["result"] == {"type": "finish", "text": "Extract page title"}
    assert (await talk.output(task["taskId"]))["text"] == "Extractpagetitle"
    (asked,) = talk.agent.requests
    assert (asked.method, asked.path, asked.body["mode"]) == ("POST", "/chat", "agent")
    assert asked.headers["x-fairlane-task-id"] == task["taskId"]


async def test_what_the_agent_has_said_is_read_while_it_goes_on(talk: World) -> None:
    talk.agent.scripts["Tell"] = talking("One, ", "two, ", "thrée", hang_after=2)
    task_id = await instruct(talk, "Tell")
    async with Stream(f"{talk.server.url}/tasks/{task_id}/output?follow=1", {}) as stream:
        heard = ""
        while heard != "One, two, ":
            message = await stream.message()
            assert message["event"] == "output"
            heard += msgspec.json.decode(message["data"])["text"]
        shown = await talk.output(task_id)
        assert (shown["text"], shown["complete"], shown["attempt"]) == ("One, two, ", False, 1)
        assert (await talk.task(task_id))["state"] == "running"
        talk.agent.release()
        while (message := await stream.message())["event"] == "output":
            heard += msgspec.json.decode(message["data"])["text"]
    assert message["event"] == "end"
    assert msgspec.json.decode(message["data"]) == {"state": "done"}
    assert heard == "One, two, thrée"
    shown = await talk.output(task_id)
    assert (shown["text"], shown["complete"]) == ("One, two, thrée", True)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (Script(events=[*text("ok"), {"type": "error", "errorText": "overloaded"}]), "overloaded"),
        (Script(events=text("half")), "ended before it had finished"),
        (Script(events=text("half"), break_off=True), "ended before it had finished"),
        (Script(status=400, body={"error": "no"}), "Chat API returned 400"),
    ],
    ids=["error event", "unfinished", "broken off", "refused"],
)
async def test_an_answer_that_is_not_a_success_fails_the_task(
    talk: World, script: Script, said: str
) -> None:
    talk.agent.scripts["Try"] = script
    task = await talk.end_of(await instruct(talk, "Try", retryPolicy=NEVER))
    assert (task["state"], task["attempts"]) == ("failed", 1)
    assert said in task["error"]
    assert "result" not in task


async def test_running_out_of_time_is_a_failure_with_the_documented_text(talk: World) -> None:
    talk.agent.scripts["Try"] = Script(events=text("slow"), hang_after=1)
    policy = {"maxRetries": 1, "backoffMs": 0}

    async def run_out(seconds: float) -> None:
        before, span = len(talk.agent.requests), int(seconds * 500)
        task = await talk.end_of(await instruct(talk, "Try", timeout=span, retryPolicy=policy))
        assert (task["state"], task["error"]) == ("failed", f"Task timed out after {span}ms")
        assert [one["outcome"] for one in task["attemptLog"]] == ["retrying", "failed"]
        asked = talk.agent.requests[before:]
        if len(asked) < 2:
            raise TooLate("the time of an attempt was over before its request had left")
        with within(1):
            await until(
                lambda: [one.outcome for one in asked] == ["gone", "gone"],
                WAIT_SECONDS,
                lambda: "the agent was not hung up on",
            )
        assert talk.agent.max_concurrent == 1

    await steadily(lambda: in_time(run_out))


async def test_a_cancel_disconnects_within_a_second_and_is_final(talk: World) -> None:
    talk.agent.scripts["Try"] = Script(events=text("slow"), hang_after=1)

    async def cancel() -> None:
        before = len(talk.asked("Try"))
        task_id = await instruct(talk, "Try", retryPolicy=AT_ONCE)
        await talk.until_asked("Try", before + 1)
        asked = talk.asked("Try")[-1]
        with within(1):
            answer = await talk.delete(f"/tasks/{task_id}")
            assert (answer.status, answer.body["state"]) == (200, "cancelled")
            await until(lambda: asked.outcome == "gone", WAIT_SECONDS, lambda: "the agent goes on")
        # The lane has one place: whoever runs after it shows that it was given back.
        assert (await talk.end_of(await instruct(talk, "Next")))["state"] == "done"
        task = await talk.task(task_id)
        assert (task["state"], task["attempts"]) == ("cancelled", 1)
        assert [one["outcome"] for one in task["attemptLog"]] == ["cancelled"]
        assert len(talk.asked("Try")) == before + 1

    await steadily(cancel)


async def test_the_wait_that_the_agent_asks_for_is_kept(talk: World) -> None:
    async def wait() -> None:
        before = len(talk.agent.requests)
        talk.agent.scripts["Try"] = Script(status=429, headers={"Retry-After": "1"}, times=1)
        task = await talk.end_of(await instruct(talk, "Try", retryPolicy=AT_ONCE))
        first, second = task["attemptLog"]
        outcomes = (first["outcome"], second["outcome"])
        assert (task["state"], *outcomes) == ("done", "retrying", "completed")
        assert len({one.body["conversationId"] for one in talk.agent.requests[before:]}) == 2
        waited_ms = ms_between(first["endedAt"], second["startedAt"])
        assert waited_ms >= 1000
        judge(waited_ms / 1000, 3)

    await steadily(wait)


# -------------------------------------------------------------------- what is sent along


async def test_children_are_given_what_their_parents_have_left(
    talk: World, tabs: TabInstance
) -> None:
    talk.agent.scripts["Left"] = talking("left")
    items = [
        {"key": "left", "instruction": "Left"},
        {"key": "right", "handler": "echo", "params": {"n": 1}},
        {"key": "both", "instruction": "Both", "dependsOn": ["#right", "#left"]},
        {"action": "type", "tabId": "tab-1", "dependsOn": ["#both"], "params": {"inputs": "x"}},
    ]
    answer = await talk.post("/tasks/batch", {"agentId": "family", "tasks": items})
    assert answer.body["accepted"] == 4, answer
    left, right, both, action = [task["taskId"] for task in answer.body["tasks"]]
    assert (await talk.end_of(action))["state"] == "done"
    result = {"type": "finish", "text": "left"}
    assert talk.asked("Both")[0].body["inputs"] == [
        {"taskId": right, "state": "done", "result": {"n": 1}},
        {"taskId": left, "state": "done", "result": result},
    ]
    assert "inputs" not in talk.asked("Left")[0].body
    (entry,) = [one for one in tabs.requests if one.headers.get("x-agent-id") == "family"]
    given = {"taskId": both, "state": "done", "result": {"type": "finish", "text": "Both"}}
    assert entry.body == {"kind": "type", "inputs": [given]}
    tabs.requests.clear()


async def test_the_configuration_reaches_the_agent_and_its_secrets_nobody_else(
    talk: World,
) -> None:
    repeated = {"type": "error", "error": {"message": f"bad key {SECRETS['apiKey']}"}}
    talk.agent.scripts["Fail"] = Script(events=[repeated])
    fields: dict[str, Any] = {"llmConfig": LLM, "webhookUrl": talk.hook.url, "agentId": "keys"}
    ids = [
        await instruct(talk, "Work", **fields),
        await instruct(talk, "Fail", retryPolicy={"maxRetries": 1, "backoffMs": 0}, **fields),
    ]
    ended = [await talk.end_of(task_id) for task_id in ids]
    assert [task["state"] for task in ended] == ["done", "failed"]
    for asked in talk.agent.requests:
        assert {name: asked.body[name] for name in LLM} == LLM
        assert asked.body["message"] in {"Work", "Fail"}
    told = {"task.completed": ids[0], "task.failed": ids[1]}
    for event, task_id in told.items():
        await until(lambda e=event: bool(talk.webhooks(e)), 60, lambda: "no webhook")  # type: ignore[misc]  # the default binds the loop's value
        assert task_id in [body["taskId"] for _, body in talk.webhooks(event)]
    surfaces: dict[str, Any] = {
        "task": ended,
        "list": (await talk.get("/tasks?agentId=keys")).body,
        "events": await talk.events(),
        "events of a task": [(await talk.get(f"/tasks/{one}/events")).body for one in ids],
        "webhooks": [received.body.decode() for received in talk.hook.received],
        "log": talk.server.output(),
    }
    for surface, shown in surfaces.items():
        for secret in SECRETS.values():
            assert secret not in str(shown), surface
    assert ended[0]["llmConfig"]["apiKey"] == "***"
    assert ended[0]["llmConfig"]["model"] == "m-1"
    assert surfaces["list"]["tasks"][0]["llmConfig"] == ended[1]["llmConfig"]


# -------------------------------------------------------------------- how many, and who first


async def test_one_runs_at_a_time_and_the_most_urgent_first_whoever_asks(talk: World) -> None:
    talk.agent.scripts["First"] = talking("first", hang_after=0)
    first = await instruct(talk, "First")
    await talk.until_asked("First")
    wanted = [("low", "a", 10), ("normal", "b", 0), ("high", "a", -10), ("critical", "b", -20)]
    ids = [await instruct(talk, name, agentId=agent, priority=n) for name, agent, n in wanted]
    ids += [await instruct(talk, "normal again", agentId="a", priority="normal")]
    states = [(await talk.task(task_id))["state"] for task_id in ids]
    assert states == ["queued"] * 5
    talk.agent.release()
    ended = [await talk.end_of(task_id) for task_id in (first, *ids)]
    assert {task["state"] for task in ended} == {"done"}
    order = ["First", "critical", "high", "normal", "normal again", "low"]
    assert [one.message for one in talk.agent.requests] == order
    assert talk.agent.max_concurrent == 1


@pytest.mark.asyncio(loop_scope="function")
@pytest.mark.parametrize("variable", ["TASK_QUEUE_MAX_CONCURRENT", "FAIRLANE_LANE_INSTRUCTION"])
async def test_a_variable_lets_more_run_at_once(
    programs: Programs, tmp_path: Path, variable: str
) -> None:
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    async with world(programs, tmp_path, store, policy={}, variables={variable: "3"}) as one:
        one.agent.script = talking("hello", hang_after=0)
        await one.start()
        ids = [await instruct(one, f"hello {number}") for number in range(7)]
        await one.until_asked("hello", 3)
        assert len([i for i in ids if (await one.task(i))["state"] == "queued"]) == 4
        one.agent.script = talking("hello", pause_ms=10)
        one.agent.release()
        assert {(await one.end_of(task_id))["state"] for task_id in ids} == {"done"}
        assert one.agent.max_concurrent == 3


# -------------------------------------------------------------------- stopping


@pytest.mark.asyncio(loop_scope="function")
async def test_a_stop_lets_a_stream_finish_or_queues_it_again(
    programs: Programs, tmp_path: Path, store_url: str
) -> None:
    numbers = itertools.count(1)

    async def stop(seconds: float) -> None:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        await _stop_in_a_stream(programs, folder, store_url, seconds)

    await in_time(stop)
    assert checks.disagreements(store_url) == []


async def _stop_in_a_stream(programs: Programs, folder: Path, store: str, seconds: float) -> None:
    """One stream needs a third of the time that it is given, the other never comes to its end."""
    async with world(programs, folder, store, "--drain-seconds", str(5 * seconds)) as one:
        one.agent.scripts["Soon"] = talking("so", "on", pause_ms=int(seconds * 333))
        one.agent.scripts["Late"] = talking("la", "te", hang_after=1)
        await one.start()
        late, soon = await one.say("Late"), await one.say("Soon")
        waiting = await one.say("Next", dependsOn=[late])
        await one.until_asked("Late")
        await one.until_asked("Soon")
        one.agent.scripts["Late"] = talking("later")
        follow = f"{one.server.url}/tasks/{late}/output?follow=1"
        async with aiohttp.ClientSession() as session, session.get(follow) as followed:
            one.server.send(signal.SIGTERM)
            heard = await _heard_in_time(one)
            assert await one.server.end(WAIT_SECONDS + 5 * seconds) == 0
            await followed.read()  # ends by itself
        assert "Traceback" not in one.server.output()
        if not heard or one.asked("Soon")[0].pieces < 4:
            await one.start()
            for task_id in (soon, late, waiting):
                await one.end_of(task_id)
            one.server.kill()
            raise TooLate("the stream was over before the stop was heard, or not when it was")
        assert [entry.pieces for entry in one.asked("Soon")] == [4]  # it was heard to its end
        assert [(entry.pieces, entry.outcome) for entry in one.asked("Late")] == [(1, "gone")]
        await one.start()
        ended = [await one.end_of(task_id) for task_id in (soon, late, waiting)]
        assert [task["state"] for task in ended] == ["done"] * 3
        assert [task["attempts"] for task in ended] == [1, 1, 1]
        logs = [[attempt["outcome"] for attempt in task["attemptLog"]] for task in ended]
        assert logs == [["completed"], ["released", "completed"], ["completed"]]
        assert (await one.output(soon))["text"] == "soon"
        assert (await one.output(late))["text"] == "later"


async def _heard_in_time(one: World) -> bool:
    """Whether the server has heard that it is to stop while it still listened to the stream."""
    await until(lambda: "stopping" in one.server.output(), WAIT_SECONDS, lambda: "not heard")
    return [entry.outcome for entry in one.asked("Soon")] == ["open"]
