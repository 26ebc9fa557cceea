"""The JSON shapes of every edge: what callers get back. What they send is in `schema/bodies.py`.

Keys are camelCase, moments RFC 3339 UTC with milliseconds, a field without a value is absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core import lifecycle, model, moments, sessions
from fairlane.core.errors import FairlaneError
from fairlane.core.events import Attempt
from fairlane.core.model import Task
from fairlane.core.policy import SessionPolicy
from fairlane.core.secrets import masked
from fairlane.core.sessions import Session

if TYPE_CHECKING:
    from fairlane.core.cron import Run  # time zones are slow to load, and few commands show runs
    from fairlane.core.explain import Ceiling, Why

BODY_BYTES_MAX: Final = 1_048_576
LIST_LIMIT_DEFAULT: Final = 100
LIST_LIMIT_MAX: Final = 1000
ERROR_CHARACTERS_MAX: Final = 1000
DEPTH_MAX: Final = 64
PROGRESS_BYTES_MAX: Final = 4096
OUTPUT_CHARACTERS_MAX: Final = 1_048_576  # what is kept of the text that one attempt produces

encode = msgspec.json.encode
decode = msgspec.json.decode
DecodeError = msgspec.DecodeError
moment = moments.text


def moment_or_none(at: int | None) -> str | None:
    return None if at is None else moment(at)


_raw_decoder = msgspec.json.Decoder(msgspec.Raw)


_NESTED: Final = (dict, list)


def too_deep(value: Any) -> bool:
    """Whether a caller may be unable to read it. Level by level, as recursion would break first."""
    level = [value] if isinstance(value, _NESTED) else []
    for _ in range(DEPTH_MAX + 1):
        if not level:
            return False
        inner: list[Any] = []
        for one in level:
            for item in one.values() if isinstance(one, dict) else one:
                if isinstance(item, _NESTED):
                    inner.append(item)  # noqa: PERF401 - most is flat, and a generator costs more
        level = inner
    return True


def sse(event_type: str, data: Any, number: int | None = None) -> bytes:
    """One server-sent event. JSON has no line breaks, so its data is one line."""
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %s\ndata: %s\n\n" % (event_type.encode(), encode(data))


def accepted(task: Task) -> dict[str, Any]:
    return {
        "taskId": task.id,
        "state": task.state,
        "position": task.position,
        "createdAt": moment(task.created_at),
    }


def stored(text: str | None) -> msgspec.Raw | None:
    """Return stored JSON to be sent as it is, or None for none and for what is no JSON."""
    try:
        return None if text is None else _raw_decoder.decode(text)
    except DecodeError:
        return None


def _stored_request(body: str, *, secrets: bool) -> dict[str, Any] | None:
    """Return the fields of a request, or None when it is damaged."""
    try:
        request: dict[str, Any] = decode(body, type=dict[str, msgspec.Raw])
        if "llmConfig" in request and not secrets:
            request["llmConfig"] = masked(decode(request["llmConfig"], type=dict[str, Any]))
    except DecodeError:
        return None
    return request


def task(
    row: Task,
    body: str,
    result: str | None,
    error: str | None,
    log: Sequence[Attempt] = (),
    *,
    secrets: bool = False,
) -> dict[str, Any]:
    """A whole task: the fields that are set. Only who runs it is told its secrets.

    `unreadable` names what is damaged in the store, and so is not shown.
    """
    request, kept = _stored_request(body, secrets=secrets), stored(result)
    damaged = {"request": request is None, "result": result is not None and kept is None}
    shape: dict[str, Any] = {
        "taskId": row.id,
        "agentId": row.agent,
        "kind": row.kind,
        "lane": row.lane,
        **(request or {}),
        "priority": row.priority,
        "state": row.state,
        "createdAt": moment(row.created_at),
        "attempts": row.attempts,
        "maxAttempts": row.max_attempts,
        "retryCount": max(0, row.attempts - 1),
    }
    optional = {
        "position": row.position or None,
        "sessionKey": row.session,
        "batchId": row.batch,
        "gate": row.gate,
        "callbackUrl": row.callback_url,
        "error": error,
        "result": kept,
        "unreadable": [name for name, is_damaged in damaged.items() if is_damaged] or None,
        "latencyMs": _latency(row),
        "attemptLog": [attempt(one) for one in log] or None,
    }
    if row.kind == model.INSTRUCTION:
        optional["executionTimeMs"] = _execution_ms(row, log)
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


BRIEF_CHARACTERS_MAX: Final = 200
BRIEF_BYTES_MAX: Final = 1000


def brief(row: Task, body: str, error: str | None, log: Sequence[Attempt] = ()) -> dict[str, Any]:
    """A task for a list that only names it: nothing in it is long, and nothing of it is secret."""
    shape = task(row, body, None, error if error is None else error[:BRIEF_CHARACTERS_MAX], log)
    for name in ("llmConfig", "attemptLog"):
        shape.pop(name, None)
    if "instruction" in shape:
        shape["instruction"] = _text(shape["instruction"])[:BRIEF_CHARACTERS_MAX]
    return {
        name: value
        for name, value in shape.items()
        if not isinstance(value, msgspec.Raw) or len(memoryview(value)) <= BRIEF_BYTES_MAX
    }


def _text(value: msgspec.Raw) -> str:
    """Return a text of a request; of a damaged one, what stands in its place."""
    try:
        return decode(value, type=str)
    except DecodeError:
        return bytes(value).decode()


# What `task` says about a task besides the request that it was made from.
_SCHEDULING: Final = frozenset(
    (
        *("taskId", "agentId", "kind", "lane", "priority", "state", "createdAt", "attempts"),
        *("maxAttempts", "retryCount", "position", "sessionKey", "batchId", "gate", "callbackUrl"),
        *(
            "error",
            "result",
            "unreadable",
            "latencyMs",
            "attemptLog",
            "executionTimeMs",
            "deadline",
            "startedAt",
        ),
        *("nextEligibleAt", "completedAt", "leaseId", "worker", "leaseExpiresAt", "parkedReason"),
    )
)


def request_of(shape: Mapping[str, Any]) -> dict[str, Any]:
    """The request in the shape of a task that has been read: what its executor is to get."""
    return {key: value for key, value in shape.items() if key not in _SCHEDULING}


def lease(
    row: Task,
    body: str,
    inputs: Sequence[tuple[str, str, str | None]],
    timeout_ms: int | None,
) -> dict[str, Any]:
    """A task for who is to run it; `timeout_ms` is that of its kind."""
    shape = {
        "id": row.id,
        **lease_state(row),
        "token": row.token,
        "attempt": row.attempts,
        "attempts": row.attempts - 1,  # that have failed, as in the queue's entries
        "priority": row.priority,
        "task": task(row, body, None, None, secrets=True),
    }
    # A timeout of the task's own goes before that of its kind.
    timeout_ms = _request_decoder.decode(body).timeout_ms or timeout_ms
    if timeout_ms is not None:
        shape["timeoutMs"] = timeout_ms
    if inputs:
        shape["inputs"] = task_inputs(body, inputs)
    return shape


def lease_state(row: Task) -> dict[str, Any]:
    """A lease and what has become of its task."""
    shape: dict[str, Any] = {
        "leaseId": model.lease_id(row.seq, row.token),
        "taskId": row.id,
        "state": row.state,
    }
    moments = {"leaseExpiresAt": row.lease_expires_at, "nextEligibleAt": row.eligible_at}
    shape.update({key: moment(at) for key, at in moments.items() if at is not None})
    return shape


class _Request(msgspec.Struct, rename="camel"):
    timeout_ms: int | None = None
    depends_on: Sequence[str] = ()


_request_decoder = msgspec.json.Decoder(_Request)


def task_inputs(body: str, inputs: Sequence[tuple[str, str, str | None]]) -> list[dict[str, Any]]:
    """What the parents have left, in the order in which the task names them."""
    place = {id_: number for number, id_ in enumerate(_request_decoder.decode(body).depends_on)}
    return [
        {
            "taskId": id_,
            "state": state,
            "result": None if result is None else decode(result),
        }
        for id_, state, result in sorted(inputs, key=lambda one: place.get(one[0], 0))
    ]


def attempt(one: Attempt) -> dict[str, Any]:
    shape = {
        "attempt": one.attempt,
        "startedAt": moment(one.started_at),
        "endedAt": None if one.ended_at is None else moment(one.ended_at),
        "outcome": one.outcome,
        "error": one.error,
        "worker": one.worker,
    }
    return {key: value for key, value in shape.items() if value is not None}


def run(one: Run) -> dict[str, Any]:
    """An entry of the run log of cron."""
    moments = {
        "scheduledAt": one.scheduled_at,
        "startedAt": one.started_at,
        "finishedAt": one.finished_at,
    }
    shape = {
        "runId": one.id,
        "jobId": one.job_id,
        "jobName": one.job_name,
        "taskId": one.task_id,
        **{name: None if at is None else moment(at) for name, at in moments.items()},
        "trigger": one.trigger,
        "status": one.status,
        "attempts": one.attempts,
        "error": one.error,
        "summary": one.summary,
    }
    return {name: value for name, value in shape.items() if value is not None}


def session_line(session: Session, policy: SessionPolicy) -> dict[str, Any]:
    """A session in a list: its numbers."""
    shape: dict[str, Any] = {
        "sessionKey": session.key,
        "running": session.holders,
        "waiting": session.waiting,
        "debouncing": session.debouncing,
        "later": session.later,
        "effectiveConcurrency": sessions.limit(policy, session),
        "throttled": sessions.throttled(policy, session),
    }
    if session.tokens is not None:
        shape["usage"] = {"tokens": session.tokens, "contextWindow": session.context_window}
    return shape


def session(
    one: Session, policy: SessionPolicy, turns: Sequence[Task], queued: Sequence[Task]
) -> dict[str, Any]:
    """A session with who has the turn, who waits in which place, and why so many may run."""
    settings = sessions.resolved(policy, one)
    limit = sessions.limit(policy, one)
    shape: dict[str, Any] = {
        **session_line(one, policy),
        "generation": one.generation,
        "settings": {
            "mode": settings.mode,
            "cap": settings.cap,
            "drop": settings.drop,
            "debounceMs": settings.debounce_ms,
            "debounceMaxMs": settings.debounce_max_ms,
            "maxConcurrent": settings.max_concurrent,
        },
        "why": f"up to {limit} at once, as its settings say",
        "running": [_in_session(task) for task in turns],
        "waiting": [
            {**_in_session(task), "position": place} for place, task in enumerate(queued, 1)
        ],
    }
    if sessions.throttled(policy, one):
        share = (one.tokens or 0) / (one.context_window or 1)
        shape["why"] = f"one at once: {share:.0%} of the context window is used"
    if one.interrupted:
        shape["why"] = "none for now: runs that were interrupted have not ended yet"
    if one.cutoff_at is not None:
        shape["cutoff"] = moment(one.cutoff_at)
    return shape


def why(one: Task, found: Why) -> dict[str, Any]:
    """Why a task does not run yet. What does not apply, or is not known, is null."""
    ceilings = [_ceiling(one) for one in found.ceilings]
    return {
        "taskId": one.id,
        "state": one.state,
        "ready": found.ready,
        "gate": found.gate,
        "reason": found.reason,
        "waitingFor": list(found.waiting_for),
        "ceiling": ceilings[0] if ceilings else None,
        "ceilings": ceilings,
        "position": found.position,
        "estimateMs": found.estimate_ms,
    }


def _ceiling(one: Ceiling) -> dict[str, Any]:
    return {
        "scope": one.scope,
        "limit": one.limit,
        "inUse": one.in_use,
        "setting": one.setting,
    }


def _in_session(row: Task) -> dict[str, Any]:
    shape: dict[str, Any] = {"taskId": row.id, "state": row.state, "lane": row.lane}
    if row.gate is not None:
        shape["gate"] = row.gate
    if row.started_at is not None:
        shape["startedAt"] = moment(row.started_at)
    return shape


def _latency(row: Task) -> int | None:
    if row.started_at is None or row.completed_at is None:
        return None
    return moments.span(row.started_at, row.completed_at)


def _execution_ms(row: Task, log: Sequence[Attempt]) -> int | None:
    """How long the last attempt ran, of a task that has ended: no wait between attempts counts."""
    latency = _latency(row)
    return log[-1].ran_ms if log and latency is not None else latency


def batch_item(answer: Task | FairlaneError) -> dict[str, Any]:
    if isinstance(answer, Task):
        return {"taskId": answer.id, "state": answer.state, "position": answer.position}
    item = {"state": lifecycle.REJECTED, "error": one_line(answer.message), "code": answer.code}
    kept = (answer.details or {}).get("taskId")
    return {"taskId": kept, **item} if kept else item


def batch(batch_id: str, answers: Sequence[Task | FairlaneError]) -> dict[str, Any]:
    shapes = [batch_item(answer) for answer in answers]
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


def span(seconds: int) -> str:
    """Hours, minutes and seconds as in `5m0s`."""
    hours, rest = divmod(seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes}m{seconds}s"
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"
