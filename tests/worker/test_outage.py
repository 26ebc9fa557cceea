"""The worker under bad timing: the store is unavailable, a stop comes early or twice.

The rule: running tasks continue, tasks that have not started are not lost, and every lease ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.clock import ManualClock
from fairlane.core.model import Submission
from fairlane.core.policy import Policy
from fairlane.engine.commands import Cancel, Submit
from fairlane.engine.engine import Engine
from fairlane.engine.reads.views import Views
from fairlane.engine.writer import Writer
from fairlane.store.base import ConnectionLost
from fairlane.store.opening import open_store
from fairlane.worker.loop import Loop
from fairlane.worker.source import EngineSource
from tests.fakes.waiting import eventually
from tests.store.faults import WatchedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.worker.executors.base import Run
    from fairlane.worker.source import Assignment
    from tests.store.faults import WatchedConnection


class Scene:
    """A writer on a store in memory that can be sent away."""

    def __init__(self) -> None:
        self.away = False
        self.tries = 0
        self.real = open_store("sqlite://:memory:")
        self.real.migrate()
        engine = Engine(WatchedStore(self.real, self._watch), ManualClock(), name="node_a")
        self.writer = Writer(engine)
        self.source = EngineSource(self.writer, "node_a", Policy)
        self.views = Views(self.real)
        self.writer.start()

    def _watch(self, _moment: str, _connection: WatchedConnection) -> None:
        if self.away:
            self.tries += 1
            raise ConnectionLost("away")

    def submit(self, body: str = "{}") -> None:
        task = Submission(id="one", kind="action", agent="a", capability="action", body=body)
        self.writer.ask_and_wait(Submit([task]))

    def state(self) -> tuple[str, int]:
        view = self.views.task("one")
        assert view is not None
        return view.task.state, view.task.attempts

    def leased(self) -> bool:
        view = self.views.task("one")
        assert view is not None
        return view.task.leased

    def close(self) -> None:
        self.away = False
        self.writer.stop()
        self.views.close()
        self.real.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


async def test_a_renewal_that_fails_stops_no_work(scene: Scene) -> None:
    scene.submit()
    (assignment,) = await scene.source.lease(frozenset({"action"}), frozenset({"action"}), 1)
    scene.away = True
    assert scene.source.renew([assignment]) == []
    assert scene.tries > 0
    scene.away = False
    assert scene.source.renew([assignment]) == []
    scene.writer.ask_and_wait(Cancel("one"))
    assert scene.source.renew([assignment]) == [assignment]


class Forever:
    """An executor whose work ends only when it is cancelled."""

    starts_itself = False

    def __init__(self) -> None:
        self.begun = 0

    async def execute(self, run: Run) -> Any:  # noqa: ARG002 - the work is the same for all
        self.begun += 1
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing to close."""


@pytest.mark.slow
async def test_a_second_stop_does_not_cut_off_the_report_of_the_first(scene: Scene) -> None:
    """Nodes tell their workers what to stop again and again, until it has stopped."""
    scene.submit()
    forever = Forever()
    worker = Loop(scene.source, lambda: {"action": forever}, lambda: 1)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: forever.begun == 1)
    task = scene.writer.ask_and_wait(Cancel("one"))
    scene.away = True
    worker.stop_runs([(task.seq, task.fencing_token)])
    await eventually(lambda: scene.tries >= 5)
    worker.stop_runs([(task.seq, task.fencing_token)])
    await asyncio.sleep(0)  # lets the second stop arrive
    scene.away = False
    await eventually(lambda: not scene.leased() and worker.active == 0)
    assert forever.begun == 1
    await worker.drain(1)
    running.cancel()


class Hasty(EngineSource):
    """Has the first task stopped before its run can take the first step."""

    def __init__(self, writer: Writer, worker: str) -> None:
        super().__init__(writer, worker, Policy)
        self.stop: Callable[[list[tuple[int, int]]], None] | None = None
        self.stopped = False

    async def lease(self, *wanted: Any) -> list[Assignment]:
        found = await super().lease(*wanted)
        if self.stop is not None:
            asyncio.get_running_loop().call_soon(
                self.stop, [(a.seq, a.fencing_token) for a in found]
            )
            self.stop, self.stopped = None, True
        return found


async def test_a_run_that_is_stopped_before_it_begins_is_released(scene: Scene) -> None:
    scene.submit()
    source, forever = Hasty(scene.writer, "node_a"), Forever()
    worker = Loop(source, lambda: {"action": forever}, lambda: 1)
    source.stop = worker._stop_here
    running = asyncio.create_task(worker.run())
    await eventually(lambda: forever.begun == 1)
    assert scene.state() == ("running", 1)
    assert source.stopped
    await worker.drain(0)
    assert worker.active == 0
    running.cancel()


class Once:
    """An executor whose work may be done once and never again."""

    starts_itself = True

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.go_on = asyncio.Event()
        self.done = 0

    async def execute(self, run: Run) -> Any:
        self.arrived.set()
        await self.go_on.wait()
        await run.start()
        self.done += 1
        return None

    async def close(self) -> None:
        """Nothing to close."""


@pytest.mark.slow
async def test_an_outage_before_the_start_does_not_fail_the_task(scene: Scene) -> None:
    scene.submit()
    once = Once()
    worker = Loop(scene.source, lambda: {"action": once}, lambda: 1)
    running = asyncio.create_task(worker.run())
    await once.arrived.wait()
    scene.away = True
    once.go_on.set()
    await eventually(lambda: scene.tries > 5)
    scene.away = False
    await eventually(lambda: scene.state() == ("done", 1))
    assert once.done == 1
    await worker.drain(1)
    running.cancel()


LIMIT_MS = 50


class SlowToRecord(EngineSource):
    """Needs longer for the record of a start than the task has for its work.

    Both are timers of one loop, which fires them in order: however slow the machine is, a limit
    that counted would end first.
    """

    async def start(self, assignment: Assignment) -> None:
        limit_over = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * LIMIT_MS / 1000, limit_over.set)
        await limit_over.wait()
        await super().start(assignment)


async def test_the_wait_for_the_record_of_the_start_is_not_taken_from_the_time_for_the_work(
    scene: Scene,
) -> None:
    scene.submit(f'{{"timeoutMs": {LIMIT_MS}}}')
    once = Once()
    once.go_on.set()
    source = SlowToRecord(scene.writer, "node_a", Policy)
    worker = Loop(source, lambda: {"action": once}, lambda: 1)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: scene.state()[0] in {"done", "failed"})
    assert (scene.state(), once.done) == (("done", 1), 1)
    await worker.drain(1)
    running.cancel()


class Late(Once):
    """Starts, and then never ends by itself."""

    async def execute(self, run: Run) -> Any:
        await run.start()
        await asyncio.Event().wait()


async def test_the_time_for_the_work_ends_also_after_a_slow_start(scene: Scene) -> None:
    scene.submit(f'{{"timeoutMs": {LIMIT_MS}}}')
    source = SlowToRecord(scene.writer, "node_a", Policy)
    worker = Loop(source, lambda: {"action": Late()}, lambda: 1)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: scene.state()[0] == "failed")
    view = scene.views.task("one")
    assert view is not None
    assert (view.task.attempts, view.error) == (1, f"Task timed out after {LIMIT_MS}ms")
    await worker.drain(1)
    running.cancel()
