"""Random histories on both databases at once: same answers, same rows, and counters that are true.

A history is a list of batches. What a batch says about leases and tasks are numbers that are looked
up in what the history has brought about so far, so every history makes sense, also a shrunk one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlane.clock import ManualClock
from fairlane.core import lifecycle
from fairlane.core.model import Task
from fairlane.engine.commands import (
    Cancel,
    ClaimDeliveries,
    Complete,
    Fail,
    IdempotencyKey,
    Reclaim,
    Release,
    Renew,
    SetPolicy,
    Start,
    Submit,
)
from fairlane.store.opening import open_store
from tests.store.invariants import assert_sound
from tests.store.scheduler import Scheduler, lease_request, submission
from tests.store.stores import SQLITE, ReusedPostgres, contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fairlane.engine.engine import Outcome

ROUTES = ("handler/one", "handler/two")
numbers = st.integers(0, 30)
_HISTORIES = settings(
    report_multiple_bugs=False,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Batch(msgspec.Struct, frozen=True):
    advance_ms: int
    said: list[tuple[str, Any]]
    limit: int
    worker: str
    begins: bool


def one_of(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


submits = st.fixed_dictionaries(
    {
        "agent": one_of("a", "b", "c"),
        "capability": one_of(*ROUTES),
        "priority": one_of(0, 0, 0, 5, -5, -20),
        "session": one_of(None, None, "s", "t"),
        "lane": one_of("main", "main", "queue"),
        "deadline_ms": one_of(None, None, 60, 1200),
        "callback_url": one_of(None, "https://receiver.example/"),
        "count": st.integers(1, 3),
        "key": one_of(None, None, None, "k1", "k2"),
    }
)
policies = one_of(
    {"lanes": {"main": {"maxInflight": 1}}},
    {"lanes": {"main": {"maxInflight": 4, "maxQueueSize": 5}}},
    {"lanes": {"main": {"strategy": "priority", "maxPerAgentInflight": None}}},
    {"lanes": {"main": {"strategy": "fair-fifo", "maxPerAgentInflight": 2}}},
    {"lanes": {"main": {"paused": True}}},
    {"lanes": {"main": {"paused": False, "maxPerAgent": 2}}},
    {"agents": {"a": {"weight": 3}}, "maxInflight": 3},
    {"agents": {"a": {"weight": 0.5, "maxInflight": 1}}},
    {"kinds": {"handler": {"maxAttempts": 1, "whenSpent": "fail"}}},
    {"retention": {"resultTTLSec": 2}},
)
requests = st.one_of(
    st.tuples(st.just("submit"), submits),
    st.tuples(st.just("submit"), submits),
    st.tuples(one_of("start", "renew", "complete", "fail", "release", "give up"), numbers),
    st.tuples(one_of("complete", "fail"), numbers),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("policy"), policies),
    st.tuples(one_of("reclaim", "deliver"), st.just(0)),
)
batches = st.builds(
    Batch,
    advance_ms=one_of(0, 0, 1, 50, 1000, 2000, 15_000),
    said=st.lists(requests, max_size=5),
    limit=st.integers(0, 4),
    worker=one_of("w1", "w2"),
    begins=st.booleans(),
)


class Run:
    """One history on one store."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.outcomes: list[Any] = []
        self._leases: list[Task] = []
        self._names: list[str] = []
        self._ended: dict[str, str] = {}

    def apply(self, batch: Batch) -> Any:
        self.scheduler.clock.advance(batch.advance_ms)
        asked = [self._request(verb, what) for verb, what in batch.said]
        began = frozenset(ROUTES) if batch.begins else frozenset()
        lease = lease_request(
            batch.limit, worker=batch.worker, capabilities=frozenset(ROUTES), started=began
        )
        waiting = [lease] if batch.limit else []
        outcome = self.scheduler.apply(*(one for one in asked if one), waiting=waiting)
        self._check(outcome)
        return msgspec.to_builtins(outcome, enc_hook=repr)

    def drain(self) -> None:
        """Let everything that is left come to its end: nothing may be stuck."""
        self.scheduler.set_policy(lanes={"main": {"paused": False, "maxInflight": 50}})
        for task in self._leases:
            self.scheduler.apply(Complete(task.seq, task.fencing_token))
        for _ in range(30):
            self.scheduler.clock.advance(60_000)
            outcome = self.scheduler.apply(
                waiting=[lease_request(50, capabilities=frozenset(ROUTES))]
            )
            self._check(outcome)
            for grant in outcome.grants[0]:
                self.scheduler.apply(Complete(grant.task.seq, grant.task.fencing_token))
            tallies = [self.scheduler.tally(lane) for lane in ("main", "queue")]
            if not any(tally.queued or tally.slots for tally in tallies):
                return
        raise AssertionError("something is stuck")

    def _request(self, verb: str, what: Any) -> Any:
        if verb == "submit":
            return self._submit(what)
        if verb == "policy":
            return SetPolicy(what, "test")
        if verb == "reclaim":
            return Reclaim("w1")
        if verb == "deliver":
            return ClaimDeliveries(2)
        if verb == "cancel":
            return Cancel(self._names[what % len(self._names)]) if self._names else None
        return self._report(verb, what)

    def _submit(self, what: dict[str, Any]) -> Submit:
        fields = dict(what)
        count, key, wait_ms = fields.pop("count"), fields.pop("key"), fields.pop("deadline_ms")
        deadline_at = None if wait_ms is None else self.scheduler.clock.now() + wait_ms
        names = [f"t{len(self._names) + number}" for number in range(count)]
        self._names += names
        memory = key and IdempotencyKey(fields["agent"], key, "digest")
        tasks = [submission(name, deadline_at=deadline_at, **fields) for name in names]
        return Submit(tasks, memory)

    def _report(self, verb: str, number: int) -> Any:
        if not self._leases:
            return None
        task = self._leases[-1 - number % len(self._leases)]
        if verb == "renew":
            return Renew(task.seq, task.fencing_token, 20_000)
        if verb == "fail":
            return Fail(task.seq, task.fencing_token, "no luck")
        if verb == "give up":
            return Fail(task.seq, task.fencing_token, "no use", retryable=False)
        verbs: dict[str, Callable[[int, int], Any]] = {
            "start": Start,
            "complete": Complete,
            "release": Release,
        }
        return verbs[verb](task.seq, task.fencing_token)

    def _check(self, outcome: Outcome) -> None:
        policy = self.scheduler.engine.policy
        granted = [grant.task for grants in outcome.grants for grant in grants]
        for task in granted:
            assert not self._leases or task.fencing_token > self._leases[-1].fencing_token
            assert task.deadline_at is None or task.deadline_at > self.scheduler.clock.now()
            self._leases.append(task)
            slots = self.scheduler.tally(task.lane).slots
            assert slots <= policy.lanes[task.lane].max_inflight, "above the ceiling"
        for task in outcome.ended_tasks:
            assert task.state in lifecycle.TERMINAL
            assert task.id not in self._ended, "ended twice"
            self._ended[task.id] = task.state
        assert_sound(self.scheduler.reader, policy)


