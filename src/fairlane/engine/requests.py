"""What callers ask of the writer: one small value per verb, in the order of a task's life.

The answer of each is named beside it; any of them may be answered with a `FairlaneError` instead.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairlane.core.model import Submission, Task
from fairlane.core.policy import Policy
from fairlane.core.sessions import Settings
from fairlane.core.templates import Template


class IdempotencyKey(msgspec.Struct, frozen=True):
    agent: str
    key: str
    digest: str


class NewBatch(msgspec.Struct, frozen=True):
    id: str
    agent: str
    parallelism: int | None = None
    callback_url: str | None = None


class Submit(msgspec.Struct, frozen=True, gc=False):
    """Answer: a list with a `Task` or an error per submission."""

    submissions: list[Submission]
    idempotency: IdempotencyKey | None = None
    batch: NewBatch | None = None


class Lease(msgspec.Struct, frozen=True):
    """Answer: a list of `Grant`. It waits until there is something to run, or `until`.

    `lanes` None means all; `routes` is what the worker can run; `started` are the routes whose
    tasks it begins at once.
    `until` is a moment of the monotonic clock, None for as long as it takes.
    """

    worker: str
    lanes: tuple[str, ...] | None
    routes: frozenset[str]
    limit: int
    ttl_ms: int
    started: frozenset[str] = frozenset()
    until: float | None = None


class Grant(msgspec.Struct, frozen=True, gc=False):
    """`inputs` are the ids, states and results (JSON text) of the tasks that it depended on."""

    task: Task
    body: str
    inputs: tuple[tuple[str, str, str | None], ...] = ()


class Start(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`."""

    seq: int
    token: int


class Renew(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`; a terminal state means that the worker should stop."""

    seq: int
    token: int
    ttl_ms: int


class Complete(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`. `result` is JSON text."""

    seq: int
    token: int
    result: str | None = None


class Fail(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`."""

    seq: int
    token: int
    error: str
    retryable: bool = True
    retry_after_ms: int | None = None


class Release(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`, queued again with its attempt given back."""

    seq: int
    token: int


class Output(msgspec.Struct, frozen=True, gc=False):
    """Answer: None. The next piece of text that a run has produced; ignored when it is over."""

    seq: int
    token: int
    part: int
    text: str


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`. `reason` is kept as its error."""

    id: str
    reason: str | None = None


class CancelBatch(msgspec.Struct, frozen=True, gc=False):
    """Answer: how many of its tasks were cancelled."""

    id: str


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`, failed or cancelled before, queued again."""

    id: str


class Reset(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`, parked before, queued again."""

    id: str


class Prune(msgspec.Struct, frozen=True):
    """Answer: how many ended tasks were forgotten in this step, or for a dry run could be."""

    dry_run: bool


class StopSession(msgspec.Struct, frozen=True):
    """Answer: `Stopped`. Only the oldest run, or all of them and everything that waits.

    A reset also counts a new generation.
    """

    key: str
    only_oldest: bool = False
    reset: bool = False


class Stopped(msgspec.Struct, frozen=True):
    """The ids of runs that were stopped and of what waited and will not run."""

    stopped: list[str]
    drained: list[str]
    generation: int


class SetSession(msgspec.Struct, frozen=True):
    """Answer: the `Session`. What is None stays as it was."""

    key: str
    settings: Settings


class SetUsage(msgspec.Struct, frozen=True):
    """Answer: the `Session`."""

    key: str
    tokens: int
    context_window: int


class SetPolicy(msgspec.Struct, frozen=True):
    """Answer: the `Policy` in force. `document` is laid over the policy that was."""

    document: dict[str, Any]
    source: str


class Reclaim(msgspec.Struct, frozen=True):
    """Answer: how many leases were taken back from workers whose name starts with `prefix`."""

    prefix: str


class ClaimDeliveries(msgspec.Struct, frozen=True):
    """Answer: a list of `OwedDelivery`, this caller's to send for `hold_ms`."""

    limit: int
    hold_ms: int = 20_000  # twice what a try may take


class ReclaimDeliveries(msgspec.Struct, frozen=True):
    """Answer: None. What was claimed and not settled is due at once: who claimed it is gone."""


class OwedDelivery(msgspec.Struct, frozen=True):
    id: str
    seq: int
    url: str
    event: str
    attempt: int


class SettleDelivery(msgspec.Struct, frozen=True):
    """Answer: None. Neither delivered nor a time for the next try: given up."""

    id: str
    delivered: bool
    error: str | None = None
    retry_after_ms: int | None = None


class CreateTemplate(msgspec.Struct, frozen=True):
    """Answer: the `Template`. `document` is what the caller sent, not checked yet."""

    id: str
    document: dict[str, Any]


class UpdateTemplate(msgspec.Struct, frozen=True):
    """Answer: the `Template`. `document` is laid over the definition that was."""

    id: str
    document: dict[str, Any]


class UseTemplate(msgspec.Struct, frozen=True):
    """Answer: as for `submit`; an empty list when nothing is submitted."""

    id: str
    submit: Submit | None = None


class DeleteTemplate(msgspec.Struct, frozen=True):
    """Answer: None."""

    id: str


class UseSecret(msgspec.Struct, frozen=True):
    """Answer: the webhook secret in force; `candidate` is kept when there was none."""

    candidate: str


Answer = Task | Policy | Template | list[Any] | int | str | None
