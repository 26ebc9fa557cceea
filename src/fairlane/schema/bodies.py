"""What callers send: the bodies of requests, checked for form.

Every refusal names the field and says what to do. Whether a well-formed request is admitted is for
the core to say. Keys are camelCase; unknown ones are refused with the nearest known one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from fairlane.core import dependencies, model
from fairlane.core.errors import BatchTooLarge, InvalidRequest
from fairlane.core.model import Submission
from fairlane.core.policy import INSTRUCTION_TIMEOUT_MS_MAX, nearest
from fairlane.core.retries import Backoff
from fairlane.core.sessions import TAB_PREFIX
from fairlane.schema.fields import (
    DAY_MS,
    IDENTIFIER,
    TAB_ID,
    WORD,
    decoded,
    matches,
    parse_deadline,
    parse_states,
    shallow,
    short,
    within,
)
from fairlane.schema.wire import encode

ACTION_BATCH_MAX: Final = 50
WORK_BATCH_MAX: Final = 100
PARALLELISM_MAX: Final = 10
DEPENDS_ON_MAX: Final = 10_000
INSTRUCTION_CHARACTERS_MAX: Final = 100_000
DEFAULT_AGENT: Final = "default"
URL_CHARACTERS_MAX: Final = 2048
TEXT_CHARACTERS_MAX: Final = 4096


KINDS: Final = (model.ACTION, model.HANDLER, model.INSTRUCTION)


class TaskBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /tasks`, and an item of `POST /tasks/batch`."""

    agent_id: str | None = None
    action: str | None = None
    tab_id: str | None = None
    ref: str | None = None
    selector: str | None = None
    handler: str | None = None
    instruction: str | None = None
    params: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    llm_config: dict[str, Any] | None = None
    priority: int | str | None = None
    depends_on: list[str] | None = None
    retry_policy: Backoff | None = None
    timeout_ms: int | None = None
    timeout: int | None = None
    run_at: str | None = None
    delay_ms: int | None = None
    preemptible: bool | None = None
    key: str | None = None
    deadline: str | None = None
    callback_url: str | None = None
    webhook_url: str | None = None
    lane: str | None = None
    session_key: str | None = None


class BatchBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    agent_id: str | None = None
    callback_url: str | None = None
    webhook_url: str | None = None
    parallelism: int | None = None
    tasks: list[msgspec.Raw] | None = None


class StoredRequest(msgspec.Struct, rename="camel", omit_defaults=True):
    """What is kept of a request for its executor and for `GET /tasks/{id}`."""

    action: str | None = None
    tab_id: str | None = None
    ref: str | None = None
    selector: str | None = None
    handler: str | None = None
    instruction: str | None = None
    params: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    llm_config: dict[str, Any] | None = None
    depends_on: list[str] | None = None
    retry_policy: Backoff | None = None
    timeout_ms: int | None = None
    preemptible: bool | None = None
    key: str | None = None


_task_decoder = msgspec.json.Decoder(TaskBody)
_batch_decoder = msgspec.json.Decoder(BatchBody)
_FIELDS: Final = frozenset(TaskBody.__struct_encode_fields__)
_BATCH_FIELDS: Final = frozenset(BatchBody.__struct_encode_fields__)


def parse_task(raw: bytes, *, task_id: str, agent: str | None = None) -> Submission:
    """`agent` is whose it is when it does not say so."""
    body = decoded(_task_decoder, raw, _FIELDS)
    body.agent_id = body.agent_id or agent
    try:
        return submission(body, task_id=task_id)
    except InvalidRequest as error:
        raise InvalidRequest(f"invalid task: {error.message}") from None


def submission(body: TaskBody, *, task_id: str, batch: str | None = None) -> Submission:
    """Check the form of one task. Raises `InvalidRequest` that names the field."""
    kind, name = _kind(body)
    agent = body.agent_id or (None if kind == model.ACTION else DEFAULT_AGENT)
    if agent is None:
        raise InvalidRequest("missing required field 'agentId'")
    matches("agentId", agent, IDENTIFIER)
    if kind == model.ACTION and not body.action:
        raise InvalidRequest("missing required field 'action'")
    _check_names(body)
    if body.params:
        shallow("params", body.params)
    if body.metadata:
        shallow("metadata", body.metadata)
    if body.llm_config:
        shallow("llmConfig", body.llm_config)
    _check_times(body, kind)
    if body.depends_on:
        _check_dependencies(body, task_id)
    retry = body.retry_policy
    return Submission(  # with all fields by name the call would take twice as long
        task_id,
        kind,
        agent,
        model.route_of(kind, name),
        _stored(body),
        lane=body.lane,
        priority=_priority(body.priority) if body.priority is not None else 0,
        session=_session(body, agent),
        deadline_at=parse_deadline(body.deadline) if body.deadline else None,
        callback_url=_callback(body) if body.callback_url or body.webhook_url else None,
        batch=batch,
        depends_on=tuple(body.depends_on) if body.depends_on else (),
        run_at=parse_deadline(body.run_at, "runAt") if body.run_at else None,
        delay_ms=body.delay_ms,
        max_attempts=retry.max_retries + 1 if retry and retry.max_retries is not None else None,
        preemptible=bool(body.preemptible),
    )


