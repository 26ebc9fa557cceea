"""Files of cool-workflow: the entries of a `queue.json`, and a `scheduling-policy.json`.

A queue file is imported as a whole or not at all; all its problems are reported at once. Unknown
fields stay with the entry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from fairlane.core import documents, model, moments, validation
from fairlane.core.documents import Field
from fairlane.core.entries import (
    DRAINED,
    LANE,
    LEASED,
    PENDING,
    PRIORITY,
    READY,
    QueueEntry,
)
from fairlane.core.errors import InvalidRequest
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.model import Submission
from fairlane.core.policy import LANE_RULES, Policy, nearest
from fairlane.core.types import Identifier

SCHEMA_VERSION: Final = 1
ENTRIES_MAX: Final = 20_000  # in one transaction, which blocks all other writes
FILE_BYTES_MAX: Final = 32 * 1024 * 1024
PROBLEMS_SHOWN_MAX: Final = 20

# Fields of an entry that concern its scheduling; all others are stored unchanged.
_SCHEDULING: Final = frozenset(
    (
        *("schemaVersion", "id", "priority", "enqueuedAt", "status", "attempts", "leaseId"),
        *("leaseExpiresAt", "nextEligibleAt", "parkedReason", "drainedAt"),
    )
)
_ATTEMPT: Final = re.compile(r" \(attempt \d+/\d+\)$")


class FileEntry(msgspec.Struct, rename="camel"):
    """The checked fields of an entry in a file; unknown fields stay as they are."""

    id: Identifier
    status: Literal["pending", "ready", "leased", "parked", "drained", "cancelled", "draining"]
    priority: int | float = PRIORITY
    attempts: int | float = 0
    enqueued_at: str | None = None
    next_eligible_at: str | None = None
    lease_expires_at: str | None = None
    drained_at: str | None = None
    parked_reason: str | None = None
    run_id: str | None = None
    app_id: str | None = None
    workflow_id: str | None = None
    repo: str | None = None
    note: str | None = None


# Returns the submission of an entry: its id, params, priority and start time.
Submit = Callable[[str, JsonMapping, int, str | None], Submission]


# -------------------------------------------------------------------- queue.json


def queue_entries(document: JsonMapping, submit: Submit) -> list[QueueEntry]:
    """Return the entries of a queue file in the order in which they were added.

    Raise `InvalidRequest` that lists the problems.
    """
    if document.get("schemaVersion") != SCHEMA_VERSION or document["schemaVersion"] is True:
        raise InvalidRequest("field 'schemaVersion' must be 1; other versions are not supported")
    unknown = next((name for name in document if name not in ("schemaVersion", "entries")), None)
    if unknown is not None:
        raise InvalidRequest(f"unknown field '{unknown[:40]}'{nearest(unknown, ['entries'])}")
    found = document.get("entries")
    if not isinstance(found, list):
        raise InvalidRequest("field 'entries' must be a list of entries")
    if len(found) > ENTRIES_MAX:
        raise InvalidRequest(
            f"field 'entries' must not have more than {ENTRIES_MAX} entries; split the file"
        )
    entries = _checked(found, submit)
    return sorted(entries, key=lambda one: (one.enqueued_at or 0, one.submission.id))


def _checked(found: Sequence[object], submit: Submit) -> list[QueueEntry]:
    problems: list[str] = []
    entries: list[QueueEntry] = []
    seen: set[str] = set()
    for number, one in enumerate(found):
        name = f"entries[{number}]"
        try:
            entry = _entry(one, submit)
        except InvalidRequest as error:
            problems.append(f"{name}: {error.message}")
            continue
        if entry.submission.id in seen:
            problems.append(f"{name}: the id '{entry.submission.id}' appears twice in the file")
        seen.add(entry.submission.id)
        entries.append(entry)
    if problems:
        more = len(problems) - PROBLEMS_SHOWN_MAX
        shown = "; ".join(problems[:PROBLEMS_SHOWN_MAX])
        raise InvalidRequest(shown + (f"; and {more} more" if more > 0 else ""))
    return entries


def _entry(one: object, submit: Submit) -> QueueEntry:
    if not isinstance(one, dict):
        raise InvalidRequest("an entry must be an object")
    entry = validation.convert(one, FileEntry)
    params = {name: one[name] for name in one if name not in _SCHEDULING}
    waits = entry.status in (PENDING, READY)
    made = submit(
        entry.id,
        params,
        _whole("priority", entry.priority),
        entry.next_eligible_at if waits else None,
    )
    ends = {LEASED: ("leaseExpiresAt", entry.lease_expires_at)}
    ends[DRAINED] = ("drainedAt", entry.drained_at)
    attempts = _whole("attempts", entry.attempts)
    if not 0 <= attempts <= model.PRIORITY_MAX:
        raise InvalidRequest("field 'attempts' must be a whole number of at least 0")
    return QueueEntry(
        submission=made,
        status=entry.status,
        enqueued_at=_moment("enqueuedAt", entry.enqueued_at),
        attempts=attempts,
        # The number of attempts is stored separately and shown again.
        reason=None if entry.parked_reason is None else _ATTEMPT.sub("", entry.parked_reason),
        ended_at=_moment(*ends.get(entry.status, ("", None))),
    )


def _whole(name: str, value: float) -> int:
    if not float(value).is_integer():
        raise InvalidRequest(f"field '{name}' must be a whole number")
    return int(value)


def _moment(name: str, text: str | None) -> int | None:
    try:
        return None if text is None else moments.parse(text)
    except ValueError as error:
        raise InvalidRequest(f"invalid {name} format: {error}") from None


# -------------------------------------------------------------------- scheduling-policy.json

# The policy path of each key of the file, all in one lane.
_PATHS: Final[Mapping[str, str]] = {
    "maxConcurrent": "maxInflight",
    "maxAttempts": "maxAttempts",
    "leaseTtlMs": "leaseTtlMs",
    "backoffBaseMs": "backoffMs",
    "backoffFactor": "backoffMultiplier",
    "backoffCapMs": "maxBackoffMs",
}
_VERSION: Final = "schemaVersion"
POLICY_KEYS: Final = frozenset({_VERSION, *_PATHS})


def flat_policy(policy: Policy) -> JsonObject:
    """Return the rules of the lane `queue` as a `scheduling-policy.json` has them.

    A policy without this lane has its defaults.
    """
    if LANE not in policy.lanes:
        lanes = {**policy.lanes, LANE: Policy().lanes[LANE]}
        policy = msgspec.structs.replace(policy, lanes=lanes)
    retries = policy.retries("handler", LANE)
    factor = retries.backoff_multiplier
    return {
        "maxConcurrent": policy.lanes[LANE].max_inflight,
        "maxAttempts": retries.max_attempts,
        "leaseTtlMs": policy.lease_ttl_ms(LANE),
        "backoffBaseMs": retries.backoff_ms,
        # 2, as in a file, not 2.0
        "backoffFactor": int(factor) if factor == int(factor) else factor,
        "backoffCapMs": retries.max_backoff_ms,
    }


def translated(document: JsonObject, problems: list[str]) -> JsonObject:
    """Return the document with Fairlane's keys; add its problems to `problems`.

    Refuse values that cool-workflow would silently replace with a default.
    """
    said = {key: document[key] for key in (*_PATHS, _VERSION) if key in document}
    if not said:
        return document
    result = {key: value for key, value in document.items() if key not in said}
    version = said.pop(_VERSION, SCHEMA_VERSION)
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        problems.append(f"{_VERSION} must be {SCHEMA_VERSION}; other versions are not supported")
    for key, value in said.items():
        rule = LANE_RULES[_PATHS[key]]
        assert isinstance(rule, Field)
        problem = None if value is None else rule.check(value)
        if problem:
            problems.append(f"{key} {problem}")
        else:
            documents.put(result, ("lanes", LANE, _PATHS[key]), value)
    return result
