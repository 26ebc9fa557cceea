"""The JSON shapes of every edge that no operation declares: what callers get back.

Keys are camelCase, moments RFC 3339 UTC with milliseconds, a field without a value is absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core import moments, sessions
from fairlane.core.errors import FairlaneError
from fairlane.core.model import Task
from fairlane.core.policy import SessionPolicy
from fairlane.core.sessions import Session

if TYPE_CHECKING:
    from fairlane.core.cron import Run  # time zones are slow to load, and few commands show runs

BODY_BYTES_MAX: Final = 1_048_576
LIST_LIMIT_DEFAULT: Final = 100
LIST_LIMIT_MAX: Final = 1000
ERROR_CHARACTERS_MAX: Final = 1000
PROGRESS_BYTES_MAX: Final = 4096
OUTPUT_CHARACTERS_MAX: Final = 1_048_576  # what is kept of the text that one attempt produces

encode = msgspec.json.encode
decode = msgspec.json.decode
DecodeError = msgspec.DecodeError
moment = moments.text


def moment_or_none(at: int | None) -> str | None:
    return None if at is None else moment(at)


_raw_decoder = msgspec.json.Decoder(msgspec.Raw)


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


def _in_session(row: Task) -> dict[str, Any]:
    shape: dict[str, Any] = {"taskId": row.id, "state": row.state, "lane": row.lane}
    if row.gate is not None:
        shape["gate"] = row.gate
    if row.started_at is not None:
        shape["startedAt"] = moment(row.started_at)
    return shape


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
