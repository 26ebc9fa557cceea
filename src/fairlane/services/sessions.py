"""Sessions: messages, stop, reset, settings, usage, and the session's status."""

from __future__ import annotations

import hashlib
from typing import Final, TypeVar

import msgspec

from fairlane.core import moments
from fairlane.core.access import Caller, Scope
from fairlane.core.errors import FairlaneError, InvalidRequest
from fairlane.core.json_types import JsonMapping
from fairlane.core.model import Message, Submission
from fairlane.core.policy import FALLBACK_LANE
from fairlane.core.sessions import MessageSettings, Session, SessionSettings
from fairlane.core.submissions import (
    DEFAULT_AGENT,
    INSTRUCTION_CHARACTERS_MAX,
    TaskRequest,
    moment_of,
    submission,
)
from fairlane.core.validation import DEPTH_MAX, too_deep
from fairlane.engine.commands import SetSession, SetUsage, StoppedRuns, StopSession, Submit
from fairlane.engine.node import Node
from fairlane.engine.reads.views import SessionView
from fairlane.engine.verbs import ownership
from fairlane.schema import sessions as schema
from fairlane.schema.sessions import (
    MessageAccepted,
    SendMessage,
    SessionCleared,
    SessionDetail,
    SessionPage,
    SessionStopped,
    session_detail,
    session_summary,
)
from fairlane.schema.tasks import task_accepted
from fairlane.services import offers
from fairlane.services.registry import implements
from fairlane.services.tasks import callback_problem, idempotency_key, submitter

STOP: Final = "/stop"
STOP_ALL: Final = "/stopall"
MEDIA_ONLY: Final = "(media)"


@implements(schema.MESSAGE)
async def send_message(
    node: Node, caller: Caller, request: SendMessage
) -> MessageAccepted | SessionStopped:
    command = command_of(request.text or "")
    if command is not None:
        caller.require(Scope.CANCEL)
        return await _stop(node, caller, request.key, only_oldest=command == STOP)
    made = message_submission(
        request, task_id=node.new_id(), agent=caller.agent, submitter=caller.token
    )
    caller.agent_for(made.agent)
    problem = callback_problem(node, made.callback_url)
    if problem is not None:
        raise problem
    warnings = await offers.checked(node, made)
    key = idempotency_key(request.idempotency_key, made.agent, request.raw)
    answer = (await node.submit(Submit([made], key, caller=submitter(caller))))[0]
    if isinstance(answer, FairlaneError):
        raise answer
    accepted = msgspec.structs.asdict(task_accepted(answer, warnings))
    return MessageAccepted(
        **accepted, merged=key is None and answer.id != made.id, message_id=_message_id(made)
    )


def command_of(text: str) -> str | None:
    """Return the command that a message is, however it is capitalised; None for other messages.

    Chats add the name of the bot that the command is for: `/stop@my_bot`.
    """
    word, at, name = text.strip().casefold().partition("@")
    is_name = not at or name.replace("_", "").isalnum()
    return word if word in (STOP, STOP_ALL) and is_name else None


@implements(schema.STOP_SESSION)
async def stop_session(
    node: Node, caller: Caller, request: schema.SessionRequest
) -> SessionStopped:
    return await _stop(node, caller, request.key, only_oldest=True)


@implements(schema.STOP_ALL)
async def stop_all(node: Node, caller: Caller, request: schema.SessionRequest) -> SessionStopped:
    return await _stop(node, caller, request.key, only_oldest=False)


async def _stop(node: Node, caller: Caller, key: str, *, only_oldest: bool) -> SessionStopped:
    stop = StopSession(key, only_oldest=only_oldest, agent=caller.agent)
    stopped: StoppedRuns = await node.writer.ask(stop)
    return SessionStopped(stopped.stopped, stopped.drained)


@implements(schema.RESET_SESSION)
async def reset_session(
    node: Node, caller: Caller, request: schema.SessionRequest
) -> SessionCleared:
    reset = StopSession(request.key, reset=True, agent=caller.agent)
    stopped: StoppedRuns = await node.writer.ask(reset)
    return SessionCleared(stopped.stopped, stopped.drained, stopped.generation)


@implements(schema.SET_USAGE)
async def set_usage(node: Node, caller: Caller, request: schema.ReportUsage) -> SessionDetail:
    usage = SetUsage(request.key, request.tokens, request.context_window, caller.agent)
    await node.writer.ask(usage)
    return await _shown(node, caller, request.key)


@implements(schema.SET_SESSION)
async def set_session(node: Node, caller: Caller, request: schema.ChangeSession) -> SessionDetail:
    settings, unset = settings_of(request, SessionSettings), frozenset(request.unset)
    change = SetSession(request.key, settings, unset, caller.agent)
    session: Session = await node.writer.ask(change)
    return await _shown(node, caller, request.key, SessionView(session, [], []))


