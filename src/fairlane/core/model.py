"""The nouns: what a caller submits, the scheduling row of a task, and what a verb changes.

Moments are integer milliseconds since the epoch and end in `_at`; spans end in `_ms`.
A `Task` is the small row that changes; the request that it was made from never changes and is
kept apart. Both databases store the fields of `Task` in this order. There are many of these and
none can be part of a cycle, so the garbage collector is spared them (`gc=False`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from fairlane.core import lifecycle
from fairlane.core.sessions import MessageSettings

ACTION: Final = "action"
HANDLER: Final = "handler"
INSTRUCTION: Final = "instruction"

PRIORITY_NAMES: Final = {"critical": -20, "high": -10, "normal": 0, "low": 10}
CRITICAL: Final = -20
PRIORITY_MAX: Final = 1_000_000

DEPENDENCY_GATE: Final = "dependency"
DELAY_GATE: Final = "delay"
DEBOUNCE_GATE: Final = "debounce"
SESSION_GATE: Final = "session"
BATCH_GATE: Final = "batch"

RUN_PREFIX: Final = "cron_"  # how the ids of tasks begin that cron has submitted, and no others
NODE_PREFIX: Final = "node_"  # how the workers inside servers are named, and nobody else

ORPHANED: Final = -1  # `Task.unmet` of a task that was cancelled because of a dependency


class Message(msgspec.Struct, frozen=True, gc=False):
    """What makes a submission a message of its session.

    `no_merge` keeps it apart from others. `tokens` and `context_window` tell the session's usage.
    """

    text: str
    sender: str
    sent_at: int | None = None
    no_merge: bool = False
    settings: MessageSettings = msgspec.field(default_factory=MessageSettings)
    tokens: int | None = None
    context_window: int | None = None


class Submission(msgspec.Struct, frozen=True, gc=False):
    """One piece of work asked for, checked for form; policy has not been applied yet.

    `body` is the request as JSON text: what an executor gets and `GET /tasks/{id}` shows.
    """

    id: str
    kind: str
    agent: str
    route: str
    body: str
    lane: str | None = None
    priority: int = 0
    session: str | None = None
    deadline_at: int | None = None
    deadline_ms: int | None = None
    callback_url: str | None = None
    batch: str | None = None
    depends_on: tuple[str, ...] = ()
    run_at: int | None = None
    delay_ms: int | None = None
    max_attempts: int | None = None
    preemptible: bool = False
    message: Message | None = None


class Task(msgspec.Struct, gc=False):
    """The scheduling row. `token` is the fencing token of the newest lease, 0 before the first
    (`leases.token_base` says how tokens are numbered).

    A lease is open while `lease_expires_at` is set. It outlives a cancelled or expired task until
    the worker has really stopped, because the slot is not free before that.
    `line` is the number of the line it stands in, `rank` its place there: the smallest goes first.
    `unmet` counts the dependencies that are not done yet, None when it never had any.
    `preempt` is None for work that must not be interrupted, 1 once it has been asked to make room.
    `delay_ms` and `deadline_ms` are the spans that `eligible_at` and `deadline_at` are the ends of,
    None where the caller named the moment.
    """

    seq: int
    id: str
    kind: str
    lane: str
    agent: str
    route: str
    line: int
    priority: int
    rank: int
    state: str
    gate: str | None
    session: str | None
    batch: str | None
    attempts: int
    max_attempts: int
    position: int
    created_at: int
    deadline_at: int | None = None
    eligible_at: int | None = None
    queued_at: int = 0
    started_at: int | None = None
    completed_at: int | None = None
    token: int = 0
    worker: str | None = None
    lease_expires_at: int | None = None
    callback_url: str | None = None
    unmet: int | None = None
    preempt: int | None = None
    delay_ms: int | None = None
    deadline_ms: int | None = None

    @property
    def ready(self) -> bool:
        return self.state == lifecycle.QUEUED and self.gate is None

    @property
    def leased(self) -> bool:
        return self.lease_expires_at is not None

    @property
    def terminal(self) -> bool:
        return self.state in lifecycle.TERMINAL


# What `copy.copy` comes to, without its detour: a row is copied for each of its changes.
_copy = "__copy__"  # which msgspec's stubs leave out
copied: Final[Callable[[Task], Task]] = getattr(Task, _copy)


class Change(msgspec.Struct, gc=False):
    """One decided transition: the row before (None for a new task) and after, and why.

    `result` and `error` are kept with the task when it ends. `result` is JSON text.
    """

    before: Task | None
    after: Task
    verb: str
    result: str | None = None
    error: str | None = None
    waited_ms: int = 0


def route_of(kind: str, name: str | None = None) -> str:
    """What a worker must be able to run: `action`, `instruction`, or `handler/<name>`."""
    return kind if name is None else f"{kind}/{name}"


def is_open(route: str) -> bool:
    """Whether a handler's route is for any worker. A name in parentheses is one process's own."""
    return route.startswith(f"{HANDLER}/") and not route.startswith(f"{HANDLER}/(")


def is_run(task_id: str) -> bool:
    """Whether a task is a run of a cron job."""
    return task_id.startswith(RUN_PREFIX)


def is_node(worker: str | None) -> bool:
    return worker is not None and worker.startswith(NODE_PREFIX)


def lease_id(seq: int, token: int) -> str:
    """Task and fencing token in one word, so an old lease id can never be valid again."""
    return f"lse_{seq}_{token}"


def parse_lease_id(text: str) -> tuple[int, int] | None:
    """The task's sequence number and the token, or None when it is no lease id."""
    prefix, _, numbers = text.partition("_")
    seq, _, token = numbers.partition("_")
    if prefix != "lse" or not (_is_number(seq) and _is_number(token)):
        return None
    return int(seq), int(token)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18
