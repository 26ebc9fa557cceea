"""Repeated submissions: a task that exists under the id of a submission is the answer to it.

Lines of a task stream have ids that follow from their keys, so the lookup needs no table of keys.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from fairlane.core import lifecycle
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
        found[one.id]
        if (
            _is_stored(one, stored[one.id], texts[one.id])
            if one.id in stored
            else _is_same(one, first[one.id])
        )
        else _conflict()
        for one in request.submissions
    ]


def _is_same(one: Submission, other: Submission) -> bool:
    return one is other or one == other


def _is_stored(one: Submission, task: Task, body: str) -> bool:
    """Return whether a task was made from an equal request, whatever trace and generation of its
    session that belonged to.

    Times are left out: a retry, a dependency or a policy may have set them. What a rejected task
    has lost is not compared.
    """
    if one.agent != task.agent or one.priority != task.priority:
        return False
    if one.lane is not None and one.lane != task.lane:
        return False
    kept = task.state != lifecycle.REJECTED
    if kept and (one.session, one.callback_url) != (task.session, task.callback_url):
        return False
    return one.body == body or _bare(one.body) == _bare(body)


def _bare(body: str) -> JsonObject | None:
    try:
        request = msgspec.json.decode(body, type=JsonObject)
    except msgspec.DecodeError:
        return None
    request.pop(HEADER, None)
    request.pop("generation", None)
    return request


def _conflict() -> IdempotencyConflict:
    return IdempotencyConflict(
        "this line was already submitted with a different task; use a new key for a new task"
    )
