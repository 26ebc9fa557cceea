"""The task request, and the submission that it becomes.

`TaskRequest` is a caller's description of one task, with the bounds of each field on its type.
Every entry point builds one: `POST /tasks`, an item of a batch, a template, a cron job, a message,
a queue entry. `submission` checks the rules that join fields and returns the value that the engine
takes. Whether the task is admitted is decided later, by the policy.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from fairlane.core import amounts, approvals, dependencies, model, moments, validation
from fairlane.core.approvals import ApprovalRequest
from fairlane.core.errors import BatchTooLarge, InvalidRequest
from fairlane.core.json_types import JsonObject
from fairlane.core.model import Submission
from fairlane.core.policy import INSTRUCTION_TIMEOUT_MS_MAX
from fairlane.core.resources import LIMITS_MAX, NEEDS_MAX
from fairlane.core.retries import Backoff
from fairlane.core.sessions import TAB_PREFIX
from fairlane.core.types import (
    DAY_MS,
    YEAR_MS,
    Identifier,
    IdentifierOrEmpty,
    Moment,
    Parent,
    ResourceName,
    SessionKey,
    TabId,
    UnitName,
    Url,
    Word,
    WordOrEmpty,
    json_name,
)
from fairlane.core.validation import DEPTH_MAX, too_deep

KINDS: Final = (model.ACTION, model.HANDLER, model.INSTRUCTION)
DEFAULT_AGENT: Final = "default"
DEPENDS_ON_MAX: Final = 10_000
BATCH_MAX: Final = 100
ACTION_BATCH_MAX: Final = 50
INSTRUCTION_CHARACTERS_MAX: Final = 100_000
TEXT_CHARACTERS_MAX: Final = 4096

Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
Instruction = Annotated[str, Meta(max_length=INSTRUCTION_CHARACTERS_MAX)]
TimeoutMs = Annotated[int, Meta(ge=1, le=DAY_MS)]
DelayMs = Annotated[int, Meta(ge=0, le=YEAR_MS)]
PriorityNumber = Annotated[int, Meta(ge=-model.PRIORITY_MAX, le=model.PRIORITY_MAX)]
Priority = PriorityNumber | Literal["critical", "high", "normal", "low"]
Amount = int | float | str
Needs = Annotated[
    dict[ResourceName, Annotated[dict[UnitName, Amount], Meta(max_length=LIMITS_MAX)]],
    Meta(max_length=NEEDS_MAX),
]
Parents = Annotated[list[Parent], Meta(max_length=DEPENDS_ON_MAX)]
_OLD: Final = {"deprecated": True}


class TaskWork(
    msgspec.Struct, rename=json_name, omit_defaults=True, forbid_unknown_fields=True, gc=False
):
    """What to run. It is stored as JSON for the executor and for `GET /tasks/{id}`."""

    action: Annotated[WordOrEmpty | None, Meta(description="Action to run in a browser tab")] = None
    tab: Annotated[TabId | None, Meta(description="Tab that the action runs in")] = None
    ref: Annotated[Text | None, Meta(description="Page element for the action")] = None
    selector: Annotated[
        Text | None, Meta(description="Page element for the action, as a CSS selector")
    ] = None
    handler: Annotated[Word | None, Meta(description="Name of the handler that runs the task")] = (
        None
    )
    instruction: Annotated[Instruction | None, Meta(description="Prompt for the agent")] = None
    params: Annotated[
        JsonObject | None, Meta(description="Parameters for the handler or the action")
    ] = None
    metadata: Annotated[JsonObject | None, Meta(description="Object stored with the task")] = None
    llm_config: Annotated[
        JsonObject | None, Meta(description="Settings for the agent that runs an instruction")
    ] = None
    depends_on: Annotated[
        Parents | None,
        Meta(
            description="Ids of tasks that must be done first; in a batch, #key refers to "
            "another item"
        ),
    ] = None
    retry_policy: Annotated[
        Backoff | None, Meta(description="Retry settings, instead of those for the task's kind")
    ] = None
    timeout_ms: Annotated[TimeoutMs | None, Meta(description="Maximum duration of one attempt")] = (
        None
    )
    preemptible: Annotated[
        bool | None,
        Meta(description="Allow a critical task to interrupt this one and take its slot"),
    ] = None
    key: Annotated[
        Identifier | None, Meta(description="Name of the task in its batch, for dependsOn")
    ] = None
    needs: Annotated[
        Needs | None,
        Meta(description="Amounts that the task needs, by resource and unit; {} is 1 of each"),
    ] = None
    quota: Annotated[
        ResourceName | None,
        Meta(
            description="Resource that closes when the browser or agent server responds 429; "
            "default: the only rate among the needs"
        ),
    ] = None
    child_of: Annotated[
        Identifier | None,
        Meta(
            description="Task whose run submits this one; the budgets of its session and batch pay "
            "for this one too"
        ),
    ] = None


class TaskRequest(TaskWork, gc=False):
    """One task as a caller describes it: what to run, for which agent, when, and the callback."""

    agent: Annotated[
        IdentifierOrEmpty | None,
        Meta(
            description='Agent that the task belongs to; default: "default"; an action must name it'
        ),
    ] = None
    lane: Annotated[Word | None, Meta(description="Lane that the task runs in")] = None
    session: Annotated[SessionKey | None, Meta(description="Session whose tasks run in order")] = (
        None
    )
    priority: Annotated[
        Priority | None,
        Meta(description="Lower numbers run first"),
    ] = None
    deadline: Annotated[
        Moment | None, Meta(description="Fail the task if it has not finished by this time")
    ] = None
    run_at: Annotated[Moment | None, Meta(description="Do not start before this time")] = None
    delay_ms: Annotated[
        DelayMs | None, Meta(description="Do not start before this delay has passed")
    ] = None
    callback_url: Annotated[
        Url | None, Meta(description="URL that receives a POST when the task finishes")
    ] = None
    webhook_url: Annotated[
        Url | None, Meta(description="Old name of callbackUrl", extra_json_schema=_OLD)
    ] = None
    timeout: Annotated[
        TimeoutMs | None, Meta(description="Old name of timeoutMs", extra_json_schema=_OLD)
    ] = None
    approval: Annotated[
        ApprovalRequest | None, Meta(description="Do not start before a person has approved")
    ] = None


def task_request(**fields: object) -> TaskRequest:
    """Return a task request made of unchecked values; None counts as absent.

    Raise `InvalidRequest` that lists every problem.
    """
    given = {json_name(name): value for name, value in fields.items() if value is not None}
    return validation.convert(given, TaskRequest)


def submission(
    request: TaskRequest,
    *,
    task_id: str,
    agent: str | None = None,
    batch: str | None = None,
    callback_url: str | None = None,
    submitter: str | None = None,
    once: bool = False,
) -> Submission:
    """Return the submission of a task whose fields are each valid.

    `agent` and `callback_url` are the defaults, `submitter` is the id of the caller's token. Raise
    `InvalidRequest` for fields that contradict each other.
    """
    kind, name = _kind(request)
    agent = request.agent or agent or (None if kind == model.ACTION else DEFAULT_AGENT)
    if agent is None:
        raise InvalidRequest("missing required field 'agentId'")
    if kind == model.ACTION and not request.action:
        others = "; or give 'handler' or 'instruction'" if request.action is None else ""
        raise InvalidRequest(f"missing required field 'action'{others}")
    _check_contents(request)
    if request.timeout_ms is not None or request.timeout is not None:
        _settle_timeout(request, kind)
    if request.run_at and request.delay_ms is not None:
        raise InvalidRequest("give either 'runAt' or 'delayMs', not both")
    if request.depends_on:
        _check_parents(request, task_id)
    if request.callback_url or request.webhook_url:
        callback_url = callback_of(request.callback_url, request.webhook_url)
    retry = request.retry_policy
    return Submission(  # positional because keywords would double the time of the call
        task_id,
        kind,
        agent,
        model.capability_of(kind, name),
        stored(request),
        lane=request.lane,
        priority=_number(request.priority) if request.priority is not None else 0,
        session=_tab_session(request.tab, agent) if request.session is None else request.session,
        deadline_at=moment_of(request.deadline, "deadline") if request.deadline else None,
        callback_url=callback_url,
        batch=batch,
        depends_on=tuple(request.depends_on) if request.depends_on else (),
        run_at=moment_of(request.run_at, "runAt") if request.run_at else None,
        delay_ms=request.delay_ms,
        max_attempts=retry.max_retries + 1 if retry and retry.max_retries is not None else None,
        preemptible=bool(request.preemptible),
        needs=request.needs,
        approval=request.approval,
        submitter=submitter,
        once=once,
        child_of=request.child_of,
    )


_work = operator.attrgetter(*TaskWork.__struct_fields__)
_encode = msgspec.json.Encoder().encode


def stored(request: TaskWork) -> str:
    """Return the JSON to store for a request; empty values are omitted."""
    return _encode(TaskWork(*[value or None for value in _work(request)])).decode()


def moment_of(text: str, field: str) -> int:
    """Return RFC 3339 with a zone as milliseconds since 1970. Raise `InvalidRequest` otherwise."""
    try:
        return moments.parse(text)
    except ValueError as error:
        raise InvalidRequest(f"invalid {field} format: {error}") from None


def callback_of(callback_url: str | None, webhook_url: str | None) -> str | None:
    """Return the URL that either of the two names sets."""
    if callback_url and webhook_url and callback_url != webhook_url:
        raise InvalidRequest("'webhookUrl' is an alias of 'callbackUrl': give only one of them")
    return (callback_url or webhook_url or "").strip() or None


# -------------------------------------------------------------------- rules that join fields


def _kind(request: TaskRequest) -> tuple[str, str | None]:
    """Return the kind of a task, and the name of its handler if it has one."""
    action, handler, instruction = request.action, request.handler, request.instruction
    if handler is not None:
        if action is not None or instruction is not None:
            raise _not_both(request)
        _refuse_foreign(request, model.HANDLER)
        return model.HANDLER, handler
    if instruction is not None:
        if action is not None:
            raise _not_both(request)
        _refuse_foreign(request, model.INSTRUCTION)
        if not instruction.strip():
            raise InvalidRequest("field 'instruction' must not be empty")
        return model.INSTRUCTION, None
    _refuse_foreign(request, model.ACTION)
    return model.ACTION, None


def _not_both(request: TaskRequest) -> InvalidRequest:
    first, second = [kind for kind in KINDS if getattr(request, kind) is not None][:2]
    return InvalidRequest(f"give either '{first}' or '{second}', not both")


def _refuse_foreign(request: TaskRequest, kind: str) -> None:
    """Raise `InvalidRequest` for a field that only another kind of task can have."""
    if kind != model.ACTION:
        if request.tab is not None:
            raise _foreign("tabId", model.ACTION, kind)
        if request.ref is not None:
            raise _foreign("ref", model.ACTION, kind)
        if request.selector is not None:
            raise _foreign("selector", model.ACTION, kind)
    if kind != model.INSTRUCTION and request.llm_config is not None:
        raise _foreign("llmConfig", model.INSTRUCTION, kind)


def _foreign(field: str, belongs: str, kind: str) -> InvalidRequest:
    return InvalidRequest(f"'{field}' is for '{belongs}', not for '{kind}'")


def check_amounts(needs: Mapping[str, Mapping[str, object]], field: str = "needs") -> None:
    """Raise `InvalidRequest` for an amount that is not a decimal of at most six places."""
    for name, units in needs.items():
        for unit, amount in units.items():
            try:
                amounts.parse(amount)
            except ValueError as error:
                raise InvalidRequest(f"field '{field}.{name}.{unit}' {error}") from None


def _check_contents(request: TaskRequest) -> None:
    if request.approval is not None:
        approvals.check(request.approval, "approval")
    if request.needs:
        check_amounts(request.needs)
    if request.params:
        _check_depth("params", request.params)
    if request.metadata:
        _check_depth("metadata", request.metadata)
    if request.llm_config:
        _check_depth("llmConfig", request.llm_config)


def _check_depth(name: str, value: JsonObject) -> None:
    if too_deep(value):
        raise InvalidRequest(f"field '{name}' must not be nested deeper than {DEPTH_MAX} levels")


def _settle_timeout(request: TaskRequest, kind: str) -> None:
    """Leave `timeout_ms` as the only name of the timeout."""
    if request.timeout is not None:
        if request.timeout_ms not in (None, request.timeout):
            raise InvalidRequest("'timeout' is an alias of 'timeoutMs': give only one of them")
        request.timeout_ms, request.timeout = request.timeout, None
    assert request.timeout_ms is not None
    if kind == model.INSTRUCTION and request.timeout_ms > INSTRUCTION_TIMEOUT_MS_MAX:
        raise InvalidRequest(f"field 'timeoutMs' must be from 1 to {INSTRUCTION_TIMEOUT_MS_MAX}")


def _check_parents(request: TaskRequest, task_id: str) -> None:
    request.depends_on = list(dict.fromkeys(request.depends_on or ()))
    for parent in request.depends_on:
        if parent.startswith("#"):
            raise InvalidRequest(
                f"field 'dependsOn': '{parent[:40]}' names an item of the same batch; "
                "outside a batch use task ids"
            )
        if parent == task_id:
            raise dependencies.cycle_error([task_id, task_id])


def _tab_session(tab: str | None, agent: str) -> str | None:
    """Return the session of one agent's actions on one tab: they run one at a time, in order."""
    return f"{TAB_PREFIX}{agent}:{tab}" if tab else None


