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
from fairlane.engine.engine import Engine, Outcome
from fairlane.engine.requests import (
    Cancel,
    ClaimDeliveries,
    Complete,
    Fail,
    Grant,
    IdempotencyKey,
    Lease,
    Reclaim,
    Release,
    Renew,
    SetPolicy,
    SettleDelivery,
    Start,
    Submit,
)
from fairlane.store.sqlite import SqliteStore
from tests.simulation.causes import Step, Violation
from tests.simulation.faults import ClockFaults, Fault, FaultyStore, Killed, plan_faults
from tests.simulation.invariants import Invariants
from tests.simulation.tuning import BEGINNING, EVERYTHING_OPEN, LANES, Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUTES: Final = ("action", "handler/mail", "handler/sum")
PRIORITIES: Final = (0, 0, 0, 0, 0, 10, 10, -10, -10, -20)
TRACE_KEPT: Final = 30
DRAIN_BATCHES: Final = 400
PAST_KEPT: Final = 40


class Held(msgspec.Struct, frozen=True):
    """A lease as its worker knows it."""

    seq: int
    token: int
    id: str


class Worker(msgspec.Struct):
    name: str
    lanes: tuple[str, ...] | None
    routes: frozenset[str]
    started: frozenset[str]
    held: list[Held] = []

    def lease(self, rng: Random) -> Lease:
        ttl_ms = rng.choice((1000, 3000, 8000, 15_000))
        limit = rng.choice((1, 1, 2, 4))
        return Lease(self.name, self.lanes, self.routes, limit, ttl_ms, self.started)


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
        self._boots = 0
        self._numbers: Counter[str] = Counter()
        self._agents = [f"a{n}" for n in range(self.rng.choice((2, 3, 4, 11)))]
        self._operator = Operator(self.rng, self._agents)
        self._ids: deque[str] = deque(maxlen=PAST_KEPT)
        self._keys: deque[tuple[IdempotencyKey, list[Submission]]] = deque(maxlen=6)
        self._past: deque[Held] = deque(maxlen=PAST_KEPT)  # leases that are over, or should be
        self._claimed: deque[str] = deque(maxlen=PAST_KEPT)
        self._waiting: list[Lease] = []
        self._faulty = True
        self._outside = [self._new_worker() for _ in range(self.rng.randrange(2, 4))]
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
        count = rng.choice((0, 1, 2, 2, 3, 4, 5, 6))
        self.steps += max(1, count)
        batch = self._requests(count)
        if chance < 0.01:
            self._restart()
        elif chance < 0.02:
            self._apply(batch, neighbour=True)
            return
        self._apply(batch, plan=plan_faults(rng) if 0.02 <= chance < 0.06 else [])

    def drain(self) -> None:
        """No more faults and no more submissions: everything must end."""
        self._faulty = False
        self._clock_faults.end()
        self._apply([SetPolicy(EVERYTHING_OPEN, "simulation")])
        workers = [self._new_worker(able=True) for _ in range(3)]
        self._outside, self._inside, self._waiting = workers, [], []
        for _ in range(DRAIN_BATCHES):
            self.clock.advance(500)
            batch: list[Any] = [Complete(h.seq, h.token) for w in workers for h in w.held]
            batch += [SettleDelivery(id_, delivered=True) for id_ in self._claimed]
            batch.append(ClaimDeliveries(limit=20))
            self._claimed.clear()
            asking = {lease.worker for lease in self._waiting}
            self._waiting += [w.lease(self.rng) for w in workers if w.name not in asking]
            self._apply(batch)
            if not self.invariants.busy:
                break
        self.invariants.check_drained()

    def _apply(
        self, batch: list[Any], *, neighbour: bool = False, plan: Sequence[Fault] = ()
    ) -> None:
        """Let the engine do it, tell everybody what they may know, and check the whole."""
        self.batches += 1
        waiting = [] if neighbour else list(self._waiting)
        by = self._new("cli") if neighbour else self.engine.name
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
        except Violation:
            raise
        except Exception as error:
            self._note(step)
            raise Violation("error", f"the engine raised {error!r}") from error
        step.now, step.due_at = self.store.moment, self.engine.due_at
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
        """The process is gone at once; what it held is reported late, or never."""
        self.happened["restarts"] += 1
        for worker in self._inside:
            self._past.extend(worker.held)
        self._waiting = []
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
        for request, answer in zip(step.batch, outcome.answers, strict=True):
            if isinstance(request, Start | Renew | Complete | Fail | Release):
                self._hear_report(request, answer)
            elif isinstance(request, ClaimDeliveries):
                self._claimed.extend(owed.id for owed in answer)

    def _hand_over(self, name: str, grants: list[Grant]) -> None:
        worker = next((w for w in self._workers() if w.name == name), None)
        for grant in grants:
            held = Held(grant.task.seq, grant.task.token, grant.task.id)
            if worker is None or (self._faulty and self.rng.random() < 0.04):
                self.happened["lost grants"] += 1
                self._past.append(held)
            else:
                worker.held.append(held)

    def _hear_report(self, request: Any, answer: Any) -> None:
        goes_on = isinstance(request, Start | Renew) and isinstance(answer, Task)
        for worker in self._workers():
            for held in worker.held:
                if (held.seq, held.token) == (request.seq, request.token) and not goes_on:
                    worker.held.remove(held)
                    self._past.append(held)
                    return

    def _workers(self) -> list[Worker]:
        return self._inside + self._outside

    # ------------------------------------------------------------ who asks for what

    def _requests(self, count: int) -> list[Any]:
        found: list[Any] = []
        for _ in range(count):
            chance = self.rng.random()
            if chance < 0.20:
                found += self._submit()
            elif chance < 0.80:
                found += self._work()
            elif chance < 0.87:
                found += self._come_late()
            elif chance < 0.91:
                found.append(self._cancel())
            elif chance < 0.95:
                found.append(
                    SetPolicy(self._operator.document(self.invariants.policy), "simulation")
                )
            else:
                found.append(self._deliver())
        return found

    def _submit(self) -> list[Submit]:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.08 and self._keys:
            return [self._submit_again(*rng.choice(self._keys))]
        submissions = [self._submission() for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 2, 3)))]
        if chance < 0.75:
            return [Submit(submissions)]
        key = IdempotencyKey(submissions[0].agent, self._new("key"), "one")
        self._keys.append((key, submissions))
        first = Submit(submissions, key)
        return [first, self._submit_again(key, submissions)] if chance < 0.80 else [first]

    def _submit_again(self, key: IdempotencyKey, submissions: list[Submission]) -> Submit:
        """As an edge does it: the ids are new, the key tells that it is the same request."""
        again = [msgspec.structs.replace(s, id=self._new("tsk")) for s in submissions]
        if self.rng.random() < 0.2:
            key = msgspec.structs.replace(key, digest="another")
        return Submit(again, key)

    def _submission(self) -> Submission:
        rng = self.rng
        agent = rng.choice(self._agents)
        route = rng.choice(ROUTES)
        kind = route.partition("/")[0]
        session = None
        if kind == "action" and rng.random() < 0.7:
            session = f"tab:{agent}:t{rng.randrange(2)}"
        elif rng.random() < 0.25:
            session = f"chat:{rng.randrange(4)}"
        deadline_at = None
        if rng.random() < 0.15:
            deadline_at = self.clock.now() + rng.choice((-1, 0, 1, 700, 5000, 60_000))
        task_id = self._new("tsk")
        self._ids.append(task_id)
        return Submission(
            id=task_id,
            kind=kind,
            agent=agent,
            route=route,
            body="{}",
            lane=rng.choice((None, None, None, *LANES, "nowhere")),
            priority=rng.choice(PRIORITIES),
            session=session,
            deadline_at=deadline_at,
            callback_url="https://example.org/hook" if rng.random() < 0.3 else None,
        )

    def _work(self) -> list[Any]:
        """A worker reports, asks for more, or is never heard of again."""
        rng = self.rng
        asking = {lease.worker for lease in self._waiting}
        busy = [worker for worker in self._workers() if worker.held]
        idle = [worker for worker in self._workers() if worker.name not in asking]
        if idle and (not busy or rng.random() < 0.4):
            self._waiting.append(rng.choice(idle).lease(rng))
        elif busy:
            worker = rng.choice(busy)
            if rng.random() >= 0.02:
                return self._report(rng.choice(worker.held))
            self._crash(worker)
        return []

    def _crash(self, worker: Worker) -> None:
        """Its leases are never reported, or late; its waiting request finds nobody."""
        self.happened["crashed workers"] += 1
        self._past.extend(worker.held)
        worker.held.clear()
        if worker in self._outside:
            self._outside[self._outside.index(worker)] = self._new_worker()

    def _report(self, held: Held) -> list[Any]:
        rng, chance = self.rng, self.rng.random()
        seq, token = held.seq, held.token
        if chance < 0.45:
            complete = Complete(seq, token, rng.choice((None, '{"ok":1}')))
            return [complete] * rng.choice((1, 1, 1, 1, 2))
        if chance < 0.65:
            wait = rng.choice((None, None, 0, 2500))
            retryable = rng.random() < 0.85
            return [Fail(seq, token, "went wrong", retryable=retryable, retry_after_ms=wait)]
        if chance < 0.75:
            return [Release(seq, token)]
        if chance < 0.87:
            return [Start(seq, token)]
        return [Renew(seq, token, rng.choice((1000, 5000)))]

    def _come_late(self) -> list[Any]:
        """A report for a lease that is over, by somebody who does not know, or who makes it up."""
        rng = self.rng
        if not self._past:
            return []
        held = rng.choice(self._past)
        if rng.random() < 0.2:
            token = held.token + rng.choice((-1, 1, -held.token, 1000))
            held = Held(held.seq + rng.choice((0, 0, -1, 1)), token, held.id)
        return self._report(held)

    def _cancel(self) -> Cancel:
        rng = self.rng
        parked = self.invariants.parked
        if parked and rng.random() < 0.4:
            return Cancel(parked[0])
        held = [held.id for worker in self._workers() for held in worker.held]
        if held and rng.random() < 0.4:
            return Cancel(rng.choice(held))
        return Cancel(rng.choice(self._ids) if self._ids and rng.random() < 0.9 else "tsk_unknown")

    def _deliver(self) -> Any:
        rng = self.rng
        if not self._claimed or rng.random() < 0.4:
            return ClaimDeliveries(limit=rng.choice((1, 5)), hold_ms=5000)
        wait = rng.choice((None, 500, 4000))
        delivered = rng.random() < 0.7
        return SettleDelivery(rng.choice(self._claimed), delivered, "no answer", wait)

    def _new_worker(self, name: str | None = None, *, able: bool = False) -> Worker:
        rng = self.rng
        lanes = None
        if not able and rng.random() < 0.4:
            lanes = tuple(rng.sample(LANES, rng.randrange(2, 5)))
        routes = ROUTES if able else tuple(rng.sample(ROUTES, rng.choice((1, 2, 3, 3))))
        started = rng.sample(ROUTES, rng.randrange(3))
        name = name or self._new("worker")
        return Worker(name, lanes, frozenset(routes), frozenset(started), [])

    def _new(self, what: str) -> str:
        self._numbers[what] += 1
        return f"{what}_{self._numbers[what]}"


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
        return f"{name}({','.join(s.id for s in request.submissions)}{key})"
    if isinstance(request, SetPolicy):
        return f"{name}({request.document})"
    if isinstance(request, Cancel | SettleDelivery):
        return f"{name}({request.id})"
    if isinstance(request, ClaimDeliveries | Reclaim):
        return name
    return f"{name}({request.seq},{request.token})"


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
    token = f"#{task.token}" if task.lease_expires_at is not None else ""
    return f"{task.seq}:{task.lane}:{task.agent}:{task.state}{gate}{token}"


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
    world = World(seed, watch)
    try:
        while world.steps < steps:
            world.play()
        world.drain()
        return _report(world)
    except Violation as violation:
        violation.add_note(f"seed {seed}, step {world.steps}, batch {world.batches}")
        for line in world.trace:
            violation.add_note(line)
        raise
    finally:
        world.close()


def _report(world: World) -> Report:
    rules = world.invariants
    ended = dict(sorted(rules.ended.items())) | {"parked": len(rules.parked)}
    happened = dict(sorted(world.happened.items()))
    return Report(
        seed=world.seed,
        steps=world.steps,
        batches=world.batches,
        admitted=rules.admitted,
        granted=rules.granted,
        ended=ended,
        happened=happened,
        trace_hash=world.trace_hash,
    )
