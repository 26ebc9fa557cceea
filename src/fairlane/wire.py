"""The JSON shapes of every edge: what callers send, what they get back.

Keys are camelCase, moments RFC 3339 UTC with milliseconds, a field without a value is absent.
Parsing here is about form; whether a well-formed request is admitted is for the core to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

import msgspec

from fairlane.core import lifecycle, model
from fairlane.core.counts import Tally
from fairlane.core.errors import (
    BatchTooLarge,
    FairlaneError,
    InvalidRequest,
)
from fairlane.core.model import Submission, Task
from fairlane.core.policy import Policy, nearest

BODY_BYTES_MAX: Final = 1_048_576
ACTION_BATCH_MAX: Final = 50
HANDLER_BATCH_MAX: Final = 100
LIST_LIMIT_DEFAULT: Final = 100
LIST_LIMIT_MAX: Final = 1000
DEFAULT_AGENT: Final = "default"
URL_CHARACTERS_MAX: Final = 2048
TEXT_CHARACTERS_MAX: Final = 4096
ERROR_CHARACTERS_MAX: Final = 1000
DEPTH_MAX: Final = 64

_IDENTIFIER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}")
_TAB_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")
_DEADLINE: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")

encode = msgspec.json.encode
decode = msgspec.json.decode
DecodeError = msgspec.DecodeError


# -------------------------------------------------------------------- in: tasks


class TaskBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /tasks`, and an item of `POST /tasks/batch`."""

    agent_id: str | None = None
    action: str | None = None
    tab_id: str | None = None
    ref: str | None = None
    selector: str | None = None
    handler: str | None = None
    params: dict[str, Any] | None = None
    priority: int | str | None = None
    deadline: str | None = None
    callback_url: str | None = None
    webhook_url: str | None = None
    lane: str | None = None
    session_key: str | None = None


class BatchBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    agent_id: str | None = None
    callback_url: str | None = None
    tasks: list[msgspec.Raw] | None = None


class StoredRequest(msgspec.Struct, rename="camel", omit_defaults=True):
    """What is kept of a request for its executor and for `GET /tasks/{id}`."""

    action: str | None = None
    tab_id: str | None = None
    ref: str | None = None
    selector: str | None = None
    handler: str | None = None
    params: dict[str, Any] | None = None


_task_decoder = msgspec.json.Decoder(TaskBody)
_batch_decoder = msgspec.json.Decoder(BatchBody)
_FIELDS: Final = frozenset(TaskBody.__struct_encode_fields__)
_BATCH_FIELDS: Final = frozenset(BatchBody.__struct_encode_fields__)


def parse_task(raw: bytes, *, task_id: str) -> Submission:
    body = _decoded(_task_decoder, raw, _FIELDS)
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
    _matches("agentId", agent, _IDENTIFIER)
    if kind == model.ACTION and not body.action:
        raise InvalidRequest("missing required field 'action'")
    if body.lane is not None:
        _matches("lane", body.lane, _WORD)
    if body.tab_id:
        _matches("tabId", body.tab_id, _TAB_ID)
    for field in ("ref", "selector"):
        _short(field, getattr(body, field), TEXT_CHARACTERS_MAX)
    _shallow("params", body.params)
    return Submission(
        id=task_id,
        kind=kind,
        agent=agent,
        route=model.route_of(kind, name),
        body=_stored(body),
        lane=body.lane,
        priority=_priority(body.priority),
        session=_session(body, agent),
        deadline_at=parse_deadline(body.deadline) if body.deadline else None,
        callback_url=_callback(body),
        batch=batch,
    )


def parse_batch(
    raw: bytes, *, ids: Sequence[str], batch: str
) -> list[tuple[str, Submission | InvalidRequest]]:
    """The items in order, each checked on its own; errors of the batch itself are raised."""
    body = _decoded(_batch_decoder, raw, _BATCH_FIELDS)
    items = body.tasks or []
    if not items:
        raise InvalidRequest("batch must contain at least one task: give 'tasks'")
    if len(items) > HANDLER_BATCH_MAX:
        raise _too_large(len(items), HANDLER_BATCH_MAX)
    parsed = [_item(raw_item) for raw_item in items]
    actions = any(isinstance(item, TaskBody) and not item.handler for item in parsed)
    # An item that cannot be read may have been meant as an action.
    handlers = sum(isinstance(item, TaskBody) and bool(item.handler) for item in parsed)
    if handlers < len(items) and len(items) > ACTION_BATCH_MAX:
        raise _too_large(len(items), ACTION_BATCH_MAX)
    if not body.agent_id:
        if actions or not any(isinstance(item, TaskBody) for item in parsed):
            raise InvalidRequest("missing required field 'agentId'")
    else:
        _matches("agentId", body.agent_id, _IDENTIFIER)
    return [
        (id_, _batch_item(item, body, task_id=id_, batch=batch))
        for id_, item in zip(ids, parsed, strict=False)
    ]


