"""kill -9 of server and worker at the commit points of a durable run, on both databases.

The agent of `examples/durable_agent.py` records steps, submits two children, waits for them, sleeps
and waits for a signal. Whenever its task has got further, both processes are killed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import AsyncClient
from tests.e2e.processes import ROOT
from tests.fakes.ports import lasting_port

if TYPE_CHECKING:
    from pathlib import Path

    from fairlane.schema.task_status import TaskStatus
    from tests.e2e.processes import Program, Programs

pytestmark = pytest.mark.slow

POINTS = ("task.step", "task.suspended", "task.signal")
STEPS = ["plan", "submit", "submit", "results", "sleep", "signal:paid", "book"]
OFTEN = {"maxRetries": 100, "backoffMs": 10, "backoffMultiplier": 1}
ROUNDS_MAX = 40


class Trip:
    """A server, a worker with the agent, and the task that is watched."""

    def __init__(self, programs: Programs, store: str, folder: Path) -> None:
        port = lasting_port()
        self.log = folder / "acts.log"
        self.server = programs.server(store, "--port", str(port), "--drain-seconds", "0")
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, str(ROOT / "examples" / "durable_agent.py")]
        variables = {"FAIRLANE_URL": self.url, "TRIP_LOG": str(self.log)}
        self.worker: Program = programs.add(
            "agent", command, r"(worker-\S+) takes tasks", variables=variables
        )
        self.task_id = ""
        self.seen = 0
        self.kills = 0

    async def start(self) -> None:
        await self.server.start()
        await self.worker.start()

    async def submit(self) -> None:
        async with AsyncClient(self.url) as client:
            task = await client.submit(
                handler="plan-trip", params={"city": "Oslo"}, retry_policy=OFTEN
            )
            self.task_id = task.task_id

    async def until_further(self) -> TaskStatus:
        """Wait until the task has passed another commit point or has ended."""
        async with AsyncClient(self.url) as client:
            while True:
                task = await client.wait_once(self.task_id, timeout_ms=20)
                events = (await client.task_events(self.task_id)).events
                points = sum(event.type in POINTS for event in events)
                if task.state not in ("queued", "assigned", "running") or points > self.seen:
                    self.seen = points
                    return task
                why = (await client.why(self.task_id)).reason
                if "signal" in why:
                    await client.send_signal(self.task_id, "paid", value={"amount": 5})

    def kill(self) -> None:
        self.worker.kill()
        self.server.kill()
        self.kills += 1


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_every_step_is_recorded_once_whatever_is_killed(
    database: str, programs: Programs, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    if database == "postgres":
        store = request.getfixturevalue("fresh_postgres")
    trip = Trip(programs, store, tmp_path)
    await trip.start()
    await trip.submit()
    task = await trip.until_further()
    for _ in range(ROUNDS_MAX):
        if task.state not in ("queued", "assigned", "running"):
            break
        trip.kill()
        await trip.start()
        task = await trip.until_further()
    assert (task.state, task.error) == ("done", None)
    result: Any = task.result
    assert (result["programme"], result["paid"]) == ([{"day": 1}, {"day": 2}], 5)
    assert result["booked"] in ("Oslo-7", "found")
    assert task.steps is not None
    assert [(one.number, one.name) for one in task.steps] == [*enumerate(STEPS, 1)]
    assert trip.kills >= 3, "on a busy machine several points may pass between two looks"
    acts = trip.log.read_text("utf-8").splitlines()
    assert set(acts) == {f"{trip.task_id}-plan", f"{trip.task_id}:book"}
    assert acts.count(f"{trip.task_id}:book") == 1, "it is an effect"
    async with AsyncClient(trip.url) as client:
        children = [one async for one in _echoes(client)]
        events: list[Any] = (await client.task_events(trip.task_id)).events
    assert len(children) == 2
    recorded = [event.step_number for event in events if event.type == "task.step"]
    assert recorded == list(range(1, len(STEPS) + 1))


async def _echoes(client: AsyncClient) -> Any:
    for one in (await client.tasks()).tasks:
        if one.handler == "echo":
            yield one
