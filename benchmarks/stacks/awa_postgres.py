"""awa (Rust, with its Python binding) on PostgreSQL."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from benchmarks.stacks.harness import CONCURRENCY, Mark, Server, Stack
from benchmarks.stacks.postgres import postgres, postgres_facts


@dataclass
class NoOp:
    number: int = 0


class AwaPostgres(Stack):
    name = "awa"
    store = "postgres"
    note = "AsyncClient.insert, poll interval 10 ms"
    share = 0.25

    def version(self) -> str:
        return importlib.metadata.version("awa-pg")

    @contextmanager
    def server(self, folder: Path) -> Iterator[Server]:
        del folder
        with postgres() as (url, pid):
            self._database = url
            yield Server(_with_host(url), pid)

    async def connect(self, url: str) -> Callable[[], Any]:
        import awa

        client = awa.AsyncClient(url)

        async def submit() -> None:
            await client.insert(NoOp(), kind="no_op")

        return submit

    async def work(self, url: str, mark: Mark, ready: Callable[[], None]) -> None:
        import awa

        client = awa.AsyncClient(url)
        await client.migrate()

        @client.task(NoOp, kind="no_op")  # type: ignore[untyped-decorator]  # not installed here
        async def no_op(_: Any) -> None:
            mark()

        await client.start([("default", CONCURRENCY)], poll_interval_ms=10)
        ready()
        await asyncio.Event().wait()

    def facts(self, url: str) -> dict[str, Any]:
        del url
        return postgres_facts(self._database)


def _with_host(url: str) -> str:
    """Return a URL with its socket as the host: awa's driver takes no empty one."""
    folder = parse_qs(urlsplit(url).query)["host"][0]
    return f"postgresql://postgres@{quote(folder, safe='')}/postgres"


STACK = AwaPostgres
