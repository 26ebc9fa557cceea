"""`fairlane.Worker` reports many tasks in one request, whatever the network does to it.

A proxy between the worker and a real server counts the requests, loses responses on purpose, and
can be a server of an older version, which does not know the route.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from fairlane import AsyncClient, Work, Worker, report_output
from fairlane.worker.external import Worker as ExternalWorker
from tests.fakes.waiting import WAIT_SECONDS, eventually
from tests.http.server import Server, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

REPORT = "/leases/report"
NOT_HERE = b'{"code":"not_found","error":"nothing at /leases/report; GET / lists the routes"}'
_numbers = itertools.count(1)


class Proxy:
    """Passes requests on, one connection to the server for each of the worker's."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.port_here = 0
        self.seen: Counter[str] = Counter()
        self.reports: list[bytes] = []
        self.losing = 0  # responses to requests with reports that are lost from now on
        self.is_old = False
        self.hold: asyncio.Event | None = None  # requests with reports wait for it

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, back = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            while True:
                head, body = await _message(reader)
                target = head.split(b" ", 2)[1].decode()
                self.seen[target] += 1
                if target == REPORT and self.is_old:
                    length = str(len(NOT_HERE)).encode()
                    start = b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\n"
                    writer.write(start + b"content-length: " + length + b"\r\n\r\n" + NOT_HERE)
                    continue
                is_report = target == REPORT and b'"reports":[{' in body
                if is_report:
                    self.reports.append(body)
                    if self.hold is not None:
                        await self.hold.wait()
                own, real = (f"127.0.0.1:{port}".encode() for port in (self.port_here, self.port))
                back.write(head.replace(own, real) + body)
                answer = b"".join(await _message(upstream))
                if is_report and self.losing:
                    self.losing -= 1
                    return
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            back.close()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    length = next((int(value) for name, _, value in fields if name == b"content-length"), 0)
    return head, await reader.readexactly(length)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    policy = {"lanes": {"main": {"maxInflight": 1000}}}
    async with serving(folder, f"sqlite:///{folder / 'f.db'}", policy=policy) as server:
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def proxy(server: Server) -> AsyncIterator[Proxy]:
    proxy = Proxy(int(server.url.rsplit(":", 1)[1]))
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port_here = listening.sockets[0].getsockname()[1]
    async with listening:
        yield proxy


@pytest_asyncio.fixture(loop_scope="module")
async def client(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as client:
        yield client


def worker_at(proxy: Proxy, **options: Any) -> ExternalWorker:
    settings = {"concurrency": 50, "lease_seconds": 300, "renew_seconds": 100, **options}
    return Worker(f"http://127.0.0.1:{proxy.port_here}", **settings)


@asynccontextmanager
async def running(worker: ExternalWorker) -> AsyncIterator[None]:
    task = asyncio.create_task(worker.run())
    try:
        yield
        worker.stop()
        await asyncio.wait_for(task, WAIT_SECONDS)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def submitted(client: AsyncClient, handler: str, count: int) -> list[str]:
    items = [{"handler": handler, "params": {"n": n}} for n in range(count)]
    batch = await client.submit_batch(items)
    return [str(item.task_id) for item in batch.tasks]


async def results(client: AsyncClient, ids: list[str]) -> list[Any]:
    tasks = await asyncio.gather(*(client.wait(one, WAIT_SECONDS) for one in ids))
    assert {(task.state, task.attempts) for task in tasks} == {("done", 1)}
    return [task.result for task in tasks]


async def test_what_ends_while_a_request_is_under_way_goes_out_together(
    proxy: Proxy, client: AsyncClient
) -> None:
    worker, name, ended = worker_at(proxy), f"job-{next(_numbers)}", 0
    proxy.hold = asyncio.Event()

    @worker.handler(name)
    async def job(work: Work) -> Any:
        nonlocal ended
        if work.request["params"]["n"]:
            await eventually(lambda: len(proxy.reports) == 1)
        ended += 1
        return work.request["params"]["n"]

    ids = await submitted(client, name, 30)
    async with running(worker):
        await eventually(lambda: ended == 30)
        proxy.hold.set()
        assert await results(client, ids) == list(range(30))
    assert len(proxy.reports) == 2
    assert proxy.reports[1].count(b'"complete"') == 29


async def test_a_report_whose_response_is_lost_is_sent_again_and_counts_once(
    proxy: Proxy, client: AsyncClient
) -> None:
    worker, name, ran = worker_at(proxy), f"job-{next(_numbers)}", Counter[int]()
    proxy.losing = 2

    @worker.handler(name)
    async def job(work: Work) -> Any:
        ran[work.request["params"]["n"]] += 1
        report_output(f"{work.request['params']['n']}")
        return work.request["params"]["n"]

    ids = await submitted(client, name, 40)
    async with running(worker):
        assert await results(client, ids) == list(range(40))
    assert proxy.losing == 0
    assert set(ran.values()) == {1}
    assert [(await client.output(one)).text for one in ids[:3]] == ["0", "1", "2"]


async def test_a_worker_with_one_place_reports_and_leases_in_the_same_request(
    proxy: Proxy, client: AsyncClient
) -> None:
    worker, name = worker_at(proxy, concurrency=1), f"job-{next(_numbers)}"

    @worker.handler(name)
    async def job(work: Work) -> Any:
        return work.request["params"]["n"]

    ids = await submitted(client, name, 30)
    async with running(worker):
        assert await results(client, ids) == list(range(30))
    assert proxy.seen["/leases"] <= 3  # the first, and a wait when nothing is left
    assert 30 <= proxy.seen[REPORT] <= 31


async def test_a_server_of_an_older_version_gets_single_reports(
    proxy: Proxy, client: AsyncClient
) -> None:
    worker, name = worker_at(proxy, renew_seconds=0.05), f"job-{next(_numbers)}"
    proxy.is_old = True

    @worker.handler(name)
    async def job(work: Work) -> Any:
        number = work.request["params"]["n"]
        if number == 4:
            await asyncio.Event().wait()
        if number == 3:
            raise ValueError("three")
        report_output("said")
        return number

    ids = await submitted(client, name, 5)
    async with running(worker):
        assert await results(client, ids[:3]) == [0, 1, 2]
        retried = await client.show(ids[3])
        assert retried.attempts == 1
        await client.cancel(ids[4])
        await eventually(lambda: worker.active == 0)
    assert (await client.output(ids[0])).text == "said"
    assert proxy.seen[REPORT] <= 20
    assert any(target.endswith("/complete") for target in proxy.seen)
    assert any(target.endswith("/renew") for target in proxy.seen)
    await client.cancel(ids[3])


async def test_all_leases_are_renewed_by_one_request(proxy: Proxy, client: AsyncClient) -> None:
    worker, name = worker_at(proxy, renew_seconds=0.1), f"job-{next(_numbers)}"
    go = asyncio.Event()

    @worker.handler(name)
    async def job(_: Work) -> None:
        await go.wait()

    ids = await submitted(client, name, 20)
    async with running(worker):
        await eventually(lambda: worker.active == 20)
        await eventually(lambda: any(body.count(b'"renew"') == 20 for body in proxy.reports))
        await client.cancel(ids[0])
        await eventually(lambda: worker.active == 19)
        go.set()
        assert await results(client, ids[1:]) == [None] * 19