def _number(priority: int | str) -> int:
    return model.PRIORITY_NAMES[priority] if isinstance(priority, str) else priority


# -------------------------------------------------------------------- batches

Item = TaskRequest | InvalidRequest


def batch_submissions(
    items: Sequence[Item],
    *,
    ids: Sequence[str],
    batch: str,
    agent: str | None,
    callback_url: str | None,
    submitter: str | None = None,
) -> list[Submission | InvalidRequest]:
    """Return the submission or the error of each item of a batch, in order.

    Raise the error of the batch as a whole.
    """
    _check_size(items, agent)
    linked = _linked(items, ids)
    made: list[Submission | InvalidRequest] = []
    for task_id, item in zip(ids, linked, strict=False):
        try:
            if isinstance(item, InvalidRequest):
                raise item
            item.agent = agent
            made.append(
                submission(
                    item,
                    task_id=task_id,
                    batch=batch,
                    callback_url=callback_url,
                    submitter=submitter,
                )
            )
        except InvalidRequest as error:
            made.append(error if error is item else invalid_task(error))
    _refuse_children(made, ids)
    return made


def invalid_task(error: InvalidRequest) -> InvalidRequest:
    return InvalidRequest(f"invalid task: {error.message}")


def _check_size(items: Sequence[Item], agent: str | None) -> None:
    if not items:
        raise InvalidRequest("a batch must contain at least one task: set 'tasks'")
    if len(items) > BATCH_MAX:
        raise _too_large(len(items), BATCH_MAX)
    requests = [item for item in items if isinstance(item, TaskRequest)]
    others = sum(one.handler is not None or one.instruction is not None for one in requests)
    # An item that cannot be parsed may have been meant as an action.
    if others < len(items) and len(items) > ACTION_BATCH_MAX:
        raise _too_large(len(items), ACTION_BATCH_MAX)
    if not agent and (others < len(requests) or not requests):
        raise InvalidRequest("missing required field 'agentId'")


