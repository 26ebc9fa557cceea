"""Processes that a measurement needs, started and ended with it."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDE_OPEN = {
    "lanes": {
        "main": {"maxInflight": 1000, "maxQueueSize": 10_000_000},
        "browser": {
            "maxInflight": 200,
            "maxPerAgentInflight": 200,
            "maxQueueSize": 10_000_000,
            "maxPerAgent": 10_000_000,
        },
    },
    "kinds": {"action": {"deadlineSec": 3600}},
}


class NotStarted(Exception):
    """A version refused what it was started with."""


@contextmanager
def fairlane_server(
    store: str, *flags: str, policy: Any = WIDE_OPEN, python: str = sys.executable
) -> Iterator[Server]:
    """`fairlane serve` on a free port, of the environment of an interpreter."""
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as folder:
        file = Path(folder) / "policy.json"
        file.write_text(json.dumps(policy))
        command = [str(Path(python).parent / "fairlane"), "serve", "--port", "0"]
        command += ["--store", store, "--policy", str(file), "--log-level", "warning", *flags]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "listening" not in line:
                raise NotStarted(f"the server did not start: {line!r}")
            yield Server(process, int(line.rsplit(":", 1)[1]))
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any) -> Any:
        url, data = f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def load(self, kind: str, requests: int, **options: int | str) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.load", "--port", str(self.port)]
        command += ["--kind", kind, "--requests", str(requests)]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def stream(self, lines: bytes, key: str = "bench") -> int:
        """Send NDJSON to /tasks/stream and return how many lines were accepted."""
        head = f"POST /tasks/stream HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        head += f"Content-Type: application/x-ndjson\r\nIdempotency-Key: {key}\r\n"
        head += f"Content-Length: {len(lines)}\r\nConnection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=180) as connection:
            sending = threading.Thread(target=connection.sendall, args=(head.encode() + lines,))
            sending.start()
            response = http.client.HTTPResponse(connection, method="POST")
            response.begin()
            accepted, rest = 0, b""
            while piece := response.read1(1 << 18):
                *whole, rest = (rest + piece).split(b"\n")
                accepted += sum(b'"taskId"' in line for line in whole)
            sending.join()
        return accepted

    def rss_mb(self) -> float:
        return memory_mb("VmRSS", str(self.process.pid))

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100


def memory_mb(what: str, process: str = "self") -> float:
    """As the kernel tells it: VmRSS is now, VmHWM the most there was. The most that `getrusage`
    tells is of the parent, if that was larger when it started this process.
    """
    status = Path(f"/proc/{process}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(what))
    return int(line.split()[1]) / 1024


@contextmanager
def sqlite_file() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as folder:
        yield f"sqlite:///{folder}/bench.db"


@contextmanager
def stub_instance() -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.stub"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(10)
