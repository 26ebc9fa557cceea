"""What callers ask of the writer: one small value per verb, in the order of a task's life.

The answer of each is named beside it; any of them may be answered with a `FairlaneError` instead.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairlane.core import audit
from fairlane.core.access import Caller, Token
from fairlane.core.cron import Job, RunRecord
from fairlane.core.entries import QueueEntry
from fairlane.core.job_documents import JobDocument
from fairlane.core.json_types import JsonObject
from fairlane.core.model import Submission, Task
from fairlane.core.policy import Policy
from fairlane.core.sessions import SessionSettings
from fairlane.core.templates import Template, TemplateDefinition


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
    """Answer: a list with a `Task` or an error per submission.

    `caller` is who submits, None for those who may do all.
    """

    submissions: list[Submission]
    idempotency: IdempotencyKey | None = None
    batch: NewBatch | None = None
    caller: Caller | None = None


class Lease(msgspec.Struct, frozen=True):
    """Answer: a list of `Grant`. It waits until there is something to run, or `until`.

    `lanes` None means all; `routes` is what the worker can run, with `any_handler` besides every
    handler that is not one process's own; `started` are the routes whose tasks it begins at once,
    with `start` that is all of them.
    `ttl_ms` None is what the policy says.
    `until` is a moment of the monotonic clock, None for as long as it takes. `agent` is the one
    whose tasks may be leased, None for all.
    """

    worker: str
    lanes: tuple[str, ...] | None
    routes: frozenset[str]
    limit: int
    ttl_ms: int | None
    started: frozenset[str] = frozenset()
    until: float | None = None
    any_handler: bool = False
    start: bool = False
    agent: str | None = None


class Grant(msgspec.Struct, frozen=True, gc=False):
    """`inputs` are the ids, states and results (JSON text) of the tasks that it depended on.

    `at` is the moment of the transaction that has granted it.
    """

    task: Task
    body: str
    inputs: tuple[tuple[str, str, str | None], ...] = ()
    at: int = 0


class Start(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`."""

    seq: int
    token: int