class BatchRequest(msgspec.Struct):
    """A batch whose form has been checked, with each item a submission or what is wrong with it."""

    id: str
    agent: str
    parallelism: int | None
    callback_url: str | None
    items: list[Submission | InvalidRequest]


def parse_batch(
    raw: bytes, *, ids: Sequence[str], batch: str, agent: str | None = None
) -> BatchRequest:
    """The items in order, each checked on its own; errors of the batch itself are raised."""
    body: BatchBody = decoded(_batch_decoder, raw, _BATCH_FIELDS, later="tasks")
    body.agent_id = body.agent_id or agent
    parsed = [_item(raw_item) for raw_item in body.tasks or []]
    _check_batch(body, parsed)
    callback_url = _callback(body)
    _link(parsed, ids)
    items = [
        _batch_item(item, body, callback_url, task_id=id_, batch=batch)
        for id_, item in zip(ids, parsed, strict=False)
    ]
    _refuse_children(items, ids)
    agent = body.agent_id or DEFAULT_AGENT
    return BatchRequest(batch, agent, body.parallelism, callback_url, items)


def _check_batch(body: BatchBody, items: Sequence[TaskBody | InvalidRequest]) -> None:
    if not items:
        raise InvalidRequest("batch must contain at least one task: give 'tasks'")
    if len(items) > WORK_BATCH_MAX:
        raise _too_large(len(items), WORK_BATCH_MAX)
    bodies = [item for item in items if isinstance(item, TaskBody)]
    others = sum(item.handler is not None or item.instruction is not None for item in bodies)
    # An item that cannot be read may have been meant as an action.
    if others < len(items) and len(items) > ACTION_BATCH_MAX:
        raise _too_large(len(items), ACTION_BATCH_MAX)
    if body.agent_id:
        matches("agentId", body.agent_id, IDENTIFIER)
    elif others < len(bodies) or not bodies:
        raise InvalidRequest("missing required field 'agentId'")
    within("parallelism", body.parallelism, 1, PARALLELISM_MAX)


def _link(items: list[TaskBody | InvalidRequest], ids: Sequence[str]) -> None:
    """Turn `#key` into the id of the item with that key; items without their parent are refused."""
    keys: dict[str, str] = {}
    for number, (task_id, item) in enumerate(zip(ids, items, strict=False)):
        if isinstance(item, TaskBody) and item.key is not None:
            if not IDENTIFIER.fullmatch(item.key):
                items[number] = InvalidRequest("field 'key' is not an identifier")
            elif item.key in keys:
                items[number] = InvalidRequest(f"field 'key': '{item.key}' is used twice")
            else:
                keys[item.key] = task_id
    names = {f"#{key}": task_id for key, task_id in keys.items()}
    graph = {f"#{i.key}": i.depends_on or [] for i in items if isinstance(i, TaskBody) and i.key}
    dependencies.in_order(graph)  # raises with the keys, which the caller knows
    for number, item in enumerate(items):
        if isinstance(item, TaskBody) and item.depends_on:
            missing = [p for p in item.depends_on if p.startswith("#") and p not in names]
            if missing:
                key = missing[0][1:41]
                text = f"field 'dependsOn': no valid item of the batch has the key '{key}'"
                items[number] = InvalidRequest(text)
            else:
                item.depends_on = [names.get(parent, parent) for parent in item.depends_on]


def _refuse_children(items: list[Submission | InvalidRequest], ids: Sequence[str]) -> None:
    """An item that depends on a refused one could never run."""
    refused = {i for i, item in zip(ids, items, strict=False) if isinstance(item, InvalidRequest)}
    found = bool(refused)
    while found:
        found = False
        for number, item in enumerate(items):
            if isinstance(item, Submission) and not refused.isdisjoint(item.depends_on):
                items[number] = InvalidRequest("field 'dependsOn' names an item that was refused")
                refused.add(item.id)
                found = True


