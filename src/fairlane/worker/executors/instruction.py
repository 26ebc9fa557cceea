"""Run an instruction: `POST {agent}/chat`, with the response streamed while the agent works.

The task is marked running immediately before the request is sent; a timeout or a cancel closes the
connection, which stops the agent. `transcript.py` interprets the events. Caution: llmConfig carries
keys, and agents may repeat them. All errors, text and results of an agent pass through a `Redactor`
before they are stored or cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from typing import TYPE_CHECKING, Final

import msgspec

from fairlane import logs
from fairlane.compat import browseros
from fairlane.core.errors import ExecutionFailed, InvalidRequest
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.secrets import RedactedStream, Redactor, texts
from fairlane.schema.sse import EventTooLong, SseParser
from fairlane.worker.executors import exchange, failures
from fairlane.worker.executors.base import RESPONSE_BYTES_MAX, HttpSender, ResponseStream, Run, Work
from fairlane.worker.executors.transcript import UNFINISHED, Transcript

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.worker.executors.tabs import Instance

WHO: Final = "Chat API"
# Only one event is in memory at a time, so a stream may be longer than anything that is stored.
STREAM_BYTES_MAX: Final = 64 * 1024 * 1024
EVENT_CHARACTERS_MAX: Final = RESPONSE_BYTES_MAX
RAW_CHARACTERS_MAX: Final = 1000
REFUSAL_BYTES_MAX: Final = 64 * 1024
REFUSAL_SECONDS: Final = 5.0

RESERVED: Final = frozenset({"conversationId", "message", "isScheduledTask", "mode", "inputs"})

_log = logging.getLogger(__name__)


class InstructionExecutor:
    starts_itself = True

    def __init__(
        self,
        agent: Instance,
        sender: HttpSender,
        resolve: Callable[[JsonMapping], JsonObject] = dict,
        *,
        refusal_seconds: float = REFUSAL_SECONDS,
    ) -> None:
        """`resolve` replaces references in a configuration with their secrets."""
        self._agent = agent
        self._sender = sender
        self._resolve = resolve
        self._refusal_seconds = refusal_seconds

    async def execute(self, run: Run) -> object:
        config = self._config(run.work)
        body = body_of(run.work, config)
        headers = {**headers_of(run.work), **self._agent.credentials}
        redactor = Redactor([*texts(config), self._agent.token or ""])
        await run.start()
        with (
            logs.hiding(redactor),
            exchange.broken_is_failed(
                WHO, server="agent", url=self._agent.url, max_bytes=STREAM_BYTES_MAX
            ),
        ):
            async with self._sender.stream(
                "POST",
                self._agent.address("/chat"),
                headers=headers,
                body=body,
                max_bytes=STREAM_BYTES_MAX,
                timeout_seconds=None,
            ) as answer:
                if 200 <= answer.status < 300:
                    return await _redacted_result(answer, redactor, run.output)
                text = redactor.hide(await _refusal(answer, self._refusal_seconds))
                raise exchange.refused(WHO, run.work, answer, text)

    def _config(self, work: Work) -> JsonObject:
        config = work.request.get("llmConfig") or {}
        if not isinstance(config, dict):
            raise ExecutionFailed("llmConfig is not valid: use an object", retryable=False)
        try:
            return self._resolve(config)
        except InvalidRequest as error:
            raise ExecutionFailed(error.message, retryable=False) from None
        except ValueError as error:
            # Only the operator may see where the server keeps its secrets.
            _log.error("a secret of task %s cannot be read: %s", work.task_id, error)
            text = "a secret that llmConfig refers to cannot be read; see the server's log"
            raise ExecutionFailed(text) from None

    async def close(self) -> None:
        """Do nothing: the sender belongs to the caller."""


# --- the request ----------------------------------------------------------------------------------


def body_of(work: Work, config: JsonMapping) -> bytes:
    """Return the defaults, overridden by llmConfig, overridden by what llmConfig may not change."""
    instruction = work.request.get("instruction")
    if not isinstance(instruction, str) or not instruction.strip():
        raise ExecutionFailed("instruction is required for task execution", retryable=False)
    body: JsonObject = {"supportsImages": False, "provider": browseros.PROVIDER}
    body.update({key: config[key] for key in config.keys() - RESERVED})
    body["conversationId"] = work.conversation_id or str(uuid.uuid4())
    body["message"] = instruction
    body["isScheduledTask"] = True
    body["mode"] = "agent"
    if work.inputs:
        body["inputs"] = work.inputs
    body.update(_context(work))
    return msgspec.json.encode(body)


def _context(work: Work) -> JsonObject:
    """Return what the agent should know about the session and the messages of the run."""
    found = {
        "sessionKey": work.session,
        "sender": work.sender,
        "messages": work.messages,
        "media": work.request.get("media"),
        "rolledBack": work.rolled_back,
        "cron": work.cron,
    }
    return {name: value for name, value in found.items() if value}


def headers_of(work: Work) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        **exchange.agent_header(work),
        **exchange.context_headers(work),
    }


# --- the response ---------------------------------------------------------------------------------


async def _redacted_result(
    answer: ResponseStream, redactor: Redactor, output: Callable[[str], None]
) -> object:
    stream = RedactedStream(redactor, output)
    try:
        return redactor.hide_in(await _result(answer, Transcript(stream.feed, redactor.hide)))
    finally:
        stream.end()


async def _result(answer: ResponseStream, transcript: Transcript) -> object:
    media = (failures.header(answer.headers, "Content-Type") or "").partition(";")[0].strip()
    if media.lower() == "application/json":
        return transcript.result_of(await _document(answer))
    head = await _follow(answer, transcript)
    if not transcript.any and media.lower() != "text/event-stream" and head.strip():
        return {"raw": transcript.hidden(head.decode("utf-8", "replace"))[:RAW_CHARACTERS_MAX]}
    return transcript.result()


async def _follow(answer: ResponseStream, transcript: Transcript) -> bytes:
    """Read events up to the end mark or the end; return the beginning of the body."""
    parser, head = SseParser(EVENT_CHARACTERS_MAX), b""
    try:
        async for chunk in answer:
            # A character has four bytes at most.
            head += chunk[: RAW_CHARACTERS_MAX * 4 - len(head)]
            for event in parser.feed(chunk):
                transcript.take(event)
            if transcript.ended:
                return head
        for event in parser.finish():
            transcript.take(event)
    except EventTooLong as error:
        text = f"{WHO} sent an event of more than {EVENT_CHARACTERS_MAX} characters"
        raise ExecutionFailed(text, retryable=False) from error
    except OSError as error:
        # An agent that has finished has done its work, however the connection ends.
        if not transcript.finished:
            raise ExecutionFailed(UNFINISHED) from error
    return head


async def _document(answer: ResponseStream) -> object:
    body = bytearray()
    async for chunk in answer:
        body += chunk
        if len(body) > RESPONSE_BYTES_MAX:
            text = f"{WHO} sent more than {RESPONSE_BYTES_MAX} bytes"
            raise ExecutionFailed(text, retryable=False)
    try:
        return exchange.parsed(bytes(body))
    except ValueError as error:
        raise ExecutionFailed("the agent's response is not valid JSON") from error


async def _refusal(answer: ResponseStream, seconds: float) -> str:
    """Return the beginning of an error response's body, as much of it as arrives in time."""
    body = bytearray()
    with contextlib.suppress(OSError):
        async with asyncio.timeout(seconds):
            async for chunk in answer:
                body += chunk
                if len(body) > REFUSAL_BYTES_MAX:
                    break
    return body.decode("utf-8", "replace")
