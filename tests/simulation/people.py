"""The actors: callers that submit, workers that report, operators that change their minds.

They know only what they were told, except that some of them look up which tasks are in a state
before they ask for something, as people do.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from fairlane.core.model import Submission
from fairlane.engine.commands import (
    AppendOutput,
    Cancel,
    CancelBatch,
    ClaimDeliveries,
    Complete,
    Fail,
    IdempotencyKey,
    Lease,
    NewBatch,
    Prune,
    Release,
    Renew,
    Reset,
    Retry,
    SettleDelivery,
    Start,
    Submit,
)
from tests.simulation.families import BAD
from tests.simulation.tuning import LANES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from fairlane.clock import ManualClock
    from tests.simulation.invariants import Invariants

ROUTES: Final = ("action", "handler/mail", "handler/sum")
PRIORITIES: Final = (0, 0, 0, 0, 5, 10, 10, -10, -10, -20, -20)
RESULTS: Final = (
    *(None, None, '{"ok":1}', '{"ok":1}'),
    '{"usage":{"tokens":10,"contextWindow":100}}',
    '{"usage":{"tokens":70,"contextWindow":100}}',
)
PAST_KEPT: Final = 40
PROMISED_MAX: Final = 4
GENERATIONS_MAX: Final = 20

# Who depends on whom, by number: a chain, a diamond, one before many, many before one, a ladder.
SHAPES: Final[tuple[tuple[tuple[int, ...], ...], ...]] = (
    ((), (0,), (1,), (2,), (3,), (4,)),
    ((), (0,), (0,), (1, 2)),
    ((), (0,), (0,), (0,), (0,)),
    ((), (), (), (0, 1, 2)),
    ((), (0,), (0, 1), (1, 2), (2, 3)),
    ((), (), (0,), (), (1, 2)),
)


class Held(msgspec.Struct, frozen=True):
    """A lease as its worker knows it."""

    seq: int
    fencing_token: int
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


class Names:
    """New names, each once, in the order of time as those of the engine's callers are."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()

    def new(self, what: str) -> str:
        self._numbers[what] += 1
        return f"{what}_{self._numbers[what]:04}"


