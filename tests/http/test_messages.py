"""Messages: what is taken, what is joined, what is refused and with which code.

Facts of specs/goclaw.md section 8: 3, 5, 7, 8, 25, 28, 29, 33, 34; weaknesses of section 10: 2, 4,
7, 10.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.chat_agent import ChatAgent
from tests.http.api import eventually
from tests.http.server import serving
from tests.http.stage import HANG, HELD, ONE, POLICY, TINY, on_sqlite
from tests.http.talk import Talk, ago
from tests.http.work import Work

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fakes.tab_instance import TabInstance
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks

pytestmark = pytest.mark.asyncio(loop_scope="session")

WINDOW = 60_000  # of a conversation that is in no hurry it does not end while a test runs
SHORT = 250


# --- what is taken ------------------------------------------------------------------------------


async def test_a_message_is_a_task_of_its_session_in_the_lane_main(work: Work) -> None:
    talk = Talk(work)
    answer = await talk.post("Hello", sender="ann", metadata={"channel": "c1"}, priority="high")
    assert answer.status == 202
    assert set(answer.json) == {"taskId", "state", "position", "createdAt", "messageId"}
    task = await talk.api.end_of(answer.json["taskId"])
    assert (task["state"], task["lane"], task["sessionKey"]) == ("done", "main", talk.key)
    assert (task["kind"], task["handler"], task["agentId"]) == ("handler", "echo", work.agent)
    assert (task["sender"], task["metadata"]) == ("ann", {"channel": "c1"})
    assert task["priority"] == -10
    assert task["result"] == {"message": "Hello", "sender": "ann"}


async def test_without_a_handler_it_is_an_instruction(work: Work) -> None:
    talk = Talk(work)
    task = await talk.api.show(await talk.say("Hello", handler=None, agentId=None, lane=HELD))
    assert (task["kind"], task["instruction"], task["agentId"]) == (
        "instruction",
        "Hello",
        "default",
    )
    assert (task["sender"], task["lane"]) == ("default", HELD)


@on_sqlite
async def test_an_agent_receives_messages_that_were_sent_together(
    work: Work, tmp_path: Path
) -> None:
    """The whole way: messages, their window, one run with both texts."""
    async with ChatAgent() as agent:
        store = f"sqlite:///{tmp_path / 'f.db'}"
        environment = {"FAIRLANE_AGENT": agent.url}
        async with serving(tmp_path / "s", store, environment=environment) as server:
            talk = await Talk(Work(server.api, work.instance, work.hooks)).unhurried()
            first = await talk.say("Hello", handler=None, debounceMs=WINDOW)
            assert await talk.say("again", handler=None, debounceMs=SHORT) == first
            assert (await talk.api.end_of(first))["state"] == "done"
        assert [entry.message for entry in agent.requests] == ["Hello\nagain"]


async def test_an_unknown_lane_falls_back_to_main(work: Work) -> None:
    talk = Talk(work)
    assert (await talk.api.show(await talk.say("x", lane="nowhere")))["lane"] == "main"


async def test_messages_of_a_session_run_one_after_another(work: Work) -> None:
    talk = Talk(work)
    ids = [await talk.say(str(number)) for number in range(8)]
    tasks = await talk.api.ended(*ids)
    assert [task["result"]["message"] for task in tasks] == [str(n) for n in range(8)]
    ends = [(task["startedAt"], task["completedAt"]) for task in tasks]
    assert all(ends[n][1] <= ends[n + 1][0] for n in range(7))


# --- joined -------------------------------------------------------------------------------------


async def test_messages_of_one_sender_become_one_run(work: Work) -> None:
    talk = await Talk(work).unhurried()
    windows = {"b": WINDOW, "c": SHORT}
    first = await talk.post("a", sender="ann", debounceMs=WINDOW, metadata={"id": 1, "first": 1})
    later = [
        await talk.post(text, sender="ann", debounceMs=window, metadata={"id": text})
        for text, window in windows.items()
    ]
    assert "merged" not in first.json
    for answer in later:
        assert (answer.status, answer.json["merged"]) == (202, True)
        assert answer.json["taskId"] == first.json["taskId"]
    assert await talk.echoed(first.json["taskId"]) == "a\nb\nc"
    task = await talk.api.show(first.json["taskId"])
    assert task["metadata"] == {"id": "c", "first": 1}


async def test_a_message_does_not_tell_the_secret_of_another_where_to_go(work: Work) -> None:
    talk = await Talk(work).unhurried()
    secret, elsewhere = {"apiKey": "sk-12345"}, {"baseUrl": "https://evil.example"}
    apart: dict[str, Any] = {"handler": None, "lane": HELD, "debounceMs": WINDOW}
    first = await talk.say("Hello", **apart, llmConfig=secret)
    merged = await talk.post("there", **apart, llmConfig={"model": "m"})
    assert (merged.json["taskId"], merged.json["merged"]) == (first, True)
    other = await talk.say("you", **apart, llmConfig=elsewhere)
    assert other != first
    assert (await talk.api.show(first))["llmConfig"] == {"apiKey": "***", "model": "m"}
    assert (await talk.api.show(other))["llmConfig"] == elsewhere


async def test_a_growing_message_shows_until_when_it_waits(work: Work) -> None:
    talk = await Talk(work).unhurried()
    task = await talk.api.show(await talk.say("a", debounceMs=WINDOW))
    assert (task["state"], task["gate"]) == ("queued", "debounce")
    assert task["nextEligibleAt"] > task["createdAt"]


async def test_other_senders_are_answered_apart(work: Work) -> None:
    talk = await Talk(work).unhurried()
    ann = await talk.say("ann", sender="ann", debounceMs=WINDOW)
    bob = await talk.say("bob", sender="bob", debounceMs=SHORT)
    assert await talk.say("more", sender="ann", debounceMs=SHORT) == ann
    assert [await talk.echoed(task) for task in (ann, bob)] == ["ann\nmore", "bob"]


@pytest.mark.parametrize("said", [{"noMerge": True}, {"media": [{"url": "cat.jpg"}]}])
async def test_media_goes_at_once_behind_what_was_said_before(
    work: Work, said: dict[str, Any]
) -> None:
    talk = await Talk(work).unhurried()
    text = await talk.say("look:", debounceMs=WINDOW)
    picture = await talk.say("a cat", debounceMs=WINDOW, **said)
    assert picture != text
    before, after = await talk.api.ended(text, picture)
    assert before["completedAt"] <= after["startedAt"]
    assert after["result"]["noMerge"] is True
    assert after["result"].get("media") == said.get("media")


async def test_media_needs_no_text(work: Work) -> None:
    talk = Talk(work)
    answer = await talk.post(None, media=["cat.jpg"])
    assert answer.status == 202
    task = await talk.api.end_of(answer.json["taskId"])
    assert task["result"]["media"] == ["cat.jpg"]


async def test_a_merged_message_is_called_back_once(work: Work) -> None:
    talk, hook = await Talk(work).unhurried(), work.hooks.new()
    windows = {"a": WINDOW, "b": SHORT}
    said = [
        await talk.say(text, debounceMs=window, callbackUrl=hook.url)
        for text, window in windows.items()
    ]
    (delivery,) = await hook.until(1)
    assert [delivery.task["taskId"]] * 2 == said
    assert delivery.task["result"]["message"] == "a\nb"


async def test_a_restart_in_the_middle_of_a_window_loses_nothing(
    store_url: str, serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    server = await serve(store_url)
    talk = await Talk(Work(server.api, instance, hooks), "kept").unhurried()
    first = await talk.say("a", debounceMs=WINDOW)
    assert await talk.say("b", debounceMs=WINDOW) == first
    server.kill()
    again = await serve(store_url)
    talk = Talk(Work(again.api, instance, hooks), "kept")
    answer = await talk.post("c", debounceMs=0, agentId=(await again.api.show(first))["agentId"])
    assert (answer.json["taskId"], answer.json["merged"]) == (first, True)
    assert await talk.echoed(first) == "a\nb\nc"


# --- an Idempotency-Key -------------------------------------------------------------------------


async def test_the_same_message_twice_is_one(work: Work) -> None:
    talk = await Talk(work).unhurried()
    answers = [await talk.post("a", key="k1", debounceMs=WINDOW) for _ in range(3)]
    assert len({answer.json["taskId"] for answer in answers}) == 1
    joined = [await talk.post("b", key="k2", debounceMs=SHORT) for _ in range(3)]
    assert {answer.json["taskId"] for answer in joined} == {answers[0].json["taskId"]}
    ids = [{answer.json["messageId"] for answer in some} for some in (answers, joined)]
    assert [len(some) for some in ids] == [1, 1]
    assert ids[0] != ids[1]
    assert await talk.echoed(answers[0].json["taskId"]) == "a\nb"
    late = await talk.post("a", key="k1", debounceMs=WINDOW)
    assert late.json["taskId"] == answers[0].json["taskId"]


async def test_a_key_stands_for_one_message(work: Work) -> None:
    talk = Talk(work)
    await talk.post("a", key="k1")
    answer = await talk.post("b", key="k1")
    assert (answer.status, answer.code) == (409, "idempotency_conflict")
    answer = await talk.post("b", key="k" * 256)
    assert (answer.status, answer.code) == (400, "invalid_request")


async def test_a_refused_message_may_be_tried_again_with_its_key(work: Work) -> None:
    talk = Talk(work)
    running = await talk.busy()
    await talk.tune(cap=0, drop="new")
    assert (await talk.post("a", key="k1")).code == "session_queue_full"
    await talk.api.cancel(running)
    await talk.api.end_of(running)

    async def accepted() -> str | None:
        answer = await talk.post("a", key="k1")
        return answer.json["taskId"] if answer.status == 202 else None

    assert await talk.echoed(await eventually(accepted)) == "a"


# --- modes, cap and drop ------------------------------------------------------------------------


async def test_an_interrupting_message_runs_when_the_old_run_has_really_ended(
    work: Work,
) -> None:
    talk = Talk(work)
    old = await work.submit(fake=HANG, sessionKey=talk.key)
    (entry,) = await work.arrived(1)
    waiting = await talk.say("waiting")
    new = await talk.say("new", mode="interrupt")
    assert await talk.echoed(new) == "new"
    await work.instance.until(lambda: entry.outcome == "gone")
    for task in await talk.api.ended(old, waiting):
        assert task["state"] == "cancelled"
        assert task["error"].startswith("interrupted:")


async def test_what_waits_is_collected_into_one_run(work: Work) -> None:
    talk = Talk(work)
    running = await talk.busy()
    await talk.tune(mode="collect")
    answers = [await talk.post(text, sender=f"s-{text}") for text in "abc"]
    assert [answer.json.get("merged", False) for answer in answers] == [False, True, True]
    await talk.api.cancel(running)
    assert await talk.echoed(answers[0].json["taskId"]) == "a\nb\nc"


async def test_with_drop_old_the_oldest_waiting_message_is_cancelled(work: Work) -> None:
    talk = Talk(work)
    running = await talk.busy()
    await talk.tune(cap=2)
    ids = [await talk.say(text) for text in "abc"]
    dropped = await talk.api.end_of(ids[0])
    assert (dropped["state"], dropped["error"].split(":")[0]) == ("cancelled", "queue_dropped")
    await talk.api.cancel(running)
    assert [await talk.echoed(task_id) for task_id in ids[1:]] == ["b", "c"]


async def test_with_drop_new_the_caller_is_refused_with_a_retry_time(work: Work) -> None:
    talk = Talk(work)
    await talk.busy()
    await talk.say("a", cap=1)
    answer = await talk.post("b", cap=1, drop="new")
    assert (answer.status, answer.code) == (429, "session_queue_full")
    assert answer.json["retryable"] is True
    assert answer.json["details"] == {"sessionKey": talk.key, "waiting": 1, "cap": 1}
    assert int(answer.headers["Retry-After"]) >= 1
    assert (await talk.api.get("/tasks", sessionKey=talk.key)).json["count"] == 2


async def test_a_message_that_was_sent_before_a_stopall_is_stale(work: Work) -> None:
    talk = Talk(work)
    before = ago(5)
    await talk.ask("stopall")
    answer = await talk.post("late", sentAt=before)
    assert (answer.status, answer.code) == (409, "message_stale")
    assert "retryable" not in answer.json
    assert await talk.echoed(await talk.say("new", sentAt=ago(-5))) == "new"
    assert await talk.echoed(await talk.say("undated")) == "undated"


async def test_a_full_lane_is_another_error(work: Work) -> None:
    talk = Talk(work)
    for number in range(3):
        await Talk(work).say(str(number), lane=TINY)
    answer = await talk.post("more", lane=TINY)
    assert (answer.status, answer.code) == (429, "queue_full")
    assert await talk.echoed(await talk.say("elsewhere")) == "elsewhere"


async def test_a_stopping_server_takes_no_messages_and_still_stops_runs(
    serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    server = await serve(policy=POLICY, drain_seconds=20)
    talk = Talk(Work(server.api, instance, hooks))
    running = await talk.busy()
    server.signal(signal.SIGTERM)

    async def refused() -> bool | None:
        answer = await Talk(talk.work).post("late", lane=HELD)
        if answer.status == 202:
            return None
        assert (answer.status, answer.code) == (503, "draining")
        assert answer.json["retryable"] is True
        return True

    await eventually(refused)
    assert (await server.api.show(running))["state"] == "running"
    assert (await talk.post("/stop")).json["stopped"] == [running]
    assert await server.exit_code() == 0


@on_sqlite
async def test_a_disabled_scheduler_takes_no_messages(serve: Serve, work: Work) -> None:
    server = await serve(policy={"enabled": False})
    answer = await Talk(Work(server.api, work.instance, work.hooks)).post("x")
    assert (answer.status, answer.code) == (503, "disabled")


# --- commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["/stop", "  /stop\n", "/Stop", "/stop@my_bot"])
async def test_a_stop_as_text_is_never_debounced(work: Work, text: str) -> None:
    talk = await Talk(work).unhurried()
    running = await talk.busy()
    said = await talk.say("wait for it", debounceMs=WINDOW)
    answer = await talk.post(text, debounceMs=WINDOW)
    assert (answer.status, answer.json) == (200, {"stopped": [running], "drained": []})
    assert await talk.text(said) == "wait for it"
    assert (await talk.api.show(said))["state"] == "queued"


async def test_a_stopall_as_text_takes_the_window_with_it(work: Work) -> None:
    talk = await Talk(work).unhurried()
    running = await talk.busy()
    waiting = await talk.say("waiting")
    said = await talk.say("typed just before", sender="bob", debounceMs=WINDOW)
    answer = await talk.post("/stopall", debounceMs=WINDOW, sender="bob")
    assert answer.status == 200
    assert (answer.json["stopped"], answer.json["drained"]) == ([running], [waiting, said])
    for task in await talk.api.ended(running, waiting, said):
        assert task["error"].startswith("stopped:")


@pytest.mark.parametrize("text", ["/stop it", "/stopall now", "stop", "/stop@", "//stop"])
async def test_other_texts_are_messages(work: Work, text: str) -> None:
    talk = Talk(work)
    assert await talk.echoed(await talk.say(text)) == text


# --- validation ---------------------------------------------------------------------------------


@on_sqlite
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"message": ""}, "'message' must not be empty"),
        ({"message": " \n "}, "'message' must not be empty"),
        ({"message": None}, "'message' must not be empty"),
        ({"message": 5}, "'message'"),
        ({"message": "a\0b"}, "U+0000"),
        ({"media": []}, None),
        ({"message": None, "media": []}, "'message' must not be empty"),
        ({"media": "cat.jpg"}, "'media'"),
        ({"mode": "push"}, "'mode' must be one of collect, followup, interrupt, queue, reject"),
        ({"drop": "oldest"}, "'drop' must be one of new, old"),
        ({"cap": -1}, "'cap' must be from 0 to 10000"),
        ({"cap": "many"}, "'cap'"),
        ({"debounceMs": 60_001}, "'debounceMs' must be from 0 to 60000"),
        ({"maxConcurrent": 0}, "'maxConcurrent' must be from 1 to 1000"),
        ({"sentAt": "yesterday"}, "sentAt"),
        ({"sender": "x" * 257}, "'sender'"),
        ({"noMerge": "yes"}, "'noMerge'"),
        ({"lane": "../x"}, "'lane'"),
        ({"handler": "a b"}, "'handler'"),
        ({"agentId": "a b"}, "'agentId'"),
        ({"priority": "huge"}, "'priority'"),
        ({"timeoutMs": 0}, "'timeoutMs'"),
        ({"callbackUrl": "file:///etc/passwd"}, "callbackUrl"),
        ({"text": "x"}, "unknown field 'text'"),
        ({"debounceMS": 1}, "did you mean debounceMs?"),
    ],
)
async def test_what_is_wrong_with_a_message_is_named(
    work: Work, fields: dict[str, Any], named: str | None
) -> None:
    body = {**Talk(work).body("x"), **fields}
    answer = await work.api.post("/sessions/checked/messages", body)
    if named is None:
        assert answer.status == 202
        return
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert named in answer.error


@on_sqlite
async def test_media_may_not_be_nested_for_ever(work: Work) -> None:
    deep: Any = []
    for _ in range(70):
        deep = [deep]
    answer = await Talk(work).post("x", media=deep)
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert answer.error.startswith("field 'media[0][0]")
    assert answer.error.endswith("must not be nested deeper than 64 levels")


@on_sqlite
@pytest.mark.parametrize("text", ["hello", "/stop", "/stopall"])
@pytest.mark.parametrize("key", ["%20a", "a%25b", "-x", ".x", "x" * 129, "a%0ab", "%C3%BC"])
async def test_a_key_that_no_task_could_name_is_refused(work: Work, key: str, text: str) -> None:
    answer = await work.api.post(f"/sessions/{key}/messages", {"message": text})
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "path parameter 'key'" in answer.error


@on_sqlite
@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b'"x"', b"null", b"\xff"])
async def test_a_body_that_is_not_an_object_is_refused(work: Work, raw: bytes) -> None:
    answer = await work.api.ask("POST", "/sessions/x/messages", raw=raw)
    assert (answer.status, answer.code) == (400, "invalid_request")


async def test_many_people_talk_at_once_and_nothing_is_lost(work: Work) -> None:
    talks = [Talk(work) for _ in range(20)]
    said = await asyncio.gather(
        *(talk.say(f"{n}", sender=f"s{n}", debounceMs=50) for talk in talks for n in range(5))
    )
    tasks = await work.api.ended(*said)
    assert {task["state"] for task in tasks} == {"done"}
    assert sum(len(task["result"]["message"].split("\n")) for task in tasks) == 100
    await asyncio.gather(*(talk.gone() for talk in talks))


async def test_a_lane_of_one_serves_a_session_to_its_end(work: Work) -> None:
    """A run that ends hands its turn on without waiting for the slot that it still has."""
    talk = Talk(work)
    ids = [await talk.say(str(n), lane=ONE) for n in range(5)]
    assert [await talk.echoed(task_id) for task_id in ids] == [str(n) for n in range(5)]
