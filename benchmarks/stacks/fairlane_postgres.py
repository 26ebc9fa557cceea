"""Fairlane over HTTP with an external worker, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.servers import fairlane_server
from benchmarks.stacks.fairlane_sqlite import FairlaneSqlite
from benchmarks.stacks.harness import Server
from benchmarks.stacks.postgres import postgres, postgres_facts


class FairlanePostgres(FairlaneSqlite):
    store = "postgres"
    share = 0.5

    @contextmanager
    def server(self, folder: Path) -> Iterator[Server]:
        del folder
        with postgres() as (url, database), fairlane_server(url) as server:
            self._database = url
            yield Server(f"http://127.0.0.1:{server.port}", server.process.pid, database)

    def facts(self, url: str) -> dict[str, Any]:
        del url
        return postgres_facts(self._database)


STACK = FairlanePostgres
