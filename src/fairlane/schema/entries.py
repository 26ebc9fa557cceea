"""Entries of the queue: what `queue add` and a `queue.json` of cool-workflow say, as tasks of the
lane `queue`, and tasks told as entries again.

An entry is a task of the handler `run` whose params are its fields, those that nobody knows
included. A file is taken in as a whole or not at all; all that is wrong with it is told at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fairlane.core import lifecycle, model
from fairlane.core.errors import InvalidRequest
from fairlane.core.model import Submission, Task
from fairlane.core.policy import nearest
from fairlane.schema.bodies import TEXT_CHARACTERS_MAX, TaskBody, submission
from fairlane.schema.fields import IDENTIFIER, decoded, matches, parse_deadline, parse_object, short
from fairlane.schema.wire import DecodeError, decode, moment, one_line

LANE: Final = "queue"
RUN: Final = "run"  # the handler of entries
PRIORITY: Final = 100
SCHEMA_VERSION: Final = 1
IMPORT_MAX: Final = 20_000  # in one transaction, which holds up everybody else
IMPORT_BYTES_MAX: Final = 32 * 1024 * 1024
PROBLEMS_SHOWN_MAX: Final = 20

PENDING: Final = "pending"
READY: Final = "ready"
LEASED: Final = "leased"
PARKED: Final = "parked"
DRAINED: Final = "drained"
CANCELLED: Final = "cancelled"
FAILED: Final = "failed"
DRAINING: Final = "draining"  # only in files: nothing there ever ends it

# The states of the tasks that an entry's status stands for. An entry that waits is `pending` until
# it was leased for the first time and `ready` after that; as a filter the two are the same.
STATES: Final[Mapping[str, tuple[str, ...]]] = {
    PENDING: (lifecycle.QUEUED, lifecycle.WAITING),
    READY: (lifecycle.QUEUED, lifecycle.WAITING),
    LEASED: (lifecycle.ASSIGNED, lifecycle.RUNNING),
    PARKED: (lifecycle.PARKED,),
    DRAINED: (lifecycle.DONE,),
    CANCELLED: (lifecycle.CANCELLED,),
    FAILED: (lifecycle.FAILED,),
}
_IMPORTED: Final = (PENDING, READY, LEASED, PARKED, DRAINED, CANCELLED, DRAINING)
_TEXTS: Final = ("runId", "appId", "workflowId", "repo", "note")
_ORDER: Final = ("runId", "appId", "workflowId", "repo")
# What an entry of a file says about its scheduling; everything else is kept as it is.
_SCHEDULING: Final = frozenset(
    (
        *("schemaVersion", "id", "priority", "enqueuedAt", "status", "attempts", "leaseId"),
        *("leaseExpiresAt", "nextEligibleAt", "parkedReason", "drainedAt"),
    )
)
_ATTEMPT: Final = re.compile(r" \(attempt \d+/\d+\)$")


class Entry(msgspec.Struct, frozen=True):
    """A submission, and for one from a file how far it had come there.

    `ended_at` is also the end of a lease: when what `status` says was or will be over.
    """

    submission: Submission
    status: str = PENDING
    enqueued_at: int | None = None
    attempts: int = 0
    reason: str | None = None
    ended_at: int | None = None


class EntryBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /queue`."""

    id: str | None = None
    run_id: str | None = None
    app_id: str | None = None
    workflow_id: str | None = None
    repo: str | None = None
    priority: int | str | None = None
    inputs: dict[str, Any] | None = None
    note: str | None = None
    agent_id: str | None = None


class DrainBody(msgspec.Struct, forbid_unknown_fields=True):
    limit: int = 1


_entry_decoder = msgspec.json.Decoder(EntryBody)
_drain_decoder = msgspec.json.Decoder(DrainBody)
_FIELDS: Final = frozenset(EntryBody.__struct_encode_fields__)


def parse_entry(raw: bytes, *, entry_id: str, agent: str | None = None) -> Entry:
    """`agent` is whose it is when it does not say so."""
    body: EntryBody = decoded(_entry_decoder, raw, _FIELDS)
    body.agent_id = body.agent_id or agent
    fields = msgspec.to_builtins(body)
    params = {name: fields[name] for name in (*_ORDER, "inputs", "note")}
    for name in _TEXTS:
        params[name] = (params[name] or "").strip() or None
        short(name, params[name], TEXT_CHARACTERS_MAX)
    if body.id is not None:
        matches("id", body.id, IDENTIFIER)
    return Entry(_submission(body.id or entry_id, params, body.priority, agent=body.agent_id))


