"""`fairlane serve --uds`: the same server on a Unix socket that only its user can connect to."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from fairlane.cli.server import listen
from fairlane.config import Settings
from fairlane.core.errors import OperatorError
from tests.fakes.signals import heed_signals
from tests.fakes.waiting import WAIT_SECONDS
from tests.http.server import COMMAND, STOP_SECONDS_MAX


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "f.sock"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_server_answers_on_a_unix_socket(tmp_path: Path, path: Path, processes: str) -> None:
    _left_behind(path)
    environment = {name: text for name, text in os.environ.items() if "FAIRLANE_" not in name}
    process = subprocess.Popen(
        [
            *(COMMAND, "serve", "--uds", str(path), "--processes", processes),
            *("--store", f"sqlite:///{tmp_path / 'f.db'}"),
        ],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment,
        preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"fairlane is listening on unix:{path}\n"
        facts = [process.stdout.readline().split(maxsplit=1) for _ in range(4)]
        assert [name for name, _ in facts] == ["version", "store", "workers", "stop"]
        assert "echo, sleep" in facts[2][1]
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        body = b'{"handler":"nobody"}'
        assert _status(path, "POST /tasks", "localhost", body) == 202
        for _ in range(4):  # by each of the processes
            assert _status(path, "GET /tasks", "localhost") == 200
        assert _status(path, "GET /tasks", "evil.example") == 421
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_SECONDS_MAX) == 0
        assert not path.exists()
    finally:
        process.kill()
        process.communicate()


def test_a_socket_in_use_and_a_file_are_left_alone(path: Path) -> None:
    with listen(Settings(uds=str(path))), pytest.raises(OperatorError, match="in use"):
        listen(Settings(uds=str(path)))
    path.unlink()
    path.write_text("mine")
    with pytest.raises(OperatorError, match="--uds"):
        listen(Settings(uds=str(path)))
    assert path.read_text() == "mine"


def _status(path: Path, request: str, host: str, body: bytes = b"") -> int:
    head = f"{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(WAIT_SECONDS)
        wire.connect(str(path))
        wire.sendall(head.encode() + body)
        return int(wire.recv(1024)[9:12])


def _left_behind(path: Path) -> None:
    """The socket of a server that was killed."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