@pytest.fixture(scope="module")
def keep() -> Iterator[Callable[..., list[Scheduler]]]:
    """Close the schedulers that were kept before, and keep others in their place."""
    open_now: list[Scheduler] = []

    def replace(*others: Scheduler) -> list[Scheduler]:
        while open_now:
            open_now.pop().close()
        open_now.extend(others)
        return open_now

    yield replace
    replace()


@pytest.fixture(scope="module")
def new_pair(
    tmp_path_factory: pytest.TempPathFactory,
    reused_postgres: ReusedPostgres,
    keep: Callable[..., list[Scheduler]],
) -> Callable[[], list[Run]]:
    """Make an empty store of each kind; what was made before is closed."""
    folder: Path = tmp_path_factory.mktemp("histories")

    def make() -> list[Run]:
        keep()
        file = folder / "fairlane.db"
        for left in folder.glob("fairlane.db*"):
            left.unlink()
        reused_postgres.empty()
        stores = [open_store(url) for url in (f"{SQLITE}{file}", reused_postgres.url)]
        for store in stores:
            store.migrate()
        return [Run(one) for one in keep(*(Scheduler(store, ManualClock()) for store in stores))]

    return make


@pytest.mark.slow
@pytest.mark.timeout(900)  # a failing history is made as short as it can be, which takes a while
@settings(_HISTORIES, max_examples=15)
@given(history=st.lists(batches, min_size=1, max_size=16))
def test_both_databases_tell_the_same_true_story(
    new_pair: Callable[[], list[Run]], history: list[Batch]
) -> None:
    runs = new_pair()
    for batch in history:
        on_sqlite, on_postgres = [run.apply(batch) for run in runs]
        assert on_sqlite == on_postgres
    sqlite_rows, postgres_rows = [contents(run.scheduler.store) for run in runs]
    assert sqlite_rows == postgres_rows
    for run in runs:
        run.drain()


@pytest.fixture(scope="module")
def new_nodes(
    reused_postgres: ReusedPostgres, keep: Callable[..., list[Scheduler]]
) -> Callable[[], list[Scheduler]]:
    """Make two nodes on an empty store; those that were made before are closed."""

    def make() -> list[Scheduler]:
        keep()
        reused_postgres.empty()
        store, clock = open_store(reused_postgres.url), ManualClock()
        store.migrate()
        return keep(*(Scheduler(store, clock, name) for name in ("node_1", "node_2")))

    return make


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(_HISTORIES, max_examples=25)
@given(history=st.lists(st.tuples(st.integers(0, 1), batches), min_size=2, max_size=24))
def test_what_a_node_knows_is_in_the_rows_that_bear_its_number(
    new_nodes: Callable[[], list[Scheduler]], history: list[tuple[int, Batch]]
) -> None:
    nodes = new_nodes()
    run = Run(nodes[0])
    for number, batch in history:
        run.scheduler = nodes[number]
        run.apply(batch)
        for node in nodes:
            stored, known = rows_and_known(node)
            assert stored == known
    run.drain()


def rows_and_known(node: Scheduler) -> tuple[dict[int, Task], dict[int, Task]]:
    """The tasks whose rows bear the numbers that a node knows: as stored, and as it knows them."""
    known = node.engine._cache.known
    numbers = [(seq, number) for seq, (_, number) in known.items()]
    changed = {row[0] for row in node.reader.run_rows("task_changed", numbers)}
    same = {seq: task for seq, (task, _) in known.items() if seq not in changed}
    stored = node.reader.run_rows("task_by_seq", [(seq,) for seq in same])
    return {row[0]: Task(*row) for row in stored}, same
