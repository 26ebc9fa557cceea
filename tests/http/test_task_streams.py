"""`POST /tasks/stream`: tasks as lines, each answered after its commit, on both databases."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fairlane.core.access import ALL, TRUSTED, Token
from fairlane.engine.commands import CreateToken, RevokeToken
from fairlane.engine.verbs.tokens import new_token
from fairlane.schema.wire import BODY_BYTES_MAX
from fairlane.services import task_streams
from fairlane.testing import MemoryFairlane
from tests.fakes.waiting import WAIT_SECONDS
from tests.http.access import Callers, guarded
from tests.http.api import Answer, Api
from tests.http.conftest import Serve
from tests.http.server import Server
from tests.http.stage import HELD, TINY, on_sqlite

pytestmark = pytest.mark.asyncio(loop_scope="session")

Json = dict[str, Any]
NDJSON = {"Content-Type": "application/x-ndjson"}
_numbers = itertools.count(1)


@pytest.fixture
def agent() -> str:
    return f"stream-{next(_numbers)}"


@pytest.fixture
def api(server: Server) -> Api:
    return server.api


def lines_of(*tasks: Any) -> bytes:
    return b"".join(
        one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in tasks
    )


async def send(api: Api, data: bytes, query: str = "", **headers: str) -> list[Json]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await api.ask("POST", f"/tasks/stream{query}", raw=data, headers={**NDJSON, **named})
    assert answer.status == 200, answer
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    return said(answer)


def said(answer: Answer) -> list[Json]:
    return [json.loads(line) for line in answer.raw.splitlines()]


async def listed(api: Api, agent: str) -> list[Json]:
    tasks: list[Json] = (await api.get("/tasks", agentId=agent, limit=1000)).json["tasks"]
    return tasks


def task(agent: str, **fields: Any) -> Json:
    return {"agentId": agent, "handler": "nobody", "lane": HELD, **fields}


async def test_every_line_is_a_task_and_the_end_says_how_many(api: Api, agent: str) -> None:
    *found, end = await send(api, lines_of(*(task(agent, params={"n": n}) for n in range(50))))
    assert [one["line"] for one in found] == list(range(1, 51))
    assert {one["state"] for one in found} == {"queued"}
    assert end == {"end": True, "accepted": 50, "rejected": 0}
    tasks = {one["taskId"]: one["params"] for one in await listed(api, agent)}
    assert [tasks[one["taskId"]]["n"] for one in found] == list(range(50))


async def test_a_bad_line_is_answered_with_all_its_problems_and_the_others_count(
    api: Api, agent: str
) -> None:
    data = lines_of(
        task(agent),
        {"handler": "no name", "agent": 7, "prioritee": 1},
        b"{nonsense\n",
        b"\n",
        b"  \r\n",
        {"handler": "x", "action": "y", "agentId": agent},
        b'{"handler":"x","handler":"y"}\n',
        task(agent),
    )[:-1]  # the last line need not end
    one, two, three, six, seven, eight, end = await send(api, data)
    assert [found["line"] for found in (one, two, three, six, seven, eight)] == [1, 2, 3, 6, 7, 8]
    assert len(two["details"]["problems"]) == 3
    assert "not valid JSON" in three["error"]
    assert "give either 'action' or 'handler'" in six["error"]
    assert "twice" in seven["error"]
    assert {found["code"] for found in (two, three, six, seven)} == {"invalid_request"}
    assert (end["accepted"], end["rejected"]) == (2, 4)
    assert len(await listed(api, agent)) == 2


@on_sqlite
async def test_a_line_that_is_too_long_is_refused_alone(api: Api, agent: str) -> None:
    long = b'{"handler":"' + b"x" * (BODY_BYTES_MAX + 10) + b'"}\n'
    one, two, three, end = await send(api, lines_of(task(agent), long, task(agent)))
    assert (two["line"], two["code"]) == (2, "payload_too_large")
    assert [one["state"], three["state"]] == ["queued"] * 2
    assert end["rejected"] == 1


async def test_a_last_line_that_is_too_long_is_answered(api: Api, agent: str) -> None:
    *found, end = await send(api, lines_of(task(agent), b"x" * (BODY_BYTES_MAX + 1)))
    assert [one.get("code") for one in found] == [None, "payload_too_large"]
    assert end["rejected"] == 1


async def test_lines_keep_their_numbers_and_blank_ones_take_no_room() -> None:
    buffer = task_streams.LineBuffer(5)
    for piece in (b"a\n\n \n", b"\n" * 100_000, b"b", b"c\nd", b"e"):
        buffer.add(read(piece))
    assert buffer.size < 1000
    assert buffer.take() == [(5, b"a"), (100_008, b"bc")]
    buffer.add(read(None))
    assert buffer.take() == [(100_009, b"de")]
    assert buffer.is_over
    assert buffer.size == 0


async def test_a_line_that_arrives_byte_by_byte_is_cut_at_the_limit() -> None:
    buffer = task_streams.LineBuffer(1)
    for _ in range(3):
        buffer.add(read(b"x" * BODY_BYTES_MAX))
    buffer.add(read(b"x\nok\n"))
    (_, first), second = buffer.take()
    assert len(first) < 10
    assert second == (2, b"ok")


def read(piece: bytes | None) -> asyncio.Future[bytes]:
    found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    if piece is None:
        found.set_exception(StopAsyncIteration)
    else:
        found.set_result(piece)
    return found


async def test_a_stream_that_is_sent_again_doubles_nothing(api: Api, agent: str) -> None:
    data = lines_of(*(task(agent, params={"n": n}) for n in range(30)))
    first = await send(api, data[: len(data) // 2], Idempotency_Key=agent)  # cut in a line
    again = await send(api, data, Idempotency_Key=agent)
    whole = len(first) - 2
    assert again[:whole] == first[:whole]
    assert again[-1]["accepted"] == 30
    assert await send(api, data, Idempotency_Key=agent) == again
    assert len(await listed(api, agent)) == 30
    tail = data.split(b"\n", 10)[10]
    assert (await send(api, tail, "?firstLine=11", Idempotency_Key=agent))[:-1] == again[10:-1]


async def test_another_task_under_the_same_key_is_a_conflict(api: Api, agent: str) -> None:
    first = await send(api, lines_of(task(agent, params={"n": 1})), Idempotency_Key=agent)
    other, end = await send(api, lines_of(task(agent, params={"n": 2})), Idempotency_Key=agent)
    assert (other["line"], other["code"]) == (1, "idempotency_conflict")
    assert end["rejected"] == 1
    assert len(await listed(api, agent)) == 1
    assert first[0]["state"] == "queued"


@pytest.mark.parametrize(
    "other",
    [
        {"agentId": "somebody-else"},
        {"priority": "high"},
        {"lane": TINY},
        {"sessionKey": "chat"},
    ],
    ids=lambda other: next(iter(other)),
)
async def test_a_key_belongs_to_the_whole_line(api: Api, agent: str, other: Json) -> None:
    key, line = f"{agent}-{next(iter(other))}", task(agent)
    await send(api, lines_of(line), Idempotency_Key=key)
    changed, _ = await send(api, lines_of({**line, **other}), Idempotency_Key=key)
    assert changed["code"] == "idempotency_conflict"
    both = [{**line, "idempotencyKey": key}, {**line, **other, "idempotencyKey": key}]
    _, second, _ = await send(api, lines_of(*both))
    assert second["code"] == "idempotency_conflict"


async def test_a_line_may_bring_a_key_of_its_own(api: Api, agent: str) -> None:
    keyed = task(agent, idempotencyKey=f"{agent}-1")
    one, two, three, _ = await send(
        api, lines_of(keyed, keyed, {**keyed, "params": {"other": True}})
    )
    assert one["taskId"] == two["taskId"]
    assert three["code"] == "idempotency_conflict"
    again, _ = await send(api, lines_of(keyed))
    assert again["taskId"] == one["taskId"]
    assert len(await listed(api, agent)) == 1


async def test_lines_beyond_a_full_queue_are_refused_and_may_come_again(
    api: Api, agent: str
) -> None:
    data = lines_of(*(task(agent, lane=TINY, params={"n": n}) for n in range(5)))
    *found, end = await send(api, data, Idempotency_Key=agent)
    assert (end["accepted"], end["rejected"]) == (3, 2)  # of one agent
    assert {one.get("code") for one in found[3:]} == {"queue_full"}
    await api.cancel(found[0]["taskId"])
    *again, _ = await send(api, data, Idempotency_Key=agent)
    assert [one.get("state", one.get("code")) for one in again] == [
        *("cancelled", "queued", "queued", "queued", "queue_full"),
    ]
    for one in again[1:4]:
        await api.cancel(one["taskId"])


class Open:
    """A stream whose lines are sent one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *tasks: Any) -> None:
        data = lines_of(*tasks)
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def said(self) -> Json:
        async with asyncio.timeout(WAIT_SECONDS):
            while not (line := await self.reader.readline()).startswith(b"{"):
                assert line, "the stream was cut"
        found: Json = json.loads(line)
        return found


