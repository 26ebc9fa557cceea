"""Sessions: send messages, stop and reset a session, change its settings, report its usage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, field

from fairlane.core import sessions
from fairlane.core.access import Scope
from fairlane.core.json_types import JsonObject
from fairlane.core.model import Task
from fairlane.core.policy import SessionPolicy
from fairlane.core.sessions import MessageSettings, Session, SessionSettings
from fairlane.core.submissions import Needs, Priority, TimeoutMs
from fairlane.core.types import (
    IdentifierOrEmpty,
    Moment,
    PageLimit,
    SessionKey,
    Url,
    Word,
    WordOrEmpty,
)
from fairlane.schema.operation import (
    GET,
    PATCH,
    POST,
    PUT,
    Header,
    Nulls,
    Operation,
    RawBody,
    Request,
    Response,
)
from fairlane.schema.task_status import TaskState
from fairlane.schema.tasks import Once, TaskAccepted
from fairlane.schema.wire import moment

TokenCount = Annotated[int, Meta(ge=0, le=2**53)]
WindowSize = Annotated[int, Meta(ge=1, le=2**53)]


class ListSessions(Request):
    limit: PageLimit = 100
    cursor: Annotated[str | None, Meta(description="nextCursor of the previous page")] = None


class ShowSession(Request):
    key: Annotated[str, Meta(description="Key of the session")]


class SessionRequest(Request):
    """The key of one session."""

    key: SessionKey


class ChangeSession(SessionSettings, Request, kw_only=True):
    key: SessionKey
    unset: Annotated[
        list[str], Nulls(), Meta(description="Settings to restore to the policy's values")
    ] = field(default_factory=list)


class SendMessage(MessageSettings, Request, kw_only=True):
    key: SessionKey
    text: Annotated[
        str | None, Meta(description="Text of the message; /stop and /stopall stop the session")
    ] = field(default=None, name="message")
    agent: Annotated[
        IdentifierOrEmpty | None, Meta(description="Agent that the message belongs to")
    ] = None
    sender: Annotated[
        Annotated[str, Meta(max_length=256)] | None,
        Meta(description="Author of the message; only messages of one sender are merged"),
    ] = None
    message_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)] | None,
        Meta(description="Id of the message in the chat, for the run; default: a new one"),
    ] = None
    sent_at: Annotated[
        Moment | None,
        Meta(description="When the message was sent; refused if before the last stopall"),
    ] = None
    handler: Annotated[
        Word | None,
        Meta(description="Handler that gets the message; default: the message is an instruction"),
    ] = None
    media: Annotated[list[Any] | None, Meta(description="Attachments, as any JSON")] = None
    no_merge: Annotated[bool | None, Meta(description="Do not merge this message with others")] = (
        None
    )
    lane: Annotated[WordOrEmpty | None, Meta(description="Lane of the task")] = None
    priority: Annotated[
        Priority | None,
        Meta(description="Lower numbers run first"),
    ] = None
    callback_url: Annotated[
        Url | None, Meta(description="URL that receives a POST when the task finishes")
    ] = None
    webhook_url: Annotated[
        Url | None,
        Meta(description="Old name of callbackUrl", extra_json_schema={"deprecated": True}),
    ] = None
    metadata: Annotated[JsonObject | None, Meta(description="Object stored with the task")] = None
    llm_config: Annotated[
        JsonObject | None, Meta(description="Settings for the agent that runs an instruction")
    ] = None
    timeout_ms: Annotated[TimeoutMs | None, Meta(description="Maximum duration of one attempt")] = (
        None
    )
    needs: Annotated[
        Needs | None,
        Meta(description="Amounts that the task needs; a merged message adds none"),
    ] = None
    idempotency_key: Annotated[Once | None, Header("Idempotency-Key")] = None
    raw: Annotated[bytes, RawBody()] = b""


class ReportUsage(Request):
    key: SessionKey
    tokens: Annotated[TokenCount, Meta(description="Number of tokens in use")]
    context_window: Annotated[WindowSize, Meta(description="Size of the context window in tokens")]


class MessageAccepted(TaskAccepted):
    merged: Annotated[bool, Meta(description="Whether the text was added to a waiting task")] = (
        False
    )
    message_id: Annotated[str | None, Meta(description="Id of the message in its run")] = None


class SessionStopped(Response):
    stopped: Annotated[list[str], Meta(description="Ids of the running tasks that were cancelled")]
    drained: Annotated[list[str], Meta(description="Ids of the waiting tasks that were cancelled")]


class SessionCleared(SessionStopped):
    generation: Annotated[int, Meta(description="Number of resets of the session")]


class ContextUsage(Response):
    tokens: int
    context_window: int


class SessionSummary(Response):
    session: str
    running: int
    waiting: int
    debouncing: Annotated[int, Meta(description="Messages that wait for further messages to merge")]
    later: Annotated[int, Meta(description="Tasks that wait for a time or for other tasks")]
    effective_concurrency: Annotated[
        int, Meta(description="How many tasks may run at the same time now")
    ]
    throttled: Annotated[
        bool,
        Meta(description="Whether a full context window limits the session to one task"),
    ]
    usage: ContextUsage | None = None


class SessionPage(Response):
    sessions: list[SessionSummary]
    count: int
    next_cursor: str | None = None


class SessionTask(Response):
    task: str
    state: TaskState
    lane: str
    gate: str | None = None
    started_at: Moment | None = None
    position: int | None = None


class SessionDetail(Response, kw_only=True):
    session: str
    running: list[SessionTask]
    waiting: list[SessionTask]
    debouncing: int
    later: int
    effective_concurrency: int
    throttled: bool
    usage: ContextUsage | None = None
    generation: int
    settings: SessionSettings
    why: Annotated[str, Meta(description="Why this many tasks may run at the same time")]
    cutoff: Annotated[
        Moment | None, Meta(description="Messages sent before this time are refused")
    ] = None


def session_summary(session: Session, policy: SessionPolicy) -> SessionSummary:
    return SessionSummary(
        session=session.key,
        running=session.holders,
        waiting=session.waiting,
        debouncing=session.debouncing,
        later=session.later,
        effective_concurrency=sessions.limit(policy, session),
        throttled=sessions.throttled(policy, session),
        usage=_usage(session),
    )


def session_detail(
    session: Session, policy: SessionPolicy, running: Sequence[Task], waiting: Sequence[Task]
) -> SessionDetail:
    """Return a session with its tasks, and why this many of them may run."""
    resolved = sessions.resolved(policy, session)
    return SessionDetail(
        session=session.key,
        running=[_task(task) for task in running],
        waiting=[_task(task, place) for place, task in enumerate(waiting, 1)],
        debouncing=session.debouncing,
        later=session.later,
        effective_concurrency=sessions.limit(policy, session),
        throttled=sessions.throttled(policy, session),
        usage=_usage(session),
        generation=session.generation,
        settings=msgspec.convert(resolved, SessionSettings, from_attributes=True),
        why=_why(session, policy),
        cutoff=None if session.cutoff_at is None else moment(session.cutoff_at),
    )


def _why(session: Session, policy: SessionPolicy) -> str:
    if session.interrupted:
        return "none for now: interrupted tasks have not ended yet"
    if sessions.throttled(policy, session):
        share = (session.tokens or 0) / (session.context_window or 1)
        return f"one at a time: {share:.0%} of the context window is used"
    return f"up to {sessions.limit(policy, session)} at a time, as in its settings"


def _usage(session: Session) -> ContextUsage | None:
    if session.tokens is None or session.context_window is None:
        return None
    return ContextUsage(session.tokens, session.context_window)


def _task(task: Task, position: int | None = None) -> SessionTask:
    return SessionTask(
        task=task.id,
        state=task.state,
        lane=task.lane,
        gate=task.gate,
        started_at=None if task.started_at is None else moment(task.started_at),
        position=position,
    )


SESSIONS: Final = Operation(
    "sessions",
    GET,
    "/sessions",
    ListSessions,
    SessionPage,
    Scope.READ,
    "List sessions, ordered by key",
)
SESSION: Final = Operation(
    "session",
    GET,
    "/sessions/{key}",
    ShowSession,
    SessionDetail,
    Scope.READ,
    "Show a session: running and waiting tasks, and settings",
)
SET_SESSION: Final = Operation(
    "set_session",
    PATCH,
    "/sessions/{key}",
    ChangeSession,
    SessionDetail,
    Scope.OPERATE,
    "Change settings of a session",
)
MESSAGE: Final[Operation[SendMessage, MessageAccepted | SessionStopped]] = Operation(
    "message",
    POST,
    "/sessions/{key}/messages",
    SendMessage,
    MessageAccepted,
    Scope.SUBMIT,
    "Send a message to a session",
    status=202,
    statuses={SessionStopped: 200},
    positional=("text",),
)
STOP_SESSION: Final = Operation(
    "stop_session",
    POST,
    "/sessions/{key}/stop",
    SessionRequest,
    SessionStopped,
    Scope.CANCEL,
    "Cancel the oldest running task of a session",
)
STOP_ALL: Final = Operation(
    "stop_all",
    POST,
    "/sessions/{key}/stopall",
    SessionRequest,
    SessionStopped,
    Scope.CANCEL,
    "Cancel all running and waiting tasks of a session",
    audited=True,
)
RESET_SESSION: Final = Operation(
    "reset_session",
    POST,
    "/sessions/{key}/reset",
    SessionRequest,
    SessionCleared,
    Scope.CANCEL,
    "Cancel all tasks of a session and start a new generation",
    audited=True,
)
SET_USAGE: Final = Operation(
    "set_usage",
    PUT,
    "/sessions/{key}/usage",
    ReportUsage,
    SessionDetail,
    Scope.OPERATE,
    "Report how full the context window of a session is",
    audited=False,
)
