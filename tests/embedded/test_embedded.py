"""The embedded API: the same verbs as over HTTP, in the caller's own process."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
import weakref
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import Fairlane
from fairlane.client.methods import TaskFields
from fairlane.config import InstanceSetting
from fairlane.core import errors
from fairlane.core.submissions import TaskRequest
from fairlane.schema.sessions import SendMessage
from tests.fakes.chat_agent import ChatAgent, Script
from tests.fakes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fairlane.worker.executors.base import Work

MEMORY = "sqlite://:memory:"


@pytest.fixture
async def app() -> AsyncIterator[Fairlane]:
    async with Fairlane(MEMORY, drain_seconds=0) as app:
        yield app


def test_every_field_of_a_task_has_a_name_in_python() -> None:
    """Two words are only other words for one that is there."""
    old = {"timeout", "webhook_url"}
    assert set(TaskFields.__annotations__) == set(TaskRequest.__struct_fields__) - old


def test_every_field_of_a_message_has_a_name_in_python() -> None:
    arguments = inspect.signature(Fairlane.message).parameters
    assert set(arguments) - {"self"} == set(SendMessage.__struct_fields__) - {"raw", "webhook_url"}


# --- submitting -----------------------------------------------------------------------------------


async def test_a_child_gets_what_its_parents_have_left(app: Fairlane) -> None:
    @app.handler("add")
    def add(work: Work) -> int:
        return sum(one["result"] for one in work.inputs)

    @app.handler("number")
    async def number(work: Work) -> Any:
        return work.request["params"]["n"]

    parents = [await app.submit(handler="number", params={"n": n}) for n in (1, 2)]
    child = await app.submit(handler="add", depends_on=[parent.id for parent in parents])
    assert await child.result(timeout=60) == 3


async def test_a_run_that_is_over_is_freed_without_the_collector(app: Fairlane) -> None:
    ran: list[weakref.ref[asyncio.Task[Any]]] = []

    @app.handler("work")
    async def work(_: Work) -> None:
        task = asyncio.current_task()
        assert task is not None
        ran.append(weakref.ref(task))

    gc.disable()
    try:
        await (await app.submit(handler="work")).result(timeout=60)
        await eventually(lambda: ran[0]() is None)
    finally:
        gc.enable()
    assert len(ran) == 1


async def test_a_task_has_all_that_was_said_about_it(app: Fairlane) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    task = await app.submit(
        instruction="Do",
        run_at=later,
        deadline=later + timedelta(hours=1),
        retry_policy={"maxRetries": 2, "backoffMs": 5},
        timeout_ms=1000,
        metadata={"a": 1},
        llm_config={"apiKey": "secret"},
        preemptible=True,
        priority="high",
    )
    shown = await task.show()
    assert (shown["gate"], shown["maxAttempts"], shown["priority"]) == ("delay", 3, -10)
    assert datetime.fromisoformat(shown["nextEligibleAt"]) - later < timedelta(milliseconds=1)
    assert (shown["timeoutMs"], shown["metadata"], shown["preemptible"]) == (1000, {"a": 1}, True)
    assert shown["llmConfig"] == {"apiKey": "***"}
    assert (await app.tasks(kind="instruction"))["count"] == 1


async def test_a_refused_task_is_raised(app: Fairlane) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"field 'retryPolicy\.maxRetries'"):
        await app.submit(handler="echo", retry_policy={"maxRetries": -1})
    with pytest.raises(errors.InvalidRequest, match="invalid callbackUrl"):
        await app.submit(handler="echo", callback_url="http://127.0.0.1/")
    with pytest.raises(TypeError, match=r"did you mean handler\?"):
        await app.submit(handlr="echo")  # type: ignore[call-arg]  # that is what is tried here


async def test_a_task_may_be_as_large_as_over_http_and_no_larger(app: Fairlane) -> None:
    texts = {str(n): "x" * 100_000 for n in range(11)}
    limit = "the body is larger than 1048576 bytes"
    with pytest.raises(errors.PayloadTooLarge, match=limit):
        await app.submit(handler="nobody", params=texts)
    with pytest.raises(errors.PayloadTooLarge, match=limit):
        await app.submit(handler="nobody", params=texts, idempotency_key="k")
    with pytest.raises(errors.PayloadTooLarge, match=limit):
        await app.submit_batch([{"handler": "nobody", "params": texts}])
    with pytest.raises(errors.PayloadTooLarge, match=limit):
        await app.schedule(session="s", handler="nobody", params=texts)
    del texts["0"]
    task = await app.submit(handler="nobody", params=texts)
    assert (await task.show())["params"] == texts


async def test_the_same_key_gives_the_same_task(app: Fairlane) -> None:
    first, again = [
        await app.submit(handler="nobody", params={"n": 1}, idempotency_key="k") for _ in range(2)
    ]
    assert first.id == again.id
    with pytest.raises(errors.IdempotencyConflict):
        await app.submit(handler="nobody", params={"n": 2}, idempotency_key="k")


async def test_a_verb_before_the_start_is_a_mistake_of_the_program() -> None:
    app = Fairlane(MEMORY)
    with pytest.raises(RuntimeError, match="has not been started"):
        await app.stats()
    await app.stop()


# --- verbs ----------------------------------------------------------------------------------------


async def test_tasks_are_cancelled_tried_again_and_reset(app: Fairlane) -> None:
    task = await app.submit(handler="nobody", agent="a")
    assert (await task.cancel())["status"] == "cancelled"
    assert (await task.retry())["state"] == "queued"
    with pytest.raises(errors.Conflict):
        await task.reset()
    assert (await app.cancel_many(agent="a", dry_run=True))["matched"] == 1
    assert (await app.delete(task.id))["cancelled"] is True
    assert (await app.retry_many(states=["cancelled"]))["changed"] == 1
    assert (await app.reset_many(agent="a"))["changed"] == 0
    assert (await app.prune())["tasks"] == 0
    types = [event["type"] for event in (await app.task_events(task.id))["events"]]
    assert types[:3] == ["task.created", "task.cancelled", "task.requeued"]
    assert (await app.output(task.id))["text"] == ""
    with pytest.raises(errors.NotFound):
        await app.show("tsk_none")


async def test_a_parked_task_can_be_reset(app: Fairlane) -> None:
    outcomes = iter([ValueError("not yet"), None])

    @app.handler("second")
    async def second(_: Work) -> str:
        problem = next(outcomes)
        if problem is not None:
            raise problem
        return "well"

    task = await app.submit(handler="second", retry_policy={"maxRetries": 0})
    with pytest.raises(errors.TaskFailed, match="not yet"):
        await task.result(timeout=60)
    assert (await task.reset())["state"] == "queued"
    assert await task.result(timeout=60) == "well"


async def test_a_batch_runs_and_is_cancelled(app: Fairlane) -> None:
    items: list[dict[str, Any]] = [
        {"key": "a", "handler": "echo"},
        {"handler": "nobody", "dependsOn": ["#a"]},
    ]
    answer = await app.submit_batch(items, parallelism=1, agent="a")
    batch_id = answer["batchId"]
    assert (await app.batch(batch_id))["total"] == 2
    await app.node.wait(answer["tasks"][0]["taskId"], 10)
    assert (await app.cancel_batch(batch_id))["cancelled"] == 1
    assert [one["state"] for one in (await app.batches(agent="a"))["batches"]] == ["cancelled"]


async def test_sessions_are_spoken_to_tuned_and_stopped(app: Fairlane) -> None:
    said = [await app.message("s", text, handler="nobody", sender="ada") for text in ("a", "b")]
    assert (said[1]["taskId"], said[1]["merged"]) == (said[0]["taskId"], True)
    assert (await app.show(said[0]["taskId"]))["params"]["message"] == "a\nb"
    assert (await app.set_session("s", cap=3, debounce_max_ms=9))["settings"]["cap"] == 3
    assert (await app.set_session("s", unset=["cap"]))["settings"]["cap"] == 10
    assert (await app.set_usage("s", 6, 10))["throttled"] is True
    assert [one["sessionKey"] for one in (await app.sessions(limit=1))["sessions"]] == ["s"]
    assert (await app.session("s"))["waiting"][0]["position"] == 1
    assert (await app.stop_session("s")).to_dict() == {"stopped": [], "drained": []}
    assert (await app.message("s", "/stopall"))["drained"] == [said[0]["taskId"]]
    assert (await app.stop_all("s")).to_dict() == {"stopped": [], "drained": []}
    assert (await app.reset_session("s"))["generation"] == 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'sendr'"):
        await app.message("s", "c", sendr="x")  # type: ignore[call-arg]  # that is what is tried here


async def test_a_waiter_for_a_stopped_task_gets_the_reason(app: Fairlane) -> None:
    task = await app.submit(handler="nobody", session="s")
    await app.stop_all("s")
    with pytest.raises(errors.Stopped, match="its session was stopped"):
        await task.result(timeout=60)


async def test_lanes_are_watched_paused_and_emptied(app: Fairlane) -> None:
    assert (await app.pause_lane("team"))["paused"] is True
    await app.submit(handler="echo", lane="team")
    team = next(lane for lane in (await app.lanes())["lanes"] if lane["name"] == "team")
    assert (team["waiting"], team["active"], team["paused"]) == (1, 0, True)
    assert (await app.clear_lane("team"))["cancelled"] == 1
    assert (await app.resume_lane("team"))["paused"] is False


async def test_the_policy_is_changed_compared_and_rolled_back(app: Fairlane) -> None:
    assert (await app.policy())["version"] == 0
    document = {"lanes": {"gpu": {"maxInflight": 2}}}
    assert (await app.check_policy(document))["valid"]
    first = await app.set_policy(document, note="a new card", author="ada")
    assert (first["version"], first["policy"]["lanes"]["gpu"]["maxInflight"]) == (1, 2)
    second = await app.patch_policy({"lanes": {"gpu": None}}, expected_version=1)
    assert [one["path"] for one in second["changes"]] == ["lanes.gpu"]
    assert (await app.policy_diff(1, 2))["changes"] == second["changes"]
    with pytest.raises(errors.InvalidPolicy) as refusal:
        await app.patch_policy({"lanes": {"gpu": {"maxInflight": 0.5}, "main": 3}})
    assert len(refusal.value.problems) == 2
    with pytest.raises(errors.Conflict):
        await app.rollback_policy(1, expected_version=1)
    await app.rollback_policy(1)
    versions = (await app.policy_versions())["versions"]
    assert [(one["version"], one.get("note")) for one in versions] == [
        (3, "rollback to version 1"),
        (2, None),
        (1, "a new card"),
    ]
    assert (await app.policy(1))["policy"] == (await app.policy())["policy"]


async def test_templates_are_kept_changed_and_used(app: Fairlane) -> None:
    document = {"name": "trip", "instruction": "Go to {{city}}", "parameters": [{"name": "city"}]}
    template = await app.create_template(document)
    id_ = template["id"]
    assert await app.template(id_) == template
    assert (await app.templates(name="trip"))["templates"] == [template]
    assert (await app.update_template(id_, {"priority": "low"}))["priority"] == "low"
    assert (await app.use_template(id_, {"city": "Rome"}))["instruction"] == "Go to Rome"
    made = await app.use_template(id_, {"city": "Rome"}, submit=True, overrides={"agentId": "a"})
    assert (await app.show(made["taskId"]))["agentId"] == "a"
    assert (await app.delete_template(id_)) == {"id": id_, "deleted": True}
    with pytest.raises(errors.NotFound):
        await app.template(id_)


async def test_output_is_read_and_followed() -> None:
    async with ChatAgent() as agent:
        script = Script(events=[{"type": "text-delta", "delta": word} for word in ("a", "b")])
        agent.script = script
        script.hang_after = 1
        script.done = True
        setting = InstanceSetting(agent.url)
        async with Fairlane(MEMORY, agent=setting, drain_seconds=0) as app:
            task = await app.submit(instruction="Say a and b")
            texts = []
            async for piece in app.output(task.id, follow=True):
                texts.append(piece["text"])
                agent.release()
            assert "".join(texts) == "ab"
            output = await app.output(task.id)
            assert (output["text"], output["complete"]) == ("ab", True)


# --- events ---------------------------------------------------------------------------------------


async def test_events_are_those_from_the_call_on(app: Fairlane) -> None:
    await (await app.submit(handler="echo")).result(timeout=60)
    events = app.events(types=["task.completed", "task.created"])
    task = await app.submit(handler="echo", params={"n": 1})
    async with asyncio.timeout(60):
        created, completed = await anext(events), await anext(events)
    await events.aclose()
    assert (created["type"], created["taskId"]) == ("task.created", task.id)
    assert (completed["type"], completed["result"]) == ("task.completed", {"n": 1})


async def test_events_of_the_past_have_an_end(app: Fairlane) -> None:
    tasks = [await app.submit(handler="echo", agent=agent) for agent in "ab"]
    for task in tasks:
        await task.result(timeout=60)
    everything = [event async for event in app.events(follow=False)]
    assert [event["id"] for event in everything] == list(range(1, 7))
    some = [event async for event in app.events(follow=False, after=3, agent="b")]
    assert some == [event for event in everything if event["id"] > 3 and event["agentId"] == "b"]


async def test_a_stream_ends_with_the_node() -> None:
    async with Fairlane(MEMORY, drain_seconds=0) as app:
        events = app.events()
        await app.submit(handler="nobody")
        assert (await anext(events))["type"] == "task.created"
        reading = asyncio.create_task(_all(events))
    async with asyncio.timeout(60):
        assert await reading == []


async def test_a_stream_ends_with_a_node_that_stops_while_it_reads() -> None:
    begun, go = threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return go.wait(60)

    async with Fairlane(MEMORY, drain_seconds=0) as app:
        views = app.node.views
        events = app.events()
        await app.submit(handler="nobody")
        assert (await anext(events))["type"] == "task.created"
        busy = asyncio.create_task(views.feed.read(hold))
        await eventually(begun.is_set)
        reading = asyncio.create_task(_all(events))
        await eventually(lambda: bool(views.feed._live))  # its look has to wait
        letting_go = asyncio.create_task(_when(lambda: views.feed._closed, go.set))
    await letting_go
    async with asyncio.timeout(60):
        assert await reading == []
    assert await busy


async def _when(condition: Callable[[], bool], act: Callable[[], None]) -> None:
    await eventually(condition)
    act()


async def _all(events: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event async for event in events]


async def test_an_unknown_type_of_event_is_refused(app: Fairlane) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"did you mean task\.failed"):
        await anext(app.events(types=["task.faild"]))
