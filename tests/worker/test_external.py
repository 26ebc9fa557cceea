"""`fairlane.Worker` against a real server: the same loop as the server's own, over the network."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fairlane import (
    AsyncClient,
    Client,
    ExecutionFailed,
    Work,
    Worker,
    report_output,
    report_progress,
)
from fairlane.core.errors import InvalidRequest, InvalidSettings
from fairlane.testing import MemoryFairlane
from fairlane.worker.executors.reporting import report_output as outside
from tests.fakes.ports import lasting_port
from tests.fakes.waiting import WAIT_SECONDS, TooLate, eventually, in_time, judge, steadily, within
from tests.http.server import Server, serving
from tests.http.work import ms_between

pytestmark = pytest.mark.asyncio(loop_scope="module")

_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    async with serving(folder, f"sqlite:///{folder / 'f.db'}") as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as client:
        yield client


@pytest.fixture
def name() -> str:
    """A handler that no other test knows."""
    return f"job-{next(_numbers)}"


@pytest.fixture
def worker(server: Server) -> Worker:
    return Worker(
        server.url, lanes=["main"], lease_seconds=300, renew_seconds=0.1, drain_seconds=300
    )


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run())
    try:
        yield
        worker.stop()
        await asyncio.wait_for(task, WAIT_SECONDS)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def submit(client: AsyncClient, handler: str, **fields: Any) -> str:
    task_id: str = (await client.submit(handler=handler, **fields))["taskId"]
    return task_id


# --- running --------------------------------------------------------------------------------------


async def test_async_and_plain_handlers_run_and_plain_ones_in_threads(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    @worker.handler(f"{name}-async")
    async def add(work: Work) -> Any:
        return work.request["params"]["a"] + 1

    @worker.handler(f"{name}-plain")
    def where(_: Work) -> bool:
        return threading.current_thread() is threading.main_thread()

    async with running(worker):
        one = await submit(client, f"{name}-async", params={"a": 1})
        other = await submit(client, f"{name}-plain")
        assert (await client.wait(one, WAIT_SECONDS))["result"] == 2
        assert (await client.wait(other, WAIT_SECONDS))["result"] is False
    (attempt,) = (await client.show(one))["attemptLog"]
    assert (attempt["worker"], attempt["outcome"]) == (worker.name, "completed")


async def test_a_failing_handler_leaves_its_traceback_in_the_task(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    @worker.handler(name)
    def look_up(work: Work) -> Any:
        return work.params["missing"]

    async with running(worker):
        task_id = await submit(client, name, retry_policy={"maxRetries": 0})
        await client.wait(task_id, WAIT_SECONDS)
    (attempt,) = (await client.show(task_id))["attemptLog"]
    assert "in look_up\n" in attempt["traceback"]
    assert attempt["traceback"].endswith("KeyError: 'missing'")


async def test_a_handler_gets_the_same_work_here_and_in_the_server(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    async def tell(work: Work) -> Any:
        fields = ("agent", "kind", "lane", "attempt", "deadline_at", "max_attempts", "timeout_ms")
        parents = [(one["state"], one["result"]) for one in work.inputs]
        request = {key: one for key, one in work.request.items() if key != "dependsOn"}
        return [getattr(work, field) for field in fields], parents, request

    fields: dict[str, Any] = {
        "agent": "ada",
        "params": {"deep": [1, {"x": None}]},
        "metadata": {"m": "é"},
        "deadline": "2099-01-01T00:00:00.250Z",
        "timeout_ms": 60_000,
        "retry_policy": {"maxRetries": 4, "backoffMs": 7},
        "priority": 3,
        "session": "s",
        "key": "k",
        "preemptible": True,
    }
    worker.handler(name)(tell)
    async with running(worker):
        parent = await submit(client, "echo", params={"p": 1})
        task_id = await submit(client, name, depends_on=[parent], **fields)
        far = (await client.wait(task_id, WAIT_SECONDS))["result"]
    async with MemoryFairlane() as app:
        app.handler(name)(tell)
        first = await app.submit(handler="echo", params={"p": 1})
        near = await (await app.submit(handler=name, depends_on=[first.id], **fields)).result(
            WAIT_SECONDS
        )
    assert far == near


async def test_no_more_tasks_run_at_once_than_the_concurrency(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    worker.concurrency = 2
    at_once, most = 0, 0
    may_end = asyncio.Event()

    @worker.handler(name)
    async def count(_: Work) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await may_end.wait()
        at_once -= 1

    async with running(worker):
        ids = [await submit(client, name) for _ in range(6)]
        await eventually(lambda: at_once == 2)
        assert [(await client.show(id_))["state"] for id_ in ids].count("running") == 2
        may_end.set()
        for id_ in ids:
            assert (await client.wait(id_, WAIT_SECONDS))["state"] == "done"
    assert most == 2


async def test_a_handler_that_is_registered_later_is_served_too(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    worker.handler(f"{name}-first")(lambda _: None)
    async with running(worker):
        task_id = await submit(client, name)
        assert (await client.wait(await submit(client, f"{name}-first"), WAIT_SECONDS))[
            "state"
        ] == "done"
        worker.handler(name)(lambda _: "later")
        assert (await client.wait(task_id, WAIT_SECONDS))["result"] == "later"


async def test_a_failure_is_reported_in_words_and_retried_or_not(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    @worker.handler(name)
    def fails(work: Work) -> None:
        if work.request["params"]["final"]:
            raise ExecutionFailed("never", retryable=False)
        raise ValueError("odd")

    async with running(worker):
        final = await client.wait(await submit(client, name, params={"final": True}), WAIT_SECONDS)
        assert (final["state"], final["error"], final["attempts"]) == ("failed", "never", 1)
        again = {"maxRetries": 1, "backoffMs": 0}
        task_id = await submit(client, name, params={"final": False}, retry_policy=again)
        parked = await client.wait(task_id, WAIT_SECONDS)
        assert (parked["state"], parked["attempts"]) == ("parked", 2)
        assert parked["parkedReason"] == "ValueError: odd"


async def test_a_result_that_the_server_does_not_take_fails_the_task(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    worker.handler(name)(lambda _: "x" * 2_000_000)
    async with running(worker):
        task = await client.wait(await submit(client, name), WAIT_SECONDS)
    assert task["state"] == "failed"
    assert task["error"].startswith("the result was refused: it must not be larger")


async def test_output_and_progress_are_reported_from_loops_and_threads(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    @worker.handler(f"{name}-async")
    async def talks(_: Work) -> None:
        report_output("one ")
        report_progress({"done": 1})
        report_output("two")

    @worker.handler(f"{name}-plain")
    def shouts(_: Work) -> None:
        report_progress(50)
        report_output("from a thread")

    async with running(worker):
        for kind, text, progress in (
            ("async", "one two", {"done": 1}),
            ("plain", "from a thread", 50),
        ):
            task_id = await submit(client, f"{name}-{kind}")
            assert (await client.wait(task_id, WAIT_SECONDS))["state"] == "done"
            assert (await client.output(task_id))["text"] == text
            told = [
                event["progress"]
                async for event in client.events(follow=False, task=task_id)
                if event["type"] == "task.progress"
            ]
            assert told == [progress]


async def test_much_output_at_once_arrives_whole(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    text = "\x1b" * 400_000 + "end"  # six bytes of JSON each

    @worker.handler(name)
    async def talks(_: Work) -> None:
        report_output(text)

    async with running(worker):
        task_id = await submit(client, name)
        assert (await client.wait(task_id, WAIT_SECONDS))["state"] == "done"
        assert (await client.output(task_id))["text"] == text


async def test_only_a_handler_can_report() -> None:
    with pytest.raises(RuntimeError, match="only a running handler"):
        outside("x")
    with pytest.raises(ValueError, match="4096 bytes"):
        report_progress("x" * 5000)


# --- heartbeat and stop ---------------------------------------------------------------------------


@pytest.mark.slow
async def test_the_heartbeat_survives_a_blocked_event_loop(server: Server, name: str) -> None:
    """The worker has a loop of its own in a thread, and its handler blocks it for two leases."""

    async def block(seconds: float) -> None:
        lease_seconds = 3 * seconds
        worker = Worker(server.url, lease_seconds=lease_seconds, renew_seconds=lease_seconds / 5)

        @worker.handler(f"{name}-{seconds}")
        async def blocks(work: Work) -> str:
            _wait_for_renewals(server.url, work.task_id, 2 * lease_seconds)
            return "done"

        thread = threading.Thread(target=lambda: asyncio.run(worker.run()), daemon=True)
        thread.start()
        try:
            async with AsyncClient(server.url) as client:
                task_id = await submit(client, f"{name}-{seconds}")
                task = await client.wait(task_id, 10 * lease_seconds + WAIT_SECONDS)
        finally:
            worker.stop()
            await asyncio.to_thread(thread.join, 10 * lease_seconds + WAIT_SECONDS)
        assert not thread.is_alive()
        if task["attempts"] > 1:
            raise TooLate("the lease ran out: the machine may have stood still for longer")
        assert (task["state"], task["result"]) == ("done", "done")

    await in_time(block)


def _wait_for_renewals(url: str, task_id: str, seconds: float) -> None:
    """Hold up the thread until the lease lasts so much longer than at first, or is lost."""
    give_up_at = time.monotonic() + WAIT_SECONDS + 2 * seconds
    with Client(url) as client:
        first = client.show(task_id)
        while time.monotonic() < give_up_at:
            now = client.show(task_id)
            if now.get("leaseId") != first["leaseId"]:
                return
            if ms_between(first["leaseExpiresAt"], now["leaseExpiresAt"]) >= seconds * 1000:
                return
            time.sleep(0.01)
    raise AssertionError("the lease is neither renewed nor lost")


async def test_a_cancel_that_is_reported_on_renew_stops_the_handler(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    @worker.handler(name)
    async def waits(_: Work) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def cancel() -> str:
        began.clear()
        stopped.clear()
        task_id = await submit(client, name)
        await asyncio.wait_for(began.wait(), WAIT_SECONDS)
        with within(2):  # it renews ten times a second
            await client.cancel(task_id)
            await asyncio.wait_for(stopped.wait(), WAIT_SECONDS)
        return task_id

    async with running(worker):
        task_id = await steadily(cancel)
        await eventually(lambda: worker.active == 0)
    assert (await client.show(task_id))["state"] == "cancelled"
    lanes = {lane["name"]: lane for lane in (await client.lanes())["lanes"]}
    assert lanes["main"]["active"] == 0


async def test_stopping_lets_what_runs_finish_and_takes_nothing_new(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    began, may_end = asyncio.Event(), asyncio.Event()

    @worker.handler(name)
    async def waits(_: Work) -> str:
        began.set()
        await may_end.wait()
        return "finished"

    task = asyncio.create_task(worker.run())
    first = await submit(client, name)
    await asyncio.wait_for(began.wait(), WAIT_SECONDS)
    worker.stop()
    await eventually(lambda: worker._loop is not None and worker._loop._draining)
    second = await submit(client, name)
    may_end.set()
    await asyncio.wait_for(task, WAIT_SECONDS)
    assert (await client.show(first))["result"] == "finished"
    assert (await client.show(second))["state"] == "queued"
    await client.cancel(second)


async def test_what_does_not_finish_in_time_is_released_without_cost(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    worker.drain_seconds = 0.1
    began = asyncio.Event()

    @worker.handler(name)
    async def waits(_: Work) -> None:
        began.set()
        await asyncio.Event().wait()

    async def stop() -> None:
        began.clear()
        task = asyncio.create_task(worker.run())
        task_id = await submit(client, name)
        await asyncio.wait_for(began.wait(), WAIT_SECONDS)
        with within(5):
            worker.stop()
            await asyncio.wait_for(task, WAIT_SECONDS)
        found = await client.show(task_id)
        assert (found["state"], found["attempts"]) == ("queued", 0)
        await client.cancel(task_id)

    await steadily(stop)


async def test_an_idle_worker_stops_at_once_and_leaves_no_poll_behind(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    worker.handler(name)(lambda _: None)

    async def stop() -> None:
        loop = asyncio.get_running_loop()
        async with running(worker):
            await client.wait(await submit(client, name), WAIT_SECONDS)
            before = loop.time()
        judge(loop.time() - before, 5)
        assert (await client.withdraw_leases(worker.name))["withdrawn"] == 0

    for _ in range(3):
        await steadily(stop)


async def test_cancelling_the_worker_gives_back_what_it_holds(
    worker: Worker, client: AsyncClient, name: str
) -> None:
    began = asyncio.Event()

    @worker.handler(name)
    async def waits(_: Work) -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(worker.run())
    task_id = await submit(client, name)
    await asyncio.wait_for(began.wait(), WAIT_SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await client.show(task_id))["state"] == "queued"
    await client.cancel(task_id)


# --- a server that is away ------------------------------------------------------------------------


@pytest.mark.slow
async def test_work_goes_on_while_the_server_is_away_and_is_reported_to_the_next(
    tmp_path: Path,
) -> None:
    store, began, may_end = f"sqlite:///{tmp_path / 'f.db'}", asyncio.Event(), asyncio.Event()
    port = lasting_port()
    async with serving(tmp_path / "one", store, port=port) as first:
        worker = Worker(first.url, lease_seconds=30, renew_seconds=0.1)

        @worker.handler("far")
        async def waits(_: Work) -> str:
            began.set()
            await may_end.wait()
            return "done"

        async with running(worker):
            async with AsyncClient(first.url) as client:
                task_id = await submit(client, "far")
                await asyncio.wait_for(began.wait(), WAIT_SECONDS)
            first.kill()
            may_end.set()
            async with (
                serving(tmp_path / "two", store, port=port) as second,
                AsyncClient(second.url) as client,
            ):
                task = await client.wait(task_id, WAIT_SECONDS)
                assert (task["result"], task["attempts"]) == ("done", 1)


async def test_a_worker_that_finds_no_server_waits_for_one(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    port = lasting_port()
    worker = Worker(f"http://127.0.0.1:{port}", drain_seconds=0)
    worker.handler(name)(lambda _: "well")
    with caplog.at_level(logging.WARNING, "fairlane.worker"):
        task = asyncio.create_task(worker.run())
        await eventually(lambda: "cannot lease or renew" in caplog.text)
    assert not task.done()
    store = f"sqlite:///{tmp_path / 'f.db'}"
    async with serving(tmp_path, store, port=port) as server, AsyncClient(server.url) as client:
        ended = await client.wait(await submit(client, name), WAIT_SECONDS)
        assert ended["result"] == "well"
        worker.stop()
        await asyncio.wait_for(task, WAIT_SECONDS)


# --- wrong options -------------------------------------------------------------------------------


async def test_a_lane_that_does_not_exist_ends_the_worker_with_a_word(
    server: Server, name: str
) -> None:
    worker = Worker(server.url, lanes=["mian"])
    worker.handler(name)(lambda _: None)
    with pytest.raises(InvalidRequest, match="did you mean main"):
        await asyncio.wait_for(worker.run(), WAIT_SECONDS)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency must be from 1 to 1000"),
        ({"name": "node_1"}, "name must match"),
        ({"name": "a b"}, "name must match"),
        ({"lease_seconds": 1, "renew_seconds": 1}, "renew_seconds must be less"),
        ({"url": "ftp://x"}, "url must look like"),
    ],
)
async def test_wrong_settings_are_reported_before_anything_is_asked(
    options: dict[str, Any], said: str
) -> None:
    worker = Worker(**options)
    worker.handler("x")(lambda _: None)
    with pytest.raises(InvalidSettings, match=said):
        await worker.run()


async def test_a_worker_without_handlers_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="at least one handler"):
        await Worker().run()
    with pytest.raises(InvalidSettings, match="'no spaces'"):
        Worker().handler("no spaces")
