"""Reads for callers: lists, one task, numbers. They use a few threads with a connection each and
never wait for the writer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Final, TypeVar

import msgspec

from fairlane.clock import Clock, SystemClock
from fairlane.core.access import Token
from fairlane.core.approvals import Approval
from fairlane.core.attention import Troubles
from fairlane.core.audit import AuditRecord
from fairlane.core.batches import Batch
from fairlane.core.counts import Tally
from fairlane.core.cron import Job, RunRecord
from fairlane.core.errors import Draining, StoreUnavailable
from fairlane.core.gates import holds_turn
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.model import DEBOUNCE_GATE, Task
from fairlane.core.sessions import Session
from fairlane.core.steps import Step
from fairlane.core.templates import Template
from fairlane.core.webhooks import Delivery, Endpoint
from fairlane.core.workers import KnownWorker
from fairlane.engine.reads import attention as troubling
from fairlane.engine.reads import plan as planning
from fairlane.engine.reads import why as explaining
from fairlane.engine.reads import workers as rosters
from fairlane.engine.reads.accounts import ResourceViews
from fairlane.engine.reads.feed import STOPPED, Feed, finished
from fairlane.engine.reads.recount import recount
from fairlane.engine.reads.search import SearchViews, with_logs
from fairlane.engine.reads.workers import NodeView
from fairlane.engine.telemetry.history import LINES_MAX, Sample
from fairlane.engine.telemetry.outages import READS, Outages, store_unavailable
from fairlane.store import migrate
from fairlane.store.base import Connection, ConnectionLost, Store
from fairlane.store.pages import PAGE_BYTES_MAX, Page
from fairlane.store.tables import approvals as approval_table
from fairlane.store.tables import audit as audit_table
from fairlane.store.tables import batches as batch_table
from fairlane.store.tables import checkpoints as checkpoint_table
from fairlane.store.tables import cron as cron_table
from fairlane.store.tables import deliveries as delivery_table
from fairlane.store.tables import endpoints as endpoint_table
from fairlane.store.tables import events as event_table
from fairlane.store.tables import lines, outputs, scheduler, task_views, tracebacks
from fairlane.store.tables import policy as policy_table
from fairlane.store.tables import sessions as session_table
from fairlane.store.tables import templates as template_table
from fairlane.store.tables import tokens as token_table
from fairlane.store.tables.approvals import ApprovalFilter, ApprovalLink, ApprovalView
from fairlane.store.tables.deliveries import DeliveryFilter
from fairlane.store.tables.events import EventFilter, EventView
from fairlane.store.tables.lines import AgentCounts
from fairlane.store.tables.outputs import Piece
from fairlane.store.tables.policy import PolicyView
from fairlane.store.tables.task_search import Filter
from fairlane.store.tables.task_views import TaskView

__all__ = [
    "PAGE_BYTES_MAX",
    "AgentCounts",
    "DeliveryFilter",
    "EventFilter",
    "EventView",
    "Filter",
    "Page",
    "Piece",
    "PolicyView",
    "SessionView",
    "TaskView",
    "Views",
]

READERS: Final = 4
ANSWER_SECONDS: Final = 8.5  # a caller has a response by then, whatever the store does
AGAIN_SECONDS: Final = 3.0  # a connection that is lost within this is opened once more
AGENTS_SHOWN_MAX: Final = 1000

T = TypeVar("T")


class SessionView(msgspec.Struct, frozen=True):
    """`turns` are tasks that hold a lease, including cancelled ones that still run."""

    session: Session
    turns: list[Task]
    queued: list[Task]


def _place_in_session(task: Task) -> tuple[bool, bool, int, int]:
    return task.gate == DEBOUNCE_GATE, not holds_turn(task), task.priority, task.seq


class Views:
    def __init__(
        self, store: Store, outages: Outages | None = None, *, seconds: float | None = None
    ) -> None:
        """`seconds` is how long the database may take for one answer, None for the usual time."""
        self._store = store
        self._clock = SystemClock()
        self._outages = outages or Outages(self._clock)
        self._options: dict[str, float] = {} if seconds is None else {"seconds": seconds}
        self._vault = store.vault
        self._local = threading.local()
        self._connections: list[Connection] = []
        self._guard = threading.Lock()
        self._threads = concurrent.futures.ThreadPoolExecutor(READERS, "fairlane-reader")
        self.feed = Feed()
        self.resources = ResourceViews(self.ask, self._moment)
        self.search = SearchViews(self.ask)

    async def read(self, view: Callable[..., T], *arguments: object, **named: object) -> T:
        """Run one of the reads below without blocking the event loop."""
        try:
            reading = self._threads.submit(view, *arguments, **named)
        except RuntimeError:
            raise Draining(STOPPED) from None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await finished(asyncio.wrap_future(reading))
        except TimeoutError:
            raise store_unavailable("the read timed out") from None

    # ---------------------------------------------------------------- approvals

    def approvals(self, wanted: ApprovalFilter, limit: int) -> Page[ApprovalView]:
        return self.ask(approval_table.page, self._vault, wanted, limit)

    def approval(self, approval_id: str) -> ApprovalView | None:
        return self.ask(approval_table.view, self._vault, approval_id)

    def approvals_by_seq(self, seqs: Sequence[int]) -> dict[int, ApprovalView]:
        return self.ask(approval_table.view_many, self._vault, seqs)

    def approvals_of(self, seq: int) -> list[Approval]:
        """Return the approvals of a task that are in force, oldest first."""
        return self.ask(approval_table.of_tasks, [seq])

    def steps_of(self, seq: int) -> tuple[Step, ...]:
        """Return the steps that the runs of a task have recorded."""
        return self.ask(checkpoint_table.of_tasks, [seq]).get(seq, ())

    def open_approvals(self, agent: str | None, caller: str, limit: int) -> int:
        return self.ask(approval_table.count_open, agent, caller, limit)

    def approval_link(self, link_id: str) -> tuple[ApprovalLink, ApprovalView] | None:
        """Return a link with the approval that it is about."""

        def read(connection: Connection) -> tuple[ApprovalLink, ApprovalView] | None:
            link = approval_table.link(connection, link_id)
            if link is None:
                return None
            found = approval_table.view_many(connection, self._vault, [link.approval])
            return (link, found[link.approval]) if found else None

        return self.ask(read)

    # ---------------------------------------------------------------- tasks

    def task(self, task_id: str) -> TaskView | None:
        views = self.ask(_with_tracebacks, task_id)
        return views[0] if views else None

    def tasks_by_seq(self, seqs: Sequence[int]) -> dict[int, TaskView]:
        views = self.ask(with_logs, lambda connection: task_views.by_seq(connection, seqs))
        return {view.task.seq: view for view in views}

    def task_state(self, seq: int) -> str | None:
        """Return the state of a task without a whole `TaskView`; None if it does not exist."""
        return self.ask(task_views.state, seq)

    def agent_of(self, seq: int) -> str | None:
        """Return the agent of a task; None if it does not exist."""
        return self.ask(task_views.agent, seq)

    def entries(
        self, states: Sequence[str], agent: str | None, after: tuple[int, int] | None, limit: int
    ) -> Page[TaskView]:
        """Return tasks of the lane `queue` by rank and submission, after a place there; of all
        agents or of one.
        """
        return self.ask(task_views.entries, states, agent, after, limit)

    def why(
        self,
        task_id: str,
        pace_of: explaining.PaceOf,
        agent: str | None,
        servers: explaining.Servers,
        *,
        clock: Clock,
        workers: Sequence[KnownWorker] = (),
    ) -> explaining.Explained | None:
        """Explain why a task does not run yet. With `agent`, only its own tasks are named."""
        moment = partial(self._moment, clock=clock)
        read = partial(explaining.read, moment=moment, workers=workers)
        return self.ask(read, task_id, pace_of, agent, servers)

    def plan(self, asked: planning.PlanQuery, clock: Clock) -> planning.Plan:
        """Return what a lease would get at `query.now`, or now by the authoritative clock."""
        return self.ask(planning.read, asked, lambda found: self._moment(found, clock))

    # ---------------------------------------------------------------- events and output

    def last_event(self) -> int:
        return self.ask(event_table.last)

    def events(
        self,
        wanted: EventFilter,
        after: int,
        until: int,
        limit: int,
        bytes_max: int = PAGE_BYTES_MAX,
    ) -> Page[EventView]:
        """Return events with numbers above `after` and up to `until`, oldest first."""
        place = {"after": after, "until": until, "limit": limit, "bytes_max": bytes_max}
        return self.ask(event_table.page, wanted, **place)

    def newest_events(
        self, wanted: EventFilter, after: int, until: int, limit: int
    ) -> Page[EventView]:
        """Return events with numbers above `after` and up to `until`, newest first."""
        place = {"after": after, "until": until, "limit": limit}
        return self.ask(event_table.page, wanted, **place, newest=True)

    def events_before(self, at: int) -> int:
        """Return the number of the last event before a time; 0 if there is none."""
        return self.ask(event_table.before, at)

    def output(
        self, seq: int, token: int, part: int, limit: int, bytes_max: int = PAGE_BYTES_MAX
    ) -> Page[Piece]:
        """Return the pieces after `part` of the lease with this fencing token, in order."""
        place = {"token": token, "part": part, "limit": limit, "bytes_max": bytes_max}
        return self.ask(outputs.page, seq, **place)

    def output_token(self, seq: int) -> int:
        """Return the fencing token of the newest attempt with output; 0 if there is none."""
        return self.ask(outputs.newest_token, seq)

    # ---------------------------------------------------------------- sessions and batches

    def session(self, key: str, agent: str | None = None) -> SessionView | None:
        """Return a session with its running and its waiting tasks, in order, from one snapshot.

        With `agent`, only a session of that agent, with its tasks only.
        """
        found = self.ask(_session, key, agent)
        return found if found and agent in (None, found.session.agent) else None

    def sessions(self, after: str, agent: str | None, limit: int) -> Page[Session]:
        """Return sessions by key; of one agent or of all."""
        return self.ask(session_table.page, after, agent, limit)

    def batch(self, batch_id: str) -> tuple[Batch, dict[str, int]] | None:
        """Return a batch, and the number of its tasks by state."""

        def read(connection: Connection) -> tuple[Batch, dict[str, int]] | None:
            with connection.snapshot():
                return batch_table.view(connection, batch_id)

        return self.ask(read)

    def batches(self, agent: str | None, before: int | None, limit: int) -> Page[Batch]:
        """Return batches, newest first."""
        return self.ask(batch_table.page, agent, before, limit)

    def batches_by_seq(self, seqs: Sequence[int]) -> dict[int, tuple[Batch, dict[str, int]]]:
        found = [self.batch(batch.id) for batch in self.ask(batch_table.by_seq, seqs)]
        return {batch[0].seq: batch for batch in found if batch is not None}

    # ---------------------------------------------------------------- lanes, nodes, the policy

    def lanes(self, agent: str | None = None) -> dict[str, Tally]:
        """Return the counters of the lanes, for all agents or for one."""
        return self.ask(_lanes, agent)

    def oldest_waits(self, lanes: Sequence[str]) -> dict[str, int | None]:
        """Return, by lane, since when the ready task with the longest wait has been waiting."""

        def read(connection: Connection) -> dict[str, int | None]:
            return {lane: lines.oldest_wait(connection, lane) for lane in lanes}

        return self.ask(read)

    def stats(self, agent: str | None = None) -> tuple[dict[str, Tally], list[AgentCounts]]:
        """Return lanes and agents from one snapshot, so that the numbers add up; for all agents or
        for one.
        """

        def read(connection: Connection) -> tuple[dict[str, Tally], list[AgentCounts]]:
            with connection.snapshot():
                agents = lines.by_agent(connection, agent, AGENTS_SHOWN_MAX)
                return _lanes(connection, agent), agents

        return self.ask(read)

    def sample(self, clock: Clock) -> Sample:
        """Return the current counters and shares, by the authoritative clock."""

        def read(connection: Connection) -> Sample:
            with connection.snapshot():
                return Sample(
                    self._moment(connection, clock),
                    lines.lanes_by_name(connection),
                    task_views.count_by_agent(connection),
                    lines.waiting(connection, LINES_MAX),
                )

        return self.ask(read)

    def nodes(self, clock: Clock) -> tuple[int, list[NodeView]]:
        """Return the time, and the nodes that serve with how many runs each has in progress."""

        def read(connection: Connection) -> tuple[int, list[NodeView]]:
            with connection.snapshot():
                return self._moment(connection, clock), rosters.read_nodes(connection)

        return self.ask(read)

    def workers(self, clock: Clock, presence: rosters.Presence | None) -> list[KnownWorker]:
        """Return all known workers; `presence` is what this server knows by itself."""

        def find(connection: Connection) -> list[KnownWorker]:
            now = self._moment(connection, clock)
            return rosters.read(connection, now, presence, shared=self._store.shared)

        return self.ask(find)

    def troubles(self, clock: Clock, workers: Sequence[KnownWorker]) -> Troubles:
        """Return what needs the attention of an operator; `workers` are all that are known."""

        def find(connection: Connection) -> Troubles:
            return troubling.read(connection, self._moment(connection, clock), workers)

        return self.ask(find)

    def serving(
        self, here: str, clock: Clock, routes: Callable[[], frozenset[str] | None]
    ) -> explaining.Servers:
        """Return a function that counts the tasks that each server runs."""
        return explaining.serving(here, lambda found: self._moment(found, clock), routes)

    def policy(self, version: int | None) -> PolicyView | None:
        """Return a version of the policy, or the newest one."""
        return self.ask(policy_table.view, version)

    def policy_versions(self, before: int | None, limit: int) -> Page[PolicyView]:
        """Return versions, newest first."""
        return self.ask(policy_table.page, before, limit)

    def schema(self) -> tuple[int, int]:
        """Return the number of the store's schema, and the one that this program needs."""
        return self.ask(scheduler.schema_number), _newest_schema()

    def disagreements(self) -> list[str]:
        """Recount everything and return each counter that differs; none should."""

        def read(connection: Connection) -> list[str]:
            with connection.snapshot():
                return recount(connection)

        return self.ask(read)

    # ---------------------------------------------------------------- cron and templates

    def job(self, job_id: str) -> Job | None:
        return self.ask(cron_table.jobs_by_id, self._vault, [job_id]).get(job_id)

    def jobs(
        self,
        agent: str | None,
        name: str | None,
        enabled: bool | None,  # noqa: FBT001 - a condition like the others, None is any
        before: int | None,
        limit: int,
    ) -> Page[Job]:
        """Return jobs, newest first, below `before`."""
        wanted = {"agent": agent, "name": name, "enabled": enabled, "before": before}
        return self.ask(cron_table.job_page, self._vault, limit=limit, **wanted)

    def runs(
        self,
        job_id: str | None,
        status: str | None,
        agent: str | None,
        before: int | None,
        limit: int,
    ) -> Page[RunRecord]:
        """Return entries of the run log, newest first, below `before`.

        The job may be deleted already; with `agent`, only runs of its existing jobs are listed.
        """
        wanted = {"status": status, "agent": agent, "before": before}
        return self.ask(cron_table.run_page, job_id, limit=limit, **wanted)

    def runs_by_seq(self, seqs: Sequence[int]) -> dict[int, RunRecord]:
        return self.ask(cron_table.runs_by_seq, seqs)

    def template(self, template_id: str) -> Template | None:
        return self.ask(template_table.by_id, self._vault, [template_id]).get(template_id)

    def templates(self, name: str | None, before: int | None, limit: int) -> Page[Template]:
        """Return templates, newest first; `before` continues below a sequence number."""
        return self.ask(template_table.page, self._vault, name, before, limit)

    # ---------------------------------------------------------------- webhooks

    def next_delivery_ms(self, now: int) -> int | None:
        """Return how long until a webhook is due, by the authoritative clock; None if none is."""
        return self.ask(delivery_table.next_ms, now)

    def webhooks_owed(self, limit: int) -> int:
        """Count the webhooks that wait to be sent, up to `limit`."""
        return self.ask(delivery_table.count_unsent, limit)

    def deliveries(self, wanted: DeliveryFilter, limit: int) -> Page[Delivery]:
        """Return webhooks, newest first."""
        return self.ask(delivery_table.page, wanted, limit)

    def delivery(self, delivery_id: str) -> Delivery | None:
        return self.ask(delivery_table.view, delivery_id)

    def endpoints(self, agent: str | None, before: int | None, limit: int) -> Page[Endpoint]:
        """Return endpoints, newest first, below `before`."""
        return self.ask(endpoint_table.page, agent, before, limit)

    def endpoint(self, endpoint_id: str) -> Endpoint | None:
        return self.ask(endpoint_table.view, endpoint_id)

    # ---------------------------------------------------------------- access

    def audit(self, wanted: JsonObject, limit: int) -> Page[AuditRecord]:
        """Return entries of the audit log, newest first."""
        return self.ask(audit_table.page, wanted, limit)

    def all_tokens(self) -> list[Token]:
        """Return all access tokens, oldest first, with logins."""
        return self.ask(token_table.all_tokens)

    # ---------------------------------------------------------------- connections

    def _moment(self, connection: Connection, clock: Clock) -> int:
        if clock.judges or not self._store.shared:
            return clock.now()
        return scheduler.moment(connection)

    def close(self) -> None:
        self.feed.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        with self._guard:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def ask(self, read: Callable[..., T], *arguments: object, **values: object) -> T:
        """Return what `read` returns for a connection and these arguments.

        A connection may have been closed by age or by a restart of the database, so a read is
        repeated once on a new one.
        """
        began = self._clock.monotonic()
        try:
            return self._read(read, arguments, values)
        except ConnectionLost as error:
            if self._clock.monotonic() - began >= AGAIN_SECONDS:
                raise self._unreadable(error) from error
        try:
            return self._read(read, arguments, values)
        except ConnectionLost as error:
            raise self._unreadable(error) from error

    def _read(self, read: Callable[..., T], arguments: Sequence[object], values: JsonMapping) -> T:
        try:
            found = read(self._connection(), *arguments, **values)
        except ConnectionLost:
            self._drop_connection()
            raise
        self._outages.worked(READS)
        return found

    def _unreadable(self, error: ConnectionLost) -> StoreUnavailable:
        self._outages.failed(READS, error)
        return store_unavailable("try again")

    def _drop_connection(self) -> None:
        connection: Connection | None = getattr(self._local, "connection", None)
        self._local.connection = None
        if connection is not None:
            with self._guard:
                self._connections.remove(connection)
            connection.close()

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._store.reader(**self._options)
            self._local.connection = connection
            with self._guard:
                self._connections.append(connection)
        return connection


