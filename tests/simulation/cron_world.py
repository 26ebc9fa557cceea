"""Three nodes on one store, and jobs of all kinds, for hundreds of days.

Time jumps from one thing that is due to the next. Nodes take turns, die in the middle of a commit
and come back; clocks are set back and forward; for hours nobody looks. After every transaction the
run log and the jobs must be what `cron_model` says, and the engine must want to be called in time.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from fairlane.clock import ManualClock
from fairlane.core.errors import FairlaneError, StoreUnavailable
from fairlane.engine.commands import (
    Cancel,
    Complete,
    CreateJobs,
    DeleteJob,
    Fail,
    RunJob,
    ToggleJob,
    UpdateJob,
)
from fairlane.engine.engine import Engine
from fairlane.store.sqlite import SqliteStore
from tests.simulation.causes import Violation, demand
from tests.simulation.cron_model import MISSED, RUN, SKIPPED, Entry, Model, ModelJob, Slots
from tests.simulation.cron_people import DAY, HOUR, MINUTE, Held, Owner, Runner
from tests.simulation.faults import FaultyStore, Killed, plan_faults
from tests.simulation.ledger import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fairlane.engine.engine import Outcome

NODES: Final = 3
TRACE_KEPT: Final = 40
SLACK_DAYS: Final = 30
ENDED: Final = {"done": "ok", "failed": "error", "cancelled": "cancelled"}
BEGINNINGS: Final = ("2024-01-01", "2025-06-15", "2026-09-01", "2027-12-24")


class Ended(NamedTuple):
    task: str
    state: str
    seq: int


class RunRow(msgspec.Struct):
    """A line of the run log, as far as it is looked at."""

    seq: int
    job: str
    slot: str
    trigger: str
    status: str
    scheduled_at: int
    task: str | None
    error: str | None


class CronWorld:
    def __init__(self, seed: int, days: int, watch: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self._watch = watch
        self.rng = Random(seed)
        day = datetime.fromisoformat(self.rng.choice(BEGINNINGS)).replace(tzinfo=UTC)
        start = round(day.timestamp() * 1000) + self.rng.randrange(DAY)
        self.end = start + days * DAY
        self.clock = ManualClock(start)
        self._real = SqliteStore(":memory:", "sqlite://:memory:")
        self._real.migrate()
        self.store = FaultyStore(self._real, self.clock)
        self.reader = Reader(self._real)
        self.model = Model(Slots(start, self.end + SLACK_DAYS * DAY))
        self.owner = Owner(self.rng, self.model)
        self.runner = Runner(self.rng)
        self.happened: Counter[str] = Counter()
        self.trace: deque[str] = deque(maxlen=TRACE_KEPT)
        self.steps = 0
        self._hash = hashlib.sha256()
        self._boots = 0
        self._last_run = 0
        self._keys: set[tuple[str, str]] = set()
        self._tasks: dict[str, str] = {}  # of runs that have not ended: whose they are
        self.nodes = [self._boot() for _ in range(NODES)]

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()[:16]

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self.reader.close()
        self.store.drop()
        self.store.close()

    def _boot(self) -> Engine:
        self._boots += 1
        return Engine(self.store, self.clock, name=f"node_{self._boots}")

    # ------------------------------------------------------------ one step

    def play(self) -> None:
        rng = self.rng
        moved = self._move_clock()
        number = rng.randrange(NODES)
        if rng.random() < 0.01:
            self._restart(number)
        batch = self.runner.report(self.clock.now())
        asked: list[Any] = []
        if moved < 0 and rng.random() < 0.5:
            asked = self.owner.off_and_on()
        elif rng.random() < 0.04 or self.owner.idle:
            asked = self.owner.ask(self.clock.now())
        self.happened["asked"] += len(asked)
        batch += asked
        self.store.prepare(plan_faults(rng) if rng.random() < 0.04 else [])
        self._apply(number, batch)

    def drain(self) -> None:
        """No more faults: whatever was fired comes to its end."""
        for _ in range(200):
            if not self._tasks:
                break
            self.clock.advance(HOUR)
            self.store.prepare([])
            batch = [Complete(held.seq, held.fencing_token) for held in self.runner.held]
            self.runner.held.clear()
            self._apply(0, batch)
        demand("runs", not self._tasks, f"never ended: {sorted(self._tasks)}")

    def _move_clock(self) -> int:
        """Mostly to what is due next, now and then somewhere else; by how much."""
        rng, now, due_at = self.rng, self.clock.now(), self.model.next_at
        chance = rng.random()
        if chance < 0.02:
            self.happened["clock jumps"] += 1
            by = rng.randrange(-10 * MINUTE, 10 * MINUTE)
            self.clock.step(by)
            return by
        if chance < 0.03:
            self.happened["outages of all"] += 1
            by = rng.randrange(HOUR, 4 * DAY)
        elif chance < 0.15 or due_at is None:
            by = rng.choice((0, 500, 5000, 40_000, 20 * MINUTE))
        else:
            by = max(0, due_at - now) + rng.choice((0, 0, 1, 700, 30_000))
        self.clock.advance(by)
        return by

    def _restart(self, number: int) -> None:
        self.happened["restarts"] += 1
        self.nodes[number].close()
        self.nodes[number] = self._boot()

    def _apply(self, number: int, batch: list[Any]) -> None:
        self.steps += 1
        node, outcome, killed = self.nodes[number], None, False
        struck = self.store.struck
        try:
            outcome = node.apply(batch, [self.runner.lease(f"{node.name}.worker")])
        except Killed:
            killed = True
            node.close()  # what the system does for a dead process
        except StoreUnavailable:
            self.happened["outages"] += 1
        except Violation:
            raise
        except Exception as error:
            raise Violation("error", f"the engine raised {error!r}") from error
        self.happened["lost connections"] += self.store.struck - struck
        self._note(number, batch, outcome, killed=killed)
        # What was not committed has not happened; an empty batch that found nothing neither.
        if self.store.committed or outcome is not None:
            self._check(batch, self.store.moment)
        if outcome is None:
            self._try_again(batch)
        else:
            self._hear(node, outcome)
        if killed:
            self._restart(number)

    def _hear(self, node: Engine, outcome: Outcome) -> None:
        for grants in outcome.grants:
            self.runner.take(grants, self.clock.now())
        for answer in outcome.answers:
            if isinstance(answer, FairlaneError):
                self.happened[f"refused {answer.code}"] += 1
        next_at = self.model.next_at
        if next_at is not None:
            in_time = node.due_at is not None and node.due_at <= next_at
            demand("time", in_time, f"{node.name} sleeps until {node.due_at}, due is {next_at}")

    def _try_again(self, batch: Iterable[Any]) -> None:
        for request in batch:
            if isinstance(request, Complete | Fail):
                self.runner.held.append(
                    Held(request.seq, request.fencing_token, "", self.clock.now())
                )

    # ------------------------------------------------------------ what must be so

    def _check(self, batch: list[Any], now: int) -> None:
        """Bring the model up to the commit, and compare."""
        ended = self._ended()
        by_time = self._count_ends(batch, ended)
        rows = self._new_runs()
        self._ask_model(batch, rows, now)
        for task, state in by_time:
            self._end(task, state)
        for job in list(self.model.jobs.values()):
            self._check_due(job, [row for row in rows if row.job == job.id], now)
        known = {row.job for row in rows} - self.model.jobs.keys()
        gone = {job for job in known if not self._was_deleted(job, batch)}
        demand("slots", not gone, f"jobs that are not there have fired: {sorted(gone)}")
        self._check_ended(ended)
        self._check_jobs()

    def _ended(self) -> list[Ended]:
        """The tasks of runs that are over since the last look."""
        if not self._tasks:
            return []
        marks = ", ".join("?" * len(self._tasks))
        found = self.reader.sql(
            f"SELECT id, state, seq FROM task WHERE id IN ({marks}) ORDER BY seq",
            tuple(self._tasks),
        )
        demand("runs", len(found) == len(self._tasks), "a task has gone before its end")
        return [Ended(*row) for row in found if row[1] in ENDED]

    def _count_ends(self, batch: list[Any], ended: list[Ended]) -> list[tuple[str, str]]:
        """Count those that were reported, in the order of the verbs; the rest ended by time."""
        by_seq = {one.seq: one.task for one in ended}
        states = {one.task: one.state for one in ended}
        for kind, state in ((Complete, "done"), (Fail, "failed")):
            for request in batch:
                task = by_seq.get(request.seq, "") if isinstance(request, kind) else ""
                if states.get(task) == state:  # or it was a late report about an older lease
                    self._end(task, states.pop(task))
        for request in batch:
            if isinstance(request, Cancel) and request.id in states:
                self._end(request.id, states.pop(request.id))
            elif isinstance(request, DeleteJob) and request.cancel:
                mine = [task for task in states if self._tasks[task] == request.id]
                for task in mine:
                    self._end(task, states.pop(task))
        return list(states.items())

    def _end(self, task: str, state: str) -> None:
        self.happened[f"runs {state}"] += 1
        self.model.end(self._tasks.pop(task), task, state)

    def _new_runs(self) -> list[RunRow]:
        found = self.reader.sql(
            "SELECT seq, job_id, slot, trigger, status, scheduled_at, task_id, error"
            " FROM run WHERE seq > ? ORDER BY seq",
            (self._last_run,),
        )
        rows = [RunRow(*row) for row in found]
        for row in rows:
            self._last_run = row.seq
            demand("twice", (row.job, row.slot) not in self._keys, f"{row.slot} of {row.job} again")
            self._keys.add((row.job, row.slot))
        return rows

    def _ask_model(self, batch: list[Any], rows: list[RunRow], now: int) -> None:
        """What people have asked for; they ask for nothing that would be refused, except to run."""
        model = self.model
        for request in batch:
            if isinstance(request, CreateJobs):
                for id_, document in zip(request.ids, request.documents, strict=True):
                    model.create(id_, msgspec.to_builtins(document), now)
            elif isinstance(request, UpdateJob):
                model.update(request.id, request.document, now)
            elif isinstance(request, ToggleJob):
                model.update(request.id, {"enabled": request.enabled}, now)
            elif isinstance(request, DeleteJob):
                model.jobs.pop(request.id, None)
            elif isinstance(request, RunJob) and request.id in model.jobs:
                self._check_manual(model.jobs[request.id], rows)

    def _check_manual(self, job: ModelJob, rows: list[RunRow]) -> None:
        mine = [row for row in rows if row.job == job.id and row.trigger == "manual"]
        busy = job.document["overlap"] == "skip" and bool(job.active)
        demand("manual", len(mine) == (0 if busy else 1), f"{job.id}, busy {busy}: {mine}")
        self.happened["run manual"] += len(mine)
        self._begin(job, mine)
        for row in mine:
            job.manual.add(row.task or "")
            rows.remove(row)

    def _check_due(self, job: ModelJob, rows: list[RunRow], now: int) -> None:
        expected = self.model.due(job, now, len(job.active))
        if sorted(expected) != sorted(map(_entry, rows)):
            raise Violation("slots", f"{job} at {now}: expected {expected}, found {rows}")
        for entry in expected:
            self.happened[f"{entry.what} {entry.trigger}".strip()] += 1
        self.model.deal(job, now, expected)
        self._begin(job, [row for row in rows if row.task is not None])

    def _begin(self, job: ModelJob, rows: list[RunRow]) -> None:
        for row in rows:
            demand("runs", row.task is not None, f"{row} has no task")
            assert row.task is not None
            job.active.add(row.task)
            self._tasks[row.task] = job.id
            self._check_task(job, row)

    def _check_task(self, job: ModelJob, row: RunRow) -> None:
        """It may not begin before its slot, and not later than its jitter or spread allows."""
        found = self.reader.sql(
            "SELECT lane, session, agent, eligible_at FROM task WHERE id = ?", (row.task,)
        )
        demand("runs", found, f"{row} has no task")
        lane, session, agent, eligible_at = found[0]
        demand("task", (lane, agent) == ("cron", "default"), f"{row}: {found}")
        waits = session == f"cron:{job.id}"
        demand("task", waits == (job.document["overlap"] != "allow"), f"{row}: {found}")
        if row.trigger == "schedule":
            late = 0 if eligible_at is None else eligible_at - row.scheduled_at
            demand("task", 0 <= late <= job.document["jitterMs"], f"{row}: {eligible_at}")

    def _was_deleted(self, job: str, batch: list[Any]) -> bool:
        return any(isinstance(r, DeleteJob) and r.id == job for r in batch)

    def _check_ended(self, ended: list[Ended]) -> None:
        for task, state, _ in ended:
            rows = self.reader.sql(
                "SELECT status, finished_at, attempts FROM run WHERE task_id = ?", (task,)
            )
            demand("runs", len(rows) == 1, f"{task} has {len(rows)} runs")
            status, finished_at, _ = rows[0]
            right = status == ENDED[state] and finished_at is not None
            demand("runs", right, f"{task} is {state}, its run {rows[0]}")

    def _check_jobs(self) -> None:
        found = self.reader.sql(
            "SELECT id, enabled, next_run_at, disabled_reason, runs, consecutive_errors FROM job"
        )
        ids = {row[0] for row in found}
        demand("jobs", ids == self.model.jobs.keys(), "jobs came or went by themselves")
        for id_, enabled, next_at, reason, runs, errors in found:
            job = self.model.jobs[id_]
            mine = (job.enabled, job.reason, job.runs, job.errors)
            if (bool(enabled), reason, runs, errors) != mine:
                raise Violation("jobs", f"{job} is {(enabled, reason, runs, errors)}")
            unknown = job.next_at is None and job.enabled  # beyond the time that is simulated
            right = next_at > self.model.slots.end if unknown else next_at == job.next_at
            if not right:
                raise Violation("next", f"{job} is next at {next_at}")

    # ------------------------------------------------------------ for people

    def _note(
        self, number: int, batch: list[Any], outcome: Outcome | None, *, killed: bool
    ) -> None:
        fate = "killed" if killed else "unknown" if outcome is None else "ok"
        asked = " ".join(_shown(request) for request in batch)
        line = f"{self.steps} @{self.store.moment} node {number} {fate}: {asked}"
        self.trace.append(line)
        self._hash.update(line.encode())
        if self._watch:
            self._watch(line)


def _entry(row: RunRow) -> Entry:
    if row.status == MISSED:
        count = int("".join(filter(str.isdigit, (row.error or "0").partition(" ")[0])) or 0)
        return Entry(MISSED, "", row.scheduled_at, count)
    if row.status == SKIPPED:
        return Entry(SKIPPED, "", row.scheduled_at)
    return Entry(RUN, row.trigger, row.scheduled_at)


def _shown(request: Any) -> str:
    if isinstance(request, Complete | Fail):
        return f"{type(request).__name__}({request.seq})"
    return str(request)


class Report(msgspec.Struct):
    seed: int
    days: float
    steps: int
    happened: dict[str, int]
    trace_hash: str


def run(seed: int, days: int, watch: Callable[[str], None] | None = None) -> Report:
    """Play a seed to its end. Raises `Violation` with the seed and the last lines as notes."""
    world = CronWorld(seed, days, watch)
    start = world.clock.now()
    try:
        while world.clock.now() < world.end:
            world.play()
        world.drain()
        passed = (world.clock.now() - start) / DAY
        happened = dict(sorted(world.happened.items()))
        return Report(seed, passed, world.steps, happened, world.trace_hash)
    except Violation as violation:
        violation.add_note(f"seed {seed}, step {world.steps}")
        for line in world.trace:
            violation.add_note(line)
        raise
    finally:
        world.close()
