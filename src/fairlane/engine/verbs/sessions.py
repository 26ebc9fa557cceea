"""Sessions in the store: incoming messages, and the verbs that stop, reset and tune.

A message is a task with a text. While its debounce window is open, later messages of the same
sender are merged into it. When too many messages wait, one is dropped; the session's settings say
which. A message that is dropped, drained or stopped ends as a cancelled task whose error says why.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Final, Protocol

import msgspec

from fairlane.core import gates, inbox, leases, lifecycle, secrets, sessions
from fairlane.core.errors import FairlaneError, MessageStale, SessionBusy, SessionQueueFull
from fairlane.core.json_types import JsonObject
from fairlane.core.model import DEBOUNCE_GATE, Change, Message, Submission, Task
from fairlane.core.policy import SessionPolicy
from fairlane.core.sessions import Session, SessionSettings
from fairlane.engine.commands import SetSession, SetUsage, StoppedRuns, StopSession
from fairlane.engine.verbs import ownership, rights, steps
from fairlane.store.tables import sessions as table
from fairlane.store.tables import tasks as task_table
from fairlane.store.transaction import Transaction

TEXT_CHARACTERS_MAX: Final = 100_000
MERGED_CHARACTERS_MAX: Final = 1_048_576  # as many as one request may have
MERGED_KEYS_MAX: Final = 1000
MERGED_MESSAGES_MAX: Final = 1000
REQUESTS_AT_A_TIME: Final = 8
TOKENS_MAX: Final = 2**53


class Admit(Protocol):
    """Admit a task unless its lane is full.

    `leaving` are queued tasks that `enter` removes. `enter` is called once the task is certain to
    be admitted, so that a refused one changes nothing.
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


# -------------------------------------------------------------------- incoming messages


def admit(
    tx: Transaction, submission: Submission, now: int, admit_task: Admit
) -> Task | FairlaneError:
    """Return a new task, the task that the message was merged into, or the error."""
    message, key = submission.message, submission.session
    assert message is not None
    assert key is not None
    session = tx.counters.session(key)
    if _is_stale(message, session):
        return MessageStale("the message was sent before its session was stopped")
    changed = _with_message_settings(tx.policy.sessions, session, message)
    settings = sessions.resolved(tx.policy.sessions, changed, message.settings)
    if settings.mode == sessions.REJECT and changed.busy:
        return _busy(session)
    if settings.mode in _STOPPING:
        error = _STOPPING[settings.mode]
        if settings.mode == sessions.ROLLBACK:
            submission = _after_rollback(tx, submission)

        def interrupt() -> None:
            _take_over(tx, session, changed)
            _interrupt(tx, session, error, now)

        return admit_task(tx, submission, now, leaving=_queued(tx, key), enter=interrupt)
    return _admit_behind(tx, submission, now, admit_task, changed=changed, settings=settings)


# The modes that stop the turn, and the error of what they stop.
_STOPPING: Final = {
    sessions.INTERRUPT: sessions.INTERRUPTED,
    sessions.ROLLBACK: sessions.ROLLED_BACK,
}


def _admit_behind(
    tx: Transaction,
    submission: Submission,
    now: int,
    admit_task: Admit,
    *,
    changed: Session,
    settings: SessionPolicy,
) -> Task | FairlaneError:
    """Admit a message that waits for its turn, unless it is merged into another."""
    message, key = submission.message, submission.session
    assert message is not None
    assert key is not None
    session = tx.counters.session(key)
    if settings.mode == sessions.STEER:
        submission = _with(submission, steer=True)
    found = None if message.no_merge else _that_may_grow(tx, submission, message, settings)
    if found is not None:
        _take_over(tx, session, changed)
        window = sessions.window_ends(settings, found[0].queued_at, now)
        return _grow(tx, *found, submission, window)
    excess = max(0, sessions.excess(settings, changed))
    if excess and settings.drop == sessions.DROP_NEW:
        return _full(session, settings.cap)
    oldest = tx.lookup.tasks(table.waiting_tasks, session=key)[:excess] if excess else []

    def enter() -> None:
        _take_over(tx, session, changed)
        _cancel(tx, oldest, sessions.DROPPED, now)
        if session.debouncing:
            any_sender = settings.mode == sessions.COLLECT
            _let_go(tx, submission, None if any_sender else message.sender, now)

    return admit_task(tx, submission, now, leaving=oldest, enter=enter)


