"""Sessions in the store: messages that come in, and the verbs that stop, reset and tune.

A message is a task with a text. In the session's window it may still grow: later messages of the
same sender are joined to it. When too many wait, one has to go; which one, the session says.
Whatever is dropped, drained or stopped ends as a cancelled task whose error says why.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Final, Protocol

import msgspec

from fairlane.core import gates, leases, lifecycle, secrets, sessions
from fairlane.core.errors import FairlaneError, MessageStale, SessionQueueFull
from fairlane.core.json_types import JsonObject
from fairlane.core.model import DEBOUNCE_GATE, Change, Message, Submission, Task
from fairlane.core.policy import SessionPolicy
from fairlane.core.sessions import Session, SessionSettings
from fairlane.engine.commands import SetSession, SetUsage, StoppedRuns, StopSession
from fairlane.engine.verbs import ownership
from fairlane.store.tables import sessions as table
from fairlane.store.transaction import Transaction

TEXT_CHARACTERS_MAX: Final = 100_000
MERGED_CHARACTERS_MAX: Final = 1_048_576  # as one request may have
MERGED_KEYS_MAX: Final = 1000
REQUESTS_AT_A_TIME: Final = 8
TOKENS_MAX: Final = 2**53


class Admit(Protocol):
    """Let a task in, unless its lane is full.

    `leaving` are queued tasks that go when it comes in, and `enter` sends them away: it is called
    once it is certain that the task is let in, so that one that is refused has changed nothing.
    """

    def __call__(
        self,
        tx: Transaction,
        submission: Submission,
        now: int,
        *,
        leaving: Sequence[Task],
        enter: Callable[[], None],
    ) -> Task | FairlaneError: ...


# -------------------------------------------------------------------- a message comes in


def admit(
    tx: Transaction, submission: Submission, now: int, admit_task: Admit
) -> Task | FairlaneError:
    """A new task, the task that the message has been joined to, or why it is refused."""
    message, key = submission.message, submission.session
    assert message is not None
    assert key is not None
    session = tx.counters.session(key)
    if _is_stale(message, session):
        return MessageStale("the message was sent before its session was stopped")
    told = _told(tx.policy.sessions, session, message)
    settings = sessions.resolved(tx.policy.sessions, told, message.settings)
    if settings.mode == sessions.INTERRUPT:

        def interrupt() -> None:
            _take_over(tx, session, told)
            _interrupt(tx, session, now)

        return admit_task(tx, submission, now, leaving=_queued(tx, key), enter=interrupt)
    found = None if message.no_merge else _that_may_grow(tx, submission, message, settings)
    if found is not None:
        _take_over(tx, session, told)
        window = sessions.window_ends(settings, found[0].queued_at, now)
        return _grow(tx, *found, submission, window)
    excess = max(0, sessions.excess(settings, told))
    if excess and settings.drop == sessions.DROP_NEW:
        return _full(session, settings.cap)
    oldest = tx.lookup.tasks(table.waiting_tasks, session=key)[:excess] if excess else []

    def enter() -> None:
        _take_over(tx, session, told)
        _cancel(tx, oldest, sessions.DROPPED, now)
        if session.debouncing:
            anybody = settings.mode == sessions.COLLECT
            _let_go(tx, submission, None if anybody else message.sender, now)

    return admit_task(tx, submission, now, leaving=oldest, enter=enter)


def _is_stale(message: Message, session: Session) -> bool:
    """Whether the message was sent before the session was last stopped, if it ever was."""
    if message.sent_at is None or session.cutoff_at is None:
        return False
    return message.sent_at < session.cutoff_at


def _full(session: Session, cap: int) -> SessionQueueFull:
    waiting = session.waiting + session.debouncing
    return SessionQueueFull(
        f"session queue is full: {waiting} messages wait already",
        details={"sessionKey": session.key, "waiting": waiting, "cap": cap},
        retry_after_ms=1000,
    )


def _interrupt(tx: Transaction, session: Session, now: int) -> None:
    """Who has the turn after this was stopped and has not ended: nobody starts beside them."""
    _drain(tx, session.key, sessions.INTERRUPTED, now)
    if session.holders:
        session.interrupted = 1
        tx.counters.touch_session(session.key)


def window_ends(tx: Transaction, submission: Submission, now: int) -> int | None:
    """Until when a new message may grow; None when it may not."""
    message, key = submission.message, submission.session
    if message is None or key is None or message.no_merge:
        return None
    settings = sessions.resolved(tx.policy.sessions, tx.counters.session(key), message.settings)
    if settings.mode == sessions.INTERRUPT or settings.debounce_ms <= 0:
        return None
    return sessions.window_ends(settings, now, now)


def _told(policy: SessionPolicy, session: Session, message: Message) -> Session:
    """The session as it will be with what the message says about it for good."""
    max_concurrent = message.settings.max_concurrent
    if max_concurrent is None and message.tokens is None:
        return session
    told = copy.copy(session)
    if max_concurrent is not None:
        told.settings = sessions.changed(told, SessionSettings(max_concurrent=max_concurrent))
    if message.tokens is not None:
        told.tokens, told.context_window = message.tokens, message.context_window
    told.limit = sessions.limit(policy, told)
    return told


def _take_over(tx: Transaction, session: Session, told: Session) -> None:
    if told is not session:
        session.settings = told.settings
        session.tokens, session.context_window = told.tokens, told.context_window
        tx.counters.touch_session(session.key)


class _Body(msgspec.Struct, rename="camel"):
    """The parts of a message's request that tell who sent it and what it says."""

    instruction: str | None = None
    params: JsonObject | None = None
    sender: str | None = None
    no_merge: bool = False
    llm_config: JsonObject | None = None