@implements(schema.SESSION)
async def show_session(node: Node, caller: Caller, request: schema.ShowSession) -> SessionDetail:
    return await _shown(node, caller, request.key)


async def _shown(
    node: Node, caller: Caller, key: str, changed: SessionView | None = None
) -> SessionDetail:
    """Show a session; `changed` replaces the stored one, which is absent while the session is
    empty.
    """
    view = await node.views.read(node.views.session, key, caller.agent) or changed
    if view is None:
        raise ownership.not_mine(key)
    return session_detail(view.session, node.policy.sessions, view.turns, view.queued)


@implements(schema.SESSIONS)
async def list_sessions(node: Node, caller: Caller, request: schema.ListSessions) -> SessionPage:
    views = node.views
    page = await views.read(views.sessions, request.cursor or "", caller.agent, request.limit)
    policy = node.policy.sessions
    return SessionPage(
        sessions=[session_summary(session, policy) for session in page],
        count=len(page),
        next_cursor=page[-1].key if page.more else None,
    )


# -------------------------------------------------------------------- messages


def message_submission(
    request: SendMessage,
    *,
    task_id: str,
    agent: str | None = None,
    submitter: str | None = None,
) -> Submission:
    """Return the task of a message: an instruction, or a task for its handler.

    It waits in the lane `main` unless the message names another. Raise `InvalidRequest` for a
    message without content.
    """
    text = request.text or ""
    if not text.strip() and not request.media:
        raise InvalidRequest("field 'message' must not be empty")
    if not request.handler and len(text) > INSTRUCTION_CHARACTERS_MAX:
        limit = INSTRUCTION_CHARACTERS_MAX
        raise InvalidRequest(f"field 'message' must not be longer than {limit} characters")
    if too_deep(request.media):
        raise InvalidRequest(f"field 'media' must not be nested deeper than {DEPTH_MAX} levels")
    message = message_of(request, agent, no_merge=bool(request.no_merge or request.media))
    extra = {"sender": message.sender, "media": request.media, "noMerge": message.no_merge}
    stored = {name: value for name, value in extra.items() if value}
    task = TaskRequest(
        agent=request.agent,
        handler=request.handler,
        instruction=None if request.handler else text or MEDIA_ONLY,
        params={"message": text, **stored} if request.handler else None,
        session=request.key,
        lane=request.lane or FALLBACK_LANE,
        priority=request.priority,
        callback_url=request.callback_url,
        webhook_url=request.webhook_url,
        metadata=request.metadata,
        llm_config=request.llm_config,
        timeout_ms=request.timeout_ms,
        needs=request.needs,
    )
    made = submission(task, task_id=task_id, agent=agent, submitter=submitter)
    return as_message(made, message, stored, message_id=_id_of(request, made.agent))


def _id_of(request: SendMessage, agent: str) -> str | None:
    """Return the id of a message: its own, or one that a repeated request gets again."""
    if request.message_id is not None or request.idempotency_key is None:
        return request.message_id
    parts = f"{agent}\x00{request.key}\x00{request.idempotency_key}"
    return f"msg_{hashlib.sha256(parts.encode()).hexdigest()[:28]}"


def _message_id(made: Submission) -> str:
    """Return the id of the message that a submission was made from."""
    found: str = msgspec.json.decode(made.body)["messages"][-1]["id"]
    return found


def message_of(request: SendMessage, agent: str | None, *, no_merge: bool) -> Message:
    """Return the fields that make a task a message. `agent` is the default sender."""
    return Message(
        text=request.text or "",
        sender=request.sender or request.agent or agent or DEFAULT_AGENT,
        sent_at=moment_of(request.sent_at, "sentAt") if request.sent_at else None,
        no_merge=no_merge,
        settings=settings_of(request, MessageSettings),
    )


def as_message(
    made: Submission, message: Message, stored: JsonMapping, *, message_id: str | None = None
) -> Submission:
    """Return a task as a message of its session. `stored` is kept with its request."""
    entry = {"id": message_id or f"msg_{made.id.partition('_')[2]}", "sender": message.sender}
    if message.sent_at is not None:
        entry["sentAt"] = moments.text(message.sent_at)
    body = {**msgspec.json.decode(made.body), **stored, "messages": [entry]}
    text = msgspec.json.encode(body).decode()
    return msgspec.structs.replace(made, body=text, message=message)


S = TypeVar("S", bound=MessageSettings)


def settings_of(request: MessageSettings, kind: type[S]) -> S:
    """Return the settings that a request has among its fields."""
    return kind(**{name: getattr(request, name) for name in kind.__struct_fields__})
