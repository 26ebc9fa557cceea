"""The commands of the writer: one small value per verb, in the order of a task's life.

Each docstring names the answer; any command may be answered with a `FairlaneError` instead.
"""

from __future__ import annotations

from typing import Final

import msgspec

from fairlane.core import audit
from fairlane.core.access import Caller, Token
from fairlane.core.approvals import Approval, Voter
from fairlane.core.entries import QueueEntry
from fairlane.core.job_documents import JobDocument
from fairlane.core.json_types import JsonObject
from fairlane.core.model import Submission, Task
from fairlane.core.policy import Policy
from fairlane.core.sessions import SessionSettings
from fairlane.core.steps import Step
from fairlane.core.templates import TemplateDefinition
from fairlane.engine.resource_commands import ResourceReport, SettlePermit
from fairlane.engine.step_commands import Checkpoint


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

    `caller` is the submitter, None for a caller without restrictions.
    """

    submissions: list[Submission]
    idempotency: IdempotencyKey | None = None
    batch: NewBatch | None = None
    caller: Caller | None = None


class Lease(msgspec.Struct, frozen=True):
    """Answer: a list of `Grant`. It waits until a task is ready, or until `until`.

    `lanes` None means all lanes. `capabilities` are what the worker can run; with `any_handler` it
    also runs every handler that does not belong to one process. Tasks of the capabilities in
    `started`, or all of them with `start`, start in the transaction that leases them. `ttl_ms` None
    means the policy's lease time. `until` is a time of the monotonic clock; None waits without a
    limit. With `agent`, only tasks of that agent are leased. `slots`, `version` and `address`
    describe the worker.
    """

    worker: str
    lanes: tuple[str, ...] | None
    capabilities: frozenset[str]
    limit: int
    ttl_ms: int | None
    started: frozenset[str] = frozenset()
    until: float | None = None
    any_handler: bool = False
    start: bool = False
    agent: str | None = None
    slots: int | None = None
    version: str | None = None
    address: str | None = None


class Grant(msgspec.Struct, frozen=True, gc=False):
    """`inputs` are the ids, states and results (JSON text) of the tasks that it depended on.

    `at` is the time of the transaction that granted it. `approvals` are the decided ones, and
    `steps` what earlier runs have recorded.
    """

    task: Task
    body: str
    inputs: tuple[tuple[str, str, str | None], ...] = ()
    at: int = 0
    approvals: tuple[Approval, ...] = ()
    steps: tuple[Step, ...] = ()


class Start(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Answer: the `Task`."""

    seq: int
    fencing_token: int


