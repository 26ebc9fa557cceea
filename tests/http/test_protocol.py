"""HTTP itself: routes that do not exist, methods, HEAD, sizes, what happens to half a request.

Facts of specs/pinchtab.md section 17: 17; section 2 (routing, envelope).
"""

from __future__ import annotations

import asyncio
import gzip
import re
from typing import Any

import msgspec
import pytest

from tests.fakes.waiting import WAIT_SECONDS
from tests.http.api import Answer
from tests.http.stage import HELD, Stage, on_sqlite

pytestmark = [pytest.mark.asyncio(loop_scope="session"), on_sqlite]

MIB = 1_048_576
TEXT = 200_000


def address(stage: Stage) -> tuple[str, int]:
    host, _, port = stage.api.url.removeprefix("http://").partition(":")
    return host, int(port)


async def talk(stage: Stage, sent: bytes, *, half_close: bool = False) -> bytes:
    """Send bytes as they are and read until the other side has nothing more to say."""
    reader, writer = await asyncio.open_connection(*address(stage))
    writer.write(sent)
    if half_close:
        writer.write_eof()
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            return await reader.read()
    finally:
        writer.close()


def padded(stage: Stage, size: int) -> bytes:
    """A submission of exactly that many bytes, in texts of allowed length."""
    texts = ["x" * (TEXT - 3)] * ((size - 400) // TEXT)
    body = stage.task(lane=HELD, params={"texts": texts, "rest": ""})
    empty = msgspec.json.encode(body)
    body["params"]["rest"] = "x" * (size - len(empty))
    raw = msgspec.json.encode(body)
    assert len(raw) == size
    return raw


# --- routes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/tasks/",
        "/tasks/x/y",
        "/tasks/x/cancel/now",
        "/scheduler",
        "/scheduler/stats/x",
        "/TASKS",
        "//tasks",
        "/tasks/x/../../tasks/",
        "/%00",
        "/ünïcode",
        "/tasks/batch/x",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_unknown_route_is_404_in_json(stage: Stage, method: str, path: str) -> None:
    answer = await stage.api.ask(method, path)
    assert (answer.status, answer.code) == (404, "not_found")
    assert answer.headers["Content-Type"].startswith("application/json")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/tasks", {"GET", "POST"}),
        ("DELETE", "/tasks", {"GET", "POST"}),
        ("PATCH", "/tasks", {"GET", "POST"}),
        ("POST", "/tasks/tsk_x", {"GET"}),
        ("GET", "/tasks/tsk_x/cancel", {"POST"}),
        ("POST", "/scheduler/stats", {"GET"}),
        ("PUT", "/tasks/batch", {"POST"}),
        ("BREW", "/tasks", {"GET", "POST"}),
    ],
)
async def test_a_wrong_method_is_405_and_names_the_right_ones(
    stage: Stage, method: str, path: str, allowed: set[str]
) -> None:
    answer = await stage.api.ask(method, path)
    if method == "BREW" and answer.status == 400:
        return  # refused by the HTTP parser itself
    assert (answer.status, answer.code) == (405, "method_not_allowed")
    assert allowed <= {name.strip() for name in answer.headers["Allow"].split(",")}


async def test_head_is_get_without_a_body(stage: Stage) -> None:
    task_id = await stage.submit(lane=HELD)
    for path in ("/tasks", f"/tasks/{task_id}", "/scheduler/stats", "/health/live"):
        get, head = [await stage.api.ask(method, path) for method in ("GET", "HEAD")]
        assert (head.status, head.raw) == (200, b"")
        assert head.headers["Content-Type"] == get.headers["Content-Type"]
    missing = await stage.api.ask("HEAD", "/tasks/tsk_x")
    assert (missing.status, missing.raw) == (404, b"")


async def test_a_connection_can_be_used_again_after_head_and_errors(stage: Stage) -> None:
    requests = b"".join(
        f"{method} {path} HTTP/1.1\r\nHost: {stage.api.url[7:]}\r\n{last}\r\n".encode()
        for method, path, last in (
            ("HEAD", "/tasks", ""),
            ("GET", "/nothing", ""),
            ("HEAD", "/nothing", ""),
            ("DELETE", "/tasks", ""),
            ("GET", "/health/live", "Connection: close\r\n"),
        )
    )
    said = await talk(stage, requests)
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", said)
    assert statuses == [b"200", b"404", b"404", b"405", b"200"]
    assert said.endswith(b'{"status":"live"}')


async def test_a_get_of_batch_asks_for_a_task_of_that_name(stage: Stage) -> None:
    answer = await stage.api.get("/tasks/batch")
    assert (answer.status, answer.code) == (404, "not_found")


