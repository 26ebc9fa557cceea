"""SIGUSR1 restarts a server in place: running tasks finish, and the process stays the same."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from fairlane import Client
from tests.cli.processes import FAIRLANE, environment
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_a_signal_drains_a_server_and_starts_it_again(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    command = [*FAIRLANE, "serve", "--store", store, "--port", "0", "--drain-seconds", "20"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment()
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    try:
        with Client(next(one for one in lines if "listening on" in one).split()[-1]) as client:
            task = client.submit(handler="sleep", params={"ms": 500}).task_id
            while client.show(task).state != "running":
                client.wait(task, 0.05)
        process.send_signal(signal.SIGUSR1)
        with Client(next(one for one in lines if "listening on" in one).split()[-1]) as client:
            shown = client.show(task)
            assert (shown.state, shown.attempts) == ("done", 1)
            assert client.submit(handler="echo").state == "queued"
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(WAIT_SECONDS)
        process.stdout.close()
    assert code == 0
