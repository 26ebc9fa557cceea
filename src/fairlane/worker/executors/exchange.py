"""Shared parts of executors that use HTTP: the headers they send, and how an exchange fails.

The rule: a log line about a broken exchange uses our own words, because the text of a network error
may name hosts and ports.
"""

from __future__ import annotations

import contextlib
import logging
import string
import urllib.parse
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from fairlane.core.errors import ExecutionFailed, InvalidRequest, PayloadTooLarge, TargetRefused
from fairlane.core.validation import too_deep
from fairlane.worker.executors import failures

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractAsyncContextManager

    from fairlane.worker.executors.base import ResponseStream, Work

_log = logging.getLogger(__name__)

# Characters of header values that are sent as they are.
_PLAIN: Final = string.punctuation.replace("%", "") + " "
_CLOSING: Final = frozenset({429, 503})


class Refusal(Protocol):
    """The head of a response."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...


class ExecutorResponse(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


async def whole(exchange: AbstractAsyncContextManager[ResponseStream]) -> ExecutorResponse:
    """Return the complete response of a stream."""
    async with exchange as answer:
        body = b"".join([piece async for piece in answer])
    return ExecutorResponse(answer.status, answer.headers, body)


def agent_header(work: Work) -> dict[str, str]:
    if not (work.agent.isascii() and work.agent.isprintable()):
        raise ExecutionFailed("agentId cannot be sent as a header", retryable=False)
    return {"X-Agent-Id": work.agent}


def context_headers(work: Work) -> dict[str, str]:
    """Return what the receiver should know about the run. Characters that a header cannot carry are
    percent-encoded as UTF-8.
    """
    cron, messages = work.cron or {}, work.messages
    found = {
        "Task-Id": work.task_id,
        "Attempt": str(work.attempt),
        "Session": work.session,
        "Conversation-Id": work.conversation_id,
        "Sender": work.sender,
        "Message-Id": messages[-1].get("id") if messages else None,
        "Cron-Job": cron.get("jobId"),
        "Cron-Run": cron.get("runId"),
        "Cron-Trigger": cron.get("trigger"),
        "Cron-Slot": cron.get("slotAt"),
        "Trace-Id": work.trace_id,
    }
    headers = {
        f"X-Fairlane-{name}": _encoded(str(value))
        for name, value in found.items()
        if value is not None
    }
    traceparent = work.traceparent or work.request.get("traceparent")
    return headers if traceparent is None else {**headers, "traceparent": str(traceparent)}


def _encoded(value: str) -> str:
    if value.isascii() and value.isprintable() and "%" not in value:
        return value  # nearly every one
    return urllib.parse.quote(value, safe=_PLAIN)


@contextlib.contextmanager
def broken_is_failed(who: str, *, server: str, url: str, max_bytes: int) -> Iterator[None]:
    """Turn an exception of the exchange inside into a failure in our own words, about `who`.

    `server` is the operator's word for it (instance, agent); `url` goes to the log only.
    """
    try:
        yield
    except PayloadTooLarge as error:
        # The work has been carried out; repeating it would only give the same response.
        raise ExecutionFailed(f"{who} sent more than {max_bytes} bytes", retryable=False) from error
    except (TargetRefused, InvalidRequest) as error:
        _log.warning("the outbound guard refused %s %s: %s", server, url, error)
        text = f"{who} request failed: the outbound guard does not allow this {server}"
        raise ExecutionFailed(text, retryable=False) from error
    except OSError as error:
        cause = failures.transport_cause(error, server)
        _log.warning("no response from %s %s: %s (%s)", server, url, cause, type(error).__name__)
        raise ExecutionFailed(f"{who} request failed: {cause}") from error


def refused(
    who: str,
    work: Work,
    answer: Refusal,
    body: str | bytes,
    *,
    wait: bool = False,
) -> ExecutionFailed:
    """Return the failure of an unsuccessful response; with `wait`, a retry may succeed.

    A provider that says how long it refuses requests closes the task's quota until then.
    """
    status, headers = answer.status, answer.headers
    if status < 400:
        text = f"{who} returned {status}: redirects are not followed"
        return ExecutionFailed(text, retryable=False)
    retryable = wait or failures.is_transient(status)
    wait_ms = failures.retry_after_ms(headers) if retryable else None
    busy = status in _CLOSING and wait_ms is not None and work.quota is not None
    return ExecutionFailed(
        f"{who} returned {status}: {failures.one_line(body)}",
        retryable=retryable,
        retry_after_ms=wait_ms,
        closed={str(work.quota): (wait_ms or 0) / 1000} if busy else None,
    )


def parsed(text: str | bytes) -> object:
    """Return the JSON document. Raise ValueError unless every caller can parse it."""
    try:
        document = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError("not valid JSON") from error
    if too_deep(document):
        raise ValueError("nested too deeply")
    return document


def error_text(error: object) -> str:
    """Return the value of the key `error`, as text."""
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()