def parse_drain(raw: bytes) -> DrainBody:
    body: DrainBody = decoded(_drain_decoder, raw or b"{}", frozenset({"limit"}))
    if not 1 <= body.limit <= 1000:
        raise InvalidRequest("field 'limit' must be from 1 to 1000")
    return body


def parse_status(word: str | None) -> list[str]:
    """The states of a filter by status; all of them when there is none."""
    if not word:
        return list(dict.fromkeys(state for states in STATES.values() for state in states))
    if word not in STATES:
        known = ", ".join(STATES)
        raise InvalidRequest(
            f"'{word[:40]}' is not a status{nearest(word, STATES) or f'; known are {known}'}"
        )
    return list(STATES[word])


def _submission(
    entry_id: str,
    params: Mapping[str, Any],
    priority: int | str | None,
    *,
    agent: str | None = None,
    run_at: str | None = None,
) -> Submission:
    body = TaskBody(
        agent_id=agent,
        handler=RUN,
        params={name: value for name, value in params.items() if value is not None},
        priority=PRIORITY if priority is None else priority,
        lane=LANE,
        run_at=run_at,
    )
    return submission(body, task_id=entry_id)


# -------------------------------------------------------------------- files


def parse_file(raw: bytes) -> list[Entry]:
    """The entries of a `queue.json`, in the order in which they came in."""
    document = parse_object(raw, items_max=IMPORT_MAX)
    if document.get("schemaVersion") != SCHEMA_VERSION or document["schemaVersion"] is True:
        raise InvalidRequest(
            "field 'schemaVersion' must be 1: a file of another version is not understood here"
        )
    unknown = next((name for name in document if name not in ("schemaVersion", "entries")), None)
    if unknown is not None:
        raise InvalidRequest(f"unknown field '{unknown[:40]}'{nearest(unknown, ['entries'])}")
    found = document.get("entries")
    if not isinstance(found, list):
        raise InvalidRequest("field 'entries' must be a list of entries")
    if len(found) > IMPORT_MAX:
        raise InvalidRequest(
            f"field 'entries' must not hold more than {IMPORT_MAX}: split the file"
        )
    return _sorted(_checked(found))


def _checked(found: Sequence[Any]) -> list[Entry]:
    problems: list[str] = []
    entries: list[Entry] = []
    seen: set[str] = set()
    for number, one in enumerate(found):
        name = f"entries[{number}]"
        try:
            entry = _from_file(one)
        except InvalidRequest as error:
            problems.append(f"{name}: {error.message}")
            continue
        if entry.submission.id in seen:
            problems.append(f"{name}: the id '{entry.submission.id}' stands twice in the file")
        seen.add(entry.submission.id)
        entries.append(entry)
    if problems:
        more = len(problems) - PROBLEMS_SHOWN_MAX
        shown = "; ".join(problems[:PROBLEMS_SHOWN_MAX])
        raise InvalidRequest(shown + (f"; and {more} more" if more > 0 else ""))
    return entries


def _from_file(one: Any) -> Entry:
    if not isinstance(one, dict):
        raise InvalidRequest("an entry must be an object")
    id_, status = one.get("id"), one.get("status")
    if not isinstance(id_, str):
        raise InvalidRequest("missing required field 'id'")
    matches("id", id_, IDENTIFIER)
    if status not in _IMPORTED:
        raise InvalidRequest(f"field 'status' must be one of {', '.join(_IMPORTED)}")
    params = {name: one[name] for name in one if name not in _SCHEDULING}
    for name in _TEXTS:
        if not isinstance(params.get(name), str | None):
            raise InvalidRequest(f"field '{name}' must be text")
    later = _text(one, "nextEligibleAt") if status in (PENDING, READY) else None
    made = _submission(id_, params, _whole(one, "priority", PRIORITY), run_at=later)
    ended = {LEASED: "leaseExpiresAt", DRAINED: "drainedAt"}.get(status)
    return Entry(
        submission=made,
        status=status,
        enqueued_at=_moment(one, "enqueuedAt"),
        attempts=_attempts(one),
        reason=_reason(one),
        ended_at=None if ended is None else _moment(one, ended),
    )


