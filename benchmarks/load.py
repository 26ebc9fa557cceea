"""A load generator: many connections, each sends its next request when the last is answered.

Run as a process of its own, so that its work is not the server's. It stops after a given number of
requests, talks to loopback only, and prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from typing import cast


class Connection(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes], tally: Tally) -> None:
        self._requests = requests
        self._tally = tally
        self._received = b""
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        received = self._received + data
        end = received.find(b"\r\n\r\n")
        if end < 0:
            self._received = received
            return
        length = _length(received[:end])
        if len(received) < end + 4 + length:
            self._received = received
            return
        self._received = b""
        self._tally.add(received[9:12], time.perf_counter() - self._sent_at)
        self._send()

    def _send(self) -> None:
        request = next(self._requests, None)
        if request is None:
            self._transport.close()
            return
        self._sent_at = time.perf_counter()
        self._transport.write(request)


def _length(head: bytes) -> int:
    """Return the length of a body; servers spell the header in any case."""
    at = head.find(b"content-length:")
    if at < 0:
        at = head.lower().find(b"content-length:")
    if at < 0:
        raise ValueError(f"no Content-Length in {head!r}")
    return int(head[at + 15 :].split(b"\r\n", 1)[0])


class Tally:
    def __init__(self, total: int) -> None:
        self.statuses: dict[str, int] = {}
        self.seconds: list[float] = []
        self.done = asyncio.Event()
        self._total = total

    def add(self, status: bytes, seconds: float) -> None:
        word = status.decode()
        self.statuses[word] = self.statuses.get(word, 0) + 1
        self.seconds.append(seconds)
        if len(self.seconds) == self._total:
            self.done.set()


def post(path: str, body: str, host: str, headers: Sequence[str]) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += "".join(f"{header}\r\n" for header in headers)
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()


def bodies(kind: str, count: int, agents: int, tabs: int) -> Iterator[tuple[str, str]]:
    """Paths and bodies of `count` requests."""
    for number in range(count):
        agent = f"agent-{number % agents}"
        if kind == "action":
            tab = f"tab-{number % tabs}"
            task = {"agentId": agent, "action": "click", "tabId": tab, "ref": "e1"}
            yield "/tasks", json.dumps(task)
        elif kind == "batch":
            items = [{"handler": "unserved", "params": {"n": n}} for n in range(50)]
            yield "/tasks/batch", json.dumps({"agentId": agent, "tasks": items})
        else:
            yield "/tasks", json.dumps({"agentId": agent, "handler": kind, "params": {"n": number}})


async def run(arguments: argparse.Namespace) -> dict[str, object]:
    host = f"127.0.0.1:{arguments.port}"
    headers = list(arguments.header)
    if arguments.token:
        headers.append(f"Authorization: Bearer {arguments.token}")
    made = bodies(arguments.kind, arguments.requests, arguments.agents, arguments.tabs)
    if arguments.path:
        made = iter([(arguments.path, arguments.body)] * arguments.requests)
    requests = iter([post(path, body, host, headers) for path, body in made])
    tally = Tally(arguments.requests)
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    for _ in range(arguments.connections):
        await loop.create_connection(
            lambda: Connection(requests, tally), "127.0.0.1", arguments.port
        )
    async with asyncio.timeout(60):
        await tally.done.wait()
    took = time.perf_counter() - began
    ordered = sorted(tally.seconds)
    return {
        "perSecond": round(arguments.requests / took),
        "statuses": tally.statuses,
        "p50Ms": round(ordered[len(ordered) // 2] * 1000, 2),
        "p99Ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 2),
        "began": began,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--kind", default="echo", help="action, batch, or a handler's name")
    parser.add_argument("--path", help="path of another queue; each request is --body")
    parser.add_argument("--body", default="{}")
    parser.add_argument("--header", action="append", default=[], help="NAME: VALUE (repeatable)")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--tabs", type=int, default=1000)
    parser.add_argument("--token", default="")
    import uvloop

    print(json.dumps(uvloop.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