def _that_may_grow(
    tx: Transaction, submission: Submission, message: Message, settings: SessionPolicy
) -> tuple[Task, str] | None:
    """The waiting message that this one belongs to, with its request.

    In its window it belongs to the sender; where messages are collected, to whatever waits.
    Only the newest may grow: what was said after it must not run before it.
    """
    assert submission.session is not None
    collects = settings.mode == sessions.COLLECT
    read = table.waiting_tasks if collects else table.debouncing_tasks
    lane = tx.policy.lane_name(submission.lane, submission.kind)
    kind = (lane, submission.agent, submission.route, submission.callback_url)
    waiting = tx.lookup.tasks(read, session=submission.session)
    newest_first = [task for task in waiting if task.priority == submission.priority][::-1]
    for task, raw in _with_requests(tx, newest_first):
        body = _decoded(raw)
        if body.sender == message.sender or (collects and body.sender is not None):
            size = len(_text(body)) + 1 + len(message.text)
            alike = (task.lane, task.agent, task.route, task.callback_url) == kind
            fits = alike and not body.no_merge and size <= TEXT_CHARACTERS_MAX
            fits = fits and not _moves_secret(body, submission) and _stays_small(raw, submission)
            return (task, raw) if fits else None
    return None


def _with_requests(tx: Transaction, tasks: Sequence[Task]) -> Iterator[tuple[Task, str]]:
    """Yield tasks with their requests, which are read a few at a time: mostly the first counts."""
    for start in range(0, len(tasks), REQUESTS_AT_A_TIME):
        part = tasks[start : start + REQUESTS_AT_A_TIME]
        bodies = tx.lookup.requests(task.seq for task in part)
        yield from ((task, bodies[task.seq]) for task in part)


def _stays_small(body: str, later: Submission) -> bool:
    """Whether the merged request is still within the limits of a single one."""
    if len(body) + len(later.body) > MERGED_CHARACTERS_MAX:
        return False
    merged: JsonObject = msgspec.json.decode(joined(body, later))
    objects = (merged.get(field) for field in _SAID_BESIDES)
    return all(len(one) <= MERGED_KEYS_MAX for one in objects if isinstance(one, dict))


