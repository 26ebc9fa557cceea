"""The nouns: a submission, the scheduling row of a task, and a change.

Times are integer milliseconds since the epoch and end in `_at`; durations end in `_ms`. A `Task` is
the small row that changes; its request never changes and is stored separately. Both databases store
the fields of `Task` in this order. There are many of these objects and none can be part of a cycle,
so the garbage collector skips them (`gc=False`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from fairlane.core import lifecycle
from fairlane.core.approvals import ApprovalRequest
from fairlane.core.json_types import JsonObject
from fairlane.core.sessions import MessageSettings

ACTION: Final = "action"
HANDLER: Final = "handler"
INSTRUCTION: Final = "instruction"

PRIORITY_NAMES: Final = {"critical": -20, "high": -10, "normal": 0, "low": 10}
CRITICAL: Final = -20
PRIORITY_MAX: Final = 1_000_000

DEPENDENCY_GATE: Final = "dependency"
DELAY_GATE: Final = "delay"
APPROVAL_GATE: Final = "approval"
DEBOUNCE_GATE: Final = "debounce"
SESSION_GATE: Final = "session"
BATCH_GATE: Final = "batch"
RESOURCE_GATE: Final = "resource"
SUSPEND_GATE: Final = "suspend"

RUN_PREFIX: Final = "cron_"  # prefix of the ids of tasks that cron submits
NODE_PREFIX: Final = "node_"  # prefix of the names of workers inside servers

ORPHANED: Final = -1  # `Task.unmet` of a task that was cancelled because of a dependency


class Message(msgspec.Struct, frozen=True, gc=False):
    """The fields that make a submission a message of its session.

    `no_merge` keeps it separate from others. `tokens` and `context_window` report the session's
    usage.
    """

    text: str
    sender: str
    sent_at: int | None = None
    no_merge: bool = False
    settings: MessageSettings = msgspec.field(default_factory=MessageSettings)
    tokens: int | None = None
    context_window: int | None = None


class Submission(msgspec.Struct, frozen=True, gc=False):
    """A task to be admitted. Its form is checked; the policy has not been applied yet.

    `capability` is what a worker must have to run it. `needs` are amounts as written; the policy
    may add to them (`resources.read_needs`). `body` is the request as JSON text: what an
    executor gets and `GET /tasks/{id}` shows. `submitter` is the id of the token that sent it.
    With `once`, a task that exists under this id is the same submission, sent before.
    """

    id: str
    kind: str
    agent: str
    capability: str
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
    once: bool = False
    needs: dict[str, JsonObject] | None = None
    approval: ApprovalRequest | None = None
    submitter: str | None = None
    child_of: str | None = None


class Task(msgspec.Struct, gc=False):
    """The scheduling row. `fencing_token` is that of the newest lease, 0 before the first
    (`leases.fencing_token_base` says how they are numbered). `capability` is what a worker must
    have.

    A lease is open while `lease_expires_at` is set. It outlives a cancelled or expired task until
    the worker has really stopped, because the slot is not free before that. `line` is the number of
    its line, `rank` its place there: the smallest goes first. `unmet` counts the dependencies that
    are not done yet, None if it never had any. `preempt` is None for work that must not be
    interrupted, 1 once it was asked to make room. `unapproved` is 1 while an approval is open, 0
    once it is decided, None if it never had one. `delay_ms` and `deadline_ms` are the durations
    that end at `eligible_at` and `deadline_at`, None if the caller named the time. `needs` are
    amounts of resources in micro-units, as JSON text, and `wait` is the number of the line in which
    it waits for them; both are None for a task without needs. `steps` is how many steps its runs
    have recorded, None if none. `budget` is the session and the batch whose budgets it uses as JSON
    text, None if they are its own.
    """

    seq: int
    id: str
    kind: str
    lane: str
    agent: str
    capability: str
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
    fencing_token: int = 0
    worker: str | None = None
    lease_expires_at: int | None = None
    callback_url: str | None = None
    unmet: int | None = None
    preempt: int | None = None
    delay_ms: int | None = None
    deadline_ms: int | None = None
    unapproved: int | None = None
    needs: str | None = None
    wait: int | None = None
    steps: int | None = None
    budget: str | None = None

    @property
    def ready(self) -> bool:
        return self.state == lifecycle.QUEUED and self.gate is None

    @property
    def leased(self) -> bool:
        return self.lease_expires_at is not None

    @property
    def terminal(self) -> bool:
        return self.state in lifecycle.TERMINAL


# Equals `copy.copy` without its overhead: a row is copied for each of its changes.
_copy = "__copy__"  # missing in msgspec's stubs
copied: Final[Callable[[Task], Task]] = getattr(Task, _copy)


class Change(msgspec.Struct, gc=False):
    """One decided transition: the row before (None for a new task) and after, and the reason.

    `result` and `error` are stored with the task when it ends. `result` is JSON text.
    """

    before: Task | None
    after: Task
    verb: str
    result: str | None = None
    error: str | None = None
    waited_ms: int = 0


def capability_of(kind: str, name: str | None = None) -> str:
    """Return what a worker must be able to run: `action`, `instruction` or `handler/<name>`."""
    return kind if name is None else f"{kind}/{name}"


def is_open(capability: str) -> bool:
    """Return whether any worker may offer this handler. A name in parentheses belongs to one
    process.
    """
    return capability.startswith(f"{HANDLER}/") and not capability.startswith(f"{HANDLER}/(")


def is_run(task_id: str) -> bool:
    """Return whether a task is a run of a cron job."""
    return task_id.startswith(RUN_PREFIX)


def is_node(worker: str | None) -> bool:
    return worker is not None and worker.startswith(NODE_PREFIX)


def lease_id(seq: int, fencing_token: int) -> str:
    """Return task number and fencing token in one word: an old lease id is never valid again."""
    return f"lse_{seq}_{fencing_token}"


def parse_lease_id(text: str) -> tuple[int, int] | None:
    """Return the task's number and the fencing token; None if it is not a lease id."""
    prefix, _, numbers = text.partition("_")
    seq, _, fencing_token = numbers.partition("_")
    if prefix != "lse" or not (_is_number(seq) and _is_number(fencing_token)):
        return None
    return int(seq), int(fencing_token)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18
