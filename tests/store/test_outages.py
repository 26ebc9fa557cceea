"""An outage of the store: workers report before leases are reclaimed; it is logged once."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.clock import ManualClock
from fairlane.core.errors import LeaseLost, StoreUnavailable
from fairlane.engine.commands import Submit
from fairlane.engine.engine import GRACE_SECONDS, Engine
from fairlane.engine.reads.views import Views
from fairlane.engine.telemetry.outages import READS, WRITES, Outages
from fairlane.engine.writer import ANSWER_SECONDS, BATCH_CHARACTERS_MAX, Writer
from fairlane.store.base import ConnectionLost
from tests.fakes.waiting import WAIT_SECONDS, eventually
from tests.store.faults import BEGIN, COMMIT, WatchedStore
from tests.store.scheduler import TTL_MS, Scheduler, lease_request, submission
from tests.store.test_writer import Gate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.core.model import Task
    from fairlane.store.base import Store
    from tests.store.faults import WatchedConnection

GRACE_MS = round(GRACE_SECONDS * 1000)


class Fallible:
    """Loses the store at one moment of every try while it is `away`."""

    def __init__(self, moment: str) -> None:
        self.away = False
        self._moment = moment

    def __call__(self, moment: str, _connection: WatchedConnection) -> None:
        if self.away and moment == self._moment:
            raise ConnectionLost("no room left")


class World:
    def __init__(self, store: Store, moment: str) -> None:
        self.fault = Fallible(moment)
        watched: Any = WatchedStore(store, self.fault)
        self.scheduler = Scheduler(watched)
        self.clock = self.scheduler.clock

    def be_away(self, milliseconds: int) -> None:
        self.fault.away = True
        with pytest.raises(StoreUnavailable) as error:
            self.scheduler.submit("meanwhile")
        assert error.value.retry_after_ms == 1000
        self.clock.advance(milliseconds)
        self.fault.away = False

    def leased(self) -> Task:
        self.scheduler.submit("first")
        return self.scheduler.lease_one()


@pytest.fixture(params=[BEGIN, COMMIT])
def world(store: Store, request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(store, request.param)
    yield world
    world.scheduler.close()


def test_a_lease_that_ran_out_in_an_outage_can_still_be_reported(world: World) -> None:
    task = world.leased()
    world.be_away(3 * TTL_MS)
    assert world.scheduler.apply().reclaimed == []
    assert world.scheduler.complete(task).state == "done"
    assert world.scheduler.view("first").task.attempts == 1


def test_it_is_reclaimed_when_nobody_has_reported_after_a_while(world: World) -> None:
    task = world.leased()
    world.be_away(3 * TTL_MS)
    assert world.scheduler.apply().reclaimed == []
    assert world.scheduler.pass_time(GRACE_MS - 1).reclaimed == []
    assert [one.id for one in world.scheduler.pass_time(1).reclaimed] == ["first"]
    with pytest.raises(LeaseLost):
        world.scheduler.complete(task)


def test_a_short_loss_gives_nobody_more_time(world: World) -> None:
    world.leased()
    world.clock.advance(TTL_MS)
    world.be_away(0)
    assert [one.id for one in world.scheduler.apply().reclaimed] == ["first"]


def test_an_outage_is_over_when_something_could_be_written(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Also when there is nothing to write: to get as far as the commit shows nothing."""
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            world.be_away(1000)
            world.fault.away = True
        world.fault.away = False
        assert world.scheduler.apply().committed
        assert not world.scheduler.apply().committed
    seconds = world.clock.monotonic() - ManualClock().monotonic()
    assert [record.getMessage() for record in caplog.records] == [
        "the store cannot be written; requests fail with 503 until it recovers: no room left",
        f"the store works again after {seconds:.1f} s (15 failures)",
    ]


