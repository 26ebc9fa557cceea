from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import pytest

from tests.cli.processes import FAIRLANE, environment, run_process, running_server
from tests.fakes.waiting import WAIT_SECONDS
from tests.mcp.conversations import either_way, mistakes, over_stdio, read_only, work

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow  # the SDK takes a while to load

HELLO = {
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'fairlane.db'}"


@either_way
async def test_an_agent_submits_work_and_does_work(
    tmp_path: Path, store_url: str, mode: str
) -> None:
    flags = ("--store", store_url, "--allow-writes")
    async with over_stdio(*flags, folder=tmp_path, mode=mode) as client:
        assert (await work(client))["result"] == {"sum": 2}


async def test_an_agent_works_with_a_server(tmp_path: Path, store: str) -> None:
    with running_server(store, tmp_path) as url:
        flags = ("--url", url, "--allow-writes")
        async with over_stdio(*flags, folder=tmp_path, mode="legacy") as client:
            assert (await work(client))["result"] == {"sum": 2}


@either_way
async def test_an_agent_that_may_only_read(tmp_path: Path, store: str, mode: str) -> None:
    with running_server(store, tmp_path) as url:
        async with over_stdio("--url", url, folder=tmp_path, mode=mode) as client:
            assert "submit" not in await read_only(client)
            await mistakes(client)


async def test_a_server_that_does_not_answer_is_reported_to_the_agent(tmp_path: Path) -> None:
    flags = ("--url", "http://127.0.0.1:9")
    async with over_stdio(*flags, folder=tmp_path, mode="legacy") as client:
        result = await client.call_tool("stats", {})
        assert result.is_error
        assert result.structured_content["code"] == "unreachable"


def test_a_missing_store_prevents_the_start(tmp_path: Path, store: str) -> None:
    ran = run_process("mcp", "--store", store, folder=tmp_path)
    assert (ran.returncode, ran.stdout) == (6, b"")
    assert ran.stderr.startswith(b"error: no store exists at ")


# -------------------------------------------------------------------- the process


class Process:
    """`fairlane mcp` without the SDK in between, line by line."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen = popen
        self._id = 0

    def send(self, method: str, **params: Any) -> None:
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        self.write(json.dumps(message).encode() + b"\n")

    def write(self, raw: bytes) -> None:
        assert self.popen.stdin
        self.popen.stdin.write(raw)
        self.popen.stdin.flush()

    def answer(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(_stream(self.popen.stdout).readline())
        assert message["jsonrpc"] == "2.0"
        return message

    def hello(self) -> None:
        self.send("initialize", **HELLO["params"])  # type: ignore[arg-type]  # a dict of texts
        assert self.answer()["result"]["serverInfo"]["name"] == "fairlane"

    def wait_for_ever(self, task_id: str) -> None:
        """Ask for something that takes long, and make sure that it has begun."""
        arguments = {"taskId": task_id, "waitMs": 60_000}
        self.send("tools/call", name="wait", arguments=arguments)
        self.send("ping")
        assert self.answer()["id"] == self._id

    def end(self) -> int:
        """Its exit code; the last it says is at most that the call in flight is over."""
        code = self.popen.wait(WAIT_SECONDS)
        for line in _stream(self.popen.stdout).read().splitlines():
            assert json.loads(line)["error"]["message"] == "Connection closed"
        return code


def _stream(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


@contextmanager
def started(*flags: str, folder: Path) -> Iterator[Process]:
    with subprocess.Popen(
        [*FAIRLANE, "mcp", *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment(),
    ) as popen:
        try:
            yield Process(popen)
        finally:
            popen.kill()


@pytest.fixture
def process(tmp_path: Path, store: str) -> Iterator[Process]:
    with started("--store", store, "--allow-writes", folder=tmp_path) as process:
        process.hello()
        yield process


@pytest.fixture
def task_id(process: Process) -> str:
    process.send("tools/call", name="submit", arguments={"handler": "nobody", "agentId": "a1"})
    answer = process.answer()["result"]
    task_id: str = json.loads(answer["content"][0]["text"])["taskId"]
    return task_id


def test_the_end_of_the_input_ends_it(process: Process, task_id: str) -> None:
    process.wait_for_ever(task_id)
    _stream(process.popen.stdin).close()
    assert process.end() == 0
    assert _stream(process.popen.stderr).read() == b""


def test_a_signal_ends_it(process: Process, task_id: str) -> None:
    process.wait_for_ever(task_id)
    process.popen.send_signal(signal.SIGTERM)
    assert process.end() == 0
    assert _stream(process.popen.stderr).read() == b""


def test_a_reader_that_has_gone_ends_it(process: Process) -> None:
    _stream(process.popen.stdout).close()
    process.send("ping")
    assert process.popen.wait(WAIT_SECONDS) == 0
    assert _stream(process.popen.stderr).read() == b""


def test_what_is_not_a_message_does_not_disturb_it(process: Process) -> None:
    for raw in (b"\n", b"{\n", b"[1,2]\n", b"\xff\xfe\n", b'{"jsonrpc":"2.0","method":"x"}\n'):
        process.write(raw)
    process.write(b'{"jsonrpc":"2.0","id":77,"method":"ping","params":{"x":"')
    process.write(b"x" * (5 * 1024 * 1024) + b'"}}\n')  # too long for anybody
    process.send("ping")
    assert process.answer() == {"jsonrpc": "2.0", "id": 2, "result": {}}


def test_all_messages_that_come_at_once_are_answered(process: Process) -> None:
    ping = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n'
    process.write(b"".join(ping % number for number in range(100, 200)))
    assert sorted(process.answer()["id"] for _ in range(100)) == list(range(100, 200))


async def test_calls_do_not_wait_for_each_other(tmp_path: Path, store: str) -> None:
    flags = ("--store", store, "--allow-writes")
    async with over_stdio(*flags, folder=tmp_path, mode="legacy") as client:
        submitted = await client.call_tool("submit", {"handler": "nobody", "agentId": "a1"})
        task = submitted.structured_content["taskId"]
        waiting = asyncio.create_task(client.call_tool("wait", {"taskId": task, "waitMs": 60_000}))
        await client.call_tool("cancel", {"taskId": task})
        assert (await waiting).structured_content["state"] == "cancelled"
