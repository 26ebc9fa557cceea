"""A small world around the real engine: agents that submit, workers that run, operators that tune.

Everything is drawn from one `Random(seed)` and the clock is moved by hand, so a seed is a whole
history. The world knows only what its people were told; what is true is judged in `invariants`.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.clock import ManualClock
from fairlane.core.errors import FairlaneError, StoreUnavailable
from fairlane.core.model import Submission, Task
from fairlane.engine.commands import (
    Cancel,
    CancelBatch,
    ClaimDeliveries,
    Complete,
    Fail,
    Grant,
    Lease,
    Prune,
    Reclaim,
    Release,
    Renew,
    Reset,
    Retry,
    SetPolicy,
    SetSession,
    SettleDelivery,
    SetUsage,
    Start,
    StopSession,
    Submit,
)
from fairlane.engine.engine import GRACE_SECONDS, Engine, Outcome
from fairlane.engine.verbs import dependencies
from fairlane.store.sqlite import SqliteStore
from tests.simulation.causes import Step, Violation
from tests.simulation.faults import ClockFaults, Fault, FaultyStore, Killed, plan_faults
from tests.simulation.invariants import Invariants
from tests.simulation.people import ROUTES, Callers, Held, Names, Reporters, Watchers, Worker
from tests.simulation.steps import ClockWatch
from tests.simulation.talkers import Talkers
from tests.simulation.tuning import BEGINNING, EVERYTHING_OPEN, LANES, Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TRACE_KEPT: Final = 30
DRAIN_BATCHES: Final = 400
# How much of what follows from an end fits into one transaction: little, so that some is left.
SMALL: Final = {"LEVELS_MAX": (2, 4), "EDGES_MAX": (2, 4, 8), "_PARENTS_MAX": (2, 8)}


class World:
    def __init__(self, seed: int, watch: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self._watch = watch
        self.rng = Random(seed)
        self.clock = ManualClock()
        real = SqliteStore(":memory:", "sqlite://:memory:")
        real.migrate()
        self.store = FaultyStore(real, self.clock)
        self.invariants = Invariants(real)
        self.trace: deque[str] = deque(maxlen=TRACE_KEPT)
        self.happened: Counter[str] = Counter()
        self.steps = 0  # what people did; several are one batch
        self.batches = 0
        self._hash = hashlib.sha256()
        self._clock_faults = ClockFaults(self.rng, self.clock)
        self._clock_watch = ClockWatch(self.clock)
        self._boots = 0
        self._names = Names()
        agents = [f"a{n}" for n in range(self.rng.choice((2, 3, 4, 11)))]
        self._operator = Operator(self.rng, agents)
        self._callers = Callers(self.rng, self.clock, self._names, agents)
        self._talkers = Talkers(self.rng, self.clock, self._names, agents)
        self._watchers = Watchers(self.rng, self._callers, self.invariants)
        self._reporters = Reporters(self.rng)
        _set_limits({name: self.rng.choice(sizes) for name, sizes in SMALL.items()})
        self._waiting: list[Lease] = []
        self._faulty = True
        self._away = False  # the server could not write when it last tried
        self._judge_at = 0.0  # by the monotonic clock, which no step moves
        self._outside = [self._new_worker() for _ in range(self.rng.randrange(3, 5))]
        self._inside: list[Worker] = []
        self._boot()
        self._apply([SetPolicy(BEGINNING, "simulation")])

    def close(self) -> None:
        self.engine.close()
        self.invariants.close()
        self.store.drop()
        self.store.close()

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()[:16]

    # ------------------------------------------------------------ one step

    def play(self) -> None:
        """Some time passes, people do something, all in one batch, perhaps something breaks."""
        rng = self.rng
        moved = self._clock_faults.move(faulty=self._faulty)
        if moved < 0 or moved > 2000:
            self.happened["clock jumps"] += 1
        chance = rng.random() if self._faulty else 1.0
        count = rng.choice((0, 1, 2, 4, 6, 8, 10, 14))
        self.steps += max(1, count)
        batch = self._requests(count)
        if chance < 0.022:
            self._restart()
        elif chance < 0.042:
            self._apply(batch, neighbour=True)
            return
        self._apply(batch, plan=plan_faults(rng) if 0.042 <= chance < 0.09 else [])

    def drain(self) -> None:
        """No more faults and no more submissions: everything must end."""
        self._faulty = False
        self._clock_faults.end()
        self._apply([SetPolicy(EVERYTHING_OPEN, "simulation")])
        workers = [self._new_worker(able=True) for _ in range(3)]
        self._outside, self._inside, self._waiting = workers, [], []
        for _ in range(DRAIN_BATCHES):
            self.clock.advance(500)
            batch: list[Any] = [Complete(h.seq, h.fencing_token) for w in workers for h in w.held]
            batch += [SettleDelivery(id_, delivered=True) for id_ in self._reporters.claimed]
            batch.append(ClaimDeliveries(limit=20))
            self._reporters.claimed.clear()
            asking = {lease.worker for lease in self._waiting}
            self._waiting += [w.lease(self.rng) for w in workers if w.name not in asking]
            self._apply(batch)
            if not self.invariants.busy:
                break
        self.invariants.check_drained()

    def _apply(
        self, batch: list[Any], *, neighbour: bool = False, plan: Sequence[Fault] = ()
    ) -> None:
        """Apply the step, deliver the answers, and check all invariants."""
        self.batches += 1
        waiting = [] if neighbour else list(self._waiting)
        by = self._names.new("cli") if neighbour else self.engine.name
        step = Step(self.batches, 0, batch, waiting, by=by, neighbour=neighbour)
        step.fault = ", ".join(str(fault) for fault in plan)
        self.store.prepare(plan)
        struck, killed = self.store.struck, False
        try:
            step.outcome = self._ask(step)
        except Killed:
            killed = True
            self.store.drop()
        except StoreUnavailable:
            self.happened["outages"] += 1
            self._away = self._away or not neighbour
        except Violation:
            raise
        except Exception as error:
            self._note(step)
            raise Violation("error", f"the engine raised {error!r}") from error
        step.now, step.due_at = self.store.moment, self.engine.due_at
        if self._away and not neighbour and step.outcome is not None:
            self._away = False
            self._judge_at = self.clock.monotonic() + GRACE_SECONDS
        left_ms = round((self._judge_at - self.clock.monotonic()) * 1000)
        step.judged_from = self.clock.now() + left_ms if left_ms > 0 else 0
        step.committed = self.store.committed
        step.stepped_ms = self._clock_watch.committed() if step.committed else 0
        self.happened["clock steps"] += step.stepped_ms != 0
        self.happened["lost connections"] += self.store.struck - struck
        self._check(step)
        if step.outcome is not None:
            self._hear(step, step.outcome)
        if killed:
            self._restart()

    def _ask(self, step: Step) -> Outcome:
        if not step.neighbour:
            return self.engine.apply(step.batch, step.waiting)
        self.happened["neighbours"] += 1
        other = Engine(self.store, self.clock, name=step.by)
        try:
            return other.apply(step.batch)
        finally:
            other.close()

    def _check(self, step: Step) -> None:
        try:
            self.invariants.check(step)
        finally:
            self._note(step)

    def _note(self, step: Step) -> None:
        line = describe(step, self.invariants)
        self.trace.append(line)
        self._hash.update(line.encode())
        if self._watch:
            self._watch(line)

    # ------------------------------------------------------------ the server

    def _boot(self) -> None:
        self._boots += 1
        name = f"node_{self._boots}"
        self.engine = Engine(self.store, self.clock, name=name)
        self._inside = [self._new_worker(name)]
        self._apply([Reclaim("node_")])

    def _restart(self) -> None:
        """Kill the process; it reports its leases late, or never."""
        self.happened["restarts"] += 1
        for worker in self._inside:
            self._reporters.past.extend(worker.held)
        self._waiting = []
        self._away, self._judge_at = False, 0.0  # a new process knows of no outage
        self.store.drop()
        self._boot()

    def _hear(self, step: Step, outcome: Outcome) -> None:
        given = [] if step.neighbour else list(zip(step.waiting, outcome.grants, strict=False))
        served = {lease.worker for lease, grants in given if grants}
        self._waiting = [
            lease
            for lease in self._waiting
            if lease.worker not in served and self.rng.random() < 0.6  # or its long poll is over
        ]
        for lease, grants in given:
            self._hand_over(lease.worker, grants)
        if not step.neighbour:
            self._reporters.stopped.update(outcome.runs_to_stop)
        for request, answer in zip(step.batch, outcome.answers, strict=True):
            if isinstance(request, Start | Renew | Complete | Fail | Release):
                self._hear_report(request, answer)
                if isinstance(answer, Task) and answer.preempt:
                    self._reporters.stopped.add((request.seq, request.fencing_token))
            elif isinstance(request, ClaimDeliveries):
                self._reporters.claimed.extend(owed.id for owed in answer)

    def _hand_over(self, name: str, grants: list[Grant]) -> None:
        worker = next((w for w in self._workers() if w.name == name), None)
        for grant in grants:
            held = Held(grant.task.seq, grant.task.fencing_token, grant.task.id)
            if worker is None or (self._faulty and self.rng.random() < 0.04):
                self.happened["lost grants"] += 1
                self._reporters.past.append(held)
            else:
                worker.held.append(held)

    def _hear_report(self, request: Any, answer: Any) -> None:
        goes_on = isinstance(request, Start | Renew) and isinstance(answer, Task)
        for worker in self._workers():
            for held in worker.held:
                if (held.seq, held.fencing_token) == (
                    request.seq,
                    request.fencing_token,
                ) and not goes_on:
                    worker.held.remove(held)
                    self._reporters.past.append(held)
                    return

    def _workers(self) -> list[Worker]:
        return self._inside + self._outside

    # ------------------------------------------------------------ who asks for what

    def _requests(self, count: int) -> list[Any]:
        found: list[Any] = []
        for _ in range(count):
            chance = self.rng.random()
            if chance < 0.12:
                found += self._callers.submit()
            elif chance < 0.18:
                found += self._talkers.ask()
            elif chance < 0.77:
                found += self._work()
            elif chance < 0.84:
                found += self._reporters.come_late()
            elif chance < 0.92:
                found.append(self._watchers.ask([h for w in self._workers() for h in w.held]))
            elif chance < 0.95:
                found.append(
                    SetPolicy(self._operator.document(self.invariants.policy), "simulation")
                )
            else:
                found.append(self._reporters.deliver())
        return found

    def _work(self) -> list[Any]:
        """A worker reports, asks for more, or is never heard of again."""
        rng = self.rng
        asking = {lease.worker for lease in self._waiting}
        busy = [worker for worker in self._workers() if worker.held]
        idle = [worker for worker in self._workers() if worker.name not in asking]
        if idle and (not busy or rng.random() < 0.5):
            self._waiting.append(rng.choice(idle).lease(rng))
        elif busy:
            worker = rng.choice(busy)
            if rng.random() >= 0.02:
                return self._reporters.report(rng.choice(worker.held))
            self._crash(worker)
        return []

    def _crash(self, worker: Worker) -> None:
        """Its leases are never reported, or late; its waiting request finds nobody."""
        self.happened["crashed workers"] += 1
        self._reporters.past.extend(worker.held)
        worker.held.clear()
        if worker in self._outside:
            self._outside[self._outside.index(worker)] = self._new_worker()

    def _new_worker(self, name: str | None = None, *, able: bool = False) -> Worker:
        rng = self.rng
        lanes = None
        if not able and rng.random() < 0.4:
            lanes = tuple(rng.sample(LANES, rng.randrange(2, 5)))
        routes = ROUTES if able else tuple(rng.sample(ROUTES, rng.choice((1, 2, 3, 3))))
        started = rng.sample(ROUTES, rng.randrange(3))
        name = name or self._names.new("worker")
        return Worker(name, lanes, frozenset(routes), frozenset(started), [])


def _set_limits(values: dict[str, int]) -> None:
    for name, value in values.items():
        setattr(dependencies, name, value)


# --- what is printed and hashed ----------------------------------------------------------------


def describe(step: Step, invariants: Invariants) -> str:
    """One line: what was asked, what was answered, what has changed."""
    answers = step.outcome.answers if step.outcome else ["?"] * len(step.batch)
    asked = [f"{_asked(r)}={_said(a)}" for r, a in zip(step.batch, answers, strict=True)]
    changed = [_shown(seen.after) for seen in invariants.changed]
    who = " neighbour" if step.neighbour else ""
    fault = f" [{step.fault}]" if step.fault else ""
    offers = f" {len(step.waiting)} wait" if step.waiting else ""
    parts = " ".join(asked) + " -> " + " ".join(changed)
    return f"{step.number} @{step.now}{who}{fault}{offers}: {parts}"


def _asked(request: Any) -> str:
    name = type(request).__name__
    if isinstance(request, Submit):
        key = f"!{request.idempotency.key}" if request.idempotency else ""
        batch = f"@{request.batch.id}:{request.batch.parallelism}" if request.batch else ""
        return f"{name}({','.join(map(_named, request.submissions))}{key}{batch})"
    if isinstance(request, SetPolicy):
        return f"{name}({request.document})"
    if isinstance(request, Cancel | CancelBatch | Retry | Reset | SettleDelivery):
        return f"{name}({request.id})"
    if isinstance(request, ClaimDeliveries | Reclaim | Prune):
        return name
    if isinstance(request, SetSession):
        return f"{name}({request.key},{request.settings},{sorted(request.unset)})"
    if isinstance(request, StopSession | SetUsage):
        return str(request)
    return f"{name}({request.seq},{request.fencing_token})"


def _named(submission: Submission) -> str:
    message = submission.message
    said = f"~{submission.session}~{message.sender}~{message.text}" if message else ""
    return "<".join((submission.id + said, *submission.depends_on))


def _said(answer: Any) -> str:
    if isinstance(answer, Task):
        return answer.state
    if isinstance(answer, FairlaneError):
        return answer.code
    if isinstance(answer, list):
        return ",".join(
            _said(one) if isinstance(one, Task | FairlaneError) else "1" for one in answer
        )
    return answer if isinstance(answer, str) else "ok"


def _shown(task: Task) -> str:
    gate = f"/{task.gate}" if task.gate else ""
    token = f"#{task.fencing_token}" if task.lease_expires_at is not None else ""
    stopped = "!" if task.preempt else ""
    return f"{task.seq}:{task.id}:{task.lane}:{task.agent}:{task.state}{gate}{token}{stopped}"


# --- a whole run -------------------------------------------------------------------------------


class Report(msgspec.Struct):
    seed: int
    steps: int
    batches: int
    admitted: int
    granted: int
    ended: dict[str, int]
    happened: dict[str, int]
    trace_hash: str


def run(seed: int, steps: int, watch: Callable[[str], None] | None = None) -> Report:
    """Play a seed to its end. Raises `Violation` with the seed and the last lines as notes."""
    limits = {name: getattr(dependencies, name) for name in SMALL}
    try:
        return _run(World(seed, watch), steps)
    finally:
        _set_limits(limits)


def _run(world: World, steps: int) -> Report:
    try:
        while world.steps < steps:
            world.play()
        world.drain()
        return _report(world)
    except Violation as violation:
        violation.add_note(f"seed {world.seed}, step {world.steps}, batch {world.batches}")
        for line in world.trace:
            violation.add_note(line)
        raise
    finally:
        world.close()


def _report(world: World) -> Report:
    rules, ground = world.invariants, world.invariants.ground
    ended = dict(sorted(rules.ended.items())) | {"parked": len(rules.ids_of("parked"))}
    happened = world.happened + Counter(ground.histories.seen) + ground.talks.seen
    happened["mended"] = ground.families.mended
    happened["ends under way"] = ground.families.under_way
    happened["batches completed"] = ground.groups.completions
    happened["stops"] = ground.preemption.stops
    return Report(
        seed=world.seed,
        steps=world.steps,
        batches=world.batches,
        admitted=rules.admitted,
        granted=ground.granted,
        ended=ended,
        happened=dict(sorted(happened.items())),
        trace_hash=world.trace_hash,
    )
