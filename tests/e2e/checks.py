"""Checks of a finished run, from its history and its store.

Lost, unexpected, duplicated, recovered: the four classes of Jepsen's checker for queues. Each check
yields one line per problem; none is what a run has to come to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from fairlane.core.model import Task
from fairlane.engine.reads.views import Filter, TaskView, Views
from fairlane.store.opening import open_store
from tests.e2e.history import CANCEL_OK, INVOKE, MISSING, OK, SEEN, UNKNOWN, History

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

EVERYTHING = 10_000_000
ENDED = ("done", "failed", "cancelled")
PARKED = "parked"
WORKER_GONE = "worker stopped reporting: its lease expired"
CONNECTION_GONE = "worker gone: its connection ended before its lease"
GONE = (WORKER_GONE, CONNECTION_GONE)


class Final(msgspec.Struct):
    """A task as the store has it at the end."""

    key: str
    id: str
    seq: int
    kind: str
    lane: str
    state: str
    attempts: int
    max_attempts: int
    request: dict[str, Any]
    result: Any = None
    error: str | None = None
    callback: bool = False
    leased: bool = False


class Executed(NamedTuple):
    """An action that arrived at the tab instance."""

    key: str
    tab: str


class Webhook(NamedTuple):
    message_id: str
    task_id: str
    state: str


def finals(url: str) -> list[Final]:
    views = Views(open_store(url))
    try:
        found = list(_all_tasks(views))
    finally:
        views.close()
    return [_final(view) for view in reversed(found)]


def _all_tasks(views: Views) -> Iterator[TaskView]:
    before: int | None = None
    while True:
        page = views.search.page(Filter(before=before), EVERYTHING)
        yield from page
        if not page.more:
            return
        before = page[-1].task.seq


def _final(view: Any) -> Final:
    task, request = view.task, msgspec.json.decode(view.body)
    return Final(
        key=request["params"]["key"],
        id=task.id,
        seq=task.seq,
        kind=task.kind,
        lane=task.lane,
        state=task.state,
        attempts=task.attempts,
        max_attempts=task.max_attempts,
        request=request,
        result=None if view.result is None else msgspec.json.decode(view.result),
        error=view.error,
        callback=task.callback_url is not None,
        leased=task.leased,
    )


def leases(url: str) -> set[tuple[str, int]]:
    """The open leases: task and fencing token."""
    connection = open_store(url).reader()
    try:
        tasks = [Task(*row) for row in connection.run("task_leased")]
    finally:
        connection.close()
    return {(task.id, task.fencing_token) for task in tasks}


def disagreements(url: str) -> list[str]:
    """Counters that differ from what they count."""
    views = Views(open_store(url))
    try:
        return views.disagreements()
    finally:
        views.close()


# -------------------------------------------------------------------- nothing lost, nothing extra


def lost(history: History, tasks: Sequence[Final]) -> Iterator[str]:
    there = {task.id: task.key for task in tasks}
    for key, task_id in history.acknowledged:
        if there.get(task_id) != key:
            found = there.get(task_id, "nowhere")
            yield f"lost: {key} was acknowledged as {task_id}, which is {found}"
    for entries in history.by_key(MISSING).values():
        yield f"lost for a while: {entries[0].key} as {entries[0].id}: {entries[0].note}"


def unexpected(history: History, tasks: Sequence[Final]) -> Iterator[str]:
    asked = history.by_key(INVOKE)
    possible = history.by_key(OK, UNKNOWN)
    for task in tasks:
        if task.key not in asked:
            yield f"unexpected: {task.id} says it is {task.key}, which nobody asked for"
        elif task.key not in possible:
            yield f"unexpected: {task.key} was certainly refused, but is there as {task.id}"


def duplicated(tasks: Sequence[Final]) -> Iterator[str]:
    for key, count in Counter(task.key for task in tasks).items():
        if count > 1:
            yield f"duplicated: {key} is there {count} times"


def torn(history: History, tasks: Sequence[Final]) -> Iterator[str]:
    """A batch is there as a whole or not at all."""
    there = {task.key for task in tasks}
    batches: dict[str, set[str]] = defaultdict(set)
    for entries in history.by_key(INVOKE).values():
        batches[entries[0].group].add(entries[0].key)
    for group, keys in batches.items():
        if 0 < len(keys & there) < len(keys):
            yield f"torn: batch {group} has {len(keys & there)} of {len(keys)} tasks"


def recovered(history: History, tasks: Sequence[Final]) -> int:
    """How many are there although nobody ever got an answer."""
    acknowledged = {key for key, _ in history.acknowledged}
    return sum(task.key not in acknowledged for task in tasks)


# -------------------------------------------------------------------- each one ended well, once


def unfinished(tasks: Sequence[Final]) -> Iterator[str]:
    for task in tasks:
        if task.state not in (*ENDED, PARKED):
            yield f"unfinished: {task.key} is {task.state}"
        if task.leased:
            yield f"unfinished: {task.key} is {task.state} and still leased"


def changed_their_mind(history: History, tasks: Sequence[Final]) -> Iterator[str]:
    """Terminal is final, and a cancel that was acknowledged stays."""
    final = {task.key: task.state for task in tasks}
    for key, entries in history.by_key(SEEN).items():
        for entry in entries:
            if entry.note in ENDED and entry.note != final.get(key):
                yield f"changed: {key} was {entry.note} and is {final.get(key)}"
    for key in history.by_key(CANCEL_OK):
        if final.get(key) != "cancelled":
            yield f"changed: {key} was cancelled and is {final.get(key)}"


def badly_ended(tasks: Sequence[Final]) -> Iterator[str]:
    """Nothing fails by itself in these runs: a bad end is always a server that died."""
    for task in tasks:
        if not 0 <= task.attempts <= task.max_attempts:
            yield f"attempts: {task.key} had {task.attempts} of {task.max_attempts}"
        if task.state == "done":
            if task.attempts < 1 or not _is_answered(task):
                yield f"result: {task.key} is done after {task.attempts} tries: {task.result}"
        elif task.state in ("failed", PARKED):
            spent = task.attempts == task.max_attempts and task.error in GONE
            expected = "failed" if task.kind == "action" else PARKED
            if task.state != expected or not spent:
                yield f"end: {task.key} {task.state} ({task.attempts} tries): {task.error}"


def _is_answered(task: Final) -> bool:
    """Whether it carries the result of its own request and not of another's."""
    if task.kind == "action":
        return bool(task.result["result"]["received"]["key"] == task.key)
    if task.request["handler"] == "sleep":
        return bool(task.result == {"sleptMs": task.request["params"]["ms"]})
    return bool(task.result == task.request["params"])


