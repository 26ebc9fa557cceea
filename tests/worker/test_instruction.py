from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import uuid
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from fairlane.core.errors import ExecutionFailed, LeaseLost
from fairlane.outbound.guard import Guard
from fairlane.outbound.sending import Sender
from fairlane.worker.executors.base import RESPONSE_BYTES_MAX, Executor, Run
from fairlane.worker.executors.exchange import whole
from fairlane.worker.executors.instruction import (
    EVENT_CHARACTERS_MAX,
    STREAM_BYTES_MAX,
    InstructionExecutor,
)
from fairlane.worker.executors.tabs import Instance
from tests.fakes.chat_agent import ChatAgent, Entry, Script, event
from tests.fakes.runs import FakeRun
from tests.fakes.waiting import eventually
from tests.outbound.receivers import listening

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

UNFINISHED = "the agent's stream ended before it had finished"
KEY = "sk-live-0123456789"


@pytest.fixture
async def sender() -> AsyncIterator[Sender]:
    async with Sender(Guard(["127.0.0.1"])) as one:
        yield one


@pytest.fixture
async def agent() -> AsyncIterator[ChatAgent]:
    async with ChatAgent() as one:
        yield one


@pytest.fixture
def executor(agent: ChatAgent, sender: Sender) -> InstructionExecutor:
    return InstructionExecutor(Instance(agent.url), sender)


def asked(**more: Any) -> FakeRun:
    return FakeRun(kind="instruction", **{"instruction": "Book a table", **more})


async def failure_of(executor: InstructionExecutor, run: FakeRun) -> ExecutionFailed:
    with pytest.raises(ExecutionFailed) as caught:
        await executor.execute(run)
    return caught.value


async def failure_with(executor: InstructionExecutor, **how: Any) -> ExecutionFailed:
    """How a run fails when the agent answers as the script says."""
    fake = msgspec.to_builtins(Script(**how), builtin_types=(bytes,))
    return await failure_of(executor, asked(llmConfig={"fake": fake}))


async def result_with(executor: InstructionExecutor, agent: ChatAgent, **how: Any) -> Any:
    agent.script = Script(**how)
    return await executor.execute(asked())


async def failure_after(
    executor: InstructionExecutor, agent: ChatAgent, *pieces: bytes | str, **how: Any
) -> ExecutionFailed:
    agent.script = Script(pieces=list(pieces), **how)
    return await failure_of(executor, asked())


def only(agent: ChatAgent) -> Entry:
    (entry,) = agent.requests
    return entry


# --- the request ---------------------------------------------------------------------------------