_body = msgspec.json.Decoder(_Body)


def _decoded(body: str) -> _Body:
    """Return who sent a request and what it says; a damaged one is nobody's."""
    try:
        return _body.decode(body)
    except msgspec.DecodeError:
        return _Body(no_merge=True)


def _moves_secret(first: _Body, later: Submission) -> bool:
    """Whether the later one says where a secret of the first is sent. Then they stay apart."""
    if first.llm_config is None or '"llmConfig"' not in later.body:
        return False
    new = _body.decode(later.body).llm_config or {}
    return secrets.moved(first.llm_config, {**first.llm_config, **new}) is not None


def _text(body: _Body) -> str:
    return body.instruction or str((body.params or {}).get("message", ""))


def _grow(
    tx: Transaction, task: Task, body: str, submission: Submission, window_ends_at: int
) -> Task:
    """Join the text. A window that is still open ends later than it would have."""
    tx.rewrite_request(task.seq, joined(body, submission))
    if task.gate != DEBOUNCE_GATE:
        return task
    after = copy.copy(task)
    after.eligible_at = window_ends_at
    tx.apply(Change(task, after, lifecycle.PROMOTE))
    return after


def joined(body: str, later: Submission) -> str:
    """The request with the later text on a new line; of other things the later one counts."""
    assert later.message is not None
    text = later.message.text
    request: JsonObject = msgspec.json.decode(body)
    new: JsonObject = msgspec.json.decode(later.body)
    if "instruction" in request:
        request["instruction"] = _lines(request["instruction"], text)
    else:
        params = request.setdefault("params", {})
        params["message"] = _lines(params.get("message", ""), text)
    for field in _SAID_BESIDES:
        if field in new:
            known = request.get(field)
            request[field] = {**known, **new[field]} if isinstance(known, dict) else new[field]
    return msgspec.json.encode(request).decode()


_SAID_BESIDES: Final = ("metadata", "llmConfig", "timeoutMs")


def _lines(first: str, second: str) -> str:
    return "\n".join(part for part in (first, second) if part.strip())


def _let_go(tx: Transaction, submission: Submission, sender: str | None, now: int) -> None:
    """What the sender said before, or anybody, goes first: its window ends now.

    Unless it ranks lower, and would come after the new one anyway.
    """
    growing = tx.lookup.tasks(table.debouncing_tasks, session=submission.session)
    tasks = [task for task in growing if task.priority <= submission.priority]
    bodies = tx.lookup.requests(task.seq for task in tasks) if tasks else {}
    for task in tasks:
        if sender is None or _decoded(bodies[task.seq]).sender == sender:
            tx.counters.prepare([task])
            ready = copy.copy(task)
            ready.eligible_at = None
            gate = gates.next_gate(
                ready, tx.counters.session_of(task), tx.counters.batch_of(task), now
            )
            tx.apply(gates.promote(task, now, gate))


# -------------------------------------------------------------------- stop, reset


def stop(tx: Transaction, requests: Sequence[StopSession], now: int) -> Iterator[object]:
    """Stop sessions, also those that nobody has: messages to them may be on their way."""
    for request in requests:
        tx.counters.load_sessions([request.key])
        session = tx.counters.session(request.key)
        if not ownership.is_mine(tx, request.key, request.agent):
            yield ownership.not_mine(request.key)
            continue
        if request.only_oldest:
            yield _stop_oldest(tx, session, request.agent, now)
            continue
        error = sessions.STOPPED
        session.agent = session.agent or request.agent
        session.cutoff_at = now
        if request.reset:
            error = sessions.RESET
            session.generation += 1
        tx.counters.touch_session(request.key)
        ids = _drain(tx, request.key, error, now, request.agent)
        yield StoppedRuns(*ids, session.generation)


