"""An instruction in plain words: `POST {agent}/chat`, whose answer streams while the agent works.

The task is marked running immediately before the request leaves; leaving, by a time-out or a
cancel, hangs up, and so stops the agent. What the events mean is in `transcript`.
The trap: llmConfig carries keys of the caller's, and agents repeat what they were sent in their
errors. Every error text from an agent goes through `hiding` before it is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core.errors import ExecutionFailed
from fairlane.core.secrets import SECRETS
from fairlane.sse import EventTooLong, Parser
from fairlane.worker.executors import exchange, failures
from fairlane.worker.executors.base import RESPONSE_BYTES_MAX, Run, Stream, StreamSender, Work
from fairlane.worker.executors.transcript import UNFINISHED, Hide, Transcript

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.worker.executors.tabs import Instance

WHO: Final = "Chat API"
# Only one event is kept at a time, so a stream may be longer than anything that is stored.
STREAM_BYTES_MAX: Final = 64 * 1024 * 1024
EVENT_CHARACTERS_MAX: Final = RESPONSE_BYTES_MAX
RAW_CHARACTERS_MAX: Final = 1000
REFUSAL_BYTES_MAX: Final = 64 * 1024
REFUSAL_SECONDS: Final = 5.0

RESERVED: Final = frozenset({"conversationId", "message", "isScheduledTask", "mode", "inputs"})
# Shorter ones ("x", "-", "none" for a local model) protect nothing and would garble the text.
SECRET_CHARACTERS_MIN: Final = 5


class InstructionExecutor:
    starts_itself = True

    def __init__(
        self,
        agent: Instance,
        sender: StreamSender,
        *,
        refusal_seconds: float = REFUSAL_SECONDS,
    ) -> None:
        self._agent = agent
        self._sender = sender
        self._refusal_seconds = refusal_seconds

    async def execute(self, run: Run) -> Any:
        body = body_of(run.work)
        headers = {**headers_of(run.work), **self._agent.credentials}
        hide = hiding(run.work, self._agent.token)
        await run.start()
        with exchange.broken_is_failed(
            WHO, server="agent", url=self._agent.url, max_bytes=STREAM_BYTES_MAX
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
                    return await _result(answer, Transcript(run.output, hide))
                text = hide(await _refusal(answer, self._refusal_seconds))
                raise exchange.refused(WHO, answer.status, answer.headers, text)

    async def close(self) -> None:
        """Nothing to close: the sender is somebody else's."""


# --- what is sent ---------------------------------------------------------------------------------


def body_of(work: Work) -> bytes:
    """The defaults, llmConfig over them, and over both what llmConfig may not change."""
    instruction = work.request.get("instruction")
    if not isinstance(instruction, str) or not instruction.strip():
        raise ExecutionFailed("instruction is required for task execution", retryable=False)
    config = work.request.get("llmConfig") or {}
    if not isinstance(config, dict):
        raise ExecutionFailed("llmConfig is not valid: use an object", retryable=False)
    body: dict[str, Any] = {"supportsImages": False, "provider": "browseros"}
    body.update({key: config[key] for key in config.keys() - RESERVED})
    body["conversationId"] = str(uuid.uuid4())
    body["message"] = instruction
    body["isScheduledTask"] = True
    body["mode"] = "agent"
    if work.inputs:
        body["inputs"] = work.inputs
    return msgspec.json.encode(body)


def headers_of(work: Work) -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "X-Fairlane-Task-Id": work.task_id,
        "X-Fairlane-Attempt": str(work.attempt),
        **exchange.agent_header(work),
    }


def hiding(work: Work, token: str | None) -> Hide:
    """A function that puts *** for the secrets that were sent, as they are and as JSON has them."""
    secrets = {*_secrets(work.request.get("llmConfig")), token or ""}
    escaped = {msgspec.json.encode(secret).decode()[1:-1] for secret in secrets}
    wanted = {one for one in secrets | escaped if len(one) >= SECRET_CHARACTERS_MIN}
    # The longest first: one may be a part of another.
    ordered = sorted(wanted, key=len, reverse=True)

    def hide(text: str) -> str:
        for secret in ordered:
            text = text.replace(secret, "***")
        return text

    return hide


def _secrets(value: Any) -> Iterator[str]:
    """Nested ones too; how deep a request may be is bounded where it comes in."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in SECRETS and isinstance(inner, str):
                yield inner
            else:
                yield from _secrets(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets(inner)


# --- what comes back ------------------------------------------------------------------------------


async def _result(answer: Stream, transcript: Transcript) -> Any:
    media = (failures.header(answer.headers, "Content-Type") or "").partition(";")[0].strip()
    if media.lower() == "application/json":
        return transcript.result_of(await _document(answer))
    head = await _follow(answer, transcript)
    if not transcript.any and media.lower() != "text/event-stream" and head.strip():
        return {"raw": head.decode("utf-8", "replace")[:RAW_CHARACTERS_MAX]}
    return transcript.result()


async def _follow(answer: Stream, transcript: Transcript) -> bytes:
    """Read events up to the end mark or the end; returns how the body begins."""
    parser, head = Parser(EVENT_CHARACTERS_MAX), b""
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
    except failures.TRANSPORT_ERRORS as error:
        # An agent that has finished has done its work, however it hangs up.
        if not transcript.finished:
            raise ExecutionFailed(UNFINISHED) from error
    return head


async def _document(answer: Stream) -> Any:
    body = bytearray()
    async for chunk in answer:
        body += chunk
        if len(body) > RESPONSE_BYTES_MAX:
            text = f"{WHO} answered more than {RESPONSE_BYTES_MAX} bytes"
            raise ExecutionFailed(text, retryable=False)
    try:
        return exchange.parsed(bytes(body))
    except ValueError as error:
        raise ExecutionFailed("the agent's answer is not valid JSON") from error


async def _refusal(answer: Stream, seconds: float) -> str:
    """How the body of a refusal begins, or as much of it as comes in time."""
    body = bytearray()
    with contextlib.suppress(*failures.TRANSPORT_ERRORS):
        async with asyncio.timeout(seconds):
            async for chunk in answer:
                body += chunk
                if len(body) > REFUSAL_BYTES_MAX:
                    break
    return body.decode("utf-8", "replace")