class Renew(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Answer: the `Task`; a terminal state means that the worker should stop.

    `ttl_ms` None means the policy's lease time; `progress` is JSON text that becomes an event.
    `permits` are settled with it; the use in `report` does not count before the end.
    """

    seq: int
    fencing_token: int
    ttl_ms: int | None
    progress: str | None = None
    report: ResourceReport | None = None
    permits: tuple[SettlePermit, ...] = ()


class Complete(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Answer: the `Task`. `result` is JSON text.

    `begun` says that the run has started, whether or not its start was reported.
    """

    seq: int
    fencing_token: int
    result: str | None = None
    begun: bool = False
    report: ResourceReport | None = None


class Fail(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Answer: the `Task`. `begun` is as in `Complete`. `traceback` says where the run failed."""

    seq: int
    fencing_token: int
    error: str
    retryable: bool = True
    retry_after_ms: int | None = None
    begun: bool = False
    traceback: str | None = None
    report: ResourceReport | None = None


class Release(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Answer: the `Task`, queued again without spending an attempt."""

    seq: int
    fencing_token: int
    report: ResourceReport | None = None


class Ask(msgspec.Struct, frozen=True):
    """Answer: `AskOutcome`. Release a lease until a person decides.

    `request` is an `ApprovalRequest` as JSON text, `name` tells the questions of a task apart, and
    `asker` is the id of the worker's token.
    """

    seq: int
    fencing_token: int
    name: str
    request: str
    asker: str | None = None


class AskOutcome(msgspec.Struct, frozen=True):
    """The task, queued unless the question was decided before, and the approval."""

    task: Task
    approval: Approval


class AppendOutput(msgspec.Struct, frozen=True, gc=False, tag=True):
    """Answer: None. Store the next piece of a run's output; ignored when the run has ended.

    `part` None appends. Without `trusted`, the output is cut at the limit of an attempt, and an
    ended lease is an error.
    """

    seq: int
    fencing_token: int
    part: int | None
    text: str
    trusted: bool = True


LeaseCommand = Start | Renew | AppendOutput | Checkpoint | Complete | Fail | Release


class Report(msgspec.Struct, frozen=True, gc=False):
    """Answer: a list with the answer to each report, or its error. They are applied in their order.

    With `agent`, only leases of that agent's tasks are known.
    """

    reports: list[LeaseCommand]
    agent: str | None = None


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`. `reason` is stored as its error."""

    id: str
    reason: str | None = None


class CancelBatch(msgspec.Struct, frozen=True, gc=False):
    """Answer: how many of its tasks were cancelled."""

    id: str


class Retry(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`, failed or cancelled before, queued again.

    With `fresh`, its recorded steps are forgotten.
    """

    id: str
    fresh: bool = False


class Reset(msgspec.Struct, frozen=True, gc=False):
    """Answer: the `Task`, parked before, queued again. `fresh` is as in `Retry`."""

    id: str
    fresh: bool = False


class Decide(msgspec.Struct, frozen=True):
    """Answer: the `Approval`. `hash` is the hash of what the voter saw.

    `login` is the id of the login that was presented in place of the token, if any.
    """

    id: str
    voter: Voter
    decision: str
    hash: str
    answer: JsonObject | None = None
    comment: str | None = None
    login: str | None = None


class CreateLink(msgspec.Struct, frozen=True):
    """Answer: the `ApprovalLink`. `digest` is that of its secret."""

    id: str
    link_id: str
    digest: str
    expires_ms: int
    created_by: str
    approver: str | None = None


class DecideByLink(msgspec.Struct, frozen=True):
    """Answer: the `Approval`. `digest` is that of the presented secret."""

    link_id: str
    digest: str
    decision: str
    hash: str
    answer: JsonObject | None = None
    comment: str | None = None


class Enqueue(msgspec.Struct, frozen=True):
    """Answer: a list with the `Task` of each entry; all of them, or an error and none."""

    entries: list[QueueEntry]
    caller: Caller | None = None


class Drain(msgspec.Struct, frozen=True):
    """Answer: `Drained`. Lease and complete up to `limit` entries, as far as the ceilings allow.

    With `agent`, only that agent's entries.
    """

    limit: int
    agent: str | None = None


class Drained(msgspec.Struct, frozen=True):
    """The entries, and how many wait after that."""

    grants: list[Grant]
    remaining: int


class ReclaimExpired(msgspec.Struct, frozen=True):
    """Answer: `ReclaimedLeases`. Reclaim expired leases now instead of at the next tick.

    All of them are reclaimed; with `agent`, the answer names only that agent's tasks.
    """

    agent: str | None = None


class ReclaimedLeases(msgspec.Struct, frozen=True):
    """The ids of the tasks; `more` says that further leases may have expired."""

    ids: list[str]
    now: int
    more: bool


class Prune(msgspec.Struct, frozen=True):
    """Answer: how many ended tasks were forgotten in this step, or in a dry run could be."""

    dry_run: bool


class StopSession(msgspec.Struct, frozen=True):
    """Answer: `StoppedRuns`. Stop the oldest run, or all of them and everything that waits.

    A reset also starts a new generation. With `agent`, the session has to belong to that agent, and
    only its tasks are stopped.
    """

    key: str
    only_oldest: bool = False
    reset: bool = False
    agent: str | None = None


class StoppedRuns(msgspec.Struct, frozen=True):
    """The ids of runs that were stopped and of waiting tasks that will not run."""

    stopped: list[str]
    drained: list[str]
    generation: int


class SetSession(msgspec.Struct, frozen=True):
    """Answer: the `Session`. None keeps a setting; `unset` returns settings to the policy.

    With `agent`, the session has to belong to that agent, or to none yet.
    """

    key: str
    settings: SessionSettings
    unset: frozenset[str] = frozenset()
    agent: str | None = None


class SetUsage(msgspec.Struct, frozen=True):
    """Answer: the `Session`. `agent` is as in `SetSession`."""

    key: str
    tokens: int
    context_window: int
    agent: str | None = None


MERGE: Final = "merge"
REPLACE: Final = "replace"
PATCH: Final = "patch"


class SetPolicy(msgspec.Struct, frozen=True):
    """Answer: a `PolicyChange`. `how` says what happens to keys that `document` does not name.

    `source` is how it arrived, `author` and `note` are recorded. With `expected_version` it is
    refused if another version is in force; a `dry_run` only returns what would change.
    """

    document: JsonObject
    source: str
    how: str = MERGE
    author: str | None = None
    note: str | None = None
    expected_version: int | None = None
    dry_run: bool = False


class PolicyChange(msgspec.Struct, frozen=True):
    """The version in force, the policy before and the one after; `notes` are for the operator."""

    version: int
    before: Policy
    after: Policy
    notes: tuple[str, ...] = ()


class Reclaim(msgspec.Struct, frozen=True):
    """Answer: how many leases were reclaimed from workers whose name starts with `prefix`."""

    prefix: str


class Beat(msgspec.Struct, frozen=True):
    """Answer: None. Record that a node is alive or, with `leaves`, that it stops. `alone` says that
    no other node can serve from its store. `lock_key` names the lock that it holds while it lives.
    """

    name: str
    host: str
    pid: int
    version: str
    started_at: int
    draining: bool = False
    leaves: bool = False
    alone: bool = False
    lock_key: int | None = None


class ClaimDeliveries(msgspec.Struct, frozen=True):
    """Answer: a list of `OwedDelivery`, claimed by this caller for `hold_ms`.

    `room` is how many of them may be for one host, None for no limit; `rooms` overrides it for some
    hosts and agents: see `core/webhooks.py`.
    """

    limit: int
    hold_ms: int = 20_000  # twice what an attempt may take
    room: int | None = None
    rooms: dict[str, int] = {}


class ReclaimDeliveries(msgspec.Struct, frozen=True):
    """Answer: None. Make claimed deliveries due at once, because their sender has ended."""


class OwedDelivery(msgspec.Struct, frozen=True):
    """A delivery to send. `secret` are its endpoint's, separated by spaces; None if it has none."""

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
    """Answer: None. Give up if it was not delivered and has no time for the next attempt.

    `status` is that of the response, None if there was none.
    """

    id: str
    delivered: bool
    error: str | None = None
    retry_after_ms: int | None = None
    status: int | None = None
    attempt: int = 1
    took_ms: int | None = None


class Redeliver(msgspec.Struct, frozen=True):
    """Answer: the `Delivery`, due now. With `agent`, it has to belong to that agent."""

    id: str
    agent: str | None = None


class CreateEndpoint(msgspec.Struct, frozen=True):
    """Answer: the `Endpoint`, which signs with `secret`. `events` are types, with spaces."""

    id: str
    agent: str
    url: str
    secret: str
    events: str | None = None

    def __repr__(self) -> str:
        return f"CreateEndpoint({self.id!r})"


class RotateEndpoint(msgspec.Struct, frozen=True):
    """Answer: the `Endpoint`. For `overlap_ms` the previous secret signs too.

    With `agent`, it has to belong to that agent; the same goes for the two commands below.
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
    """Answer: the deleted `Endpoint`."""

    id: str
    agent: str | None = None


class CreateTemplate(msgspec.Struct, frozen=True):
    """Answer: the `Template`."""

    id: str
    definition: TemplateDefinition


class UpdateTemplate(msgspec.Struct, frozen=True):
    """Answer: the `Template`. `document` is merged into its definition."""

    id: str
    document: JsonObject


class UseTemplate(msgspec.Struct, frozen=True):
    """Answer: as for `Submit`; an empty list if nothing is submitted."""

    id: str
    submit: Submit | None = None


class DeleteTemplate(msgspec.Struct, frozen=True):
    """Answer: None."""

    id: str


class CreateJobs(msgspec.Struct, frozen=True):
    """Answer: the list of `Job`, all or none."""

    ids: list[str]
    documents: list[JobDocument]
    submitter: str | None = None


class UpdateJob(msgspec.Struct, frozen=True):
    """Answer: the `Job`. `document` is merged into its definition."""

    id: str
    document: JsonObject
    submitter: str | None = None


class ToggleJob(msgspec.Struct, frozen=True):
    """Answer: the `Job`."""

    id: str
    enabled: bool


class RunJob(msgspec.Struct, frozen=True):
    """Answer: the `RunRecord` of a manual run outside the schedule."""

    id: str


class DeleteJob(msgspec.Struct, frozen=True):
    """Answer: the deleted `Job`. Its tasks continue unless `cancel` is set."""

    id: str
    cancel: bool = False


class CreateToken(msgspec.Struct, frozen=True):
    """Answer: the stored `Token` with its number. A token with a parent is a login."""

    token: Token


class RevokeToken(msgspec.Struct, frozen=True):
    """Answer: the `Token`. `word` is its id, or the name of a valid token."""

    word: str


class UseTokens(msgspec.Struct, frozen=True):
    """Answer: None. Record when tokens were last used, by id."""

    used: dict[str, int]


class Record(msgspec.Struct, frozen=True):
    """Answer: None. Add entries to the audit log; with `keep`, prune it to that many."""

    entries: tuple[audit.Entry, ...]
    keep: int | None = None


class Reseal(msgspec.Struct, frozen=True):
    """Answer: the number of rows. Seal secrets in the store with the newest key."""


class UseSecret(msgspec.Struct, frozen=True):
    """Answer: the webhook secret in force; `candidate` is stored if there was none."""

    candidate: str

    def __repr__(self) -> str:
        return "UseSecret(…)"