async def test_an_id_is_percent_decoded(stage: Stage) -> None:
    task_id = await stage.submit(lane=HELD)
    encoded = "".join(f"%{ord(one):02x}" for one in task_id)
    reader, writer = await asyncio.open_connection(*address(stage))
    writer.write(f"GET /tasks/{encoded} HTTP/1.1\r\nHost: {stage.api.url[7:]}\r\n\r\n".encode())
    assert b" 200 " in await reader.readline()
    writer.close()


async def test_the_root_names_the_program_and_its_routes(stage: Stage) -> None:
    about = (await stage.api.get("/")).json
    assert about["name"] == "fairlane"
    assert set(about["routes"]["/tasks"]) == {"GET", "POST"}


async def test_health_is_reported(stage: Stage) -> None:
    assert (await stage.api.get("/health/live")).status == 200
    assert (await stage.api.get("/health/ready")).status == 200


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8_193, 65_536, MIB - 1, MIB])
async def test_a_body_of_up_to_one_mebibyte_is_accepted(stage: Stage, size: int) -> None:
    answer = await stage.api.ask("POST", "/tasks", raw=padded(stage, size))
    assert answer.status == 202
    task = await stage.api.show(answer.json["taskId"])
    assert len(msgspec.json.encode(task["params"])) > size - 300


@pytest.mark.parametrize("path", ["/tasks", "/tasks/batch"])
@pytest.mark.parametrize("size", [MIB + 1, 3 * MIB, 20 * MIB])
async def test_a_larger_body_is_413_in_json(stage: Stage, path: str, size: int) -> None:
    answer = await stage.api.ask("POST", path, raw=padded(stage, size))
    assert (answer.status, answer.code) == (413, "payload_too_large")
    assert (await stage.api.get("/tasks", agentId=stage.agent)).json["count"] == 0


async def chunked(stage: Stage, size: int) -> Answer:
    raw = padded(stage, size)

    async def pieces() -> Any:
        for start in range(0, len(raw), 50_000):
            yield raw[start : start + 50_000]

    headers = {"Content-Type": "application/json"}
    posting = stage.api._session.post(f"{stage.api.url}/tasks", data=pieces(), headers=headers)
    async with posting as answer:
        return Answer(answer.status, answer.headers, await answer.read())


async def test_a_body_in_chunks_is_accepted_and_limited_as_well(stage: Stage) -> None:
    assert (await chunked(stage, MIB)).status == 202
    answer = await chunked(stage, MIB + 1)
    assert (answer.status, answer.code) == (413, "payload_too_large")


async def test_a_packed_body_is_refused_and_not_unpacked(stage: Stage) -> None:
    raw = gzip.compress(msgspec.json.encode(stage.task(lane=HELD)))
    answer = await stage.api.ask("POST", "/tasks", raw=raw, headers={"Content-Encoding": "gzip"})
    assert 400 <= answer.status < 500
    assert (await stage.api.get("/tasks", agentId=stage.agent)).json["count"] == 0


# --- half a request -----------------------------------------------------------------------------


@pytest.mark.parametrize("half_close", [True, False], ids=["half closed", "gone"])
async def test_a_caller_that_leaves_in_the_middle_of_its_body_has_submitted_nothing(
    stage: Stage, *, half_close: bool
) -> None:
    """What came so far may be valid JSON: the rest, which nobody knows, could have changed it."""
    raw = msgspec.json.encode(stage.task(lane=HELD))
    lines = [f"Host: {stage.api.url[7:]}", "Content-Type: application/json"]
    head = "\r\n".join(["POST /tasks HTTP/1.1", *lines, f"Content-Length: {len(raw) + 9}"])
    reader, writer = await asyncio.open_connection(*address(stage))
    writer.write(head.encode() + b"\r\n\r\n" + raw)
    await writer.drain()
    # The server answers another caller meanwhile, so it has read what was sent.
    assert (await stage.api.get("/health/live")).status == 200
    if half_close:
        writer.write_eof()
        async with asyncio.timeout(WAIT_SECONDS):
            await reader.read()
    writer.close()
    await writer.wait_closed()
    for _ in range(20):
        assert (await stage.api.get("/tasks", agentId=stage.agent)).json["count"] == 0


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /tasks HTTP/9.9\r\n\r\n",
        b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Length: many\r\n\r\n",
        b"POST /tasks HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"GET /tasks HTTP/1.1\r\nHost: x\r\nBad Header\x00: x\r\n\r\n",
        b"GET /ta sks HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=range(10),
)
async def test_what_is_not_http_is_refused_and_harms_nobody(stage: Stage, sent: bytes) -> None:
    said = await talk(stage, sent, half_close=True)
    assert not said.startswith(b"HTTP/1.1 5"), said
    assert not said.startswith(b"HTTP/1.1 2"), said
    assert (await stage.api.get("/health/ready")).status == 200
