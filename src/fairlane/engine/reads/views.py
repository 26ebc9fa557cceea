"""Reads for people: lists, one task, numbers. They use their own connections, a few threads with
one each, and never wait for the writer.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from fairlane.clock import Clock, SystemClock
from fairlane.core import events
from fairlane.core.access import Token
from fairlane.core.audit import Written
from fairlane.core.batches import Batch
from fairlane.core.counts import Line, Tally
from fairlane.core.cron import QUEUED, RUNNING, Job, Run
from fairlane.core.errors import Draining, StoreUnavailable
from fairlane.core.events import Attempt, Event
from fairlane.core.gates import holds_turn
from fairlane.core.model import DEBOUNCE_GATE, INSTRUCTION, Task
from fairlane.core.sessions import Session
from fairlane.core.templates import Template
from fairlane.engine.reads import plan as planning
from fairlane.engine.reads.feed import STOPPED, Feed, finished
from fairlane.engine.reads.pages import PAGE_BYTES_MAX, Page
from fairlane.engine.reads.recount import recount
from fairlane.engine.reads.watch_views import WatchViews
from fairlane.engine.reads.webhook_views import WebhookViews
from fairlane.engine.telemetry.outages import READS, Outages, store_unavailable
from fairlane.engine.verbs import templates
from fairlane.store.base import (
    PART_ROWS_MIN,
    Connection,
    ConnectionLost,
    Row,
    Store,
    next_part,
    page_of,
    row_bytes,
)
from fairlane.store.cron import job_from_row, run_from_row

READERS: Final = 4
ANSWER_SECONDS: Final = 8.5  # a caller has an answer by then, whatever the store does
AGAIN_SECONDS: Final = 3.0  # a connection that is lost within this is opened once more
AGENTS_SHOWN_MAX: Final = 1000
_TASK_WIDTH: Final = len(Task.__struct_fields__)
_EVENT_WIDTH: Final = len(Event.__struct_fields__)

T = TypeVar("T")


class TaskView(msgspec.Struct, frozen=True):
    """A task with what it was asked (`body`, JSON text) and how it ended."""

    task: Task
    body: str
    result: str | None
    error: str | None
    log: tuple[Attempt, ...] = ()


class Filter(msgspec.Struct, frozen=True):
    """Which tasks to list; `before` continues below a sequence number, `floor` ends above one.

    `parent` is a task that they depend on, `text` a pattern of LIKE with `!` before what is meant
    as it stands. Both are for lists only.
    """

    agent: str | None = None
    states: list[str] | None = None
    lane: str | None = None
    session: str | None = None
    batch: str | None = None
    kind: str | None = None
    before: int | None = None
    parent: str | None = None
    floor: int | None = None
    text: str | None = None


class EventFilter(msgspec.Struct, frozen=True):
    """Which events to read; all that is given has to fit. `owner` is the agent who may see them."""

    task: str | None = None
    batch: str | None = None
    agent: str | None = None
    lane: str | None = None
    types: tuple[str, ...] | None = None
    owner: str | None = None


class EventView(msgspec.Struct, frozen=True):
    """An event with what its task says about it; the task may be forgotten already."""

    event: Event
    task_id: str | None
    agent: str | None
    lane: str | None
    batch: str | None
    result: str | None


class PolicyView(msgspec.Struct, frozen=True):
    """A version of the policy; `document` is JSON text."""

    version: int
    document: str
    source: str
    created_at: int
    author: str | None
    note: str | None


class Piece(msgspec.Struct, frozen=True):
    """A part of what a run has produced; `token` and `part` tell where to go on."""

    token: int
    part: int
    attempt: int
    text: str


class SessionView(msgspec.Struct, frozen=True):
    """`turns` hold a lease, also those that were cancelled and have not stopped yet."""

    session: Session
    turns: list[Task]
    queued: list[Task]


def _place_in_session(task: Task) -> tuple[bool, bool, int, int]:
    return task.gate == DEBOUNCE_GATE, not holds_turn(task), task.priority, task.seq


class Views(WatchViews, WebhookViews):
    def __init__(
        self, store: Store, outages: Outages | None = None, *, seconds: float | None = None
    ) -> None:
        """`seconds`: how long the database may take for one answer, None for the usual time."""
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

    async def read(self, view: Callable[..., T], *arguments: Any) -> T:
        """Run one of the reads below without blocking the event loop."""
        try:
            reading = self._threads.submit(view, *arguments)
        except RuntimeError:
            raise Draining(STOPPED) from None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await finished(asyncio.wrap_future(reading))
        except TimeoutError:
            raise store_unavailable("nothing could be read in time") from None

    def task(self, task_id: str) -> TaskView | None:
        found = self._views(lambda connection: connection.run("task_view", id=task_id))
        return found[0] if found else None

    def _views(
        self, find: Callable[[Connection], Iterable[Row]], kind: str | None = None
    ) -> list[TaskView]:
        """Tasks with the logs of their attempts, all of one moment; with `kind` only its logs."""

        def read(connection: Connection) -> list[TaskView]:
            with connection.snapshot():
                views = [_view(row) for row in find(connection)]
                logged = [view.task for view in views if kind in (None, view.task.kind)]
                tried = [(task.seq,) for task in logged if task.token]
                history: dict[int, list[Event]] = {}
                for row in connection.run_rows("event_tasks", tried):
                    history.setdefault(row[1], []).append(Event(*row))
            return [_with_log(view, history.get(view.task.seq, ())) for view in views]

        return self._ask(read)

    def task_ids(self, wanted: Filter, limit: int) -> list[tuple[int, str]]:
        """Sequence numbers and ids, newest first."""
        rows = self._run("task_ids", limit=limit, **msgspec.structs.asdict(wanted))
        return [(row[0], row[1]) for row in rows]

    def session(self, key: str, agent: str | None = None) -> SessionView | None:
        """A session with its tasks of one moment: those that run, and those that wait, in order.

        With `agent`, one of that agent, with its tasks only.
        """

        def mine(rows: Iterable[Row]) -> list[Task]:
            return [task for task in (Task(*row) for row in rows) if agent in (None, task.agent)]

        def read(connection: Connection) -> SessionView | None:
            with connection.snapshot():
                rows = connection.run("session_view", key=key)
                if not rows:
                    return None
                turns = connection.run("session_turns", session=key)
                held = connection.run("session_held", session=key)
                waiting = connection.run("session_open", session=key)
            return SessionView(
                Session(*rows[0]),
                mine(turns),
                sorted(mine((*held, *waiting)), key=_place_in_session),
            )

        found = self._ask(read)
        return found if found and agent in (None, found.session.agent) else None

    def sessions(self, after: str, agent: str | None, limit: int) -> Page[Session]:
        """By key; of one agent or of all."""
        return self._page(_of(Session), "session_list", limit, after=after, agent=agent)

    def oldest_waits(self, lanes: Sequence[str]) -> dict[str, int | None]:
        """Since when the task waits that has waited longest for a slot, by lane."""

        def read(connection: Connection) -> dict[str, int | None]:
            return {lane: connection.run("lane_oldest", lane=lane)[0][0] for lane in lanes}

        return self._ask(read)

    def last_event(self) -> int:
        last: int = self._run("event_last")[0][0]
        return last

    def events(
        self,
        wanted: EventFilter,
        after: int,
        until: int,
        limit: int,
        bytes_max: int = PAGE_BYTES_MAX,
    ) -> Page[EventView]:
        """Events with numbers above `after` and up to `until`, oldest first."""
        given = {**msgspec.structs.asdict(wanted), "after": after, "until": until}
        given["types"] = None if wanted.types is None else list(wanted.types)
        return self._page(_event_view, "event_list", limit, bytes_max, **given)

    def output(
        self, seq: int, token: int, part: int, limit: int, bytes_max: int = PAGE_BYTES_MAX
    ) -> Page[Piece]:
        """The pieces behind `part` of `token`, in order."""
        place = {"seq": seq, "token": token, "part": part}
        return self._page(_of(Piece), "output_view", limit, bytes_max, **place)

    def output_token(self, seq: int) -> int:
        """The token of the newest attempt that has produced output; 0 when none has."""
        token: int | None = self._run("output_newest", seq=seq)[0][0]
        return token or 0

    def task_state(self, seq: int) -> str | None:
        """The state of a task, without all that a `TaskView` reads; None when there is none."""
        rows = self._run("task_state", seq=seq)
        return rows[0][0] if rows else None

    def batch(self, batch_id: str) -> tuple[Batch, dict[str, int]] | None:
        """A batch, and how many of its tasks are in which state."""

        def read(connection: Connection) -> tuple[Batch, dict[str, int]] | None:
            with connection.snapshot():
                rows = connection.run("batch_view", id=batch_id)
                states = connection.run("batch_states", id=batch_id)
                return (Batch(*rows[0]), {row[0]: row[1] for row in states}) if rows else None

        return self._ask(read)

    def batches(self, agent: str | None, before: int | None, limit: int) -> Page[Batch]:
        """Newest first."""
        return self._page(_of(Batch), "batch_list", limit, agent=agent, before=before)

    def batches_by_seq(self, seqs: Sequence[int]) -> dict[int, tuple[Batch, dict[str, int]]]:
        wanted = [(seq,) for seq in seqs]
        rows = self._ask(lambda connection: connection.run_rows("batch_view_many", wanted))
        found = [self.batch(row[0]) for row in rows]
        return {batch[0].seq: batch for batch in found if batch is not None}

    def tasks(self, wanted: Filter, limit: int) -> Page[TaskView]:
        """Newest first."""
        return self._task_page(msgspec.structs.asdict(wanted), limit)

    def brief_tasks(self, wanted: Filter, limit: int) -> Page[TaskView]:
        """Newest first, without results. Only instructions have logs of their attempts: they tell
        how long the last one ran.
        """
        return self._task_page({**msgspec.structs.asdict(wanted), "brief": 1}, limit, INSTRUCTION)

    def _task_page(
        self, given: Mapping[str, Any], limit: int, kind: str | None = None
    ) -> Page[TaskView]:
        more = False

        def find(connection: Connection) -> list[Row]:
            nonlocal more
            rows, more = connection.run_page("task_list", limit, PAGE_BYTES_MAX, **given)
            return rows

        return Page(self._views(find, kind), more=more)

    def lanes(self, agent: str | None = None) -> dict[str, Tally]:
        """How much is where, of all agents or of one."""
        return self._ask(lambda connection: _lanes(connection, agent))

    def stats(self, agent: str | None = None) -> tuple[dict[str, Tally], list[Row]]:
        """Lanes and agents of one moment, so that the numbers add up; of all agents or of one."""

        def read(connection: Connection) -> tuple[dict[str, Tally], list[Row]]:
            with connection.snapshot():
                agents = connection.run(
                    "agent_view", lane=None, agent=agent, limit=AGENTS_SHOWN_MAX
                )
                return _lanes(connection, agent), agents

        return self._ask(read)

    def policy(self, version: int | None) -> PolicyView | None:
        """That version, or the newest one."""
        rows = self._run("policy_list", version=version, before=None, limit=1)
        return PolicyView(*rows[0]) if rows else None

    def policy_versions(self, before: int | None, limit: int) -> Page[PolicyView]:
        """Newest first."""
        return self._page(_of(PolicyView), "policy_list", limit, version=None, before=before)

    def plan(self, asked: planning.Asked, clock: Clock) -> planning.Plan:
        """What a lease would give, by the clock that judges unless another moment is asked for."""

        def moment(connection: Connection) -> int:
            return self._moment(connection, clock)

        return self._ask(lambda connection: planning.read(connection, asked, moment))

    def _moment(self, connection: Connection, clock: Clock) -> int:
        own = clock.judges or not self._store.shared
        now: int = clock.now() if own else connection.run("moment")[0][0]
        return now

    def entries(
        self, states: Sequence[str], agent: str | None, after: tuple[int, int] | None, limit: int
    ) -> Page[TaskView]:
        """Tasks of the lane `queue` in the order of rank and submission, behind a place there.

        Of all agents, or of one.
        """
        rank, seq = after or (-(2**62), 0)
        rows = [(state,) for state in states]
        place: dict[str, Any] = {"rank": rank, "seq": seq, "limit": limit + 1}

        def find(connection: Connection) -> tuple[list[Row], bool]:
            with connection.snapshot():
                if agent is None:
                    found = connection.run_rows("entry_page", rows, **place)
                else:
                    found = connection.run_rows("entry_page_of", rows, agent=agent, **place)
                seqs = [row[1] for row in sorted(found)]
                return page_of(_in_parts(connection, seqs), limit, PAGE_BYTES_MAX)

        found, more = self._ask(find)
        return Page(map(_view, found), more=more)

    def job(self, job_id: str) -> Job | None:
        rows = self._ask(lambda connection: connection.run_rows("job_by_id", [(job_id,)]))
        return job_from_row(rows[0], self._vault) if rows else None

    def jobs(
        self,
        agent: str | None,
        name: str | None,
        enabled: bool | None,  # noqa: FBT001 - as all that are asked for, None is any
        before: int | None,
        limit: int,
    ) -> Page[Job]:
        """Newest first, below `before`."""
        wanted = {"agent": agent, "name": name, "before": before}
        return self._page(
            lambda row: job_from_row(row, self._vault),
            "job_list",
            limit,
            enabled=None if enabled is None else int(enabled),
            **wanted,
        )

    def runs(
        self,
        job_id: str | None,
        status: str | None,
        agent: str | None,
        before: int | None,
        limit: int,
    ) -> Page[Run]:
        """Entries of the run log, newest first, below `before`. A job may be gone already; those of
        one agent only are of jobs that are there.
        """
        key = "started" if status in (QUEUED, RUNNING) else "status"
        wanted = {key: status, "before": before, "agent": agent}
        if job_id is None:
            return self._page(run_from_row, "run_list", limit, **wanted)
        return self._page(run_from_row, "run_list_of", limit, job=job_id, **wanted)

    def runs_by_seq(self, seqs: Sequence[int]) -> dict[int, Run]:
        rows = self._ask(
            lambda connection: connection.run_rows("run_by_seq", [(seq,) for seq in seqs])
        )
        return {run.seq: run for run in map(run_from_row, rows)}

    def template(self, template_id: str) -> Template | None:
        wanted = [(template_id,)]
        rows = self._ask(lambda connection: connection.run_rows("template_by_id", wanted))
        return templates.from_row(rows[0], self._vault) if rows else None

    def templates(self, name: str | None, before: int | None, limit: int) -> Page[Template]:
        """Newest first; `before` continues below a sequence number."""
        wanted = {"name": name, "before": before}
        return self._page(
            lambda row: templates.from_row(row, self._vault), "template_list", limit, **wanted
        )

    def tasks_by_seq(self, seqs: Sequence[int]) -> dict[int, TaskView]:
        wanted = [(seq,) for seq in seqs]
        found = self._views(lambda connection: connection.run_rows("task_view_many", wanted))
        return {view.task.seq: view for view in found}

    def audit(self, wanted: dict[str, Any], limit: int) -> Page[Written]:
        """Newest first."""
        return self._page(_of(Written), "audit_list", limit, **wanted)

    def agent_of(self, seq: int) -> str | None:
        """Whose a task is; None when there is none."""
        rows = self._run("task_agent", seq=seq)
        return rows[0][0] if rows else None

    def all_tokens(self) -> list[Token]:
        """Oldest first, with logins."""
        return [Token(*row) for row in self._run("token_all")]

    def disagreements(self) -> list[str]:
        """Recount everything and name each counter that differs. Empty is what it should be."""

        def read(connection: Connection) -> list[str]:
            with connection.snapshot():
                return recount(connection)

        return self._ask(read)

    def close(self) -> None:
        self.feed.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        with self._guard:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def _run(self, name: str, /, **values: Any) -> list[Row]:
        return self._ask(lambda connection: connection.run(name, **values))

    def _page(
        self,
        make: Callable[[Row], T],
        name: str,
        limit: int,
        bytes_max: int = PAGE_BYTES_MAX,
        /,
        **values: Any,
    ) -> Page[T]:
        """Run a statement up to the limits of a page, and make an item of each row."""

        def read(connection: Connection) -> tuple[list[Row], bool]:
            with connection.snapshot():
                return connection.run_page(name, limit, bytes_max, **values)

        rows, more = self._ask(read)
        return Page(map(make, rows), more=more)

    def ask(self, read: Callable[..., T], *arguments: Any) -> T:
        """A read that stands elsewhere; its first argument is the connection."""
        return self._ask(lambda connection: read(connection, *arguments))

    def _ask(self, read: Callable[[Connection], T]) -> T:
        """A connection may have died of old age or of a restarted database: try a fresh one."""
        began = self._clock.monotonic()
        try:
            return self._read(read)
        except ConnectionLost as error:
            if self._clock.monotonic() - began >= AGAIN_SECONDS:
                raise self._unreadable(error) from error
        try:
            return self._read(read)
        except ConnectionLost as error:
            raise self._unreadable(error) from error

    def _read(self, read: Callable[[Connection], T]) -> T:
        try:
            found = read(self._connection())
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


def _lanes(connection: Connection, agent: str | None) -> dict[str, Tally]:
    lanes = {row[0]: Tally(*row[1:]) for row in connection.run("lane_view")}
    if agent is None:
        return lanes
    found = dict.fromkeys(lanes, Tally())
    pairs = [(lane, agent) for lane in lanes]
    for row in connection.run_rows("line_find", pairs) if pairs else ():
        line = Line(*row)
        sums = zip(_tally(found[line.lane]), _tally(line), strict=True)
        found[line.lane] = Tally(*(one + other for one, other in sums))
    return found


def _tally(tally: Tally) -> list[int]:
    return [getattr(tally, name) for name in Tally.__struct_fields__]


def _of(kind: Callable[..., T]) -> Callable[[Row], T]:
    return lambda row: kind(*row)


def _in_parts(connection: Connection, seqs: Sequence[int]) -> Iterator[Row]:
    """Tasks with their requests and results, in this order; large ones are not read ahead."""
    start, count, size = 0, PART_ROWS_MIN, 0
    while start < len(seqs):
        wanted = seqs[start : start + count]
        rows = connection.run_rows("task_view_many", [(seq,) for seq in wanted])
        found = {row[0]: row for row in rows}
        yield from (found[seq] for seq in wanted if seq in found)
        start += len(wanted)
        size += sum(map(row_bytes, rows))
        count = next_part(count, start, size, PAGE_BYTES_MAX)


def _event_view(row: Row) -> EventView:
    return EventView(Event(*row[:_EVENT_WIDTH]), *row[_EVENT_WIDTH:])


def _view(row: Row) -> TaskView:
    return TaskView(Task(*row[:_TASK_WIDTH]), *row[_TASK_WIDTH:])


def _with_log(view: TaskView, history: Iterable[Event]) -> TaskView:
    log = tuple(events.attempts(sorted(history, key=lambda event: event.id)))
    return msgspec.structs.replace(view, log=log) if log else view