async def test_the_instruction_goes_to_chat_with_what_an_agent_expects(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    await executor.execute(asked())
    entry = only(agent)
    assert (entry.method, entry.path) == ("POST", "/chat")
    conversation = entry.body.pop("conversationId")
    assert str(uuid.UUID(conversation, version=4)) == conversation
    assert entry.body == {
        "message": "Book a table",
        "isScheduledTask": True,
        "mode": "agent",
        "supportsImages": False,
        "provider": "browseros",
    }


async def test_each_attempt_is_a_conversation_of_its_own(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    run = asked()
    await executor.execute(run)
    await executor.execute(run)
    first, second = (entry.body["conversationId"] for entry in agent.requests)
    assert first != second


async def test_llm_config_is_laid_over_the_defaults(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    config = {"provider": "openai", "model": "m1", "supportsImages": True, "apiKey": KEY}
    await executor.execute(asked(llmConfig=config))
    body = only(agent).body
    assert {key: body[key] for key in config} == config
    assert body["message"] == "Book a table"


async def test_llm_config_never_changes_what_the_request_is(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    evil = {"conversationId": "evil", "message": "evil", "isScheduledTask": False, "mode": "chat"}
    await executor.execute(asked(llmConfig={**evil, "inputs": ["evil"], "model": "m1"}))
    body = only(agent).body
    assert body["conversationId"] != "evil"
    assert (body["message"], body["isScheduledTask"], body["mode"]) == (
        "Book a table",
        True,
        "agent",
    )
    assert (body["model"], "inputs" in body) == ("m1", False)


async def test_what_earlier_tasks_have_left_is_sent_along(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    inputs = [{"taskId": "tsk_0", "state": "done", "result": {"title": "T"}}]
    await executor.execute(asked(inputs=inputs, llmConfig={"inputs": "evil"}))
    assert only(agent).body["inputs"] == inputs


async def test_the_headers_say_who_asks_for_which_task(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    await executor.execute(asked(agent="crawler:7", attempt=3))
    headers = only(agent).headers
    assert headers["content-type"] == "application/json"
    assert headers["accept"] == "text/event-stream"
    assert headers["x-agent-id"] == "crawler:7"
    assert headers["x-fairlane-task-id"] == "tsk_1"
    assert headers["x-fairlane-attempt"] == "3"
    assert "authorization" not in headers


async def test_the_agents_token_is_sent(sender: Sender) -> None:
    async with ChatAgent(token="s3cret") as guarded:
        await InstructionExecutor(Instance(guarded.url, "s3cret"), sender).execute(asked())
        failure = await failure_of(InstructionExecutor(Instance(guarded.url), sender), asked())
    assert guarded.requests[0].headers["authorization"] == "Bearer s3cret"
    assert failure.message == 'Chat API returned 401: {"error": "unauthorized"}'
    assert not failure.retryable


async def test_an_agent_may_live_below_a_path(sender: Sender, agent: ChatAgent) -> None:
    executor = InstructionExecutor(Instance(f"{agent.url}/core/"), sender)
    failure = await failure_of(executor, asked())
    assert only(agent).path == "/core/chat"
    assert failure.message == "Chat API returned 404: no such route"


# --- what never leaves ---------------------------------------------------------------------------


@pytest.mark.parametrize("instruction", [None, "", " \n", 7])
async def test_nothing_to_do_fails_before_it_starts(
    executor: InstructionExecutor, agent: ChatAgent, instruction: Any
) -> None:
    run = asked(instruction=instruction)
    failure = await failure_of(executor, run)
    assert failure.message == "instruction is required for task execution"
    assert (failure.retryable, run.starts, agent.requests) == (False, 0, [])


async def test_llm_config_that_is_not_an_object_fails_before_it_starts(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    run = asked(llmConfig=["a"])
    failure = await failure_of(executor, run)
    assert failure.message == "llmConfig is not valid: use an object"
    assert (failure.retryable, run.starts, agent.requests) == (False, 0, [])


@pytest.mark.parametrize("name", ["a\r\nX-Evil: 1", "ägent"])
async def test_an_agent_that_is_not_a_header_value_fails_before_it_starts(
    executor: InstructionExecutor, agent: ChatAgent, name: str
) -> None:
    run = asked(agent=name)
    failure = await failure_of(executor, run)
    assert failure.message == "agentId cannot be sent as a header"
    assert (failure.retryable, run.starts, agent.requests) == (False, 0, [])


async def test_the_task_starts_before_the_request_leaves(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    seen_at_start: list[int] = []
    run = asked(on_start=lambda: seen_at_start.append(len(agent.requests)))
    await executor.execute(run)
    assert (seen_at_start, run.starts, len(agent.requests)) == ([0], 1, 1)


async def test_a_lost_lease_sends_nothing(executor: InstructionExecutor, agent: ChatAgent) -> None:
    with pytest.raises(LeaseLost):
        await executor.execute(asked(lost=True))
    assert agent.requests == []


async def test_the_executor_and_its_run_keep_the_contract(sender: Sender) -> None:
    executor: Executor = InstructionExecutor(Instance("http://x"), sender)
    run: Run = asked()
    assert (executor.starts_itself, run.work.kind) == (True, "instruction")
    await executor.close()


# --- results -------------------------------------------------------------------------------------


async def test_the_last_event_is_the_result(executor: InstructionExecutor) -> None:
    assert await executor.execute(asked()) == {"type": "finish", "text": "Book a table"}


@pytest.mark.parametrize(
    ("pieces", "result"),
    [
        ([b'data: {"a": 1}\n\ndata: {"b": 2}\n\n'], {"b": 2}),
        ([event({"type": "start"}), b"data: [DONE]\n\n"], {"type": "start"}),
        ([event({"a": 1}), b"data:[DONE]"], {"a": 1}),
        ([event({"a": 1}), b"data: [DONE]\n\n", event({"late": 1})], {"a": 1}),
        ([event({"a": 1}), b"data: [DONE]\n\n" + event("late", "error")], {"a": 1}),
        ([b'data: {"a":\ndata: [1,\ndata: 2]}\n\n'], {"a": [1, 2]}),
        ([b'data: {"a": 1}\ndata: {"b": 2}\n\n'], {"b": 2}),
        ([b'data: {"a": 1}\ndata: [DONE]\n\n'], {"a": 1}),
        ([event({"a": 1}), b"data: not json\n\n"], {"a": 1}),
        ([event({"a": 1}), b"data: " + b"[" * 5000 + b"\n\n"], {"a": 1}),
        ([b'data: {"a": 1}'], {"a": 1}),
        ([b'data: {"a": 1}\n'], {"a": 1}),
        ([event({"a": 1}), b": bye"], {"a": 1}),
        ([event({"type": "what-is-this", "n": 1})], {"type": "what-is-this", "n": 1}),
        ([event({"type": 7})], {"type": 7}),
        ([event([1, 2])], [1, 2]),
        ([event("text")], "text"),
        ([event(None)], None),
        ([event({"type": "done"}), event({"type": "text-delta"})], {"type": "text-delta"}),
        ([event({"n": 1}, "result"), event({"n": 2}, "progress")], {"n": 2}),
        ([event({"error": None, "answer": 1})], {"error": None, "answer": 1}),
        ([event({"error": "small", "answer": 1})], {"error": "small", "answer": 1}),
        ([event({"success": False, "step": 1}), event({"ok": True})], {"ok": True}),
    ],
)
async def test_a_stream_comes_to_its_last_event(
    executor: InstructionExecutor, agent: ChatAgent, pieces: list[bytes], result: Any
) -> None:
    assert await result_with(executor, agent, pieces=pieces) == result


async def test_characters_and_line_ends_may_be_cut_by_chunks(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    stream = '\ufeff: hi\r\n\r\nevent: text\r\ndata: {"text": "grüße 😀"}\r\n\r\n'.encode()
    agent.script = Script(pieces=[bytes([one]) for one in stream])
    run = asked()
    assert await executor.execute(run) == {"text": "grüße 😀"}
    assert run.texts == ["grüße 😀"]


async def test_an_end_mark_is_not_waited_behind(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    how = {"pieces": [event({"a": 1}), b"data: [DONE]\n\n"], "hang_after": 2}
    assert await result_with(executor, agent, **how) == {"a": 1}
    await agent.until(lambda: only(agent).outcome == "gone")


@pytest.mark.parametrize("kind", ["finish", "done", "result", "complete", "completed"])
async def test_a_break_after_the_finish_takes_nothing_back(
    executor: InstructionExecutor, agent: ChatAgent, kind: str
) -> None:
    how = {"events": [{"type": kind, "n": 1}], "break_off": True}
    assert await result_with(executor, agent, **how) == {"type": kind, "n": 1}


# --- partial text --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "texts"),
    [
        ([event({"type": "text-delta", "delta": "a"})], ["a"]),
        ([event({"type": "text-delta", "textDelta": "a"})], ["a"]),
        ([event({"type": "text-delta", "text": "a"})], ["a"]),
        ([event({"type": "text", "text": "a"})], ["a"]),
        ([event({"type": "text", "content": "a"})], ["a"]),
        ([event({"type": "message", "text": "a"})], ["a"]),
        ([event({"type": "message", "content": "a"})], ["a"]),
        ([event({"delta": "a"}, "text-delta")], ["a"]),
        ([event({"delta": "a"}, "text-delta"), event({"content": "b"}, "text")], ["a", "b"]),
        ([event({"type": "text-delta", "delta": ""})], []),
        ([event({"type": "message", "content": [{"text": "a"}]})], []),
        ([event({"type": "reasoning-delta", "delta": "a"})], []),
        ([event({"type": "tool-input-delta", "inputTextDelta": "a"})], []),
        ([event({"text": "a"})], []),
        ([event("a", "text")], []),
    ],
)
async def test_the_text_of_text_events_is_put_out(
    executor: InstructionExecutor, agent: ChatAgent, pieces: list[bytes], texts: list[str]
) -> None:
    agent.script = Script(pieces=pieces, done=True)
    run = asked()
    await executor.execute(run)
    assert run.texts == texts


async def test_text_is_put_out_while_the_agent_still_works(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    agent.script = Script(
        events=[{"type": "text-delta", "delta": "a"}, {"type": "finish"}], hang_after=1
    )
    run = asked()
    running = asyncio.create_task(executor.execute(run))
    await eventually(lambda: run.texts == ["a"])
    assert not running.done()
    agent.release()
    assert await running == {"type": "finish"}


# --- errors that the agent reports ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("piece", "message", "retryable"),
    [
        (event({"type": "error", "errorText": "no such\nbutton"}), "no such button", True),
        (event({"type": "error", "error": "boom"}), "boom", True),
        (event({"type": "error", "message": "boom"}), "boom", True),
        (event({"type": "error", "error": {"message": "boom", "code": 7}}), "boom", True),
        (event({"type": "error", "error": {"why": 1}}), '{"why":1}', True),
        (event({"type": "error", "code": 7}), '{"code":7}', True),
        (event({"type": "error"}), "the agent reported an error and gave no reason", True),
        (event({"type": "error", "error": "no", "retryable": False}), "no", False),
        (event({"type": "error", "error": {"message": "no", "retryable": False}}), "no", False),
        (event({"type": "error", "error": "no", "retryable": True}), "no", True),
        (event({"type": "abort", "reason": "left"}), "left", True),
        (event({"error": "boom"}), "boom", True),
        (event({"error": "boom", "code": "x", "retryable": False}), "boom", False),
        (event({"error": True, "message": "boom"}), "boom", True),
        (event({"success": False, "error": "boom"}), "boom", True),
        (event({"message": "boom", "retryable": False}, "error"), "boom", False),
        (event("boom", "error"), "boom", True),
        (b"event: error\ndata: plain words\n\n", "plain words", True),
        (b"event: error\ndata:\n\n", "the agent reported an error and gave no reason", True),
        (b"event: error\ndata: cut", "cut", True),
    ],
)
async def test_an_error_event_fails_the_task_with_its_text(
    executor: InstructionExecutor,
    agent: ChatAgent,
    piece: bytes,
    message: str,
    retryable: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    failure = await failure_after(executor, agent, event({"type": "start"}), piece)
    assert (failure.message, failure.retryable) == (message, retryable)


async def test_an_error_event_fails_also_before_other_events(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    pieces = (event({"type": "error", "error": "boom"}), event({"type": "finish"}))
    assert (await failure_after(executor, agent, *pieces, done=True)).message == "boom"


async def test_an_error_event_ends_the_conversation(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    failure = await failure_after(executor, agent, event({"error": "boom"}), hang_after=1)
    assert failure.message == "boom"
    await agent.until(lambda: only(agent).outcome == "gone")


async def test_a_last_event_without_success_is_a_failure(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    last = {"type": "result", "success": False, "error": "no seat", "retryable": False}
    failure = await failure_after(executor, agent, event(last))
    assert (failure.message, failure.retryable) == ("no seat", False)


# --- streams that do not finish ------------------------------------------------------------------


@pytest.mark.parametrize(
    "pieces",
    [
        [event({"a": 1})],
        [event({"type": "text-delta", "delta": "a"})],
        [b'data: {"type": "fin'],
        [],
    ],
)
async def test_a_connection_that_is_lost_is_a_failure(
    executor: InstructionExecutor, agent: ChatAgent, pieces: list[bytes]
) -> None:
    failure = await failure_after(executor, agent, *pieces, break_off=True)
    assert (failure.message, failure.retryable) == (UNFINISHED, True)


@pytest.mark.parametrize(
    "kind",
    [
        "start",
        "start-step",
        "finish-step",
        "text-start",
        "text-delta",
        "text-end",
        "reasoning-delta",
        "tool-input-start",
        "tool-input-available",
        "tool-output-available",
        "tool-call",
        "progress",
    ],
)
async def test_an_end_after_an_event_that_carries_on_is_a_failure(
    executor: InstructionExecutor, agent: ChatAgent, kind: str
) -> None:
    for piece in (event({"type": kind, "n": 1}), event({"n": 1}, kind)):
        failure = await failure_after(executor, agent, event({"a": 1}), piece)
        assert (failure.message, failure.retryable) == (UNFINISHED, True)


@pytest.mark.parametrize(
    "rest", [b'data: {"type": "fin', b'data: {"a": 1}\ndata: {"b"', b"event: result\n", b"dat"]
)
async def test_an_end_inside_an_event_is_a_failure(
    executor: InstructionExecutor, agent: ChatAgent, rest: bytes
) -> None:
    failure = await failure_after(executor, agent, event({"a": 1}), rest)
    assert (failure.message, failure.retryable) == (UNFINISHED, True)


@pytest.mark.parametrize(
    "pieces", [[], [b": hello\n\n"], [b"data: no json\n\n"], [b"data: [DONE]\n\n"], [b"\n"]]
)
async def test_a_stream_without_any_event_is_a_failure(
    executor: InstructionExecutor, agent: ChatAgent, pieces: list[bytes]
) -> None:
    failure = await failure_after(executor, agent, *pieces)
    assert failure.message == "the agent's stream ended without any event"
    assert failure.retryable


async def test_an_event_of_8_mib_is_kept(executor: InstructionExecutor, agent: ChatAgent) -> None:
    text = "x" * (EVENT_CHARACTERS_MAX - len('data: ""'))
    assert await result_with(executor, agent, events=[text]) == text


async def test_an_event_beyond_8_mib_is_a_failure(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    failure = await failure_after(executor, agent, "data: " + "x" * EVENT_CHARACTERS_MAX)
    assert failure.message == "Chat API sent an event of more than 8388608 characters"
    assert not failure.retryable


@pytest.mark.slow
async def test_a_stream_without_end_is_a_failure(sender: Sender) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    async with listening(head) as endless:
        endless.then_endless = event("x" * 1_000_000)
        failure = await failure_of(InstructionExecutor(Instance(endless.url), sender), asked())
    assert failure.message == f"Chat API sent more than {STREAM_BYTES_MAX} bytes"
    assert not failure.retryable


# --- answers that are no stream of events --------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ({"answer": 42}, {"answer": 42}),
        ({"error": None, "success": True}, {"error": None, "success": True}),
        ([1], [1]),
    ],
)
async def test_a_json_document_is_the_result(
    executor: InstructionExecutor, agent: ChatAgent, body: Any, result: Any
) -> None:
    assert await result_with(executor, agent, status=200, body=body) == result


@pytest.mark.parametrize(
    ("body", "message", "retryable"),
    [
        ({"error": "boom", "result": 1}, "boom", True),
        ({"error": {"message": "boom"}, "retryable": False}, "boom", False),
        ({"success": False}, "the agent reported an error and gave no reason", True),
        ({"type": "error", "message": "boom"}, "boom", True),
    ],
)
async def test_a_json_document_may_say_that_it_failed(
    executor: InstructionExecutor,
    body: Any,
    message: str,
    retryable: bool,  # noqa: FBT001 - pytest passes it by name
) -> None:
    failure = await failure_with(executor, status=201, body=body)
    assert (failure.message, failure.retryable) == (message, retryable)


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 5000])
async def test_json_that_is_none_is_a_failure(
    executor: InstructionExecutor, agent: ChatAgent, body: bytes
) -> None:
    headers = {"Content-Type": "Application/JSON; charset=utf-8"}
    agent.script = Script(status=200, body=body, headers=headers)
    assert (await failure_of(executor, asked())).message == "the agent's response is not valid JSON"


async def test_a_json_document_beyond_8_mib_is_a_failure(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    agent.script = Script(status=200, body=["x" * RESPONSE_BYTES_MAX])
    failure = await failure_of(executor, asked())
    assert failure.message == f"Chat API sent more than {RESPONSE_BYTES_MAX} bytes"
    assert not failure.retryable


async def test_a_json_document_that_breaks_off_is_a_failure(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    how = {"content_type": "application/json", "break_off": True}
    failure = await failure_after(executor, agent, '{"a": 1}', **how)
    assert (failure.message, failure.retryable) == (
        "Chat API request failed: the response was cut off",
        True,
    )


@pytest.mark.parametrize(
    ("pieces", "result"),
    [
        (["All done."], {"raw": "All done."}),
        (["data: no json\n\n"], {"raw": "data: no json\n\n"}),
        (["ä" * 600, "😀" * 600], {"raw": "ä" * 600 + "😀" * 400}),
        (["😀" * 600, "😀" * 600], {"raw": "😀" * 1000}),
        ([event({"a": 1})], {"a": 1}),
    ],
)
@pytest.mark.parametrize("content_type", ["text/plain", None])
async def test_other_content_is_searched_for_events_and_else_kept_as_text(
    executor: InstructionExecutor,
    agent: ChatAgent,
    content_type: str | None,
    pieces: list[Any],
    result: Any,
) -> None:
    how = {"pieces": pieces, "content_type": content_type}
    assert await result_with(executor, agent, **how) == result


@pytest.mark.parametrize("body", ["", " \n"])
async def test_other_content_without_any_text_is_a_failure(
    executor: InstructionExecutor, body: str
) -> None:
    failure = await failure_with(executor, status=200, body=body)
    assert failure.message == "the agent's stream ended without any event"


async def test_other_content_that_breaks_off_is_a_failure(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    how = {"content_type": "text/plain", "break_off": True}
    assert (await failure_after(executor, agent, "All d", **how)).message == UNFINISHED


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_a_transient_status_may_be_tried_again(
    executor: InstructionExecutor, status: int
) -> None:
    failure = await failure_with(
        executor, status=status, body="later\nplease", headers={"Retry-After": "7"}
    )
    assert failure.message == f"Chat API returned {status}: later please"
    assert (failure.retryable, failure.retry_after_ms) == (True, 7000)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
async def test_any_other_4xx_is_final(executor: InstructionExecutor, status: int) -> None:
    failure = await failure_with(
        executor, status=status, body={"error": "no"}, headers={"Retry-After": "7"}
    )
    assert failure.message == f'Chat API returned {status}: {{"error": "no"}}'
    assert (failure.retryable, failure.retry_after_ms) == (False, None)


async def test_a_redirect_is_a_failure_and_never_followed(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    location = {"Location": f"{agent.url}/chat"}
    failure = await failure_with(executor, status=307, headers=location)
    assert failure.message == "Chat API returned 307: redirects are not followed"
    assert (failure.retryable, len(agent.requests)) == (False, 1)


async def test_a_refusal_that_breaks_off_is_reported_as_far_as_it_came(sender: Sender) -> None:
    cut = b"HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\ntoo many"
    async with listening(cut) as agent:
        agent.hang_up = True
        failure = await failure_of(InstructionExecutor(Instance(agent.url), sender), asked())
    assert failure.message == "Chat API returned 503: too many"


async def test_a_refusal_that_hangs_is_reported_as_far_as_it_came(sender: Sender) -> None:
    cut = b"HTTP/1.1 503 Busy\r\nContent-Length: 100\r\nRetry-After: 7\r\n\r\ntoo many"
    async with listening(cut) as busy:
        executor = InstructionExecutor(Instance(busy.url), sender, refusal_seconds=0.05)
        failure = await failure_of(executor, asked())
    assert (failure.message, failure.retry_after_ms) == ("Chat API returned 503: too many", 7000)


async def test_a_refusal_without_end_is_cut(sender: Sender) -> None:
    async with listening(b"HTTP/1.1 500 Oops\r\n\r\n") as agent:
        agent.then_endless = b"x" * 10_000
        failure = await failure_of(InstructionExecutor(Instance(agent.url), sender), asked())
    assert failure.message == "Chat API returned 500: " + "x" * 2048


# --- secrets -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["apiKey", "accessKeyId", "secretAccessKey", "sessionToken"])
async def test_a_key_that_the_agent_repeats_is_masked(
    executor: InstructionExecutor, agent: ChatAgent, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"error": f"invalid key {KEY}, really {KEY}"}
    scripts = [Script(status=401, body=body), Script(status=200, body=body), Script(events=[body])]
    for script in scripts:
        agent.script = script
        failure = await failure_of(executor, asked(llmConfig={name: KEY}))
        assert "invalid key ***, really ***" in failure.message
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("config", "text", "message"),
    [
        ({"apiKey": 'a"b\\c\u00e9'}, '{"key": "a\\"b\\\\cé"}', '{"key": "***"}'),
        ({"apiKey": "12345", "sessionToken": "1234567"}, "1234567 12345", "*** ***"),
        ({"aws": [{"secretAccessKey": KEY}]}, KEY, "***"),
        ({"apiKey": KEY}, "x" * 2040 + KEY, "x" * 2040 + "***"),
        ({"apiKey": "none"}, "none of them", "none of them"),
        ({"apiKey": 7, "model": "gpt-four"}, "7 gpt-four", "7 gpt-four"),
    ],
)
async def test_a_secret_is_mexchangehowever_it_stands_there(
    executor: InstructionExecutor,
    agent: ChatAgent,
    config: dict[str, Any],
    text: str,
    message: str,
) -> None:
    agent.script = Script(status=500, body=text)
    failure = await failure_of(executor, asked(llmConfig=config))
    assert failure.message == f"Chat API returned 500: {message}"
    agent.script = Script(events=[{"type": "error", "errorText": text}])
    failure = await failure_of(executor, asked(llmConfig=config))
    assert failure.message == message


async def test_the_agents_token_is_mexchangetoo(sender: Sender) -> None:
    async with ChatAgent() as agent:
        agent.script = Script(status=403, body="Bearer t0ken-1 is not welcome")
        executor = InstructionExecutor(Instance(agent.url, "t0ken-1"), sender)
        failure = await failure_of(executor, asked())
    assert failure.message == "Chat API returned 403: Bearer *** is not welcome"


async def test_no_token_gets_into_the_log_when_an_answer_is_no_http(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(b"this is not HTTP\r\n\r\n") as agent:
        executor = InstructionExecutor(Instance(agent.url, "t0ken-1"), sender)
        failure = await failure_of(executor, asked())
    assert failure.message == "Chat API request failed: no connection"
    assert "no response from agent" in caplog.text
    assert "t0ken-1" not in caplog.text


# --- when the exchange breaks --------------------------------------------------------------------


async def test_a_dead_agent_is_a_failure_without_its_address(sender: Sender) -> None:
    async with ChatAgent() as agent:
        executor = InstructionExecutor(Instance(agent.url), sender)
    failure = await failure_of(executor, asked())
    assert failure.message == "Chat API request failed: connection refused"
    assert failure.retryable


async def test_an_agent_without_an_address_is_named_as_what_it_is() -> None:
    async def nowhere(_: str) -> list[str]:
        raise OSError(-2, "Name or service not known")

    async with Sender(Guard(lookup=nowhere)) as sender:
        executor = InstructionExecutor(Instance("http://agent.test"), sender)
        failure = await failure_of(executor, asked())
    assert failure.message == "Chat API request failed: the agent's name could not be resolved"


async def test_an_agent_that_disconnects_is_a_failure(executor: InstructionExecutor) -> None:
    failure = await failure_with(executor, drop=True)
    assert failure.message == (
        "Chat API request failed: the connection was closed before a response arrived"
    )
    assert failure.retryable


async def test_what_the_guard_refuses_is_final(agent: ChatAgent) -> None:
    async with Sender(Guard()) as strict:
        failure = await failure_of(InstructionExecutor(Instance(agent.url), strict), asked())
    assert failure.message == (
        "Chat API request failed: the outbound guard does not allow this agent"
    )
    assert (failure.retryable, agent.requests) == (False, [])


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        Script(status=200, body="late", hang_after=0),
        Script(events=[{"type": "text-delta", "delta": "a"}], hang_after=1),
        Script(pieces=["{"], content_type="application/json", hang_after=1),
    ],
    ids=["before the answer", "in the stream", "in a document"],
)
async def test_cancelling_disconnects_at_once(
    executor: InstructionExecutor, agent: ChatAgent, script: Script
) -> None:
    agent.script = script
    running = asyncio.create_task(executor.execute(asked()))
    pieces = script.hang_after or 0
    await agent.until(lambda: bool(agent.requests) and only(agent).pieces == pieces)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await agent.until(lambda: only(agent).outcome == "gone")


async def test_a_timeout_disconnects_at_once(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    agent.script = Script(events=[{"type": "start"}], hang_after=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await executor.execute(asked())
    await agent.until(lambda: only(agent).outcome == "gone")


async def test_instructions_do_not_wait_for_each_other(
    executor: InstructionExecutor, agent: ChatAgent
) -> None:
    agent.scripts["slow"] = Script(events=[{"n": 1}], hang_after=0)
    runs = [asyncio.create_task(executor.execute(asked(instruction="slow"))) for _ in range(3)]
    await agent.until(lambda: agent.max_concurrent == 3)
    assert await executor.execute(asked()) == {"type": "finish", "text": "Book a table"}
    agent.release()
    assert await asyncio.gather(*runs) == [{"n": 1}] * 3


# --- the fake as a program -----------------------------------------------------------------------


@pytest.mark.slow
async def test_the_fake_also_runs_as_a_process(sender: Sender) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.chat_agent", "--token", "T"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(20):
            url = msgspec.json.decode(await process.stdout.readline())["url"]
        executor = InstructionExecutor(Instance(url, "T"), sender)
        failure = await failure_with(executor, status=503, body="busy")
        assert failure.message == "Chat API returned 503: busy"
        behave = msgspec.json.encode({"hello": {"events": [{"hi": 1}], "times": 1}})
        exchange = sender.stream(
            "POST", f"{url}/__behave", headers={}, body=behave, max_bytes=100, timeout_seconds=5
        )
        answer = await whole(exchange)
        assert answer.status == 204
        assert await executor.execute(asked(instruction="hello")) == {"hi": 1}
        assert (await executor.execute(asked(instruction="hello")))["type"] == "finish"
        exchange = sender.stream(
            "GET", f"{url}/__record", headers={}, body=None, max_bytes=10**6, timeout_seconds=5
        )
        answer = await whole(exchange)
        record = msgspec.json.decode(answer.body)
        assert [one["status"] for one in record["requests"]] == [503, 200, 200]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
    assert process.returncode == 0
