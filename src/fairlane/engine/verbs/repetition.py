"""Repeated submissions: a task that exists under the id of a submission is the answer to it.

Lines of a task stream have ids that follow from their keys, so the lookup needs no table of keys.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlane.core.errors import FairlaneError, IdempotencyConflict
from fairlane.core.json_types import JsonObject
from fairlane.core.model import Submission, Task
from fairlane.engine.commands import Submit
from fairlane.store.transaction import Transaction
from fairlane.tracing import HEADER

Outcome = Task | FairlaneError


def submit_once(tx: Transaction, request: Submit, submit: Callable[[Submit], object]) -> object:
    """Return the outcome of each submission; only those without a task are passed to `submit`."""
    if not any(one.once for one in request.submissions):  # nearly every request
        return submit(request)
    first: dict[str, Submission] = {}
    for one in request.submissions:
        first.setdefault(one.id, one)
    stored = tx.tasks_by_id(id_ for id_, one in first.items() if one.once)
    bodies = tx.lookup.requests(task.seq for task in stored.values()) if stored else {}
    new = [one for id_, one in first.items() if id_ not in stored]
    found: dict[str, Outcome] = dict(stored)
    if new:
        answers = submit(msgspec.structs.replace(request, submissions=new))
        if not isinstance(answers, list):
            return answers
        found.update(zip((one.id for one in new), answers, strict=True))
    texts = {id_: bodies.get(task.seq, "") for id_, task in stored.items()}
    return [
        found[one.id] if _is_same(one, texts.get(one.id, first[one.id].body)) else _conflict()
        for one in request.submissions
    ]


def _is_same(one: Submission, stored: str) -> bool:
    """Return whether a request equals the stored one, whatever trace it belongs to."""
    return one.body == stored or _untraced(one.body) == _untraced(stored)


def _untraced(body: str) -> JsonObject | None:
    try:
        request = msgspec.json.decode(body, type=JsonObject)
    except msgspec.DecodeError:
        return None
    request.pop(HEADER, None)
    return request


def _conflict() -> IdempotencyConflict:
    return IdempotencyConflict(
        "this line was already submitted with a different task; use a new key for a new task"
    )