def _item(raw: msgspec.Raw) -> TaskBody | InvalidRequest:
    try:
        body: TaskBody = _decoded(_task_decoder, bytes(raw), _FIELDS)
    except InvalidRequest as error:
        return error
    return body


def _batch_item(
    item: TaskBody | InvalidRequest, body: BatchBody, *, task_id: str, batch: str
) -> Submission | InvalidRequest:
    if isinstance(item, InvalidRequest):
        return item
    item.agent_id = body.agent_id
    if body.callback_url:
        item.callback_url, item.webhook_url = body.callback_url, None
    try:
        return submission(item, task_id=task_id, batch=batch)
    except InvalidRequest as error:
        return InvalidRequest(f"invalid task: {error.message}")


def _too_large(count: int, limit: int) -> BatchTooLarge:
    details = {"submitted": count, "max": limit}
    return BatchTooLarge(f"batch exceeds maximum size of {limit} tasks", details=details)


def _kind(body: TaskBody) -> tuple[str, str | None]:
    if body.handler is None:
        if body.action is not None:
            _matches("action", body.action, _WORD, empty=True)
        return model.ACTION, None
    if body.action is not None:
        raise InvalidRequest("give either 'action' or 'handler', not both")
    _matches("handler", body.handler, _WORD)
    for field in ("tab_id", "ref", "selector"):
        if getattr(body, field) is not None:
            raise InvalidRequest(f"'{_camel(field)}' goes with 'action', not with 'handler'")
    return model.HANDLER, body.handler


def _stored(body: TaskBody) -> str:
    kept = StoredRequest(
        action=body.action,
        tab_id=body.tab_id or None,
        ref=body.ref or None,
        selector=body.selector or None,
        handler=body.handler,
        params=body.params or None,
    )
    return encode(kept).decode()


def _session(body: TaskBody, agent: str) -> str | None:
    if body.session_key is not None:
        _matches("sessionKey", body.session_key, _IDENTIFIER)
        return body.session_key
    if body.tab_id:
        # One agent's actions on one tab run one at a time, in order.
        return f"tab:{agent}:{body.tab_id}"
    return None


def _priority(value: int | str | None) -> int:
    if value is None:
        return 0
    if isinstance(value, str):
        if value not in model.PRIORITY_NAMES:
            names = ", ".join(model.PRIORITY_NAMES)
            raise InvalidRequest(f"field 'priority' must be a whole number or one of {names}")
        return model.PRIORITY_NAMES[value]
    if not -model.PRIORITY_MAX <= value <= model.PRIORITY_MAX:
        limit = model.PRIORITY_MAX
        raise InvalidRequest(f"field 'priority' must be from -{limit} to {limit}")
    return value


def _callback(body: TaskBody) -> str | None:
    if body.callback_url and body.webhook_url and body.callback_url != body.webhook_url:
        raise InvalidRequest("'webhookUrl' is another word for 'callbackUrl': give one of them")
    url = (body.callback_url or body.webhook_url or "").strip()
    _short("callbackUrl", url, URL_CHARACTERS_MAX)
    return url or None


def parse_deadline(text: str) -> int:
    """RFC 3339 with a zone, as milliseconds since the epoch."""
    if not _DEADLINE.fullmatch(text):
        raise InvalidRequest(
            f"invalid deadline format: '{text[:40]}' is not RFC 3339, "
            "for example 2026-03-08T12:05:00Z"
        )
    try:
        # In UTC it must still be within the calendar, or it could never be shown again.
        moment = datetime.fromisoformat(_six_digits(text.upper())).astimezone(UTC)
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"invalid deadline format: {error}") from None


def _six_digits(text: str) -> str:
    """Python before 3.12 reads at most six digits of a second's fraction."""
    return re.sub(r"(\.\d{6})\d+", r"\1", text)


