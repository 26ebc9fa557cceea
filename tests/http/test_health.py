"""Health that means it: with a server whose store cannot be written, read or trusted any more."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import msgspec
import psycopg
import pytest

from fairlane.clock import SystemClock
from fairlane.core.access import TRUSTED
from fairlane.engine.writing_node import WritingNode
from fairlane.schema.health import LIVE, READY, CheckHealth, HealthStatus
from fairlane.services import health
from fairlane.services.health import UNREADABLE, UNWRITABLE, WRITER_ENDED
from fairlane.store.sqlite import SqliteStore
from tests.fakes.waiting import eventually as until
from tests.http.api import Api, eventually

if TYPE_CHECKING:
    from tests.http.conftest import Serve
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def reasons(api: Api) -> list[str]:
    """Why it is not ready; nothing when it is. It has to be live in any case."""
    assert (await api.get("/health/live")).json == {"status": "live"}
    answer = await api.get("/health/ready")
    if answer.status == 200:
        assert answer.json == {"status": "ready"}
        return []
    assert (answer.status, answer.json["status"]) == (503, "not_ready")
    assert answer.code == "store_unavailable"
    assert answer.error == answer.json["reasons"][0]
    found: list[str] = answer.json["reasons"]
    return found


async def becomes(api: Api, *wanted: str) -> None:
    async def look() -> bool | None:
        return await reasons(api) == list(wanted) or None

    await eventually(look)


@contextlib.contextmanager
def no_file_may_grow(server: Server) -> Iterator[None]:
    """What a quota or a dead disk does: every write to a file of the process fails."""
    assert server._process is not None
    pid = server._process.pid
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of others are Linux's")
async def test_a_store_that_cannot_be_written_is_not_ready_until_it_can(serve: Serve) -> None:
    server = await serve()
    assert await reasons(server.api) == []
    with no_file_may_grow(server):
        await becomes(server.api, UNWRITABLE)
        refused = await server.api.post("/tasks", {"handler": "echo"})
        assert (refused.status, refused.code) == (503, "store_unavailable")
    await becomes(server.api)
    await server.api.end_of(await server.api.submit(handler="echo"))


async def test_a_database_that_is_away_is_not_ready_until_it_is_back(
    fresh_postgres: str, postgres_url: str, serve: Serve
) -> None:
    server = await serve(fresh_postgres)
    assert await reasons(server.api) == []
    name = psycopg.conninfo.conninfo_to_dict(fresh_postgres)["dbname"]
    with psycopg.connect(postgres_url, autocommit=True) as operator:
        operator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        operator.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        await becomes(server.api, UNREADABLE)
        operator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    await becomes(server.api)


async def test_a_schema_that_is_too_old_is_not_ready(serve: Serve, tmp_path: Path) -> None:
    store = tmp_path / "own.db"
    server = await serve(f"sqlite:///{store}")
    connection = apsw.Connection(str(store))
    newest = connection.pragma("user_version")
    connection.pragma("user_version", 3)
    text = f"the store has schema 3, but this version needs {newest}; restart the server"
    await becomes(server.api, text)
    connection.pragma("user_version", newest)
    connection.close()
    await becomes(server.api)
    assert (await server.api.get("/health/ready")).status == 200


# --- a node in this process -----------------------------------------------------------------------


class SmallStore(SqliteStore):
    """A real one whose database may not be larger than it is once `full` is set."""

    full = False

    def open_file(self, *, readonly: bool = False) -> apsw.Connection:
        connection = super().open_file(readonly=readonly)
        if self.full:
            connection.pragma("max_page_count", 1)
        return connection


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[WritingNode]:
    path = str(tmp_path / "f.db")
    node = WritingNode(SmallStore(path, f"sqlite:///{path}"), SystemClock())
    await asyncio.to_thread(node.start)
    yield node
    await asyncio.to_thread(node.stop)


async def ready(node: WritingNode, answer_seconds: float = 0.2) -> HealthStatus:
    return await health.readiness(node, answer_seconds)


async def live(node: WritingNode) -> HealthStatus:
    return await health.check_live(node, TRUSTED, CheckHealth())


def status(found: HealthStatus) -> int:
    assert LIVE.status_of(found) == READY.status_of(found)
    return READY.status_of(found)


async def test_a_write_of_a_moment_ago_is_proof_enough(node: WritingNode) -> None:
    await node.beat()
    written_at = node.writer.written_at
    assert status(await ready(node)) == 200
    assert node.writer.written_at == written_at


async def test_a_full_disk_is_reported(node: WritingNode) -> None:
    assert isinstance(node.store, SmallStore)
    node.store.full = True
    node.engine._disconnect()  # the next one that writes gets a connection that is full
    node.writer.written_at = None
    # What it says of itself needs a page that is not there.
    node._here = msgspec.structs.replace(node._here, name="node_large", host="x" * 100_000)
    answer = await ready(node, health.ANSWER_SECONDS)
    assert status(answer) == 503
    assert answer.reasons == [f"{UNWRITABLE}: the disk is full"]
    assert status(await live(node)) == 200
    node.store.full = False
    await node.beat()
    assert status(await ready(node)) == 200


async def test_a_store_that_another_has_locked_cannot_be_written(
    node: WritingNode, tmp_path: Path
) -> None:
    blocker = apsw.Connection(str(tmp_path / "f.db"))
    blocker.execute("BEGIN IMMEDIATE")
    node.writer.written_at = None
    answer = await ready(node)
    assert status(answer) == 503
    assert answer.reasons == [f"{UNWRITABLE} within 0.2 s"]
    blocker.execute("ROLLBACK")
    blocker.close()
    await node.beat()
    assert status(await ready(node)) == 200


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_writer_that_has_died_is_neither_ready_nor_live(node: WritingNode) -> None:
    assert status(await live(node)) == 200

    def die() -> None:
        sys.exit()

    node.on_policy.append(lambda _: die())
    node._told_policy = None  # type: ignore[assignment]  # so that the next commit tells it
    node.writer.nudge()
    node.writer.tell(node._here)
    await until(lambda: not node.writer.alive)
    for answer in (await live(node), await ready(node)):
        assert status(answer) == 503
        assert answer.reasons == [WRITER_ENDED]


async def test_a_node_that_drains_says_so(node: WritingNode) -> None:
    node.draining = True
    answer = await ready(node, health.ANSWER_SECONDS)
    assert (status(answer), answer.status, answer.code) == (
        503,
        "draining",
        "draining",
    )
    assert status(await live(node)) == 200