class Callers:
    """They submit tasks alone, in families and in batches, and say the same thing twice."""

    def __init__(self, rng: Random, clock: ManualClock, names: Names, agents: list[str]) -> None:
        self._rng = rng
        self._clock = clock
        self._names = names
        self._agents = agents
        self.ids: deque[str] = deque(maxlen=PAST_KEPT)
        self.batches: deque[str] = deque(maxlen=6)
        self._keys: deque[tuple[IdempotencyKey, Submit]] = deque(maxlen=6)
        self._promised: dict[str, str] = {}  # ids that nobody has used, and who waits for them

    def submit(self) -> list[Submit]:
        rng, chance = self._rng, self._rng.random()
        if chance < 0.08 and self._keys:
            return [self._again(*rng.choice(self._keys))]
        kind = rng.random()
        request = self._family() if kind < 0.25 else self._rush() if kind < 0.35 else self._some()
        if chance < 0.75:
            return [request]
        key = IdempotencyKey(request.submissions[0].agent, self._names.new("key"), "one")
        first = msgspec.structs.replace(request, idempotency=key)
        self._keys.append((key, first))
        return [first, self._again(key, first)] if chance < 0.80 else [first]

    def _some(self) -> Submit:
        rng = self._rng
        found = []
        for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 2, 3))):
            task_id, parents = self._id()
            if rng.random() < 0.35:
                parents += self._parents(task_id)
            found.append(self._submission(task_id, parents))
        return Submit(found)

    def _family(self) -> Submit:
        """Tasks that depend on each other and perhaps on others, often as one batch."""
        rng = self._rng
        shape = rng.choice(SHAPES)
        ids = [self._id()[0] for _ in shape]
        batch = self._batch() if rng.random() < 0.8 else None
        found = []
        for id_, numbers in zip(ids, shape, strict=True):
            parents = [ids[number] for number in numbers]
            if rng.random() < 0.15:
                parents += self._parents(id_)
            if rng.random() < 0.01:
                parents.append(rng.choice(ids))  # itself, or round in a circle
            found.append(self._submission(id_, parents, batch.id if batch else None))
        if rng.random() < 0.3:
            rng.shuffle(found)
        return Submit(found, None, batch)

    def _rush(self) -> Submit:
        """Critical work for one lane, more than it has room for."""
        lane, found = self._rng.choice(LANES), []
        for _ in range(self._rng.randrange(1, 4)):
            one = self._submission(self._id()[0], ())
            found.append(msgspec.structs.replace(one, lane=lane, priority=-20, session=None))
        return Submit(found)

    def _batch(self) -> NewBatch:
        rng = self._rng
        id_ = self._names.new("bat")
        self.batches.append(id_)
        url = "https://example.org/batch" if rng.random() < 0.4 else None
        return NewBatch(id_, rng.choice(self._agents), rng.choice((None, 1, 1, 1, 2, 3)), url)

    def _again(self, key: IdempotencyKey, first: Submit) -> Submit:
        """As an edge does it: the ids are new, the key tells that it is the same request."""
        ids = {s.id: self._names.new("tsk") for s in first.submissions}
        batch = first.batch
        if batch is not None:
            batch = msgspec.structs.replace(batch, id=self._names.new("bat"))
        again = [
            msgspec.structs.replace(
                s,
                id=ids[s.id],
                batch=batch.id if batch else None,
                depends_on=tuple(ids.get(one, one) for one in s.depends_on),
            )
            for s in first.submissions
        ]
        if self._rng.random() < 0.2:
            key = msgspec.structs.replace(key, digest="another")
        return Submit(again, key, batch)

    def _id(self) -> tuple[str, list[str]]:
        """A new name, or one that others wait for already; then perhaps with one of them."""
        rng, parents = self._rng, []
        if self._promised and rng.random() < 0.25:
            task_id = rng.choice(list(self._promised))
            waiter = self._promised.pop(task_id)
            if rng.random() < 0.4:
                parents = [waiter]
        else:
            task_id = self._names.new("tsk")
        self.ids.append(task_id)
        return task_id, parents

    def _parents(self, child: str) -> list[str]:
        """Tasks of earlier steps in any state, or ones that do not exist, or not yet."""
        rng = self._rng
        found = []
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            chance = rng.random()
            if chance < 0.03:
                found.append(self._names.new("never"))
            elif chance < 0.12 and len(self._promised) < PROMISED_MAX:
                found.append(self._names.new("tsk"))
                self._promised[found[-1]] = child
            elif chance < 0.20 and self._promised:
                found.append(rng.choice(list(self._promised)))
                self._promised[found[-1]] = child
            elif self.ids:
                found.append(rng.choice(self.ids))
        return found

    def _submission(
        self, task_id: str, parents: Sequence[str], batch: str | None = None
    ) -> Submission:
        rng = self._rng
        agent, route = rng.choice(self._agents), rng.choice(ROUTES)
        kind = route.partition("/")[0]
        retry = self._retry_policy() if rng.random() < 0.25 else {}
        body: dict[str, Any] = {"params": {"n": 1}}
        if retry:
            body["retryPolicy"] = retry
        delay_ms, run_at = self._start()
        return Submission(
            id=task_id,
            kind=kind,
            agent=agent,
            capability=route,
            body=msgspec.json.encode(body).decode(),
            lane=rng.choice((None, None, None, *LANES, "nowhere")),
            priority=rng.choice(PRIORITIES),
            session=self._session(kind, agent),
            deadline_at=self._deadline(waits=bool(parents)),
            callback_url="https://example.org/hook" if rng.random() < 0.3 else None,
            batch=batch,
            depends_on=tuple(dict.fromkeys(parents)),
            run_at=run_at,
            delay_ms=delay_ms,
            max_attempts=retry["maxRetries"] + 1 if "maxRetries" in retry else None,
            preemptible=rng.random() < 0.6,
        )

    def _session(self, kind: str, agent: str) -> str | None:
        rng = self._rng
        if kind == "action" and rng.random() < 0.6:
            return f"tab:{agent}:t{rng.randrange(2)}"
        return f"chat:{rng.randrange(4)}" if rng.random() < 0.4 else None

    def _deadline(self, *, waits: bool) -> int | None:
        rng = self._rng
        if rng.random() >= (0.4 if waits else 0.12):
            return None
        return self._clock.now() + rng.choice((-1, 0, 1, 700, 5000, 20_000, 60_000))

    def _start(self) -> tuple[int | None, int | None]:
        rng, chance = self._rng, self._rng.random()
        if chance < 0.08:
            return rng.choice((0, 1, 600, 3000)), None
        if chance < 0.12:
            return None, self._clock.now() + rng.choice((-500, 0, 1200, 5000))
        return None, None

    def _retry_policy(self) -> dict[str, Any]:
        rng = self._rng
        policy = {
            "maxRetries": rng.choice((0, 1, 2, 4)),
            "backoffMs": rng.choice((0, 100, 700)),
            "backoffMultiplier": rng.choice((1, 1.5, 3)),
        }
        return {name: value for name, value in policy.items() if rng.random() < 0.7}


