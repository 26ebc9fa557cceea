"""The write thread: group commit, waiting leases, and an answer for every caller."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.clock import ManualClock, SystemClock
from fairlane.core.errors import InvalidRequest, LeaseLost, StoreMismatch, StoreUnavailable
from fairlane.core.model import Task
from fairlane.engine import writer as writer_module
from fairlane.engine.commands import Cancel, Complete, Fail, Grant, Lease, SetPolicy, Submit
from fairlane.engine.engine import Engine, Outcome
from fairlane.engine.writer import CROWD, ECHO_TURNS, INBOX_MAX, Writer
from fairlane.store.base import ConnectionLost
from tests.fakes.waiting import WAIT_SECONDS, TooLate, eventually, in_time
from tests.store.faults import BEGIN, COMMIT, COMMITTED, WatchedConnection, WatchedStore
from tests.store.invariants import assert_sound
from tests.store.scheduler import Scheduler, lease_request, submission
from tests.store.stores import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.clock import Clock
    from fairlane.store.base import Store


class Gate:
    """Holds the write thread at one moment, so that others can come meanwhile."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        self.reached = threading.Event()
        self.passed = 0
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self.reached.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def __call__(self, moment: str, _connection: WatchedConnection) -> None:
        if moment == self.moment:
            self.passed += 1
            self.reached.set()
            assert self._open.wait(WAIT_SECONDS)


HOUR_MS = 3_600_000