def _is_stale(message: Message, session: Session) -> bool:
    """Return whether the message was sent before the session was last stopped."""
    if message.sent_at is None or session.cutoff_at is None:
        return False
    return message.sent_at < session.cutoff_at


def _full(session: Session, cap: int) -> SessionQueueFull:
    waiting = session.waiting + session.debouncing
    return SessionQueueFull(
        f"session queue is full: {waiting} waiting",
        details={"sessionKey": session.key, "waiting": waiting, "cap": cap},
        retry_after_ms=1000,
    )


def _busy(session: Session) -> SessionBusy:
    waiting = session.waiting + session.debouncing
    return SessionBusy(
        f"session {session.key} is busy, and its mode does not let the message wait; send it "
        "again later or in another mode",
        details={"sessionKey": session.key, "running": session.holders, "waiting": waiting},
    )


def _interrupt(tx: Transaction, session: Session, error: str, now: int) -> None:
    """Stop the holders of the turn; no other task starts until they have ended. A turn that is
    rolled back loses its steps.
    """
    forgets = error == sessions.ROLLED_BACK
    turn = _turn(tx, session.key) if forgets else []
    _drain(tx, session.key, error, now)
    for task in turn:
        steps.forget(tx, tx.task(task.seq))
    if session.holders:
        session.interrupted = 1
        tx.counters.touch_session(session.key)


def _turn(tx: Transaction, key: str) -> list[Task]:
    """Return the tasks that run, or have run and keep the turn."""
    held = tx.lookup.tasks(table.turn_tasks, session=key)
    return [*_running(tx, key), *(task for task in held if task.fencing_token)]


def _after_rollback(tx: Transaction, submission: Submission) -> Submission:
    """Return a message with the ids of the messages that the agent has to forget."""
    assert submission.session is not None
    tasks = _turn(tx, submission.session)
    bodies = tx.lookup.requests(task.seq for task in tasks) if tasks else {}
    ids = [id_ for task in tasks for id_ in inbox.ids_of(bodies[task.seq])]
    return _with(submission, rolledBack=ids[:MERGED_MESSAGES_MAX]) if ids else submission


def _with(submission: Submission, **fields: object) -> Submission:
    """Return a submission with further fields in its request."""
    request: JsonObject = msgspec.json.decode(submission.body)
    body = msgspec.json.encode({**request, **fields}).decode()
    return msgspec.structs.replace(submission, body=body)


def window_ends(tx: Transaction, submission: Submission, now: int) -> int | None:
    """Return when the debounce window of a new message ends; None if it has none."""
    message, key = submission.message, submission.session
    if message is None or key is None or message.no_merge:
        return None
    session = tx.counters.session(key)
    settings = sessions.resolved(tx.policy.sessions, session, message.settings)
    steers = settings.mode == sessions.STEER and session.holders > 0
    if steers or settings.mode in _AT_ONCE or settings.debounce_ms <= 0:
        return None
    return sessions.window_ends(settings, now, now)


def _with_message_settings(policy: SessionPolicy, session: Session, message: Message) -> Session:
    """Return the session with the settings and the usage of the message."""
    max_concurrent = message.settings.max_concurrent
    if max_concurrent is None and message.tokens is None:
        return session
    changed = copy.copy(session)
    if max_concurrent is not None:
        changed.settings = sessions.changed(changed, SessionSettings(max_concurrent=max_concurrent))
    if message.tokens is not None:
        changed.tokens, changed.context_window = message.tokens, message.context_window
    changed.limit = sessions.limit(policy, changed)
    return changed