class Watchers:
    """They look at what there is and cancel it, try it again, or sweep up."""

    def __init__(self, rng: Random, callers: Callers, invariants: Invariants) -> None:
        self._rng = rng
        self._callers = callers
        self._invariants = invariants

    def ask(self, held: Sequence[Held]) -> Any:
        chance = self._rng.random()
        if chance < 0.35:
            return self._cancel(held)
        if chance < 0.75:
            return Retry(self._head() or self._one_of("failed", "cancelled"))
        if chance < 0.90:
            return Reset(self._one_of("parked"))
        if chance < 0.97:
            batches = self._callers.batches
            known = batches and self._rng.random() < 0.95
            return CancelBatch(self._rng.choice(batches) if known else "bat_unknown")
        return Prune(dry_run=self._rng.random() < 0.3)

    def _cancel(self, held: Sequence[Held]) -> Cancel:
        rng = self._rng
        if rng.random() < 0.3:
            return Cancel(self._one_of("parked", "waiting_dependency"))
        if held and rng.random() < 0.4:
            return Cancel(rng.choice(held).id)
        return Cancel(self._any())

    def _head(self) -> str | None:
        """The task because of which others were cancelled, if there is one."""
        orphans = self._invariants.orphans
        if not orphans or self._rng.random() < 0.5:
            return None
        found: str | None = self._rng.choice(orphans)
        families = self._invariants.ground.families
        for _ in range(GENERATIONS_MAX):
            if found is None or found not in families.orphans:
                return found
            parents = families.parents[found]
            found = next((p for p in parents if families.ends.get(p) in BAD), None)
        return None

    def _one_of(self, *states: str) -> str:
        """Mostly a task in one of these states."""
        found = self._invariants.ids_of(*states)
        return self._rng.choice(found) if found and self._rng.random() < 0.85 else self._any()

    def _any(self) -> str:
        ids = self._callers.ids
        return self._rng.choice(ids) if ids and self._rng.random() < 0.9 else "tsk_unknown"


class Reporters:
    """What workers say about their leases, in time, late, twice, or although they were stopped."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._parts: Counter[int] = Counter()
        self.past: deque[Held] = deque(maxlen=PAST_KEPT)  # leases that are over, or should be
        self.stopped: set[tuple[int, int]] = set()  # runs that know that they should stop
        self.claimed: deque[str] = deque(maxlen=PAST_KEPT)

    def report(self, held: Held) -> list[Any]:
        rng, chance = self._rng, self._rng.random()
        seq, token = held.seq, held.fencing_token
        if (seq, token) in self.stopped and chance < 0.7:
            return [Release(seq, token)]
        if chance < 0.50:
            complete = Complete(seq, token, rng.choice(RESULTS))
            return [complete] * rng.choice((1, 1, 1, 1, 2))
        if chance < 0.64:
            wait = rng.choice((None, None, 0, 2500))
            retryable = rng.random() < 0.85
            return [Fail(seq, token, "went wrong", retryable=retryable, retry_after_ms=wait)]
        if chance < 0.71:
            return [Release(seq, token)]
        if chance < 0.77:
            return [self._say(seq, token)]
        if chance < 0.88:
            return [Start(seq, token)]
        return [Renew(seq, token, rng.choice((1000, 5000)))]

    def _say(self, seq: int, token: int) -> AppendOutput:
        self._parts[token] += self._rng.random() < 0.8
        return AppendOutput(seq, token, self._parts[token], self._rng.choice("abc"))

    def come_late(self) -> list[Any]:
        """A report for an ended lease, by a worker that does not know, or an invented one."""
        rng = self._rng
        if not self.past:
            return []
        held = rng.choice(self.past)
        if rng.random() < 0.2:
            token = held.fencing_token + rng.choice((-1, 1, -held.fencing_token, 1000))
            held = Held(held.seq + rng.choice((0, 0, -1, 1)), token, held.id)
        return self.report(held)

    def deliver(self) -> Any:
        rng = self._rng
        if not self.claimed or rng.random() < 0.4:
            return ClaimDeliveries(limit=rng.choice((1, 5)), hold_ms=5000)
        wait = rng.choice((None, 500, 4000))
        delivered = rng.random() < 0.7
        return SettleDelivery(rng.choice(self.claimed), delivered, "no answer", wait)
