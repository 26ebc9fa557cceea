"""The examples are run as a user runs them, against a real server where they need one."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest

from fairlane import AsyncClient
from tests.e2e.processes import ROOT, Program, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.processes import Programs

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".mjs", ".sh"})
SECONDS_MAX = 120


def ran(name: str, folder: Path) -> list[str]:
    """The lines that a program without a server prints."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_fan_out_retries_and_summarises(tmp_path: Path) -> None:
    assert ran("fan_out.py", tmp_path) == [
        "{'pages': 7, 'attempts': 13}",
        "failed: https://example.com/missing does not exist",
    ]


def test_the_chat_gateway_merges_steers_refuses_and_stops(tmp_path: Path) -> None:
    ada, again, bob, steered, *flood = ran("chat_gateway.py", tmp_path)
    assert ada == again == r"You said: 'A train to Rome.\nNo, to Milan.'"
    assert bob == "You said: 'Good morning.'"
    assert steered == "You said: 'A train to Rome.', 'In the morning.'"
    said = Counter(line.partition(":")[0] for line in flood)
    assert said.total() == 10
    assert said["Too many messages at once; please wait a moment."] >= 1
    assert said["Stopped."] >= 1


def test_the_llm_quota_holds(tmp_path: Path) -> None:
    assert ran("llm_quota.py", tmp_path) == [
        "60 questions answered with 61 calls",
        "never more than 40 calls in a second: True",
    ]


def test_an_approval_is_waited_for_and_decides(tmp_path: Path) -> None:
    assert ran("approval.py", tmp_path) == [
        "approval",
        "Publish News?",
        "published 'News', approved",
        "Publish Gossip?",
        "approval_rejected",
        "Send this e-mail?",
        "sent 'Hello'",
    ]


def test_the_cron_report_runs_by_hand_and_is_logged(tmp_path: Path) -> None:
    following, run = ran("cron_report.py", tmp_path)
    assert re.fullmatch(r"next run: \d{4}-\d\d-\d\dT0[78]:00:00.000Z", following)
    assert run == 'manual ok {"team":"trains","open":7,"closed":12}'


# -------------------------------------------------------------------- workers


async def working(programs: Programs, folder: Path, *command: str) -> tuple[Program, AsyncClient]:
    """A worker, and a client of the server that it works for."""
    server = programs.server(f"sqlite:///{folder / 'fairlane.db'}", "--drain-seconds", "0")
    await server.start()
    worker = programs.add(
        "worker", [*command], r"(worker-\d+) takes tasks", variables={"FAIRLANE_URL": server.url}
    )
    await worker.start()
    return worker, AsyncClient(server.url)


async def ended(client: AsyncClient, **fields: Any) -> dict[str, Any]:
    task = await client.submit(retry_policy={"maxRetries": 0}, **fields)
    return await client.wait(task["taskId"], timeout=60)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_the_worker_in_node_runs_tasks_and_stops(programs: Programs, tmp_path: Path) -> None:
    script = str(EXAMPLES / "worker.mjs")
    worker, client = await working(programs, tmp_path, "node", script)
    async with client:
        task = await ended(client, handler="shout", params={"text": "hello"})
        assert (task["state"], task["result"]) == ("done", {"text": "HELLO"})
        task = await ended(client, handler="shout", params={})
        assert (task["state"], task["error"]) == ("parked", "params.text must be a string")
        worker.send(signal.SIGTERM)
        assert await worker.end() == 0


async def test_the_worker_in_bash_runs_tasks(programs: Programs, tmp_path: Path) -> None:
    script = str(EXAMPLES / "worker.sh")
    _, client = await working(programs, tmp_path, "bash", script)
    async with client:
        task = await ended(
            client, handler="status", params={"url": f"{client._server.where}/health/live"}
        )
        assert (task["state"], task["result"]) == ("done", {"status": 200})
        task = await ended(client, handler="status", params={})
        assert (task["state"], task["error"]) == ("failed", "params.url is missing")
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        task = await ended(client, handler="status", params={"url": f"http://127.0.0.1:{port}/"})
        assert (task["state"], task["error"]) == ("parked", "no response")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
async def test_the_run_in_node_survives(programs: Programs, tmp_path: Path) -> None:
    script = str(EXAMPLES / "durable.mjs")
    worker, client = await working(programs, tmp_path, "node", script)
    result = await survives(worker, client, "order-node", {"amount": 5})
    assert result["price"] == {"each": 20}
    assert result["said"] == ["Two lamps", "in red"]


async def test_the_run_in_bash_survives(programs: Programs, tmp_path: Path) -> None:
    script = str(EXAMPLES / "durable.sh")
    worker, client = await working(programs, tmp_path, "bash", script)
    result = await survives(worker, client, "order-bash", "in cash")
    assert result["price"] == "20 each"


async def survives(
    worker: Program, client: AsyncClient, handler: str, paid: object
) -> dict[str, Any]:
    """Steer a run and kill it while it waits for a signal; return its result."""
    async with client:
        said: Any = {"handler": handler, "debounce_ms": 0}
        worker.send(signal.SIGSTOP)  # so that both messages are there before it begins
        task = await client.message("shop", "Two lamps", **said)
        await client.message("shop", "in red", mode="steer", **said)
        worker.send(signal.SIGCONT)

        async def waits() -> bool:
            return "signal" in (await client.why(task.task_id)).reason

        await until(waits, 60, lambda: "it does not wait for the signal")
        worker.kill()
        await client.send_signal(task.task_id, "paid", value=paid)
        await worker.start()
        shown = await client.wait(task.task_id, timeout=60)
        assert (shown.state, shown.error) == ("done", None)
        assert shown.steps is not None
        assert [one.name for one in shown.steps] == ["price", "paid", "ship"]
        result: Any = shown.result
        assert result["paid"] == paid
        assert result["sent"] == f"shipped under {task.task_id}:ship"
        return dict(result)


# -------------------------------------------------------------------- FastAPI


async def test_the_fastapi_app_takes_reports_and_keeps_them(
    programs: Programs, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0"]
    api = programs.add(
        "api", [*command, "fastapi_app:api"], r"Uvicorn running on (http://[0-9.:]+)"
    )
    await api.start()
    async with aiohttp.ClientSession() as session:

        async def report(name: str) -> Any:
            async with session.get(f"{api.url}/reports/{name}") as response:
                return await response.json()

        async with session.post(f"{api.url}/reports", params={"topic": "trains"}) as response:
            assert response.status == 202
            task = (await response.json())["id"]

        async def is_done() -> bool:
            return bool((await report(task))["state"] == "done")

        await until(is_done, 60, lambda: "the report is not done")
        async with session.get(f"{api.url}/reports/tsk_nobody") as response:
            assert response.status == 404
        api.send(signal.SIGTERM)
        await api.end()
        await api.start()  # the report is still there
        assert (await report(task))["report"] == {"text": "All about trains"}


# -------------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_says_what_it_shows(name: str) -> None:
    text = (EXAMPLES / name).read_text("utf-8")
    assert len(text.splitlines()) < 60
    head = text[:900]
    assert "Shows: " in head
    assert f"examples/{name}" in head or f"--app-dir examples {name.removesuffix('.py')}" in head


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_linked_from_a_guide(name: str) -> None:
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert f"](../examples/{name})" in pages


def test_the_examples_are_typed(tmp_path: Path) -> None:
    programs = [str(EXAMPLES / name) for name in NAMES if name.endswith(".py")]
    cache = f"--cache-dir={ROOT / '.mypy_cache' / 'users'}"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", cache, *programs],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