def _take_over(tx: Transaction, session: Session, changed: Session) -> None:
    if changed is not session:
        session.settings = changed.settings
        session.tokens, session.context_window = changed.tokens, changed.context_window
        tx.counters.touch_session(session.key)


# Modes in which a message either starts or is refused.
_AT_ONCE: Final = frozenset({sessions.INTERRUPT, sessions.ROLLBACK, sessions.REJECT})


class _Body(msgspec.Struct, rename="camel"):
    """The parts of a message's request that name its sender and its text."""

    instruction: str | None = None
    params: JsonObject | None = None
    sender: str | None = None
    no_merge: bool = False
    steer: bool = False
    llm_config: JsonObject | None = None


def _that_may_grow(
    tx: Transaction, submission: Submission, message: Message, settings: SessionPolicy
) -> tuple[Task, str] | None:
    """Return the waiting message that this one is merged into, with its request.

    In the debounce window it must have the same sender; in the mode `collect`, any sender. Their
    submitters must have the same rights. Only the newest message can be extended: later text must
    not run before earlier text.
    """
    assert submission.session is not None
    collects = settings.mode == sessions.COLLECT
    read = table.waiting_tasks if collects else table.debouncing_tasks
    lane = tx.policy.lane_name(submission.lane, submission.kind)
    kind = (lane, submission.agent, submission.capability, submission.callback_url)
    waiting = tx.lookup.tasks(read, session=submission.session)
    newest_first = [task for task in waiting if task.priority == submission.priority][::-1]
    for task, raw in _with_requests(tx, newest_first):
        body = _decoded(raw)
        if body.sender == message.sender or (collects and body.sender is not None):
            size = len(_text(body)) + 1 + len(message.text)
            alike = (task.lane, task.agent, task.capability, task.callback_url) == kind
            fits = alike and not body.no_merge and size <= TEXT_CHARACTERS_MAX
            fits = fits and not _moves_secret(body, submission) and _stays_small(raw, submission)
            fits = fits and body.steer == (settings.mode == sessions.STEER)
            return (task, raw) if fits and _same_rights(tx, task, submission) else None
    return None


def _same_rights(tx: Transaction, task: Task, later: Submission) -> bool:
    submitter = task_table.submitters(tx.connection, [task.seq]).get(task.seq)
    return rights.same(tx.connection, submitter, later.submitter, tx.now)


def _with_requests(tx: Transaction, tasks: Sequence[Task]) -> Iterator[tuple[Task, str]]:
    """Yield tasks with their requests, read a few at a time: mostly only the first is needed."""
    for start in range(0, len(tasks), REQUESTS_AT_A_TIME):
        part = tasks[start : start + REQUESTS_AT_A_TIME]
        bodies = tx.lookup.requests(task.seq for task in part)
        yield from ((task, bodies[task.seq]) for task in part)


def _stays_small(body: str, later: Submission) -> bool:
    """Return whether the merged request is within the limits of a single one."""
    if len(body) + len(later.body) > MERGED_CHARACTERS_MAX:
        return False
    text = join_text(body, later)
    if len(text) > MERGED_CHARACTERS_MAX:
        return False
    merged: JsonObject = msgspec.json.decode(text)
    if len(merged.get("messages", ())) > MERGED_MESSAGES_MAX:
        return False
    objects = (merged.get(field) for field in _SAID_BESIDES)
    return all(len(one) <= MERGED_KEYS_MAX for one in objects if isinstance(one, dict))


_body = msgspec.json.Decoder(_Body)


def _decoded(body: str) -> _Body:
    """Return the sender and the text of a request; a damaged one has none."""
    try:
        return _body.decode(body)
    except msgspec.DecodeError:
        return _Body(no_merge=True)


