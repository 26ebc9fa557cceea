"""What callers send to sessions: messages, settings and usage, checked for form."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairlane.core import sessions
from fairlane.core.errors import InvalidRequest
from fairlane.core.model import Message, Submission
from fairlane.core.policy import FALLBACK_LANE
from fairlane.core.sessions import Settings
from fairlane.core.submissions import DEFAULT_AGENT, submission, task_request
from fairlane.schema.fields import (
    IDENTIFIER,
    decoded,
    matches,
    parse_deadline,
    shallow,
    short,
    within,
)
from fairlane.schema.wire import encode

COMMANDS: Final = ("/stop", "/stopall")
MEDIA_ONLY: Final = "(media)"


class MessageBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /sessions/{key}/messages`: an instruction, or a handler's message, of a session."""

    message: str | None = None
    agent_id: str | None = None
    sender: str | None = None
    sent_at: str | None = None
    handler: str | None = None
    media: list[Any] | None = None
    no_merge: bool = False
    lane: str | None = None
    mode: str | None = None
    cap: int | None = None
    drop: str | None = None
    debounce_ms: int | None = None
    max_concurrent: int | None = None
    priority: int | str | None = None
    callback_url: str | None = None
    webhook_url: str | None = None
    metadata: dict[str, Any] | None = None
    llm_config: dict[str, Any] | None = None
    timeout_ms: int | None = None


class UsageBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    tokens: int
    context_window: int


_message_decoder = msgspec.json.Decoder(MessageBody)
_settings_decoder = msgspec.json.Decoder(Settings)
_usage_decoder = msgspec.json.Decoder(UsageBody)


def parse_message(
    raw: bytes, *, key: str, task_id: str, agent: str | None = None
) -> Submission | str:
    """A submission, or the command that the text is: `stop` or `stopall`.

    `agent` is whose it is when it does not say so.
    """
    fields = frozenset(MessageBody.__struct_encode_fields__)
    body: MessageBody = decoded(_message_decoder, raw, fields)
    body.agent_id = body.agent_id or agent
    session_key(key)
    text = body.message or ""
    if text.strip() in COMMANDS:
        return text.strip()[1:]
    return message_submission(body, key=key, task_id=task_id)


def message_submission(body: MessageBody, *, key: str, task_id: str) -> Submission:
    """Check a message as the task that it becomes; it goes to lane `main` unless it names one."""
    session_key(key)
    if not (body.message or "").strip() and not body.media:
        raise InvalidRequest("field 'message' must not be empty")
    check_settings(Settings(body.mode, body.cap, body.drop, body.debounce_ms))
    within("maxConcurrent", body.max_concurrent, 1, 1000)
    sender = body.sender or body.agent_id or DEFAULT_AGENT
    short("sender", body.sender, 256)
    shallow("media", body.media)
    text = body.message or ""
    extra = {"sender": sender, "media": body.media, "noMerge": body.no_merge or bool(body.media)}
    kept = {name: value for name, value in extra.items() if value}
    task = task_request(
        agent=body.agent_id,
        handler=body.handler,
        instruction=None if body.handler else text or MEDIA_ONLY,
        params={"message": text, **kept} if body.handler else None,
        session=key,
        lane=body.lane or FALLBACK_LANE,
        priority=body.priority,
        callback_url=body.callback_url,
        webhook_url=body.webhook_url,
        metadata=body.metadata,
        llm_config=body.llm_config,
        timeout_ms=body.timeout_ms,
    )
    made = submission(task, task_id=task_id)
    message = Message(
        text=text,
        sender=sender,
        sent_at=parse_deadline(body.sent_at, "sentAt") if body.sent_at else None,
        no_merge=body.no_merge or bool(body.media),
        mode=body.mode,
        cap=body.cap,
        drop=body.drop,
        debounce_ms=body.debounce_ms,
        max_concurrent=body.max_concurrent,
    )
    request = {**msgspec.json.decode(made.body), **kept}
    return msgspec.structs.replace(made, body=encode(request).decode(), message=message)


def session_key(key: str) -> str:
    matches("sessionKey", key, IDENTIFIER)
    return key


def parse_settings(raw: bytes) -> tuple[Settings, frozenset[str]]:
    """What is to be set, and the names of what is null: there the policy is to count again."""
    settings: Settings = decoded(
        _settings_decoder, raw, frozenset(Settings.__struct_encode_fields__)
    )
    within("maxConcurrent", settings.max_concurrent, 1, 1000)
    check_settings(settings)
    said = msgspec.json.decode(raw)
    names = zip(Settings.__struct_fields__, Settings.__struct_encode_fields__, strict=True)
    return settings, frozenset(name for name, field in names if said.get(field, 0) is None)


def check_settings(settings: Settings) -> None:
    for field, value, known in (
        ("mode", settings.mode, sessions.MODES),
        ("drop", settings.drop, sessions.DROPS),
    ):
        if value is not None and value not in known:
            raise InvalidRequest(f"field '{field}' must be one of {', '.join(known)}")
    within("cap", settings.cap, 0, 10_000)
    within("debounceMs", settings.debounce_ms, 0, 60_000)
    within("debounceMaxMs", settings.debounce_max_ms, 0, 600_000)


def parse_usage(raw: bytes) -> UsageBody:
    body: UsageBody = decoded(_usage_decoder, raw, frozenset(UsageBody.__struct_encode_fields__))
    within("tokens", body.tokens, 0, 2**53)
    within("contextWindow", body.context_window, 1, 2**53)
    return body