@pytest_asyncio.fixture(loop_scope="session")
async def opened(server: Server) -> AsyncIterator[Open]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /tasks/stream HTTP/1.1\r\nHost: {host}:{port}\r\nExpect: 100-continue\r\n"
    head += "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode())
    assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
    yield Open(reader, writer)
    writer.close()


async def test_a_line_is_answered_while_the_stream_is_open(
    opened: Open, api: Api, agent: str
) -> None:
    for number in range(1, 4):
        opened.send(task(agent))
        found = await opened.said()
        assert (found["line"], found["state"]) == (number, "queued")
        assert (await api.show(found["taskId"]))["state"] == "queued"
    opened.writer.write(b"0\r\n\r\n")
    assert (await opened.said())["accepted"] == 3


async def test_what_was_answered_stays_when_the_connection_breaks(
    opened: Open, api: Api, agent: str
) -> None:
    opened.send(task(agent), task(agent))
    assert [(await opened.said())["line"] for _ in range(2)] == [1, 2]
    opened.writer.write(b'10\r\n{"handler":"half')
    opened.writer.transport.abort()
    assert len(await listed(api, agent)) == 2


@on_sqlite
async def test_one_piece_as_json_gets_one_response(api: Api, agent: str) -> None:
    body = {"tasks": [task(agent), {"handler": 7}, task(agent)]}
    answer = await api.post("/tasks/stream?firstLine=5", body, Idempotency_Key=agent)
    assert answer.status == 202
    assert (answer.json["accepted"], answer.json["rejected"]) == (2, 1)
    assert [one["line"] for one in answer.json["tasks"]] == [5, 6, 7]
    line, _ = await send(api, lines_of(task(agent)), "?firstLine=5", Idempotency_Key=agent)
    assert line["taskId"] == answer.json["tasks"][0]["taskId"]
    for tasks in ([], [{}] * 1001):
        assert (await api.post("/tasks/stream", {"tasks": tasks})).status == 400


