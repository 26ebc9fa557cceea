"""Fairlane over HTTP with an external worker, on SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.servers import fairlane_server
from benchmarks.stacks.harness import CONCURRENCY, Mark, Server, Stack


class FairlaneSqlite(Stack):
    name = "fairlane"
    store = "sqlite"
    note = "AsyncClient, fairlane.Worker"

    def version(self) -> str:
        from fairlane import __version__

        return __version__

    @contextmanager
    def server(self, folder: Path) -> Iterator[Server]:
        with fairlane_server(f"sqlite:///{folder}/bench.db") as server:
            yield Server(f"http://127.0.0.1:{server.port}", server.process.pid)

    async def connect(self, url: str) -> Callable[[], Any]:
        from fairlane import AsyncClient

        client = AsyncClient(url)

        async def submit() -> None:
            await client.submit(handler="no_op")

        return submit

    async def work(self, url: str, mark: Mark, ready: Callable[[], None]) -> None:
        from fairlane import Work, Worker

        worker = Worker(url, concurrency=CONCURRENCY)

        @worker.handler("no_op")
        async def no_op(_: Work) -> None:
            mark()

        ready()
        await worker.run()


STACK = FairlaneSqlite