def _matches(field: str, text: str, pattern: re.Pattern[str], *, empty: bool = False) -> None:
    if not pattern.fullmatch(text) and not (empty and not text):
        raise InvalidRequest(
            f"field '{field}' has characters that are not allowed, or is too long: "
            f"it must match ^{pattern.pattern}$"
        )


def _short(field: str, text: str | None, limit: int) -> None:
    if text is not None and len(text) > limit:
        raise InvalidRequest(f"field '{field}' must not be longer than {limit} characters")


def _shallow(field: str, value: Any) -> None:
    if too_deep(value):
        raise InvalidRequest(f"field '{field}' must not be nested deeper than {DEPTH_MAX} levels")


def too_deep(value: Any) -> bool:
    """Whether a caller may be unable to read it. Level by level, as recursion would break first."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEPTH_MAX):
        inner = [one.values() if isinstance(one, dict) else one for one in level]
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def _camel(field: str) -> str:
    head, *rest = field.split("_")
    return head + "".join(part.title() for part in rest)


# An escaped U+0000: behind an even number of backslashes, or it is only text that looks like one.
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_AT: Final = re.compile(r"(.*) - at `\$\.?([^`]*)`")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`")


def _decoded(decoder: msgspec.json.Decoder[Any], raw: bytes, fields: frozenset[str]) -> Any:
    """Decode, or raise `InvalidRequest` in words that a caller can act on."""
    try:
        body = decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_in_words(str(error), fields)) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from None
    if decoder is _task_decoder and b"\\u0000" in raw and _NUL.search(raw):
        raise InvalidRequest("the character U+0000 is not allowed in any text")
    return body


def _in_words(message: str, fields: frozenset[str]) -> str:
    unknown = _UNKNOWN.match(message)
    if unknown:
        return f"unknown field '{unknown[1]}'{nearest(unknown[1], fields)}"
    found = _AT.fullmatch(message)
    if not found or not found[2]:
        return f"the body must be a JSON object: {message.split(' - at ', maxsplit=1)[0].lower()}"
    return f"field '{found[2]}': {found[1][0].lower()}{found[1][1:]}"


def parse_states(text: str) -> list[str] | None:
    """The states of a comma list; None for no filter. Raises for a word that is no state."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    states = []
    for word in words:
        state = lifecycle.state_from(word)
        if state is None:
            known = ", ".join(lifecycle.STATES)
            hint = nearest(word, lifecycle.STATES)
            raise InvalidRequest(f"'{word[:40]}' is not a state{hint or f'; known are {known}'}")
        states.append(state)
    return states or None


# -------------------------------------------------------------------- out


def moment(at: int) -> str:
    """RFC 3339 UTC with milliseconds."""
    seconds, millis = divmod(at, 1000)
    return f"{_second(seconds)}.{millis:03d}Z"