class Desk:
    """A writer on a store, and what its commits were."""

    def __init__(self, store: Any, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.outcomes: list[Outcome] = []
        self.writer = Writer(Engine(store, clock, name="node"), self.outcomes.append)
        self.writer.start()

    def ask(self, request: Any) -> asyncio.Task[Any]:
        """Ask in the next turn of the loop; the answer is awaited later."""
        return asyncio.ensure_future(self.writer.ask(request))

    async def posted(self, count: int) -> None:
        """Returns when so many requests wait for the write thread, which is held up."""
        await eventually(lambda: self.writer.backlog == count)

    async def hold(self, gate: Gate, request: Any) -> asyncio.Task[Any]:
        """Hold the write thread up in the commit of `request`."""
        gate.shut()
        asked = self.ask(request)
        await asyncio.to_thread(gate.reached.wait)
        return asked

    async def submit(self, *names: str, **fields: Any) -> list[Task]:
        request = Submit([submission(name, **fields) for name in names])
        tasks: list[Task] = await self.writer.ask(request)
        return tasks

    async def lease(self, limit: int = 1, **fields: Any) -> asyncio.Task[list[Grant]]:
        """A lease that has been looked at once and waits now, if there was nothing for it."""
        request = lease_request(limit, **{"ttl_ms": HOUR_MS, **fields})
        asked = self.ask(request)
        await eventually(lambda: asked.done() or self.waits(request))
        return asked

    def waits(self, request: Any) -> bool:
        writer = self.writer
        waiting = [ticket.request for ticket in writer._waiting]
        return request in waiting and not writer._inbox and not writer._nudged

    async def set_lane(self, **settings: Any) -> None:
        await self.writer.ask(SetPolicy({"lanes": {"main": settings}}, "test"))

    def states(self, *names: str) -> list[str]:
        scheduler = Scheduler(self.store)
        found = scheduler.states(*names)
        scheduler.close()
        return found

    async def attempts_when(self, name: str, state: str) -> int:
        """How often it has been tried as soon as it is there, which is before any lease ends."""
        await eventually(lambda: self.states(name) == [state])
        scheduler = Scheduler(self.store)
        found = scheduler.view(name).task.attempts
        scheduler.close()
        return found


@pytest.fixture
def open_desk(store: Store) -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def open_one(
        at: Callable[[str, WatchedConnection], None] = lambda *_: None, clock: Clock | None = None
    ) -> Desk:
        desks.append(Desk(WatchedStore(store, at), clock or SystemClock()))
        return desks[-1]

    try:
        yield open_one
    finally:
        for desk in desks:
            desk.writer.stop()
    reader = store.reader()
    assert_sound(reader, desks[-1].writer.engine.policy)
    reader.close()


@pytest.fixture
def desk(open_desk: Callable[..., Desk]) -> Desk:
    return open_desk()


def in_the_same_turn(act: Callable[[], object]) -> None:
    """Do it right after what has been asked, before the loop has handed that over."""
    asyncio.get_running_loop().call_soon(act)


def names(grants: list[Grant]) -> list[str]:
    return [grant.task.id for grant in grants]


# -------------------------------------------------------------------- group commit


async def test_what_comes_during_a_commit_is_the_next_batch(
    open_desk: Callable[..., Desk],
) -> None:
    gate = Gate(COMMIT)
    desk = open_desk(gate)
    await desk.submit("zero")
    before = gate.passed
    first = await desk.hold(gate, Submit([submission("first")]))
    rest = [desk.ask(Submit([submission(f"t{number}")])) for number in range(50)]
    cancel, unknown = desk.ask(Cancel("zero")), desk.ask(Cancel("nobody"))
    await desk.posted(52)
    gate.open()
    answers = await asyncio.gather(first, *rest)
    assert [answer[0].id for answer in answers] == ["first", *(f"t{n}" for n in range(50))]
    assert (await cancel).state == "cancelled"
    with pytest.raises(Exception, match='task "nobody" not found'):
        await unknown
    assert gate.passed == before + 2


async def test_what_is_asked_in_one_turn_of_a_loop_is_one_batch(
    open_desk: Callable[..., Desk],
) -> None:
    gate = Gate(COMMIT)
    desk = open_desk(gate)
    await desk.submit("zero")
    before = gate.passed
    answers = await asyncio.gather(*(desk.submit(f"t{number}") for number in range(50)))
    assert [task.id for (task,) in answers] == [f"t{number}" for number in range(50)]
    assert gate.passed == before + 1


async def test_callers_in_threads_and_in_event_loops_are_served_alike(desk: Desk) -> None:
    def in_a_thread(number: int) -> Any:
        return desk.writer.ask_and_wait(Submit([submission(f"thread{number}")]))

    def in_another_loop(number: int) -> Any:
        return asyncio.run(desk.writer.ask(Submit([submission(f"loop{number}")])))

    here = [desk.submit(f"here{number}") for number in range(5)]
    others = [asyncio.to_thread(in_a_thread, number) for number in range(5)]
    loops = [asyncio.to_thread(in_another_loop, number) for number in range(5)]
    answers = await asyncio.gather(*here, *others, *loops)
    assert sorted(answer[0].seq for answer in answers) == list(range(1, 16))


async def test_several_requests_may_be_asked_in_one_go(desk: Desk) -> None:
    requests = [Submit([submission("first")]), Cancel("nobody"), Submit([submission("second")])]
    answers = await asyncio.to_thread(desk.writer.ask_all_and_wait, requests)
    assert [answers[0][0].id, answers[2][0].id] == ["first", "second"]
    assert answers[1].code == "not_found"


async def test_an_error_is_raised_where_it_was_asked(desk: Desk) -> None:
    await desk.submit("first")
    (grant,) = await desk.writer.ask(lease_request())
    await desk.writer.ask(Complete(grant.task.seq, grant.task.fencing_token))
    with pytest.raises(LeaseLost):
        await desk.writer.ask(Fail(grant.task.seq, grant.task.fencing_token, "late"))


async def test_a_bad_request_does_not_spoil_its_batch(open_desk: Callable[..., Desk]) -> None:
    gate = Gate(COMMIT)
    desk = open_desk(gate)
    await desk.submit("taken")
    first = await desk.hold(gate, Submit([submission("first")]))
    good = [desk.ask(Submit([submission(f"t{number}")])) for number in range(3)]
    bad = desk.ask(Submit([submission("new"), submission("taken")]))
    good += [desk.ask(Cancel("taken")), desk.ask(lease_request(5))]
    await desk.posted(6)
    gate.open()
    *tasks, cancelled, leased = await asyncio.gather(*good)
    assert [task[0].id for task in tasks] == ["t0", "t1", "t2"]
    assert cancelled.state == "cancelled"
    assert "first" in names(leased)
    await first
    with pytest.raises(Exception, match=r"(?i)unique"):
        await bad
    await desk.submit("new", "after")


async def test_a_batch_that_could_not_be_stored_is_answered(
    open_desk: Callable[..., Desk],
) -> None:
    broken = threading.Event()

    def at(moment: str, _: WatchedConnection) -> None:
        if moment == BEGIN and broken.is_set():
            raise ConnectionLost("the store is away")

    desk = open_desk(at, ManualClock())
    waiting = await desk.lease()
    broken.set()
    with pytest.raises(StoreUnavailable):
        await desk.submit("first")
    assert not waiting.done()
    broken.clear()
    await desk.submit("second")
    assert names(await waiting) == ["second"]


async def test_callers_are_answered_although_somebody_who_listens_fails(store: Store) -> None:
    def fail(_: Outcome) -> None:
        raise ValueError("not prepared for this")

    writer = Writer(Engine(store, SystemClock(), name="node"), fail)
    writer.start()
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            answer = await writer.ask(Submit([submission("first")]))
        assert answer[0].id == "first"
    finally:
        writer.stop()


# -------------------------------------------------------------------- leases that wait


async def test_a_waiting_lease_gets_what_is_submitted(desk: Desk) -> None:
    waiting = await desk.lease(5)
    await desk.submit("first", "second")
    assert names(await waiting) == ["first", "second"]


async def test_a_waiting_lease_gets_what_a_report_sets_free(desk: Desk) -> None:
    await desk.set_lane(maxInflight=1)
    await desk.submit("first", "second")
    (held,) = await desk.writer.ask(lease_request())
    waiting = await desk.lease()
    await desk.writer.ask(Complete(held.task.seq, held.task.fencing_token))
    assert names(await waiting) == ["second"]


async def test_a_waiting_lease_gets_what_a_policy_allows(desk: Desk) -> None:
    await desk.set_lane(paused=True)
    await desk.submit("first")
    waiting = await desk.lease()
    await desk.set_lane(paused=False)
    assert names(await waiting) == ["first"]


async def test_a_waiting_lease_gets_what_time_makes_ready(open_desk: Callable[..., Desk]) -> None:
    clock = ManualClock()
    desk = open_desk(clock=clock)
    await desk.submit("first")
    (held,) = await desk.writer.ask(lease_request())
    await desk.writer.ask(Fail(held.task.seq, held.task.fencing_token, "no luck"))
    waiting = await desk.lease()
    clock.advance(1000)
    desk.writer.nudge()
    async with asyncio.timeout(WAIT_SECONDS):
        assert names(await waiting) == ["first"]


@pytest.mark.slow
async def test_a_waiting_lease_gets_what_another_process_submits(desk: Desk, store: Store) -> None:
    waiting = await desk.lease()
    other = Scheduler(store, SystemClock(), "other")  # type: ignore[arg-type]  # a clock is a clock
    other.submit("first")
    other.close()
    async with asyncio.timeout(WAIT_SECONDS):
        assert names(await waiting) == ["first"]


async def test_waiting_leases_are_served_in_the_order_they_came(desk: Desk) -> None:
    first = await desk.lease()
    second = await desk.lease()
    await desk.submit("one")
    assert names(await first) == ["one"]
    await desk.submit("two")
    assert names(await second) == ["two"]


async def test_a_lease_waits_no_longer_than_requested(open_desk: Callable[..., Desk]) -> None:
    clock = ManualClock()
    desk = open_desk(clock=clock)
    waiting = await desk.lease(until=clock.monotonic() + 5)
    patient = await desk.lease()
    clock.advance(5000)
    desk.writer.nudge()
    assert await waiting == []
    await desk.submit("first")
    assert names(await patient) == ["first"]


async def test_a_lease_that_does_not_wait_gets_what_is_there(desk: Desk) -> None:
    assert await desk.writer.ask(lease_request(until=0.0)) == []
    await desk.submit("first")
    assert names(await desk.writer.ask(lease_request(until=0.0))) == ["first"]


async def test_time_passes_without_requests(desk: Desk) -> None:
    async def submit(seconds: float) -> None:
        deadline_at = desk.clock.now() + int(seconds * 100)
        (answer,) = await desk.submit("first", deadline_at=deadline_at)
        if isinstance(answer, InvalidRequest):
            raise TooLate("its deadline was over before it was looked at")

    await in_time(submit)
    assert await desk.attempts_when("first", "failed") == 0


# -------------------------------------------------------------------- callers that go away


async def test_a_withdrawn_worker_is_answered_with_nothing(desk: Desk) -> None:
    mine, theirs = await desk.lease(worker="mine"), await desk.lease(worker="theirs")
    desk.writer.withdraw("mine")
    assert await mine == []
    await desk.submit("first")
    assert names(await theirs) == ["first"]


async def test_a_lease_can_be_withdrawn_before_it_was_looked_at(
    open_desk: Callable[..., Desk],
) -> None:
    gate = Gate(COMMIT)
    desk = open_desk(gate)
    await desk.submit("first")
    busy = await desk.hold(gate, Submit([submission("second")]))
    mine = desk.ask(lease_request(worker="mine"))
    await asyncio.sleep(0)
    desk.writer.withdraw("mine")
    gate.open()
    assert await mine == []
    await busy
    assert desk.states("first", "second") == ["queued", "queued"]


@pytest.mark.parametrize("moment", [COMMIT, COMMITTED])
async def test_what_was_granted_to_a_withdrawn_worker_goes_back(
    open_desk: Callable[..., Desk], moment: str
) -> None:
    gate = Gate(moment)
    desk = open_desk(gate)
    mine = await desk.lease(worker="mine")
    submitted = await desk.hold(gate, Submit([submission("first")]))
    desk.writer.withdraw("mine")
    assert await mine == []
    gate.open()
    await submitted
    async with asyncio.timeout(WAIT_SECONDS):  # well before the lease would run out by itself
        assert names(await desk.writer.ask(lease_request(worker="theirs"))) == ["first"]


async def test_a_caller_that_has_left_gets_nothing(desk: Desk) -> None:
    gone, here = await desk.lease(), await desk.lease()
    gone.cancel()
    await asyncio.sleep(0)
    await desk.submit("first")
    assert names(await here) == ["first"]


async def test_what_was_granted_to_a_caller_that_left_meanwhile_goes_back(
    open_desk: Callable[..., Desk],
) -> None:
    gate = Gate(COMMIT)
    desk = open_desk(gate)
    gone = await desk.lease()
    submitted = await desk.hold(gate, Submit([submission("first")]))
    gone.cancel()
    await asyncio.sleep(0)
    gate.open()
    await submitted
    assert await desk.attempts_when("first", "queued") == 0


async def test_what_was_granted_to_a_caller_that_left_at_the_last_moment_goes_back(
    desk: Desk,
) -> None:
    """The answer is on its way to the caller's event loop when the caller goes."""
    gone = await desk.lease()
    desk.writer.ask_and_wait(Submit([submission("first")]))  # blocks this loop on purpose
    gone.cancel()
    assert await desk.attempts_when("first", "queued") == 0


async def test_what_was_granted_to_a_caller_that_left_with_it_goes_back(desk: Desk) -> None:
    """The answer is there, but the caller is stopped before it can look at it."""
    gone = await desk.lease()
    desk.writer.ask_and_wait(Submit([submission("first")]))
    desk.writer.ask_and_wait(SetPolicy({}, "the first is answered when this is"))
    asyncio.get_running_loop().call_soon(gone.cancel)
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert await desk.attempts_when("first", "queued") == 0


# -------------------------------------------------------------------- a policy nobody can read


async def test_a_policy_that_cannot_be_read_holds_everything_up_until_there_is_one(
    store: Store, open_desk: Callable[..., Desk]
) -> None:
    tries: list[str] = []
    clock = ManualClock()
    desk = open_desk(lambda moment, _: tries.append(moment) if moment == BEGIN else None, clock)
    await desk.submit("first")
    elsewhere = Scheduler(store)
    elsewhere.keep_policy("{")
    before, tried = clock.now(), len(tries)
    waiting = desk.ask(lease_request())
    with pytest.raises(StoreMismatch, match="version 1 of the policy"):
        await desk.submit("second")
    await eventually(lambda: len(tries) > tried + 5)
    count = len(tries) - tried
    assert not waiting.done()
    # It goes on to look, but not without a pause.
    assert clock.now() - before >= (count - 2) * 1000
    elsewhere.keep_policy("{}")
    assert names(await waiting) == ["first"]
    assert elsewhere.find("second") is None
    elsewhere.close()


# -------------------------------------------------------------------- the end


async def test_a_stop_answers_all_waiting_callers(open_desk: Callable[..., Desk]) -> None:
    gate = Gate(COMMIT)
    desk = open_desk(gate)
    waiting = [await desk.lease(worker=f"w{number}") for number in range(3)]
    busy = await desk.hold(gate, Submit([submission("first", capability="handler/other")]))
    late = desk.ask(Submit([submission("second", capability="handler/other")]))
    later = desk.ask(lease_request(worker="later"))
    await desk.posted(2)
    stopping = asyncio.ensure_future(asyncio.to_thread(desk.writer.stop))
    await eventually(lambda: desk.writer._stopping)
    gate.open()
    assert [task.id for task in [*await busy, *await late]] == ["first", "second"]
    assert [await lease for lease in (*waiting, later)] == [[], [], [], []]
    await stopping
    assert desk.states("first", "second") == ["queued", "queued"]


async def test_what_was_asked_in_the_turn_in_which_it_stops_is_answered(desk: Desk) -> None:
    await desk.submit("zero")
    asked = desk.ask(Submit([submission("first")]))
    in_the_same_turn(desk.writer.stop)
    assert [task.id for task in await asked] == ["first"]


async def test_what_was_asked_of_a_writer_that_had_not_begun_is_answered(store: Store) -> None:
    writer = Writer(Engine(store, SystemClock(), name="node"))
    writer.start(look=False)
    asked = asyncio.ensure_future(writer.ask(Submit([submission("first")])))
    in_the_same_turn(writer.stop)
    async with asyncio.timeout(WAIT_SECONDS):
        assert [task.id for task in await asked] == ["first"]


async def test_a_writer_that_cannot_begin_says_so(store: Store) -> None:
    writer = Writer(Engine(store, SystemClock(), name="node"))
    writer.start(look=False)
    usual = threading.stack_size(1 << 50)  # more than any machine has room for
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await writer.ask(Submit([submission("first")]))
    finally:
        threading.stack_size(usual)
    assert [task.id for task in await writer.ask(Submit([submission("second")]))] == ["second"]
    await asyncio.to_thread(writer.stop)


async def test_what_a_loop_asked_in_its_last_turn_is_done(desk: Desk) -> None:
    """Nobody is there to be answered, but it has been asked."""

    def ask_and_close() -> None:
        loop = asyncio.new_event_loop()

        async def ask() -> asyncio.Task[Any]:
            return loop.create_task(desk.writer.ask(Submit([submission("first")])))

        asked: Any = loop.run_until_complete(ask())
        assert not asked.done()
        asked._log_destroy_pending = False  # that nobody ends it is the point
        loop.close()

    await asyncio.to_thread(ask_and_close)
    assert desk.writer._gathered, "the loop has handed it over itself"
    await desk.submit("second")  # whoever comes next brings it along
    await eventually(lambda: desk.states("first", "second") == ["queued", "queued"])
    assert not desk.writer._gathered


async def test_too_many_requests_at_once_are_refused(open_desk: Callable[..., Desk]) -> None:
    gate = Gate(COMMIT)
    desk = open_desk(gate, ManualClock())  # which never comes to the end of anybody's patience
    await desk.submit("zero")
    busy = await desk.hold(gate, Submit([submission("busy")]))
    others = [Cancel("nobody")] * (INBOX_MAX - 1)
    asked = asyncio.ensure_future(asyncio.to_thread(desk.writer.ask_all_and_wait, others))
    await desk.posted(INBOX_MAX - 1)
    last, refused = (desk.ask(Submit([submission(name)])) for name in ("last", "refused"))
    cancel = desk.ask(Cancel("zero"))  # whoever makes room is always heard
    await desk.posted(INBOX_MAX + 1)
    gate.open()
    with pytest.raises(StoreUnavailable, match="overloaded") as error:
        await refused
    assert error.value.retry_after_ms == 1000
    assert [task.id for task in [*await busy, *await last]] == ["busy", "last"]
    assert (await cancel).state == "cancelled"
    assert {answer.code for answer in await asked} == {"not_found"}


@pytest.mark.parametrize("how", ["withdraw", "stop"])
async def test_a_request_after_the_end_gets_that_error_whatever_it_asks_for(
    desk: Desk, how: str
) -> None:
    await desk.submit("first")
    desk.writer.stop()
    late = desk.ask(Cancel("first"))
    in_the_same_turn(desk.writer.stop if how == "stop" else lambda: desk.writer.withdraw(None))
    async with asyncio.timeout(WAIT_SECONDS):
        with pytest.raises(StoreUnavailable, match="the scheduler has stopped"):
            await late


async def test_nothing_is_taken_in_after_the_end(desk: Desk) -> None:
    await desk.submit("first")
    desk.writer.stop()
    desk.writer.stop()
    with pytest.raises(StoreUnavailable, match="the scheduler has stopped"):
        await desk.submit("second")
    with pytest.raises(StoreUnavailable):
        desk.writer.ask_and_wait(Lease("w", None, frozenset(), 1, 1000))


async def test_a_defect_in_leasing_refuses_no_other_request(desk: Desk) -> None:
    execute(desk.store, f"UPDATE scheduler SET last_token = {2**63 - 1}")  # no token is left
    lease = await desk.lease()
    assert [task.state for task in await desk.submit("a")] == ["queued"]
    assert [task.state for task in await desk.submit("b")] == ["queued"]
    assert not lease.done()
    lease.cancel()


# -------------------------------------------------------------------- small batches


@pytest.mark.parametrize("answered", [1, 20])
async def test_a_small_batch_waits_for_what_the_last_answers_bring(
    store: Store, answered: int
) -> None:
    """Callers that were answered ask again at once; one request that came before waits for them,
    unless it is as much as they will bring.
    """
    gate = Gate(COMMIT)
    desk = Desk(WatchedStore(store, gate), SystemClock())

    async def caller(number: int) -> None:
        for turn in range(2):
            await desk.writer.ask(Submit([submission(f"{number}-{turn}")]))

    await desk.writer.ask(Submit([submission("first")]))
    gate.shut()
    callers = [asyncio.ensure_future(caller(number)) for number in range(answered)]
    await eventually(gate.reached.is_set)
    alone = desk.ask(Submit([submission("alone")]))
    await desk.posted(1)
    before = len(desk.outcomes)
    gate.open()
    await asyncio.wait_for(asyncio.gather(*callers, alone), WAIT_SECONDS)
    sizes = [len(outcome.answers) for outcome in desk.outcomes[before:]]
    desk.writer.stop()
    if answered > 1:
        assert sizes == [answered, answered + 1]
    else:
        assert sum(sizes) == 3


async def test_a_crowd_that_needs_more_turns_has_the_time_of_a_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As callers in other processes do; the end of a task brings nothing, and is not waited for."""
    monkeypatch.setattr(writer_module, "ECHO_SECONDS", WAIT_SECONDS)
    gate, clock = Gate(COMMIT), ManualClock()
    desk = Desk(WatchedStore(store, gate), clock)
    await desk.submit("first", "second")
    grants = await (await desk.lease(2))

    async def caller(number: int) -> None:
        for turn in range(2):
            await desk.writer.ask(Submit([submission(f"{number}-{turn}")]))
            for _ in range(5 * ECHO_TURNS):
                await asyncio.sleep(0)

    gate.shut()
    callers = [asyncio.ensure_future(caller(number)) for number in range(CROWD)]
    ends = [desk.ask(Complete(one.task.seq, one.task.fencing_token)) for one in grants]
    await eventually(gate.reached.is_set)
    alone = desk.ask(Submit([submission("alone")]))
    await desk.posted(1)
    clock.advance(5000)
    before = len(desk.outcomes)
    gate.open()
    await asyncio.wait_for(asyncio.gather(*callers, *ends, alone), WAIT_SECONDS)
    sizes = [len(outcome.answers) for outcome in desk.outcomes[before:]]
    desk.writer.stop()
    assert sizes[:2] == [CROWD + 2, CROWD + 1]


async def test_callers_in_fronts_are_not_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "ECHO_SECONDS", 2 * WAIT_SECONDS)
    gate, clock, loop = Gate(COMMIT), ManualClock(), asyncio.get_running_loop()
    desk = Desk(WatchedStore(store, gate), clock)
    await desk.submit("first")
    gate.shut()
    replies = [loop.create_future() for _ in range(2 * CROWD)]
    desk.writer.take([(Submit([submission(f"{id(one)}")]), one) for one in replies], loop)
    await eventually(gate.reached.is_set)
    alone = desk.ask(Submit([submission("alone")]))
    await desk.posted(1)
    clock.advance(round(2000 * WAIT_SECONDS))
    before = len(desk.outcomes)
    gate.open()
    await asyncio.wait_for(asyncio.gather(*replies, alone), WAIT_SECONDS)
    sizes = [len(outcome.answers) for outcome in desk.outcomes[before:]]
    desk.writer.stop()
    assert sizes[:2] == [2 * CROWD, 1]


async def test_a_caller_whose_loop_is_stuck_does_not_hold_up_others(store: Store) -> None:
    gate = Gate(COMMIT)
    desk = Desk(WatchedStore(store, gate), SystemClock())
    await desk.writer.ask(Submit([submission("first")]))
    gate.shut()
    asked = [desk.ask(Submit([submission(f"many-{number}")])) for number in range(10)]
    await eventually(gate.reached.is_set)
    done = threading.Event()
    other = threading.Thread(
        target=lambda: (desk.writer.ask_and_wait(Submit([submission("other")])), done.set())
    )
    other.start()
    await desk.posted(1)
    gate.open()
    assert done.wait(WAIT_SECONDS)  # this loop takes no turn meanwhile
    other.join()
    await asyncio.wait_for(asyncio.gather(*asked), WAIT_SECONDS)
    desk.writer.stop()