def test_an_outage_of_reads_and_writes_is_one(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    outages = Outages(clock)
    with caplog.at_level(logging.INFO):
        outages.worked(WRITES)
        outages.failed(READS, "gone")
        clock.advance(1500)
        outages.failed(WRITES, "gone")
        outages.failed(READS, "still gone")
        assert (outages.seconds(READS), outages.seconds(WRITES)) == (1.5, 0.001)
        outages.worked(READS)
        clock.advance(500)
        assert (outages.seconds(READS), outages.seconds(WRITES)) == (0.0, 0.5)
        outages.worked(WRITES)
        outages.worked(WRITES)
    assert [record.getMessage() for record in caplog.records] == [
        "the store cannot be read; requests fail with 503 until it recovers: gone",
        "the store works again after 2.0 s (3 failures)",
    ]


# -------------------------------------------------------------------- a store that hangs


async def test_callers_are_answered_while_the_write_thread_hangs(store: Store) -> None:
    gate, clock = Gate(COMMIT), ManualClock()
    watched: Any = WatchedStore(store, gate)
    writer = Writer(Engine(watched, clock, name="node"))
    writer.start()
    await writer.ask(Submit([submission("zero")]))
    gate.shut()
    first = asyncio.ensure_future(writer.ask(Submit([submission("first")])))
    await asyncio.to_thread(gate.reached.wait, WAIT_SECONDS)
    second = asyncio.ensure_future(writer.ask(Submit([submission("second")])))
    until = clock.monotonic() + 1
    lease = asyncio.ensure_future(writer.ask(lease_request(until=until)))
    await eventually(lambda: writer.backlog == 2)
    clock.advance(round(ANSWER_SECONDS * 1000))
    late = asyncio.ensure_future(writer.ask(Submit([submission("late")])))
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(StoreUnavailable, match="is unknown") as unknown:
            await first
        with pytest.raises(StoreUnavailable, match="had no effect"):
            await second
        assert await lease == []
    assert unknown.value.retry_after_ms == 1000
    assert not late.done()
    gate.open()
    assert [task.id for task in await late] == ["late"]
    await asyncio.to_thread(writer.stop)
    found = Scheduler(store)
    assert found.states("first", "late") == ["queued", "queued"]  # it was carried out after all
    assert found.find("second") is None
    found.close()


async def test_reads_are_answered_while_the_database_hangs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, gate = Views(store), Gate(BEGIN)
    gate.shut()
    nobody: Any = None
    try:
        with monkeypatch.context() as patched:
            patched.setattr("fairlane.engine.reads.views.ANSWER_SECONDS", 0.05)
            for _ in range(10):  # more than there are threads
                with pytest.raises(StoreUnavailable, match="timed out") as error:
                    await views.read(gate, BEGIN, nobody)
                assert error.value.retry_after_ms == 1000
        gate.open()
        await eventually(lambda: gate.passed == 4)
        assert await views.read(views.last_event) == 0  # with the time that a read really has
    finally:
        gate.open()
        views.close()
    assert gate.passed == 4  # nobody waits for the rest, so they were not even begun


async def test_large_requests_share_a_batch_up_to_a_bound(store: Store) -> None:
    """A transaction that takes long would keep the other nodes waiting."""
    gate = Gate(COMMIT)
    watched: Any = WatchedStore(store, gate)
    sizes: list[int] = []
    writer = Writer(
        Engine(watched, ManualClock(), name="node"), lambda done: sizes.append(len(done.answers))
    )
    writer.start()
    gate.shut()
    body = f'{{"x":"{"x" * 800_000}"}}'
    asked = [
        asyncio.ensure_future(writer.ask(Submit([submission(f"t{number}", body=body)])))
        for number in range(14)
    ]
    await asyncio.to_thread(gate.reached.wait, WAIT_SECONDS)
    gate.open()
    await asyncio.gather(*asked)
    await asyncio.to_thread(writer.stop)
    assert sum(sizes) == 14
    assert max(sizes) <= BATCH_CHARACTERS_MAX // 800_000 + 1
