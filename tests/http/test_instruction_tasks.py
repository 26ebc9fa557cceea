"""Tasks that are an instruction for an agent: what is taken, what is shown, and how they run.

Seed 3's task body, its executor and its concurrency; facts of specs/browseros.md section 12: 1, 78,
79, 81, 85-87; weaknesses of section 13: 1, 6 (an error in a stream that began well), and the
secrets that lay open. What the agent's stream may look like in detail is tested with the executor.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_asyncio

from tests.fakes.chat_agent import ChatAgent, Script
from tests.fakes.waiting import TooLate, in_time
from tests.http.server import Server, serving
from tests.http.stage import HELD, on_sqlite
from tests.http.work import Stream, Work, ms_between

if TYPE_CHECKING:
    from tests.fakes.tab_instance import TabInstance
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRETS = {
    "apiKey": "sk-very-secret",
    "accessKeyId": "AKIA-secret",
    "secretAccessKey": "aws-secret",
    "sessionToken": "session-secret",
}
LLM = {"provider": "anthropic", "model": "m-1", "baseUrl": "https://llm.example", **SECRETS}
AT_ONCE = {"maxRetries": 1, "backoffMs": 0}
NEVER = {"maxRetries": 0}


def instruction(work: Work, text: str = "Say hello", **fields: Any) -> dict[str, Any]:
    return {"agentId": work.agent, "instruction": text, **fields}


async def submitted(work: Work, text: str = "Say hello", **fields: Any) -> str:
    return await work.api.submit(**instruction(work, text, **fields))


# --- what is taken ------------------------------------------------------------------------------


async def test_an_instruction_is_accepted_with_id_state_and_time(work: Work) -> None:
    answer = await work.api.post("/tasks", {"instruction": "Navigate to https://example.com"})
    assert (answer.status, answer.json["state"]) == (202, "queued")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", answer.json["createdAt"])
    task = await work.api.show(answer.json["taskId"])
    assert (task["kind"], task["lane"], task["agentId"]) == (
        "instruction",
        "instruction",
        "default",
    )
    assert task["instruction"] == "Navigate to https://example.com"
    assert (task["priority"], task["attempts"], task["retryCount"]) == (0, 0, 0)
    assert task["maxAttempts"] == 4
    assert not {"deadline", "result", "error", "startedAt", "attemptLog"} & set(task)


async def test_every_field_of_an_instruction_is_kept_and_shown(work: Work) -> None:
    fields: dict[str, Any] = {
        "priority": "high",
        "retryPolicy": {"maxRetries": 5, "backoffMs": 2000, "backoffMultiplier": 3},
        "metadata": {"ticket": 7, "tags": ["a", None], "deep": {"ü": 1.5}},
        "llmConfig": {"provider": "openai", "model": "m"},
        "webhookUrl": work.hooks.new().url,
    }
    task = await work.api.show(await submitted(work, lane=HELD, timeout=30_000, **fields))
    assert (task["priority"], task["timeoutMs"], task["maxAttempts"]) == (-10, 30_000, 6)
    assert "timeout" not in task
    assert task["callbackUrl"] == fields["webhookUrl"]
    for name in ("retryPolicy", "metadata", "llmConfig"):
        assert task[name] == fields[name]
    listed = (await work.api.get("/tasks", agentId=work.agent)).json["tasks"]
    assert listed == [task]


async def test_the_longest_instruction_is_a_hundred_thousand_characters(work: Work) -> None:
    text = "ü" * 100_000
    task = await work.api.show(await submitted(work, text, lane=HELD))
    assert task["instruction"] == text
    answer = await work.api.post("/tasks", instruction(work, text + "x", lane=HELD))
    assert (answer.status, answer.code) == (400, "invalid_request")
    assert "instruction" in answer.error


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"instruction": ""}, "instruction"),
    ({"instruction": " \n\t "}, "instruction"),
    ({"instruction": 5}, "instruction"),
    ({"instruction": ["a"]}, "instruction"),
    ({"action": "click"}, "instruction"),
    ({"handler": "echo"}, "instruction"),
    ({"timeout": 0}, "timeout"),
    ({"timeoutMs": -1}, "timeoutMs"),
    ({"timeoutMs": 600_001}, "timeoutMs"),
    ({"timeout": 600_001}, "timeout"),
    ({"timeoutMs": 1.5}, "timeoutMs"),
    ({"timeoutMs": "1000"}, "timeoutMs"),
    ({"timeoutMs": True}, "timeoutMs"),
    ({"metadata": []}, "metadata"),
    ({"metadata": "x"}, "metadata"),
    ({"llmConfig": []}, "llmConfig"),
    ({"llmConfig": "x"}, "llmConfig"),
    ({"priority": "urgent"}, "priority"),
    ({"retryPolicy": {"maxRetries": -1}}, "maxRetries"),
    ({"dependsOn": "x"}, "dependsOn"),
    ({"webhookUrl": "ftp://example.com/x"}, "webhookUrl"),
    ({"agentId": "no spaces"}, "agentId"),
    ({"instructions": "x"}, "instruction"),
    ({"tabId": "t"}, "tabId"),
]


@on_sqlite
@pytest.mark.parametrize(("change", "named"), WRONG, ids=lambda value: str(value)[:40])
async def test_a_wrong_field_is_refused_by_its_name(
    work: Work, change: dict[str, Any], named: str
) -> None:
    answer = await work.api.post("/tasks", {**instruction(work, lane=HELD), **change})
    assert (answer.status, answer.code) == (400, "invalid_request"), answer
    assert named in answer.error or named.replace("webhook", "callback") in answer.error
    assert (await work.api.get("/tasks", agentId=work.agent)).json["count"] == 0


@on_sqlite
@pytest.mark.parametrize("body", [{}, {"agentId": "a"}, {"agentId": "a", "priority": 1}], ids=str)
async def test_one_of_the_three_kinds_of_work_is_required(work: Work, body: dict[str, Any]) -> None:
    answer = await work.api.post("/tasks", body)
    assert (answer.status, answer.code) == (400, "invalid_request")


@on_sqlite
@pytest.mark.parametrize("kind", ["action", "handler"])
async def test_other_kinds_have_a_day_and_no_language_model(work: Work, kind: str) -> None:
    base = work.task(lane=HELD) if kind == "action" else {"handler": "echo", "lane": HELD}
    fine = await work.api.post("/tasks", {**base, "timeoutMs": 86_400_000, "metadata": {"a": 1}})
    assert fine.status == 202
    task = await work.api.show(fine.json["taskId"])
    assert (task["timeoutMs"], task["metadata"]) == (86_400_000, {"a": 1})
    for change, named in (({"timeoutMs": 86_400_001}, "timeoutMs"), ({"llmConfig": {}}, "llm")):
        answer = await work.api.post("/tasks", {**base, **change})
        assert (answer.status, answer.code) == (400, "invalid_request")
        assert named in answer.error


@pytest.mark.parametrize("value", [1, 600_000])
async def test_the_bounds_of_a_timeout_are_taken(work: Work, value: int) -> None:
    for name in ("timeout", "timeoutMs"):
        limit: dict[str, Any] = {name: value}
        task = await work.api.show(await submitted(work, lane=HELD, **limit))
        assert task["timeoutMs"] == value


# --- what is shown ------------------------------------------------------------------------------


async def test_secrets_are_masked_on_every_surface(work: Work) -> None:
    hook = work.hooks.new()
    start = await work.newest()
    batch = await work.batch({"instruction": "x", "llmConfig": LLM, "lane": HELD})
    task_id = await submitted(work, lane=HELD, llmConfig=LLM, callbackUrl=hook.url)
    masked = {**LLM, **dict.fromkeys(SECRETS, "***")}
    assert (await work.api.show(task_id))["llmConfig"] == masked
    await work.api.cancel(task_id)
    delivery = await hook.one()
    assert delivery.task["llmConfig"] == masked
    surfaces = [
        delivery.raw,
        (await work.api.get(f"/tasks/{task_id}")).raw,
        (await work.api.get("/tasks", agentId=work.agent)).raw,
        (await work.api.get(f"/tasks/{task_id}/wait", timeoutMs=1)).raw,
        (await work.api.get(f"/tasks/{task_id}/events")).raw,
        (await work.page(after=start, agentId=work.agent)).raw,
        (await work.retry(task_id)).raw,
        (await work.bulk("cancel", agentId=work.agent)).raw,
        (await work.api.get(f"/batches/{batch.json['batchId']}")).raw,
    ]
    for raw in surfaces:
        for secret in SECRETS.values():
            assert secret.encode() not in raw


async def test_the_names_of_the_seed_are_understood_for_states(work: Work) -> None:
    waiting = await submitted(work)
    done = await work.echo()
    await work.api.end_of(done)
    for name, task_id in (("pending", waiting), ("completed", done)):
        assert (await work.api.get("/tasks", agentId=work.agent, state=name)).ids == [task_id]
        found = await work.bulk("cancel", agentId=work.agent, state=name, dryRun=True)
        assert found.status == 200
    answer = await work.bulk("cancel", agentId=work.agent, state="pending")
    assert answer.json["taskIds"] == [waiting]


async def test_without_an_agent_instructions_wait_and_stand_in_nobodys_way(work: Work) -> None:
    waiting = [await submitted(work, priority="critical") for _ in range(3)]
    other = await work.echo(lane="instruction", priority="low")
    assert (await work.api.end_of(other))["state"] == "done"
    assert set(await work.states(*waiting)) == {"queued"}
    assert (await work.delete(waiting[0])).json["state"] == "cancelled"


# --- how they run -------------------------------------------------------------------------------


class Talk(Work):
    """A server with an agent behind it."""

    agent_at: ChatAgent
    server: Server

    def messages(self) -> list[str]:
        return [entry.message for entry in self.agent_at.requests]

    async def clear(self) -> None:
        self.agent_at.scripts.clear()
        self.agent_at.requests.clear()
        await super().clear()
        self.agent_at.release()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talking(
    instance: TabInstance, hooks: Hooks, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Talk]:
    folder = tmp_path_factory.mktemp("talking")
    store = f"sqlite:///{folder / 'f.db'}"
    async with (
        ChatAgent() as agent,
        serving(
            folder,
            store,
            policy={"lanes": {HELD: {"paused": True}}},
            instances=[instance.url],
            allow_outbound=[hooks.address],
            environment={"FAIRLANE_AGENT": agent.url},
        ) as server,
    ):
        talk = Talk(server.api, instance, hooks)
        talk.agent_at, talk.server = agent, server
        yield talk


@pytest_asyncio.fixture(loop_scope="session")
async def talk(talking: Talk) -> AsyncIterator[Talk]:
    talking.agent = talking.new_agent()
    yield talking
    await talking.clear()


async def test_an_instruction_goes_to_the_agent_as_documented(talk: Talk) -> None:
    hook = talk.hooks.new()
    task_id = await submitted(talk, "Extract page title", webhookUrl=hook.url)
    task = await talk.api.end_of(task_id)
    (entry,) = talk.agent_at.requests
    assert (entry.method, entry.path) == ("POST", "/chat")
    assert entry.headers["content-type"] == "application/json"
    conversation = entry.body.pop("conversationId")
    assert str(uuid.UUID(conversation)) == conversation
    assert entry.body == {
        "message": "Extract page title",
        "isScheduledTask": True,
        "mode": "agent",
        "supportsImages": False,
        "provider": "browseros",
    }
    assert task["state"] == "done"
    assert task["result"] == {"type": "finish", "text": "Extract page title"}
    assert (await hook.one()).task == task


async def test_the_agent_gets_the_configuration_with_its_secrets_and_nobody_else(
    talk: Talk,
) -> None:
    refusal = {"error": "bad key sk-very-secret"}
    talk.agent_at.scripts["Fail"] = Script(status=400, body=refusal)
    task = await talk.api.end_of(await submitted(talk, "Hello", llmConfig=LLM))
    body = talk.agent_at.requests[0].body
    assert {name: body[name] for name in LLM} == LLM
    assert (body["message"], body["mode"]) == ("Hello", "agent")
    failed = await talk.api.end_of(await submitted(talk, "Fail", llmConfig=LLM))
    assert failed["state"] == "failed"
    for secret in SECRETS.values():
        assert secret not in str(task)
        assert secret not in str(failed)
        assert secret not in talk.server.log


async def test_an_error_in_the_stream_is_a_failure(talk: Talk) -> None:
    events = [{"type": "start"}, {"type": "error", "error": "model overloaded"}]
    talk.agent_at.scripts["Try"] = Script(events=events)
    task = await talk.api.end_of(await submitted(talk, "Try", retryPolicy=AT_ONCE))
    assert (task["state"], task["attempts"]) == ("failed", 2)
    assert "model overloaded" in task["error"]
    conversations = {entry.body["conversationId"] for entry in talk.agent_at.requests}
    assert len(conversations) == 2


@pytest.mark.parametrize("cut", [True, False], ids=["cut off", "unfinished"])
async def test_a_stream_that_does_not_finish_is_a_failure(talk: Talk, *, cut: bool) -> None:
    events = [{"type": "start"}, {"type": "text-delta", "delta": "half"}]
    talk.agent_at.scripts["Try"] = Script(events=events, break_off=cut)
    task = await talk.api.end_of(await submitted(talk, "Try", retryPolicy=NEVER))
    assert task["state"] == "failed"
    assert "result" not in task


async def test_a_refusal_of_the_agent_names_its_status(talk: Talk) -> None:
    talk.agent_at.scripts["Try"] = Script(status=500, body="Internal Server Error")
    task = await talk.api.end_of(await submitted(talk, "Try", retryPolicy=NEVER))
    assert (task["state"], task["attempts"]) == ("failed", 1)
    assert "500: Internal Server Error" in task["error"]


async def test_a_failure_that_passes_is_tried_again_after_a_second(talk: Talk) -> None:
    talk.agent_at.scripts["Try"] = Script(status=503)
    task = await talk.waits_again(await submitted(talk, "Try"))
    assert (task["maxAttempts"], task["attempts"]) == (4, 1)
    assert ms_between(task["attemptLog"][0]["endedAt"], task["nextEligibleAt"]) == 1_000


async def test_an_instruction_that_takes_too_long_is_stopped(talk: Talk) -> None:
    talk.agent_at.scripts["Try"] = Script(events=[{"type": "start"}], hang_after=1)

    async def stop(seconds: float) -> None:
        span = int(seconds * 500)
        task = await talk.api.end_of(
            await submitted(talk, "Try", timeoutMs=span, retryPolicy={"maxRetries": 0})
        )
        assert task["state"] == "failed"
        assert str(span) in task["error"]
        if not talk.agent_at.requests:
            raise TooLate("its time was over before its request had left")
        (entry,) = talk.agent_at.requests
        await talk.agent_at.until(lambda: entry.outcome == "gone")

    await in_time(stop)


async def test_a_cancelled_instruction_is_stopped_and_never_runs_again(talk: Talk) -> None:
    talk.agent_at.scripts["Try"] = Script(events=[{"type": "start"}], hang_after=1)
    task_id = await submitted(talk, "Try")
    await talk.agent_at.until(lambda: len(talk.agent_at.requests) == 1)
    assert (await talk.delete(task_id)).status == 200
    (entry,) = talk.agent_at.requests
    await talk.agent_at.until(lambda: entry.outcome == "gone")
    assert (await talk.api.end_of(await submitted(talk, "Next")))["state"] == "done"
    assert await talk.states(task_id) == ["cancelled"]
    assert talk.messages() == ["Try", "Next"]


async def test_one_instruction_runs_at_a_time_by_priority_and_age(talk: Talk) -> None:
    talk.agent_at.scripts["First"] = Script(hang_after=0, events=[{"ok": True}])
    ids = [await submitted(talk, "First")]
    await talk.agent_at.until(lambda: talk.messages() == ["First"])
    for text, priority in (("e", "low"), ("c", 0), ("d", "normal"), ("a", "critical"), ("b", -10)):
        ids.append(await submitted(talk, text, priority=priority, agentId=talk.new_agent()))
    talk.agent_at.release()
    assert {task["state"] for task in await talk.api.ended(*ids)} == {"done"}
    assert talk.messages() == ["First", "a", "b", "c", "d", "e"]
    assert talk.agent_at.max_concurrent == 1


async def test_the_example_of_the_documentation_runs(talk: Talk) -> None:
    items = [
        {"key": "open", "instruction": "Navigate to https://example.com", "dependsOn": []},
        {"instruction": "Extract page title", "dependsOn": ["#open"]},
        {"instruction": "Take screenshot", "dependsOn": ["#open"]},
    ]
    answer = await talk.batch(*items)
    tasks = await talk.api.ended(*answer.ids)
    assert [task["state"] for task in tasks] == ["done"] * 3
    assert talk.messages() == [item["instruction"] for item in items]
    first, *others = talk.agent_at.requests
    assert "inputs" not in first.body
    given = [{"taskId": answer.ids[0], "state": "done", "result": tasks[0]["result"]}]
    assert [entry.body["inputs"] for entry in others] == [given, given]


async def test_the_text_can_be_read_while_it_comes_and_afterwards(talk: Talk) -> None:
    words = [{"type": "text-delta", "delta": word} for word in ("Hel", "lo\n", "wörld")]
    events = [*words, {"type": "finish"}]
    talk.agent_at.scripts["Try"] = Script(events=events, hang_after=2)
    task_id = await submitted(talk, "Try")
    path = f"/tasks/{task_id}/output"
    url, accept = talk.api.url + path, {"Accept": "text/event-stream"}
    async with Stream(url, accept) as early, Stream(f"{url}?follow=1", {}) as follower:
        texts = await until_text(early, "Hello\n")
        output = (await talk.api.get(path)).json
        assert output == {
            "taskId": task_id,
            "attempt": 1,
            "text": "Hello\n",
            "complete": False,
            "truncated": False,
        }
        talk.agent_at.release()
        await talk.api.end_of(task_id)
        assert texts + await until_end(early) == "Hello\nwörld"
        assert await until_end(follower) == "Hello\nwörld"
    output = (await talk.api.get(path)).json
    assert (output["text"], output["complete"]) == ("Hello\nwörld", True)
    async with Stream(url, accept) as late:
        assert await until_end(late) == "Hello\nwörld"


async def until_text(stream: Stream, wanted: str) -> str:
    text = ""
    while text != wanted:
        message = await stream.message()
        assert message["event"] == "output"
        data = msgspec.json.decode(message["data"])
        assert data["attempt"] == 1
        text += data["text"]
        assert wanted.startswith(text)
    return text


async def until_end(stream: Stream) -> str:
    text = ""
    while (message := await stream.message())["event"] == "output":
        text += msgspec.json.decode(message["data"])["text"]
    assert message["event"] == "end"
    assert msgspec.json.decode(message["data"]) == {"state": "done"}
    return text


async def test_the_output_of_an_unknown_task_is_404(work: Work) -> None:
    answer = await work.api.get("/tasks/tsk_nobody00/output")
    assert (answer.status, answer.code) == (404, "not_found")


async def test_a_task_that_has_not_begun_has_no_text(work: Work) -> None:
    task_id = await submitted(work)
    output = (await work.api.get(f"/tasks/{task_id}/output")).json
    assert (output["taskId"], output["text"], output["complete"]) == (task_id, "", False)


@pytest.mark.slow
async def test_the_variable_of_the_seed_allows_more_at_once(serve: Serve) -> None:
    async with ChatAgent() as agent:
        agent.script = Script(hang_after=0, events=[{"ok": True}])
        variables = {"FAIRLANE_AGENT": agent.url, "TASK_QUEUE_MAX_CONCURRENT": "3"}
        server = await serve(environment=variables)
        ids = await asyncio.gather(*(server.api.submit(instruction=str(n)) for n in range(5)))
        await agent.until(lambda: len(agent.requests) == 3)
        states = [(await server.api.show(one))["state"] for one in ids]
        assert sorted(states) == ["queued", "queued", "running", "running", "running"]
        agent.script = None
        agent.release()
        await server.api.ended(*ids)
        assert agent.max_concurrent == 3