@on_sqlite
@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/tasks/stream", {"Content-Type": "text/plain"}, 415),
        ("/tasks/stream", {**NDJSON, "Content-Encoding": "gzip"}, 415),
        ("/tasks/stream", {**NDJSON, "Origin": "http://evil.example"}, 403),
        ("/tasks/stream", {**NDJSON, "Idempotency-Key": "ü"}, 400),
        ("/tasks/stream?firstLine=0", NDJSON, 400),
        ("/tasks/stream?line=1", NDJSON, 400),
        ("/tasks", NDJSON, 415),
    ],
)
async def test_the_guards_of_other_routes_hold(
    api: Api, agent: str, path: str, headers: dict[str, str], status: int
) -> None:
    answer = await api.ask("POST", path, raw=lines_of(task(agent)), headers=headers)
    assert answer.status == status
    assert await listed(api, agent) == []


@pytest_asyncio.fixture(loop_scope="session")
async def callers(tmp_path: Path) -> AsyncIterator[Callers]:
    async with guarded(tmp_path, f"sqlite:///{tmp_path / 'fairlane.db'}") as callers:
        yield callers


async def test_an_agents_token_submits_for_its_agent_and_within_its_quota(
    callers: Callers,
) -> None:
    alice = await callers.alice()
    mine = (await callers.ask("GET", "/whoami", token=alice)).json["agent"]
    body = [{"handler": "x"}, {"handler": "x", "agentId": "somebody-else"}]
    answer = await callers.ask("POST", "/tasks/stream", {"tasks": body}, token=alice)
    one, two = answer.json["tasks"]
    assert (await callers.ask("GET", f"/tasks/{one['taskId']}", token=alice)).json[
        "agentId"
    ] == mine
    assert two["code"] == "forbidden"
    small = await callers.new(agentId=mine, scopes=["submit"], maxOpen=3)
    tasks = [{"handler": "x"}] * 4
    answer = await callers.ask("POST", "/tasks/stream", {"tasks": tasks}, token=small)
    codes = [found.get("code") for found in answer.json["tasks"]]
    assert codes == [None, None, "quota_exceeded", "quota_exceeded"]
    reading = await callers.without("submit")
    answer = await callers.ask("POST", "/tasks/stream", {"tasks": body}, token=reading)
    assert answer.status == 403


