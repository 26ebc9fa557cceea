"""`fairlane worker`: a module's handlers as a process of their own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from fairlane.client.sync import Client
from tests.cli.processes import FAIRLANE, environment
from tests.fakes.signals import heed_signals
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Ran, Server

MODULE = """
import time

from fairlane import Worker

worker = Worker("http://127.0.0.1:1", lanes=["subagent"], drain_seconds=5)
app = "not a worker"


@worker.handler("HANDLER")
def slow(work):
    time.sleep(work.params["seconds"])
    return "ran"
"""


@pytest.fixture
def handler(agent: str) -> str:
    return f"handler-of-{agent}"


@contextlib.contextmanager
def running(folder: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*FAIRLANE, "worker", "jobs:worker", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(),
        preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        ready = process.stdout.readline()
        assert "leases from" in ready, ready + process.stderr.read()
        yield process
    finally:
        process.kill()
        process.wait(WAIT_SECONDS)
        process.stdout.close()
        process.stderr.close()


def test_a_worker_runs_tasks_until_a_signal_and_finishes_what_it_has_begun(
    server: Server, tmp_path: Path, handler: str
) -> None:
    (tmp_path / "jobs.py").write_text(MODULE.replace("HANDLER", handler), "utf-8")
    flags = ["--url", server.url, "--lanes", "main,team", "--lanes", "cron", "--name", "w-of-cli"]
    with Client(server.url) as client, running(tmp_path, *flags, "--concurrency", "2") as process:
        first = client.submit(handler=handler, params={"seconds": 0})["taskId"]
        done = client.wait(first, WAIT_SECONDS)
        assert (done["result"], done["attemptLog"][0]["worker"]) == ("ran", "w-of-cli")
        elsewhere = client.submit(handler=handler, lane="subagent", params={"seconds": 0})["taskId"]
        last = client.submit(handler=handler, params={"seconds": 1})["taskId"]
        _until_running(client, last)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
        assert client.show(last)["state"] == "done"
        assert client.show(elsewhere)["state"] == "queued"
        client.cancel(elsewhere)


def test_what_runs_too_long_is_released_by_a_drain_without_patience(
    server: Server, tmp_path: Path, handler: str
) -> None:
    text = MODULE.replace("HANDLER", handler).replace("time.sleep", "await asyncio.sleep")
    text = "import asyncio\n" + text.replace("def slow", "async def slow")
    (tmp_path / "jobs.py").write_text(text, "utf-8")
    flags = ["--url", server.url, "--lanes", "main", "--drain-seconds", "0"]
    with Client(server.url) as client, running(tmp_path, *flags) as process:
        task = client.submit(handler=handler, params={"seconds": 600})["taskId"]
        _until_running(client, task)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 0
        shown = client.show(task)
        assert (shown["state"], shown["attempts"]) == ("queued", 0)
        client.cancel(task)


def _until_running(client: Client, task_id: str) -> None:
    for event in client.events(after=0, task=task_id, types=["task.started"]):
        assert event["taskId"] == task_id
        return


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("jobs", "the worker must be given as MODULE:NAME, for example tasks:worker, not 'jobs'"),
        (":worker", "the worker must be given as MODULE:NAME"),
        ("nowhere:worker", "module nowhere was not found in "),
        ("jobs:wroker", "module jobs has no wroker; jobs has worker"),
        ("jobs:app", "jobs:app is of type str, not a fairlane.Worker; jobs has worker"),
        ("broken:worker", "cannot import module broken: ZeroDivisionError"),
        ("lacking:worker", "module lacking needs not_installed_anywhere, which is not installed"),
        ("empty:worker", "a worker needs at least one handler"),
    ],
)
def test_what_is_wrong_with_the_module_is_reported_in_one_line(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "jobs.py").write_text(MODULE.replace("HANDLER", "x"), "utf-8")
    (tmp_path / "broken.py").write_text("1 / 0\n", "utf-8")
    (tmp_path / "lacking.py").write_text("import not_installed_anywhere\n", "utf-8")
    (tmp_path / "empty.py").write_text("import fairlane\nworker = fairlane.Worker()\n", "utf-8")
    ran = subprocess.run(
        [*FAIRLANE, "worker", name],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        cwd=tmp_path,
        env=environment(),
        check=False,
    )
    assert ran.returncode == 2, ran
    assert ran.stdout == ""
    last = ran.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert said in last
    assert ("Traceback" in ran.stderr) == name.startswith("broken")
    assert "importlib" not in ran.stderr  # it shows the module's own lines, and no others


def test_a_lane_that_does_not_exist_is_reported(server: Server, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(MODULE.replace("HANDLER", "x"), "utf-8")
    with running(tmp_path, "--url", server.url, "--lanes", "mian") as process:
        assert process.wait(WAIT_SECONDS) == 2
        assert process.stderr is not None
        assert "did you mean main?" in process.stderr.read()


def test_wrong_options_are_refused(run: Callable[..., Ran]) -> None:
    assert "unknown option --lane; did you mean --lanes?" in run("worker", "x:y", "--lane", "a").err
    assert run("worker").code == 2
    assert run("worker", "x:y", "--concurrency", "0").code == 2
    assert run("worker", "x:y", "--log-level", "loud").code == 2