def _too_large(count: int, limit: int) -> BatchTooLarge:
    details = {"submitted": count, "max": limit}
    return BatchTooLarge(f"the batch exceeds the maximum size of {limit} tasks", details=details)


def _linked(items: Sequence[Item], ids: Sequence[str]) -> list[Item]:
    """Turn `#key` into the id of the item with that key; refuse items without their parent."""
    linked = list(items)
    names: dict[str, str] = {}
    for number, (task_id, item) in enumerate(zip(ids, items, strict=False)):
        if isinstance(item, TaskRequest) and item.key is not None:
            if f"#{item.key}" in names:
                linked[number] = InvalidRequest(f"field 'key': '{item.key}' is used twice")
            else:
                names[f"#{item.key}"] = task_id
    _refuse_cycles(linked)
    for number, item in enumerate(linked):
        if isinstance(item, TaskRequest) and item.depends_on:
            missing = [one for one in item.depends_on if one.startswith("#") and one not in names]
            if missing:
                key = missing[0][1:41]
                text = f"field 'dependsOn': no valid item in the batch has the key '{key}'"
                linked[number] = InvalidRequest(text)
            else:
                item.depends_on = [names.get(parent, parent) for parent in item.depends_on]
    return linked


def _refuse_cycles(items: Sequence[Item]) -> None:
    """Raise `InvalidRequest` that names a cycle by its keys, which the caller knows."""
    graph: Mapping[str, Sequence[str]] = {
        f"#{item.key}": item.depends_on or []
        for item in items
        if isinstance(item, TaskRequest) and item.key
    }
    dependencies.in_order(graph)


def _refuse_children(made: list[Submission | InvalidRequest], ids: Sequence[str]) -> None:
    """Refuse items that depend on a refused one: they could never run."""
    refused = {id_ for id_, one in zip(ids, made, strict=False) if isinstance(one, InvalidRequest)}
    found = bool(refused)
    while found:
        found = False
        for number, one in enumerate(made):
            if isinstance(one, Submission) and not refused.isdisjoint(one.depends_on):
                made[number] = InvalidRequest(
                    "field 'dependsOn' refers to an item that was rejected"
                )
                refused.add(one.id)
                found = True