def _whole(one: Mapping[str, Any], name: str, default: int) -> int:
    value = one.get(name, default)
    fraction = isinstance(value, float) and not value.is_integer()
    if isinstance(value, bool) or not isinstance(value, int | float) or fraction:
        raise InvalidRequest(f"field '{name}' must be a whole number")
    return int(value)


def _attempts(one: Mapping[str, Any]) -> int:
    attempts = _whole(one, "attempts", 0)
    if not 0 <= attempts <= model.PRIORITY_MAX:
        raise InvalidRequest("field 'attempts' must be a whole number, at least 0")
    return attempts


def _text(one: Mapping[str, Any], name: str) -> str | None:
    value = one.get(name)
    if not isinstance(value, str | None):
        raise InvalidRequest(f"field '{name}' must be text")
    return value


def _moment(one: Mapping[str, Any], name: str) -> int | None:
    text = _text(one, name)
    return None if text is None else parse_deadline(text, name)


def _reason(one: Mapping[str, Any]) -> str | None:
    """Why it was parked; how many attempts that took is told besides, and shown again."""
    text = _text(one, "parkedReason")
    return None if text is None else _ATTEMPT.sub("", one_line(text))


def _sorted(entries: Sequence[Entry]) -> list[Entry]:
    """Entries of one priority go in the order of `enqueuedAt`, then of their ids."""
    return sorted(entries, key=lambda e: (e.enqueued_at or 0, e.submission.id))


# -------------------------------------------------------------------- shapes


def status_of(task: Task) -> str:
    if task.state in lifecycle.IN_QUEUE:
        return READY if task.token or task.attempts else PENDING
    for status, states in STATES.items():
        if task.state in states:
            return status
    return task.state


def failures(task: Task) -> int:
    """How many attempts have failed: the one under way, or the one that went well, has not."""
    spent = task.state in (*lifecycle.IN_FLIGHT, lifecycle.DONE)
    return max(0, task.attempts - spent)


def shape(task: Task, body: str, error: str | None) -> dict[str, Any]:
    """A task as an entry: the fields that are set."""
    request, params, damaged = _stored(body)
    known: dict[str, Any] = {
        "schemaVersion": SCHEMA_VERSION,
        "id": task.id,
        **{name: params.pop(name, None) for name in _ORDER},
        "agentId": task.agent,
        "priority": task.priority,
        "enqueuedAt": moment(task.created_at),
        "status": status_of(task),
    }
    if damaged:
        params = {"unreadable": ["request"]}
    elif request.get("handler") != RUN:  # it came in as a task
        params = {"handler": request.get("handler"), "params": request.get("params")}
    shape = {**known, **params, "attempts": failures(task), "maxAttempts": task.max_attempts}
    shape |= _now(task, error)
    return {name: value for name, value in shape.items() if value is not None}


def _stored(body: str) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Return a stored request and its params, and whether it is damaged."""
    try:
        request = decode(body, type=dict[str, Any])
        return request, msgspec.convert(request.get("params", {}), dict[str, Any]), False
    except DecodeError:
        return {}, {}, True


def _now(task: Task, error: str | None) -> dict[str, Any]:
    """What is true of an entry in its present status."""
    if task.leased and not task.terminal:
        assert task.lease_expires_at is not None
        return {
            "leaseId": model.lease_id(task.seq, task.token),
            "leaseExpiresAt": moment(task.lease_expires_at),
            "worker": task.worker,
        }
    if task.state in lifecycle.IN_QUEUE:
        later = None if task.eligible_at is None else moment(task.eligible_at)
        return {"gate": task.gate, "nextEligibleAt": later, "error": error}
    if task.state == lifecycle.PARKED:
        tries = f"(attempt {task.attempts}/{task.max_attempts})"
        return {"parkedReason": f"{error} {tries}" if error else tries}
    ended = None if task.completed_at is None else moment(task.completed_at)
    return {"drainedAt" if task.state == lifecycle.DONE else "endedAt": ended, "error": error}