def _moves_secret(first: _Body, later: Submission) -> bool:
    """Return whether a later message could redirect a secret of the first, so must stay apart."""
    if first.llm_config is None or '"llmConfig"' not in later.body:
        return False
    new = _body.decode(later.body).llm_config or {}
    return secrets.moved_secret_problem(first.llm_config, {**first.llm_config, **new}) is not None


def _text(body: _Body) -> str:
    return body.instruction or str((body.params or {}).get("message", ""))


def _grow(
    tx: Transaction, task: Task, body: str, submission: Submission, window_ends_at: int
) -> Task:
    """Join the text. An open window is extended."""
    tx.rewrite_request(task.seq, join_text(body, submission))
    if task.gate != DEBOUNCE_GATE:
        return task
    after = copy.copy(task)
    after.eligible_at = window_ends_at
    tx.apply(Change(task, after, lifecycle.PROMOTE))
    return after


def join_text(body: str, later: Submission) -> str:
    """Return the request with the later text on a new line; other later values replace earlier
    ones.
    """
    assert later.message is not None
    text = later.message.text
    request: JsonObject = msgspec.json.decode(body)
    new: JsonObject = msgspec.json.decode(later.body)
    if "messages" in new:
        earlier = sessions.messages_with_text(request)
        request["messages"] = [*earlier, *sessions.messages_with_text(new)]
    if "instruction" in request:
        request["instruction"] = sessions.lines(request["instruction"], text)
    else:
        params = request.setdefault("params", {})
        params["message"] = sessions.lines(params.get("message", ""), text)
    for field in _SAID_BESIDES:
        if field in new:
            known = request.get(field)
            request[field] = {**known, **new[field]} if isinstance(known, dict) else new[field]
    return msgspec.json.encode(request).decode()


_SAID_BESIDES: Final = ("metadata", "llmConfig", "timeoutMs")


def _let_go(tx: Transaction, submission: Submission, sender: str | None, now: int) -> None:
    """Close the window of earlier messages of the sender, or of all, so that they go first.

    Skip messages that rank lower and would run after the new one anyway.
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
    """Stop sessions, including unknown ones, because messages to them may be in transit."""
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
    """Stop the run that began first; if none runs, the task that would run next."""
    running = _of(agent, _running(tx, session.key))
    if running:
        return StoppedRuns(_cancel(tx, running[:1], sessions.STOPPED, now), [], session.generation)
    held = _of(agent, tx.lookup.tasks(table.turn_tasks, session=session.key))
    return StoppedRuns([], _cancel(tx, held[:1], sessions.STOPPED, now), session.generation)


def _drain(
    tx: Transaction, key: str, error: str, now: int, agent: str | None = None
) -> tuple[list[str], list[str]]:
    """Cancel tasks that run or wait for the turn, a slot or a retry; return the ids of both.

    Tasks submitted for a later time stay.
    """
    running, queued = _of(agent, _running(tx, key)), _of(agent, _queued(tx, key))
    return _cancel(tx, running, error, now), _cancel(tx, queued, error, now)


def _of(agent: str | None, tasks: Iterable[Task]) -> list[Task]:
    return [task for task in tasks if agent in (None, task.agent)]


def _queued(tx: Transaction, key: str) -> list[Task]:
    held = tx.lookup.tasks(table.turn_tasks, session=key)
    return [*held, *tx.lookup.tasks(table.waiting_tasks, session=key)]


def _running(tx: Transaction, key: str) -> list[Task]:
    """Return running tasks in the order in which they began."""
    leased = tx.lookup.tasks(table.leased_tasks, session=key)
    return sorted(
        (task for task in leased if not task.terminal), key=lambda task: task.fencing_token
    )


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
    """Return the usage that a result reports: `usage` with both numbers."""
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
    """Store the usage that a run reported with its result, unless the run was cancelled."""
    usage = usage_of(result) if task.state == lifecycle.DONE else None
    if usage is not None and task.session:
        session = tx.counters.session(task.session)
        session.tokens, session.context_window = usage
        tx.counters.touch_session(session.key)