def _item(raw: msgspec.Raw) -> TaskBody | InvalidRequest:
    try:
        body: TaskBody = decoded(_task_decoder, bytes(raw), _FIELDS)
    except InvalidRequest as error:
        return error
    return body


def _batch_item(
    item: TaskBody | InvalidRequest,
    body: BatchBody,
    callback_url: str | None,
    *,
    task_id: str,
    batch: str,
) -> Submission | InvalidRequest:
    if isinstance(item, InvalidRequest):
        return item
    item.agent_id = body.agent_id
    if callback_url and not (item.callback_url or item.webhook_url):
        item.callback_url = callback_url
    try:
        return submission(item, task_id=task_id, batch=batch)
    except InvalidRequest as error:
        return InvalidRequest(f"invalid task: {error.message}")


def _too_large(count: int, limit: int) -> BatchTooLarge:
    details = {"submitted": count, "max": limit}
    return BatchTooLarge(f"batch exceeds maximum size of {limit} tasks", details=details)


def _kind(body: TaskBody) -> tuple[str, str | None]:
    """What a task is, and the name that its route has besides."""
    action, handler, instruction = body.action, body.handler, body.instruction
    if handler is not None:
        if action is not None or instruction is not None:
            raise _not_both(body)
        _refuse_foreign(body, model.HANDLER)
        matches("handler", handler, WORD)
        return model.HANDLER, handler
    if instruction is not None:
        if action is not None:
            raise _not_both(body)
        _refuse_foreign(body, model.INSTRUCTION)
        if not instruction.strip():
            raise InvalidRequest("field 'instruction' must not be empty")
        short("instruction", instruction, INSTRUCTION_CHARACTERS_MAX)
        return model.INSTRUCTION, None
    _refuse_foreign(body, model.ACTION)
    if action is not None:
        matches("action", action, WORD, empty=True)
    return model.ACTION, None


def _not_both(body: TaskBody) -> InvalidRequest:
    first, second = [kind for kind in KINDS if getattr(body, kind) is not None][:2]
    return InvalidRequest(f"give either '{first}' or '{second}', not both")


def _refuse_foreign(body: TaskBody, kind: str) -> None:
    """What only another kind of task can have."""
    if kind != model.ACTION:
        if body.tab_id is not None:
            raise _foreign("tabId", model.ACTION, kind)
        if body.ref is not None:
            raise _foreign("ref", model.ACTION, kind)
        if body.selector is not None:
            raise _foreign("selector", model.ACTION, kind)
    if kind != model.INSTRUCTION and body.llm_config is not None:
        raise _foreign("llmConfig", model.INSTRUCTION, kind)


def _foreign(field: str, belongs: str, kind: str) -> InvalidRequest:
    return InvalidRequest(f"'{field}' goes with '{belongs}', not with '{kind}'")


def _check_names(body: TaskBody) -> None:
    if body.lane is not None:
        matches("lane", body.lane, WORD)
    if body.key is not None:
        matches("key", body.key, IDENTIFIER)
    if body.tab_id:
        matches("tabId", body.tab_id, TAB_ID)
    if body.ref or body.selector:
        short("ref", body.ref, TEXT_CHARACTERS_MAX)
        short("selector", body.selector, TEXT_CHARACTERS_MAX)


def _check_times(body: TaskBody, kind: str) -> None:
    if body.timeout is not None:
        if body.timeout_ms not in (None, body.timeout):
            raise InvalidRequest("'timeout' is another word for 'timeoutMs': give one of them")
        body.timeout_ms, body.timeout = body.timeout, None
    if body.timeout_ms is not None:
        longest = INSTRUCTION_TIMEOUT_MS_MAX if kind == model.INSTRUCTION else DAY_MS
        within("timeoutMs", body.timeout_ms, 1, longest)
    if body.delay_ms is not None:
        within("delayMs", body.delay_ms, 0, 365 * DAY_MS)
    if body.run_at and body.delay_ms is not None:
        raise InvalidRequest("give either 'runAt' or 'delayMs', not both")
    retry = body.retry_policy
    if retry is not None:
        within("retryPolicy.maxRetries", retry.max_retries, 0, 1000)
        within("retryPolicy.backoffMs", retry.backoff_ms, 0, DAY_MS)
        within("retryPolicy.backoffMultiplier", retry.backoff_multiplier, 1, 100)
        within("retryPolicy.maxBackoffMs", retry.max_backoff_ms, 0, DAY_MS)
        within("retryPolicy.jitter", retry.jitter, 0, 1)


