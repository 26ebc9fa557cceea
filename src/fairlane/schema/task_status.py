"""The status of a task: its request and its state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from fairlane.core import effects, events, lifecycle, model, moments, resources
from fairlane.core.events import Attempt
from fairlane.core.json_types import JsonObject
from fairlane.core.model import Task
from fairlane.core.secrets import mask_secrets
from fairlane.core.sessions import conversation_id
from fairlane.core.steps import Step
from fairlane.core.types import Moment, json_name
from fairlane.schema.approvals import ApprovalOutcome
from fairlane.schema.operation import Response, one_of
from fairlane.schema.wire import moment, stored

BRIEF_CHARACTERS_MAX: Final = 200
BRIEF_BYTES_MAX: Final = 1000

TaskState = Annotated[str, one_of(lifecycle.STATES)]
TaskKind = Annotated[str, one_of((model.ACTION, model.HANDLER, model.INSTRUCTION))]


class AttemptStatus(Response):
    attempt: int
    started_at: Moment
    ended_at: Moment | None = None
    outcome: Annotated[str, one_of(events.OUTCOMES)] | None = None
    error: str | None = None
    worker: str | None = None
    traceback: Annotated[
        str | None, Meta(description="Traceback of the attempt; omitted in lists")
    ] = None


class StepStatus(Response):
    """A step that a run of a task has recorded."""

    number: Annotated[int, Meta(description="Place of the step among those of a run, from 1")]
    name: str
    value: Any
    at: Annotated[Moment | None, Meta(description="When it was recorded; not in a lease")] = None
    effect: Annotated[
        Annotated[str, one_of(effects.STATES)] | None,
        Meta(description="State of an effect; absent for an ordinary step"),
    ] = None


class TaskMessage(Response):
    """A message of a session that a task was made from."""

    id: str
    sender: str | None = None
    text: Annotated[str | None, Meta(description="Its text, if the task has several")] = None
    sent_at: Moment | None = None
    media: list[Any] | None = None
    metadata: JsonObject | None = None


class CronOrigin(Response):
    """The cron job that submitted a task, why it did, and the time of its schedule."""

    job_id: str
    job_name: str
    run_id: str
    trigger: str
    slot_at: Moment


class TaskStatus(Response, kw_only=True):
    """A task: its request and its state."""

    task_id: str
    agent: str
    kind: TaskKind
    lane: str
    action: str | None = None
    tab: str | None = None
    ref: str | None = None
    selector: str | None = None
    handler: str | None = None
    instruction: str | None = None
    params: JsonObject | None = None
    metadata: JsonObject | None = None
    llm_config: Annotated[
        JsonObject | None, Meta(description="Without its secrets, except in a lease")
    ] = None
    depends_on: list[str] | None = None
    retry_policy: JsonObject | None = None
    timeout_ms: int | None = None
    preemptible: bool | None = None
    key: str | None = None
    needs: dict[str, dict[str, int | float | str]] | None = None
    quota: str | None = None
    child_of: str | None = None
    sender: str | None = None
    media: list[Any] | None = None
    no_merge: bool | None = None
    messages: Annotated[
        list[TaskMessage] | None,
        Meta(description="Messages that the task consists of, oldest first"),
    ] = None
    inbox: Annotated[
        list[TaskMessage] | None, Meta(description="Messages that its runs have taken, in order")
    ] = None
    rolled_back: Annotated[
        list[str] | None,
        Meta(description="Ids of messages that the agent must forget: their turn was rolled back"),
    ] = None
    cron: Annotated[CronOrigin | None, Meta(description="Cron job that submitted the task")] = None
    generation: Annotated[
        int | None, Meta(description="Number of resets of the session before the task")
    ] = None
    traceparent: str | None = None
    priority: int
    state: TaskState
    created_at: Moment
    attempts: int
    max_attempts: int
    retry_count: int
    position: int | None = None
    session: str | None = None
    conversation_id: Annotated[
        str | None,
        Meta(description="The same for all tasks of an agent in a session until its next reset"),
    ] = None
    batch: str | None = None
    gate: str | None = None
    notice: Annotated[
        str | None, Meta(description="Why a task that is ready cannot start: no worker can run it")
    ] = None
    progress: Annotated[Any, Meta(description="Progress that a running task last reported")] = None
    approval: Annotated[
        ApprovalOutcome | None, Meta(description="The decision that the task waits for or needed")
    ] = None
    callback_url: str | None = None
    error: str | None = None
    result: Any = None
    unreadable: Annotated[
        list[str] | None, Meta(description="Fields that are damaged in the store and left out here")
    ] = None
    latency_ms: int | None = None
    attempt_log: list[AttemptStatus] | None = None
    steps: Annotated[
        list[StepStatus] | None,
        Meta(description="Steps that its runs have recorded; only of one task, not in lists"),
    ] = None
    execution_time_ms: int | None = None
    lease_id: str | None = None
    worker: str | None = None
    parked_reason: str | None = None
    deadline: Moment | None = None
    next_eligible_at: Moment | None = None
    started_at: Moment | None = None
    completed_at: Moment | None = None
    lease_expires_at: Moment | None = None


class StoredMessage(msgspec.Struct, rename=json_name, omit_defaults=True):
    """`TaskMessage` as it is stored."""

    id: str
    sender: str | None = None
    text: str | None = None
    sent_at: str | None = None
    media: list[msgspec.Raw] | None = None
    metadata: dict[str, msgspec.Raw] | None = None


class StoredRequest(msgspec.Struct, rename=json_name):
    """The stored request of a task, with the fields that responses show; user JSON stays as
    it is.
    """

    action: str | None = None
    tab: str | None = None
    ref: str | None = None
    selector: str | None = None
    handler: str | None = None
    instruction: str | None = None
    params: dict[str, msgspec.Raw] | None = None
    metadata: dict[str, msgspec.Raw] | None = None
    llm_config: JsonObject | None = None
    depends_on: list[str] | None = None
    retry_policy: JsonObject | None = None
    timeout_ms: int | None = None
    preemptible: bool | None = None
    key: str | None = None
    needs: dict[str, dict[str, int | float | str]] | None = None
    quota: str | None = None
    child_of: str | None = None
    sender: str | None = None
    media: list[msgspec.Raw] | None = None
    no_merge: bool | None = None
    messages: list[StoredMessage] | None = None
    inbox: list[StoredMessage] | None = None
    rolled_back: list[str] | None = None
    cron: CronOrigin | None = None
    generation: int | None = None
    traceparent: str | None = None


_REQUEST_FIELDS: Final = StoredRequest.__struct_fields__
_REQUEST_NAMES: Final = frozenset(StoredRequest.__struct_encode_fields__)
_stored_request = msgspec.json.Decoder(StoredRequest)


def task_status(
    row: Task,
    body: str,
    result: str | None,
    error: str | None,
    log: Sequence[Attempt] = (),
    *,
    secrets: bool = False,
) -> TaskStatus:
    """Return the full status of a task. Only the worker that runs it gets its secrets.

    `unreadable` names fields that are damaged in the store and left out.
    """
    request, shown = _readable(body, secrets=secrets), stored(result)
    damaged = {"request": request is None, "result": result is not None and shown is None}
    status = TaskStatus(
        task_id=row.id,
        agent=row.agent,
        kind=row.kind,
        lane=row.lane,
        priority=row.priority,
        state=row.state,
        created_at=moment(row.created_at),
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        retry_count=max(0, row.attempts - 1),
        position=row.position or None,
        session=row.session,
        batch=row.batch,
        gate=row.gate,
        callback_url=row.callback_url,
        error=error,
        result=shown,
        unreadable=[name for name, is_damaged in damaged.items() if is_damaged] or None,
        latency_ms=_latency(row),
        attempt_log=[_attempt(one) for one in log] or None,
        deadline=_moment(row.deadline_at),
        next_eligible_at=_moment(row.eligible_at),
        started_at=_moment(row.started_at),
        completed_at=_moment(row.completed_at),
        **({} if request is None else {name: getattr(request, name) for name in _REQUEST_FIELDS}),
    )
    status.conversation_id = conversation_id(row.agent, row.session, status.generation or 0)
    if status.messages is not None and len(status.messages) == 1:
        status.messages[0].media, status.messages[0].metadata = status.media, status.metadata
    _add_particulars(status, row, log)
    return status


def _add_particulars(status: TaskStatus, row: Task, log: Sequence[Attempt]) -> None:
    """Add the fields that only tasks of some kind or state have."""
    if row.needs is not None:
        status.needs = resources.shown_needs(row.needs, status.needs)
    if row.kind == model.INSTRUCTION:
        # Pauses between attempts do not count.
        is_over = log and status.latency_ms is not None
        status.execution_time_ms = log[-1].ran_ms if is_over else status.latency_ms
    if row.leased and not row.terminal:
        status.lease_id = model.lease_id(row.seq, row.fencing_token)
        status.worker = row.worker
        status.lease_expires_at = _moment(row.lease_expires_at)
    if row.state == lifecycle.PARKED:
        status.parked_reason = status.error


def brief_status(row: Task, body: str, error: str | None, log: Sequence[Attempt]) -> TaskStatus:
    """Return a short status for lists: no long field and no secret."""
    status = task_status(row, body, None, error and error[:BRIEF_CHARACTERS_MAX], log)
    status.llm_config = status.attempt_log = None
    if status.instruction is not None:
        status.instruction = status.instruction[:BRIEF_CHARACTERS_MAX]
    for name in _REQUEST_FIELDS:
        value = getattr(status, name)
        if value and len(msgspec.json.encode(value)) > BRIEF_BYTES_MAX:
            setattr(status, name, None)
    return status


def request_of(task: TaskStatus) -> JsonObject:
    """Return the request of a task, as its executor gets it."""
    return {name: value for name, value in task.items() if name in _REQUEST_NAMES}


def _readable(body: str, *, secrets: bool) -> StoredRequest | None:
    """Return the stored request, or None if it is damaged."""
    try:
        request = _stored_request.decode(body)
    except msgspec.DecodeError:
        return None
    if request.llm_config is not None and not secrets:
        request.llm_config = mask_secrets(request.llm_config)
    return request


def step_status(one: Step, task: Task) -> StepStatus:
    state = effects.state_of(one.intent, task.fencing_token if task.leased else None)
    return StepStatus(one.number, one.name, stored(one.value), moment(one.at), state)


def _attempt(one: Attempt) -> AttemptStatus:
    return AttemptStatus(
        one.attempt,
        moment(one.started_at),
        _moment(one.ended_at),
        one.outcome,
        one.error,
        one.worker,
        one.traceback,
    )


def _moment(at: int | None) -> str | None:
    return None if at is None else moment(at)


def _latency(row: Task) -> int | None:
    if row.started_at is None or row.completed_at is None:
        return None
    return moments.span(row.started_at, row.completed_at)