def wrongly_executed(tasks: Sequence[Final], executed: Sequence[Executed]) -> Iterator[str]:
    """An action is carried out at most once, and in each tab in the order of submission."""
    times = Counter(one.key for one in executed)
    by_key = {task.key: task for task in tasks}
    for key, count in times.items():
        if key not in by_key:
            yield f"executed: {key} was carried out and is not there"
        elif count > 1:
            yield f"executed: {key} was carried out {count} times"
    for task in tasks:
        if task.kind == "action" and task.state == "done" and not times[task.key]:
            yield f"executed: {task.key} is done and was never carried out"
    last: dict[str, int] = {}
    for one in executed:
        seq = by_key[one.key].seq if one.key in by_key else 0
        if seq < last.get(one.tab, 0):
            yield f"executed: {one.key} was overtaken in {one.tab}"
        last[one.tab] = seq


def wrongly_told(tasks: Sequence[Final], webhooks: Sequence[Webhook]) -> Iterator[str]:
    """At least one webhook for each end that somebody wanted to hear of, always the same one."""
    by_id = {task.id: task for task in tasks}
    names: dict[str, set[str]] = defaultdict(set)
    for webhook in webhooks:
        names[webhook.task_id].add(webhook.message_id)
        task = by_id.get(webhook.task_id)
        if task is None or not task.callback:
            yield f"webhook: {webhook.message_id} is about {webhook.task_id}, which owed none"
        elif webhook.state != task.state:
            yield f"webhook: {task.key} is {task.state}, the webhook said {webhook.state}"
    for task_id, found in names.items():
        if len(found) > 1:
            yield f"webhook: {task_id} was told about under several ids: {sorted(found)}"
    for name, count in Counter(name for found in names.values() for name in found).items():
        if count > 1:
            yield f"webhook: the id {name} was used for {count} tasks"
    yield from (f"webhook: {task.key} owes one" for task in untold(tasks, webhooks))


def untold(tasks: Sequence[Final], webhooks: Sequence[Webhook]) -> list[Final]:
    told = {webhook.task_id for webhook in webhooks}
    return [task for task in tasks if task.callback and task.state in ENDED and task.id not in told]


def miscounted(tasks: Sequence[Final], stats: Mapping[str, Any]) -> Iterator[str]:
    """The totals that the server tells, kept over all its lives, against the tasks."""
    metrics, queue = stats["metrics"], stats["queue"]
    states = Counter(task.state for task in tasks)
    told = {
        "tasksSubmitted": len(tasks),
        "tasksCompleted": states["done"],
        "tasksFailed": states["failed"],
        "tasksCancelled": states["cancelled"],
        "tasksParked": states[PARKED],
        "tasksRejected": 0,
    }
    for name, count in told.items():
        if metrics[name] != count:
            yield f"counted: {name} is {metrics[name]}, but a recount gives {count}"
    ends = ("tasksCompleted", "tasksFailed", "tasksCancelled", "tasksParked")
    accounted = sum(metrics[name] for name in ends)
    accounted += queue["totalQueued"] + queue["totalInflight"]
    if metrics["tasksSubmitted"] != accounted:
        yield f"counted: {metrics['tasksSubmitted']} submitted, {accounted} accounted for"