def _check_dependencies(body: TaskBody, task_id: str) -> None:
    body.depends_on = list(dict.fromkeys(body.depends_on or ()))
    if len(body.depends_on) > DEPENDS_ON_MAX:
        raise InvalidRequest(f"field 'dependsOn' must not name more than {DEPENDS_ON_MAX} tasks")
    for parent in body.depends_on:
        if parent.startswith("#"):
            raise InvalidRequest(
                f"field 'dependsOn': '{parent[:40]}' names an item of the same batch; "
                "outside a batch use task ids"
            )
        matches("dependsOn", parent, IDENTIFIER)
        if parent == task_id:
            raise dependencies.cycle_error([task_id, task_id])


def _stored(body: TaskBody) -> str:
    kept = StoredRequest(
        action=body.action,
        tab_id=body.tab_id or None,
        ref=body.ref or None,
        selector=body.selector or None,
        handler=body.handler,
        instruction=body.instruction,
        params=body.params or None,
        metadata=body.metadata or None,
        llm_config=body.llm_config or None,
        depends_on=body.depends_on or None,
        retry_policy=body.retry_policy,
        timeout_ms=body.timeout_ms,
        preemptible=body.preemptible or None,
        key=body.key,
    )
    return encode(kept).decode()


def _session(body: TaskBody, agent: str) -> str | None:
    if body.session_key is not None:
        matches("sessionKey", body.session_key, IDENTIFIER)
        return body.session_key
    if body.tab_id:
        # One agent's actions on one tab run one at a time, in order.
        return f"{TAB_PREFIX}{agent}:{body.tab_id}"
    return None


def _priority(value: int | str) -> int:
    if isinstance(value, str):
        if value not in model.PRIORITY_NAMES:
            names = ", ".join(model.PRIORITY_NAMES)
            raise InvalidRequest(f"field 'priority' must be a whole number or one of {names}")
        return model.PRIORITY_NAMES[value]
    if not -model.PRIORITY_MAX <= value <= model.PRIORITY_MAX:
        limit = model.PRIORITY_MAX
        raise InvalidRequest(f"field 'priority' must be from -{limit} to {limit}")
    return value


def _callback(body: TaskBody | BatchBody) -> str | None:
    if body.callback_url and body.webhook_url and body.callback_url != body.webhook_url:
        raise InvalidRequest("'webhookUrl' is another word for 'callbackUrl': give one of them")
    url = (body.callback_url or body.webhook_url or "").strip()
    short("callbackUrl" if body.callback_url else "webhookUrl", url, URL_CHARACTERS_MAX)
    return url or None


class ManyBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /tasks/cancel` and its like: which tasks, and whether only to look."""

    agent_id: str | None = None
    state: str | list[str] | None = None
    lane: str | None = None
    session_key: str | None = None
    batch_id: str | None = None
    kind: str | None = None
    dry_run: bool = False

    @property
    def states(self) -> list[str] | None:
        words = self.state if isinstance(self.state, str) else ",".join(self.state or ())
        return parse_states(words)


class PruneBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    dry_run: bool = False


_many_decoder = msgspec.json.Decoder(ManyBody)
_prune_decoder = msgspec.json.Decoder(PruneBody)


def parse_many(raw: bytes) -> ManyBody:
    """A filter that says at least something: nobody cancels everything by accident."""
    fields = frozenset(ManyBody.__struct_encode_fields__)
    body: ManyBody = decoded(_many_decoder, raw, fields)
    filters = {
        "agentId": body.agent_id,
        "state": body.state if body.state is None else body.states or "",
        "lane": body.lane,
        "sessionKey": body.session_key,
        "batchId": body.batch_id,
        "kind": body.kind,
    }
    given = {name: value for name, value in filters.items() if value is not None}
    if not given:
        raise InvalidRequest(f"say which tasks: give at least one of {', '.join(filters)}")
    for name, value in given.items():
        if not value:  # somebody's mistake: without it, more tasks would be meant
            raise InvalidRequest(f"field '{name}' is empty: say which, or leave it out for all")
    body.kind = parse_kind(body.kind)
    return body


def parse_prune(raw: bytes) -> PruneBody:
    fields = frozenset(PruneBody.__struct_encode_fields__)
    body: PruneBody = decoded(_prune_decoder, raw or b"{}", fields)
    return body


def parse_kind(text: str | None) -> str | None:
    """The kind of a filter; None for all."""
    if text and text not in KINDS:
        raise InvalidRequest(f"'kind' must be one of {', '.join(KINDS)}{nearest(text, KINDS)}")
    return text or None
