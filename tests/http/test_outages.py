"""A store that cannot be written, cannot be read or says nothing: callers are told so in time, work
that was done is kept, and the log says it once.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from typing import TYPE_CHECKING, Any

import aiohttp
import apsw
import psycopg
import pytest

from tests.fakes.waiting import WAIT_SECONDS, steadily, within
from tests.http.api import Answer, Api, eventually
from tests.http.server import COMMAND
from tests.http.stage import HANG, Stage
from tests.store.proxy import Freezer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fakes.tab_instance import TabInstance
    from tests.http.conftest import Serve
    from tests.http.hooks import Hooks
    from tests.http.server import Server

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANSWER_SECONDS = 10.0  # what is promised


class Unwritable:
    """A store that can be read and not written, until it is mended."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock: apsw.Connection | None = None

    def begin(self) -> None:
        if self._url.startswith("sqlite"):
            self._lock = apsw.Connection(self._url.removeprefix("sqlite:///"))
            self._lock.set_busy_timeout(int(WAIT_SECONDS * 1000))
            self._lock.execute("BEGIN IMMEDIATE")
        else:
            self._set("SET default_transaction_read_only = on")

    def mend(self) -> None:
        if self._lock is None:
            self._set("RESET default_transaction_read_only")
        else:
            self._lock.execute("ROLLBACK")
            self._lock.close()

    def _set(self, what: str) -> None:
        """What a failover in the wrong order does: sessions end, and the next ones only read."""
        name = psycopg.conninfo.conninfo_to_dict(self._url)["dbname"]
        with psycopg.connect(self._url, autocommit=True) as operator:
            operator.execute("SET default_transaction_read_only = off")
            operator.execute(f"ALTER DATABASE {name} {what}")
            end_sessions(operator, str(name))


def end_sessions(operator: psycopg.Connection[Any], database: str) -> None:
    operator.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = %s AND pid <> pg_backend_pid()",
        [database],
    )


@contextlib.contextmanager
def away(url: str, server_url: str) -> Iterator[None]:
    """The database takes no connections and has ended those that there were."""
    name = str(psycopg.conninfo.conninfo_to_dict(url)["dbname"])
    with psycopg.connect(server_url, autocommit=True) as operator:
        operator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        try:
            end_sessions(operator, name)
            yield
        finally:
            operator.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


def complaints(server: Server) -> list[str]:
    assert "Traceback" not in server.log, server.log
    return [line for line in server.log.splitlines() if " WARNING " in line or " ERROR " in line]


async def said_once(server: Server) -> None:
    """One line when it began and one when it was over, whatever has met it meanwhile."""

    async def look() -> bool | None:
        return any("works again" in line for line in complaints(server)) or None

    await eventually(look)
    told = complaints(server)
    assert len(told) == 2, server.log
    assert "the store cannot be " in told[0]
    assert "the store works again after " in told[1]


async def refused(api: Api) -> Answer:
    async def look() -> Answer | None:
        answer = await api.post("/tasks", {"handler": "echo"})
        return None if answer.status == 202 else answer

    return await eventually(look)


@pytest.mark.slow
async def test_what_was_done_while_nothing_could_be_written_is_reported_afterwards(
    store_url: str, serve: Serve, instance: TabInstance, hooks: Hooks
) -> None:
    server = await serve(store_url)
    stage = Stage(server.api, instance, hooks)
    task = await stage.submit(fake=HANG)
    (entry,) = await stage.arrived(1)
    store = Unwritable(store_url)
    store.begin()
    answer = await refused(server.api)
    assert (answer.status, answer.code) == (503, "store_unavailable")
    assert answer.headers["Retry-After"] == "1"
    assert (await server.api.get("/tasks", limit=1)).status == 200  # reading goes on
    instance.release()  # the action is carried out now, and nobody can write that down
    await instance.until(lambda: entry.outcome == "answered")
    assert (await server.api.post("/tasks", {"handler": "echo"})).status == 503
    store.mend()
    shown = await server.api.end_of(task)
    assert (shown["state"], shown["attempts"]) == ("done", 1)
    assert len(stage.actions()) == 1
    await server.api.end_of(await server.api.submit(handler="echo"))
    await said_once(server)


@pytest.mark.slow
async def test_a_stream_outlasts_an_outage_and_misses_nothing(
    fresh_postgres: str, postgres_url: str, serve: Serve
) -> None:
    server = await serve(fresh_postgres)
    first = await server.api.submit(handler="echo")
    await server.api.end_of(first)
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        streams = [
            await stack.enter_async_context(session.get(f"{server.url}{path}"))
            for path in ("/events?after=0", "/events/pulse")
        ]
        pieces = [aiter(stream.content) for stream in streams]
        for each in pieces:
            await until_line(each, b"data:")
        with away(fresh_postgres, postgres_url):
            answer = await refused(server.api)
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert (await server.api.get("/tasks")).headers["Retry-After"] == "1"
            for each in pieces:
                await until_line(each, b": still here")
        await stored(server.api)
        second = await server.api.submit(handler="echo")
        await until_line(pieces[0], second.encode())
        await until_line(pieces[1], b"data:")
    await said_once(server)


async def until_line(pieces: Any, part: bytes) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        async for line in pieces:
            if part in line:
                return
    raise AssertionError(f"the stream ended before {part!r}")


async def stored(api: Api) -> None:
    """Returns when the store can be written again."""

    async def look() -> bool | None:
        return (await api.get("/health/ready")).status == 200 or None

    await eventually(look)


@pytest.mark.slow
async def test_a_database_that_says_nothing_is_given_up(
    fresh_postgres: str, serve: Serve, tmp_path: Path
) -> None:
    folder = tmp_path / "link"
    folder.mkdir()
    with Freezer(fresh_postgres, folder) as link:
        server = await serve(link.url)
        await server.api.end_of(await server.api.submit(handler="echo"))

        async def scene() -> None:
            link.freeze()
            with within(ANSWER_SECONDS):
                answers = await asyncio.gather(
                    *(server.api.post("/tasks", {"handler": "echo"}) for _ in range(3)),
                    *(server.api.get(path) for path in ("/tasks", "/scheduler/stats", "/nodes")),
                    *(server.api.get("/tasks/tsk_none") for _ in range(10)),
                )
            assert {one.status for one in answers} == {503}
            assert {one.code for one in answers} == {"store_unavailable"}
            assert {one.headers["Retry-After"] for one in answers} == {"1"}
            link.thaw()
            await stored(server.api)
            await server.api.end_of(await server.api.submit(handler="echo"))

        await steadily(scene)


@pytest.mark.slow
async def test_a_server_does_not_start_on_a_database_that_says_nothing(
    fresh_postgres: str, tmp_path: Path
) -> None:
    folder = tmp_path / "link"
    folder.mkdir()
    with Freezer(fresh_postgres, folder) as link:
        link.freeze()

        async def scene() -> None:
            with within(2 * ANSWER_SECONDS):  # a program has to be loaded too
                ran = await asyncio.to_thread(start, link.url)
            assert ran.returncode == 5
            assert ran.stderr.startswith("error: the store does not respond: "), ran.stderr

        await steadily(scene)


def start(url: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, "serve", "--store", url, "--port", "0"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False
    )
