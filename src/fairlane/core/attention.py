"""What needs the attention of an operator, each with a sentence and the command that fixes it.

The functions get facts that were read with a limit, so a list may be a part of what there is; the
counts of such items are then lower bounds. Nothing here is about work that only takes its time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from fairlane.core import lifecycle, moments
from fairlane.core.counts import Tally
from fairlane.core.errors import EffectUnknown
from fairlane.core.explain import Ceiling, Why
from fairlane.core.model import HANDLER, INSTRUCTION, Task
from fairlane.core.policy import Policy
from fairlane.core.webhooks import origin
from fairlane.core.workers import SILENT, KnownWorker

DISABLED: Final = "disabled"
NODE: Final = "node"
NO_WORKER: Final = "noWorker"
PAUSED: Final = "paused"
CLOSED: Final = "closed"
STUCK: Final = "stuck"
DEPENDENCY: Final = "dependency"
PARKED: Final = "parked"
CRON: Final = "cron"
WEBHOOK: Final = "webhook"
APPROVAL: Final = "approval"
KINDS: Final = (
    *(DISABLED, NODE, NO_WORKER, PAUSED, CLOSED, STUCK),
    *(DEPENDENCY, PARKED, CRON, WEBHOOK, APPROVAL),
)

READY_MS: Final = 5 * 60_000  # from then on a task that only needs a slot counts as stuck
GATED_MS: Final = 30 * 60_000  # and one behind a gate
APPROVAL_MS: Final = 60 * 60_000
WEBHOOK_MS: Final = 24 * 60 * 60_000
SHOWN_MAX: Final = 10  # items of each kind
NAMED_MAX: Final = 5  # tasks of each item
_TEXT_MAX: Final = 160


class Unoffered(msgspec.Struct, frozen=True):
    """Ready tasks of a lane that no worker can run. `text` says why."""

    lane: str
    capability: str
    text: str
    count: int


class OpenEdge(msgspec.Struct, frozen=True):
    """A task waits for a parent that is parked, or does not exist (`state` is None)."""

    child: str
    parent: str
    state: str | None
    since_at: int


class FailingJob(msgspec.Struct, frozen=True):
    id: str
    name: str
    errors: int
    error: str | None
    last_run_at: int | None
    stopped: bool  # disabled because of its errors


class GivenUp(msgspec.Struct, frozen=True):
    id: str
    url: str
    error: str | None
    created_at: int


class ClosedAccount(msgspec.Struct, frozen=True):
    resource: str
    key: str
    until: int
    reason: str | None


class LateApproval(msgspec.Struct, frozen=True):
    id: str
    title: str
    opened_at: int


class Troubles(msgspec.Struct):
    """The facts. `stuck` are the oldest tasks, which are explained one by one."""

    now: int
    policy: Policy
    tallies: Mapping[str, Tally]
    unoffered: Sequence[Unoffered] = ()
    stuck: Sequence[Task] = ()
    parked: Sequence[tuple[Task, str | None]] = ()
    edges: Sequence[OpenEdge] = ()
    jobs: Sequence[FailingJob] = ()
    given_up: Sequence[GivenUp] = ()
    closed: Sequence[ClosedAccount] = ()
    approvals: Sequence[LateApproval] = ()


class AttentionItem(msgspec.Struct, frozen=True):
    """`count` is how many tasks, webhooks or the like it is about; `tasks` are ids of the first."""

    kind: str
    text: str
    command: str
    count: int = 1
    since_at: int | None = None
    tasks: tuple[str, ...] = ()
    lane: str | None = None


def items(
    found: Troubles, workers: Iterable[KnownWorker], reasons: Mapping[str, Why]
) -> list[AttentionItem]:
    """Return what needs attention, the most urgent kinds first. `reasons` explain stuck tasks."""
    lists = (
        _disabled(found),
        _nodes(workers),
        _no_worker(found),
        _paused(found),
        _closed(found),
        _stuck(found, reasons),
        _dependencies(found),
        _parked(found),
        _cron(found),
        _webhooks(found),
        _approvals(found),
    )
    return [one for some in lists for one in list(some)[:SHOWN_MAX]]


def _disabled(found: Troubles) -> Iterator[AttentionItem]:
    if not found.policy.enabled:
        text = "the policy refuses all submissions (enabled is false)"
        yield AttentionItem(DISABLED, text, "fairlane policy set enabled=true")


def _nodes(workers: Iterable[KnownWorker]) -> Iterator[AttentionItem]:
    for one in workers:
        if one.is_node and one.state == SILENT and one.address is not None:
            text = (
                f"node {one.name} on {one.address} sends no heartbeats; other nodes run its tasks"
            )
            yield AttentionItem(NODE, text, "fairlane serve", since_at=one.seen_at)


def _no_worker(found: Troubles) -> Iterator[AttentionItem]:
    for one in found.unoffered:
        command = "fairlane worker MODULE:NAME"
        if not one.capability.startswith(HANDLER):
            option = "--agent URL" if one.capability == INSTRUCTION else "--instance URL"
            command = f"fairlane serve {option}"
        text = f"{_counted(one.count, 'task')} in lane {one.lane} cannot start: {one.text}"
        yield AttentionItem(NO_WORKER, text, command, one.count, lane=one.lane)


def _paused(found: Troubles) -> Iterator[AttentionItem]:
    for name, lane in found.policy.lanes.items():
        waiting = found.tallies[name].queued if name in found.tallies else 0
        if lane.paused and waiting:
            text = f"lane {name} is paused and {_counted(waiting, 'task waits', 'tasks wait')}"
            yield AttentionItem(PAUSED, text, f"fairlane lanes resume {name}", waiting, lane=name)


def _closed(found: Troubles) -> Iterator[AttentionItem]:
    for one in found.closed:
        key = f" --key {one.key}" if one.key else ""
        label = f"{one.resource}/{one.key}" if one.key else one.resource
        why = f": {_cut(one.reason)}" if one.reason else ""
        text = f"resource {label} is closed until {moments.text(one.until)}{why}"
        yield AttentionItem(CLOSED, text, f"fairlane resources open {one.resource}{key}")


def _stuck(found: Troubles, reasons: Mapping[str, Why]) -> Iterator[AttentionItem]:
    for task in found.stuck:
        why = reasons.get(task.id)
        if why is None or task.terminal:
            continue
        command = _raising(why.ceiling) or f"fairlane why {task.id}"
        since = moments.text(task.queued_at)
        text = f"task {task.id} of {task.agent} has been waiting since {since}: "
        yield AttentionItem(
            STUCK,
            text + why.reason,
            command,
            since_at=task.queued_at,
            tasks=(task.id,),
            lane=task.lane,
        )


def _raising(ceiling: Ceiling | None) -> str | None:
    """Return the command that raises a full ceiling."""
    if ceiling is None:
        return None
    return f"fairlane policy set {ceiling.setting}={max(1, ceiling.limit) * 2}"


def _dependencies(found: Troubles) -> Iterator[AttentionItem]:
    by_parent: dict[str, list[OpenEdge]] = {}
    for one in found.edges:
        by_parent.setdefault(one.parent, []).append(one)
    for parent, edges in by_parent.items():
        children = tuple(one.child for one in edges)
        waiting = _counted(len(edges), "task waits", "tasks wait")
        if edges[0].state is None:
            text = f"{waiting} for {parent}, which does not exist"
            command = f"fairlane cancel {' '.join(children[:NAMED_MAX])}"
        else:
            text = f"{waiting} for {parent}, which is {edges[0].state}"
            command = f"fairlane reset {parent}"
        yield AttentionItem(
            DEPENDENCY,
            text,
            command,
            len(edges),
            min(one.since_at for one in edges),
            children[:NAMED_MAX],
        )


def _parked(found: Troubles) -> Iterator[AttentionItem]:
    """Yield parked tasks by capability and reason, the most frequent first."""
    groups: dict[tuple[str, str, str], list[Task]] = {}
    for task, error in found.parked:
        reason = _cut(error or "without an error message")
        groups.setdefault((task.lane, task.capability, reason), []).append(task)
    for (lane, capability, reason), tasks in sorted(groups.items(), key=lambda one: -len(one[1])):
        name = capability.removeprefix(f"{HANDLER}/")
        which = f"--handler {name}" if name != capability else f"--kind {capability}"
        command = f"fairlane reset --state parked --lane {lane} {which}"
        if len(tasks) <= NAMED_MAX:
            command = f"fairlane reset {' '.join(one.id for one in tasks)}"
        if reason.startswith(EffectUnknown.code):  # a reset would only park it again
            command = f"fairlane show {tasks[0].id}"
        counted = _counted(len(tasks), "task is", "tasks are")
        yield AttentionItem(
            PARKED,
            f"{counted} parked ({name} in lane {lane}): {reason}",
            command,
            len(tasks),
            min(one.completed_at or one.queued_at for one in tasks),
            tuple(one.id for one in tasks[:NAMED_MAX]),
            lane,
        )


def _cron(found: Troubles) -> Iterator[AttentionItem]:
    for job in found.jobs:
        why = f": {_cut(job.error)}" if job.error else ""
        times = _counted(job.errors, "time", "times in a row")
        text = f"cron job {job.name} failed {times}{why}"
        command = f"fairlane cron run {job.id}"
        if job.stopped:
            text, command = (
                f"{text}; the job was disabled because of that",
                f"fairlane cron on {job.id}",
            )
        yield AttentionItem(CRON, text, command, job.errors, job.last_run_at)


def _webhooks(found: Troubles) -> Iterator[AttentionItem]:
    by_url: dict[str, list[GivenUp]] = {}
    for one in found.given_up:
        by_url.setdefault(origin(one.url), []).append(one)
    for url, some in by_url.items():
        ids = " ".join(one.id for one in some[:NAMED_MAX])
        last = max(some, key=lambda one: one.created_at)
        why = f": {_cut(last.error)}" if last.error else ""
        text = f"{_counted(len(some), 'webhook')} to {url} given up in the last day{why}"
        command = f"fairlane deliveries redeliver {ids}"
        yield AttentionItem(WEBHOOK, text, command, len(some), min(one.created_at for one in some))


def _approvals(found: Troubles) -> Iterator[AttentionItem]:
    for one in found.approvals:
        since = moments.text(one.opened_at)
        text = f'"{_cut(one.title)}" has been waiting for a decision since {since}'
        yield AttentionItem(APPROVAL, text, f"fairlane approve {one.id}", since_at=one.opened_at)


def _counted(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def _cut(text: str) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_MAX else f"{line[:_TEXT_MAX]}…"


def may_be_stuck(task: Task, now: int) -> bool:
    """Return whether a task has waited long enough to be checked."""
    if task.state != lifecycle.QUEUED:
        return False
    return now - task.queued_at >= (READY_MS if task.gate is None else GATED_MS)