@lru_cache(maxsize=256)
def _second(seconds: int) -> str:
    """Answers of one second share all but the milliseconds, and formatting is slow."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def accepted(task: Task) -> dict[str, Any]:
    return {
        "taskId": task.id,
        "state": task.state,
        "position": task.position,
        "createdAt": moment(task.created_at),
    }


def task(row: Task, body: str, result: str | None, error: str | None) -> dict[str, Any]:
    """A whole task: the fields that are set."""
    request: dict[str, Any] = decode(body, type=dict[str, msgspec.Raw])
    shape: dict[str, Any] = {
        "taskId": row.id,
        "agentId": row.agent,
        "kind": row.kind,
        "lane": row.lane,
        **request,
        "priority": row.priority,
        "state": row.state,
        "createdAt": moment(row.created_at),
        "attempts": row.attempts,
        "maxAttempts": row.max_attempts,
    }
    optional = {
        "position": row.position or None,
        "sessionKey": row.session,
        "batchId": row.batch,
        "gate": row.gate,
        "callbackUrl": row.callback_url,
        "error": error,
        "result": msgspec.Raw(result.encode()) if result is not None else None,
        "latencyMs": _latency(row),
    }
    moments = {
        "deadline": row.deadline_at,
        "nextEligibleAt": row.eligible_at,
        "startedAt": row.started_at,
        "completedAt": row.completed_at,
    }
    if row.leased and not row.terminal:
        optional["leaseId"] = model.lease_id(row.seq, row.token)
        optional["worker"] = row.worker
        moments["leaseExpiresAt"] = row.lease_expires_at
    if row.state == lifecycle.PARKED:
        optional["parkedReason"] = error
    shape.update({key: value for key, value in optional.items() if value is not None})
    shape.update({key: moment(at) for key, at in moments.items() if at is not None})
    return shape


def _latency(row: Task) -> int | None:
    if row.started_at is None or row.completed_at is None:
        return None
    return max(0, row.completed_at - row.started_at)


def batch_item(answer: Task | FairlaneError) -> dict[str, Any]:
    if isinstance(answer, Task):
        return {"taskId": answer.id, "state": answer.state, "position": answer.position}
    item = {"state": lifecycle.REJECTED, "error": one_line(answer.message), "code": answer.code}
    kept = (answer.details or {}).get("taskId")
    return {"taskId": kept, **item} if kept else item


def batch(batch_id: str, items: Sequence[tuple[str, Task | FairlaneError]]) -> dict[str, Any]:
    shapes = [batch_item(answer) for _, answer in items]
    rejected = sum(shape["state"] == lifecycle.REJECTED for shape in shapes)
    return {
        "batchId": batch_id,
        "tasks": shapes,
        "submitted": len(shapes),
        "accepted": len(shapes) - rejected,
        "rejected": rejected,
    }


def error(problem: FairlaneError) -> dict[str, Any]:
    shape: dict[str, Any] = {"code": problem.code, "error": one_line(problem.message)}
    if problem.retryable:
        shape["retryable"] = True
    if problem.details:
        shape["details"] = problem.details
    return shape


def one_line(message: str) -> str:
    """A message may repeat what a caller sent: without control characters, and not all of it."""
    cut = message if len(message) <= ERROR_CHARACTERS_MAX else message[:ERROR_CHARACTERS_MAX] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else " " for c in cut)


def stats(
    lanes: Mapping[str, Tally], agents: Sequence[Sequence[Any]], policy: Policy
) -> dict[str, Any]:
    """`agents` rows: name, queued, inflight, submitted, completed, failed, cancelled, rejected."""
    busy = [row for row in agents if row[1] or row[2]]
    return {
        "queue": {
            "totalQueued": _sum(lanes, "queued"),
            "totalInflight": _sum(lanes, "inflight"),
            "agentCounts": {row[0]: row[1] for row in busy if row[1]},
            "agents": {row[0]: {"queued": row[1], "inflight": row[2]} for row in busy},
        },
        "metrics": _metrics(lanes, agents),
        "config": _config(policy),
    }


def _metrics(lanes: Mapping[str, Tally], agents: Sequence[Sequence[Any]]) -> dict[str, Any]:
    dispatched = _sum(lanes, "dispatched")
    waited = _sum(lanes, "waited_ms")
    names = ("submitted", "completed", "failed", "cancelled", "rejected")
    return {
        "tasksSubmitted": _sum(lanes, "submitted"),
        "tasksCompleted": _sum(lanes, "completed"),
        "tasksFailed": _sum(lanes, "failed"),
        "tasksCancelled": _sum(lanes, "cancelled"),
        "tasksRejected": _sum(lanes, "rejected"),
        "tasksExpired": _sum(lanes, "expired"),
        "tasksParked": _sum(lanes, "parked"),
        "dispatchCount": dispatched,
        "avgDispatchLatencyMs": round(waited / dispatched, 3) if dispatched else 0.0,
        "agents": {row[0]: dict(zip(names, row[3:], strict=True)) for row in agents},
    }


def _config(policy: Policy) -> dict[str, Any]:
    browser = policy.lanes["browser"]
    return {
        "strategy": browser.strategy,
        "maxQueueSize": browser.max_queue_size,
        "maxPerAgent": browser.max_per_agent,
        "maxInflight": browser.max_inflight,
        "maxPerAgentFlight": browser.max_per_agent_inflight,
        "maxPerAgentInflight": browser.max_per_agent_inflight,
        "workerCount": policy.worker_count,
        "resultTTL": span(policy.retention.ttl_ms // 1000),
    }


def span(seconds: int) -> str:
    """Hours, minutes and seconds as in `5m0s`."""
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def _sum(lanes: Mapping[str, Tally], field: str) -> int:
    return sum(getattr(tally, field) for tally in lanes.values())