class Renew(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`; a terminal state means that the worker should stop.

    `ttl_ms` None is what the policy says; `progress` is JSON text that is told as an event.
    """

    seq: int
    token: int
    ttl_ms: int | None
    progress: str | None = None


class Complete(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`. `result` is JSON text.

    `begun`: it was begun, whether that has been said or not.
    """

    seq: int
    token: int
    result: str | None = None
    begun: bool = False


class Fail(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`. `begun` as with `Complete`."""

    seq: int
    token: int
    error: str
    retryable: bool = True
    retry_after_ms: int | None = None
    begun: bool = False


class Release(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`, queued again with its attempt given back."""

    seq: int
    token: int


class AppendOutput(msgspec.Struct, frozen=True, gc=False):
    """Answer: None. The next piece of text that a run has produced; ignored when it is over.

    `part` None comes behind what there is. Who is not `trusted` is cut off at the limit of an
    attempt's output, and told when the lease is over.
    """

    seq: int
    token: int
    part: int | None
    text: str
    trusted: bool = True


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


class Enqueue(msgspec.Struct, frozen=True):
    """Answer: a list with the `Task` of each entry; all of them, or an error and none."""

    entries: list[QueueEntry]
    caller: Caller | None = None


class Drain(msgspec.Struct, frozen=True):
    """Answer: `Drained`. Hand over up to `limit` entries for good, as far as the ceiling allows.

    `agent` is whose entries, None for all.
    """

    limit: int
    agent: str | None = None


class Drained(msgspec.Struct, frozen=True):
    """What was handed over, and how many entries wait after that."""

    grants: list[Grant]
    remaining: int


class ReclaimExpired(msgspec.Struct, frozen=True):
    """Answer: `ReclaimedLeases`. Reclaim expired leases now instead of with the next tick.

    All of them are reclaimed; with `agent`, the answer names only that agent's tasks.
    """

    agent: str | None = None


class ReclaimedLeases(msgspec.Struct, frozen=True):
    """The ids of the tasks; `more` says that further leases may have expired."""

    ids: list[str]
    now: int
    more: bool


class Prune(msgspec.Struct, frozen=True):
    """Answer: how many ended tasks were forgotten in this step, or for a dry run could be."""

    dry_run: bool


class StopSession(msgspec.Struct, frozen=True):
    """Answer: `StoppedRuns`. Only the oldest run, or all of them and everything that waits.

    A reset also counts a new generation. With `agent` the session has to be that agent's, and only
    its tasks are stopped.
    """

    key: str
    only_oldest: bool = False
    reset: bool = False
    agent: str | None = None


class StoppedRuns(msgspec.Struct, frozen=True):
    """The ids of runs that were stopped and of what waited and will not run."""

    stopped: list[str]
    drained: list[str]
    generation: int


class SetSession(msgspec.Struct, frozen=True):
    """Answer: the `Session`. What is None stays as it was; what `unset` names, the policy says.

    With `agent` it has to be that agent's, or nobody's yet.
    """

    key: str
    settings: SessionSettings
    unset: frozenset[str] = frozenset()
    agent: str | None = None


class SetUsage(msgspec.Struct, frozen=True):
    """Answer: the `Session`. `agent` as with `SetSession`."""

    key: str
    tokens: int
    context_window: int
    agent: str | None = None


MERGE: Final = "merge"
REPLACE: Final = "replace"
PATCH: Final = "patch"


class SetPolicy(msgspec.Struct, frozen=True):
    """Answer: a `PolicyChange`. `how` says what becomes of what `document` does not name.

    `source` is the way it came, `author` who wanted it and `note` why. With `expected_version` it
    is refused when another is in force; a `dry_run` only tells what would be.
    """

    document: JsonObject
    source: str
    how: str = MERGE
    author: str | None = None
    note: str | None = None
    expected_version: int | None = None
    dry_run: bool = False


class PolicyChange(msgspec.Struct, frozen=True):
    """The version in force, the policy before and the one after."""

    version: int
    before: Policy
    after: Policy


class Reclaim(msgspec.Struct, frozen=True):
    """Answer: how many leases were taken back from workers whose name starts with `prefix`."""

    prefix: str


class Beat(msgspec.Struct, frozen=True):
    """Answer: None. A node is there, or `leaves`. `alone`: no other can serve from its store."""

    name: str
    host: str
    pid: int
    version: str
    started_at: int
    draining: bool = False
    leaves: bool = False
    alone: bool = False


class ClaimDeliveries(msgspec.Struct, frozen=True):
    """Answer: a list of `OwedDelivery`, this caller's to send for `hold_ms`.

    `room` is how many of them may be for one host, None for all; `rooms` says it for some hosts,
    and for some agents: see `core/webhooks.py`.
    """

    limit: int
    hold_ms: int = 20_000  # twice what a try may take
    room: int | None = None
    rooms: dict[str, int] = {}


class ReclaimDeliveries(msgspec.Struct, frozen=True):
    """Answer: None. What was claimed and not settled is due at once: who claimed it is gone."""


class OwedDelivery(msgspec.Struct, frozen=True):
    """`secret` are those of its endpoint, with spaces between; None: it has none of its own."""

    id: str
    seq: int
    url: str
    event: str
    attempt: int
    agent: str = ""
    secret: str | None = None

    def __repr__(self) -> str:
        return f"OwedDelivery({self.id!r})"


class SettleDelivery(msgspec.Struct, frozen=True):
    """Answer: None. Neither delivered nor a time for the next try: given up.

    `status` is what the receiver answered, None when there was no answer.
    """

    id: str
    delivered: bool
    error: str | None = None
    retry_after_ms: int | None = None
    status: int | None = None
    attempt: int = 1
    took_ms: int | None = None


class Redeliver(msgspec.Struct, frozen=True):
    """Answer: the `Delivery`, due now. `agent` is whose it has to be, None for anybody's."""

    id: str
    agent: str | None = None


class CreateEndpoint(msgspec.Struct, frozen=True):
    """Answer: the `Endpoint`, which signs with `secret`."""

    id: str
    agent: str
    url: str
    secret: str

    def __repr__(self) -> str:
        return f"CreateEndpoint({self.id!r})"


class RotateEndpoint(msgspec.Struct, frozen=True):
    """Answer: the `Endpoint`. For `overlap_ms` the secret that it had signs besides.

    `agent` is whose it has to be, None for anybody's; the same goes for the two below.
    """

    id: str
    secret: str
    overlap_ms: int
    agent: str | None = None

    def __repr__(self) -> str:
        return f"RotateEndpoint({self.id!r})"


class EnableEndpoint(msgspec.Struct, frozen=True):
    """Answer: the `Endpoint`."""

    id: str
    agent: str | None = None


class DeleteEndpoint(msgspec.Struct, frozen=True):
    """Answer: the `Endpoint` that was."""

    id: str
    agent: str | None = None


class CreateTemplate(msgspec.Struct, frozen=True):
    """Answer: the `Template`."""

    id: str
    definition: TemplateDefinition


class UpdateTemplate(msgspec.Struct, frozen=True):
    """Answer: the `Template`. `document` is laid over the definition that was."""

    id: str
    document: JsonObject


class UseTemplate(msgspec.Struct, frozen=True):
    """Answer: as for `submit`; an empty list when nothing is submitted."""

    id: str
    submit: Submit | None = None


class DeleteTemplate(msgspec.Struct, frozen=True):
    """Answer: None."""

    id: str


class CreateJobs(msgspec.Struct, frozen=True):
    """Answer: the list of `Job`, all or none."""

    ids: list[str]
    documents: list[JobDocument]


class UpdateJob(msgspec.Struct, frozen=True):
    """Answer: the `Job`. `document` is laid over the definition that was."""

    id: str
    document: JsonObject


class ToggleJob(msgspec.Struct, frozen=True):
    """Answer: the `Job`."""

    id: str
    enabled: bool


class RunJob(msgspec.Struct, frozen=True):
    """Answer: the `RunRecord`, by hand and outside the schedule."""

    id: str


class DeleteJob(msgspec.Struct, frozen=True):
    """Answer: the `Job` that was. Tasks that it has submitted go on unless `cancel` says so."""

    id: str
    cancel: bool = False


class CreateToken(msgspec.Struct, frozen=True):
    """Answer: the `Token` as it is kept, with its number. One with a parent is a login."""

    token: Token


class RevokeToken(msgspec.Struct, frozen=True):
    """Answer: the `Token`. `word` is its id, or the name of one that is valid."""

    word: str


class UseTokens(msgspec.Struct, frozen=True):
    """Answer: None. When tokens were used last, by their ids."""

    used: dict[str, int]


class Record(msgspec.Struct, frozen=True):
    """Answer: None. Entries for the audit log; with `keep` old ones go, and so many stay."""

    entries: tuple[audit.Entry, ...]
    keep: int | None = None


class Reseal(msgspec.Struct, frozen=True):
    """Answer: how many rows. Seals what stays in the store with the newest key."""


class UseSecret(msgspec.Struct, frozen=True):
    """Answer: the webhook secret in force; `candidate` is kept when there was none."""

    candidate: str

    def __repr__(self) -> str:
        return "UseSecret(…)"


Answer = Task | PolicyChange | Template | Job | RunRecord | list[Any] | int | str | None