def _stop_oldest(tx: Transaction, session: Session, agent: str | None, now: int) -> StoppedRuns:
    """The run that began first; when none runs, who has the turn and would run next."""
    running = _of(agent, _running(tx, session.key))
    if running:
        return StoppedRuns(_cancel(tx, running[:1], sessions.STOPPED, now), [], session.generation)
    held = _of(agent, tx.lookup.tasks(table.turn_tasks, session=session.key))
    return StoppedRuns([], _cancel(tx, held[:1], sessions.STOPPED, now), session.generation)


def _drain(
    tx: Transaction, key: str, error: str, now: int, agent: str | None = None
) -> tuple[list[str], list[str]]:
    """Cancel what runs, and what waits for the turn, a slot or its retry; the ids of both.

    What was submitted for a later moment has not come yet, and stays.
    """
    running, queued = _of(agent, _running(tx, key)), _of(agent, _queued(tx, key))
    return _cancel(tx, running, error, now), _cancel(tx, queued, error, now)


def _of(agent: str | None, tasks: Iterable[Task]) -> list[Task]:
    return [task for task in tasks if agent in (None, task.agent)]


def _queued(tx: Transaction, key: str) -> list[Task]:
    held = tx.lookup.tasks(table.turn_tasks, session=key)
    return [*held, *tx.lookup.tasks(table.waiting_tasks, session=key)]


def _running(tx: Transaction, key: str) -> list[Task]:
    """In the order in which they began."""
    leased = tx.lookup.tasks(table.leased_tasks, session=key)
    return sorted((task for task in leased if not task.terminal), key=lambda task: task.token)


def _cancel(tx: Transaction, tasks: Iterable[Task], error: str, now: int) -> list[str]:
    tasks = list(tasks)
    tx.counters.prepare(tasks)
    for task in tasks:
        change = leases.cancel(task, task.id, now, error).change
        assert change is not None
        tx.apply(change)
    return [task.id for task in tasks]


# -------------------------------------------------------------------- tune


def set_session(tx: Transaction, requests: Sequence[SetSession], _: int) -> Iterator[object]:
    for request in requests:
        tx.counters.load_sessions([request.key])
        if not ownership.is_mine(tx, request.key, request.agent):
            yield ownership.not_mine(request.key)
            continue
        session = tx.counters.session(request.key)
        session.agent = session.agent or request.agent
        session.settings = sessions.changed(session, request.settings, request.unset)
        tx.counters.touch_session(request.key)
        yield session


def set_usage(tx: Transaction, requests: Sequence[SetUsage], _: int) -> Iterator[object]:
    for request in requests:
        tx.counters.load_sessions([request.key])
        if not ownership.is_mine(tx, request.key, request.agent):
            yield ownership.not_mine(request.key)
            continue
        session = tx.counters.session(request.key)
        session.agent = session.agent or request.agent
        session.tokens, session.context_window = request.tokens, request.context_window
        tx.counters.touch_session(request.key)
        yield session


def usage_of(result: str | None) -> tuple[int, int] | None:
    """What a result tells about how full its conversation is: `usage` with both numbers."""
    if result is None or '"usage"' not in result:
        return None
    try:
        usage = _result.decode(result).usage
    except (msgspec.DecodeError, RecursionError):
        return None
    return None if usage is None else (usage.tokens, usage.context_window)


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]
_Window = Annotated[int, msgspec.Meta(ge=1, le=TOKENS_MAX)]


class _Usage(msgspec.Struct, rename="camel"):
    tokens: _Tokens
    context_window: _Window


class _Result(msgspec.Struct):
    usage: _Usage | None = None


_result = msgspec.json.Decoder(_Result)


def report(tx: Transaction, task: Task, result: str | None) -> None:
    """Take over the usage that a run has reported with its result, if it was still wanted."""
    usage = usage_of(result) if task.state == lifecycle.DONE else None
    if usage is not None and task.session:
        session = tx.counters.session(task.session)
        session.tokens, session.context_window = usage
        tx.counters.touch_session(session.key)