async def test_a_revoked_token_submits_no_further_line() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield lines_of({"handler": "x"})
        await app.node.writer.ask(RevokeToken(made.id))
        yield lines_of({"handler": "x"})

    async with MemoryFairlane() as app:
        seed, _ = new_token(Token(0, "", "t", "", " ".join(sorted(ALL)), 0))
        made = await app.node.writer.ask(CreateToken(seed))
        found = [piece async for piece in task_streams.stream(app.node, made.caller(), pieces())]
        *lines, end = [json.loads(line) for line in b"".join(found).splitlines()]
        assert (len(lines), end["accepted"]) == (1, 1)
        assert end["code"] == "unauthenticated"
        assert (await app.stats())["metrics"]["tasksSubmitted"] == 1


async def test_a_stopping_server_ends_the_stream_and_says_so() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield lines_of({"handler": "x"})
        app.node.draining = True
        yield lines_of({"handler": "x"})

    async with MemoryFairlane() as app:
        found = [piece async for piece in task_streams.stream(app.node, TRUSTED, pieces())]
        *lines, end = [json.loads(line) for line in b"".join(found).splitlines()]
        app.node.draining = False
    assert end["code"] == "draining"
    assert end["accepted"] == len(lines) <= 1


async def test_the_python_clients_submit_many_of_any_number(serve: Serve) -> None:
    policy = {"lanes": {"main": {"maxQueueSize": 100_000, "paused": True}}}
    server = await serve(policy=policy)
    from fairlane import AsyncClient, Client

    tasks = [{"handler": "nobody", "params": {"n": n}} for n in range(2500)]

    def plainly() -> list[Any]:
        with Client(server.url) as client:
            return list(client.submit_many(iter(tasks), idempotency_key="k"))

    found = await asyncio.to_thread(plainly)
    assert [one.line for one in found] == list(range(1, 2501))

    async def produced() -> AsyncIterator[Any]:
        for one in tasks:
            yield one

    async with AsyncClient(server.url) as client:
        again = [one async for one in client.submit_many(produced(), idempotency_key="k")]
        assert again == found
        fresh = [one.task_id async for one in client.submit_many(tasks[:10])]
        assert len(set(fresh)) == 10
    stats = await server.api.stats()
    assert stats["queue"]["totalQueued"] == 2510


async def test_the_embedded_scheduler_submits_many() -> None:
    async with MemoryFairlane() as app:
        tasks = [{"handler": "nobody"}, {"handler": "no good"}]
        one, two = [found async for found in app.submit_many(tasks)]
        assert (one.state, two.code) == ("queued", "invalid_request")