@lru_cache(maxsize=1)
def _newest_schema() -> int:
    return migrate.files()[-1][0]


def _with_tracebacks(connection: Connection, task_id: str) -> list[TaskView]:
    """Return one task with its attempt log and the tracebacks of its failed attempts."""
    views = with_logs(connection, lambda found: task_views.by_id(found, task_id))
    failed = [view.task.seq for view in views if any(one.error for one in view.log)]
    found = tracebacks.of_tasks(connection, failed)
    for view in views if found else ():
        for one in view.log:
            one.traceback = found.get((view.task.seq, one.ended_at or 0))
    return views


def _session(connection: Connection, key: str, agent: str | None) -> SessionView | None:
    with connection.snapshot():
        session = session_table.view(connection, key)
        if session is None:
            return None
        leased = session_table.leased_tasks(connection, session=key)
        waiting = [
            *session_table.turn_tasks(connection, session=key),
            *session_table.waiting_tasks(connection, session=key),
        ]
    return SessionView(
        session,
        [task for task in leased if agent in (None, task.agent)],
        sorted((task for task in waiting if agent in (None, task.agent)), key=_place_in_session),
    )


def _lanes(connection: Connection, agent: str | None) -> dict[str, Tally]:
    lanes = lines.lanes_by_name(connection)
    if agent is None:
        return lanes
    sums = dict.fromkeys(lanes, Tally())
    for line in lines.of_agents(connection, [(lane, agent) for lane in lanes]) if lanes else ():
        pairs = zip(_counts(sums[line.lane]), _counts(line), strict=True)
        sums[line.lane] = Tally(*(one + other for one, other in pairs))
    return sums


def _counts(tally: Tally) -> list[int]:
    return [getattr(tally, name) for name in Tally.__struct_fields__]
