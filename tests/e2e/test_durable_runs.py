"""kill -9 of server and worker at each commit point of a durable run, on both databases.

The agent of `examples/durable_agent.py` records steps, submits two children, waits for them,
sleeps, waits for a signal and has an effect. At each request that commits, it stops where it is
(`mortal_agent.py`). Then both processes are killed, or the server alone, so that the response is
lost and the agent repeats its request.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from fairlane import AsyncClient
from tests.e2e.processes import until
from tests.fakes.ports import lasting_port
from tests.fakes.waiting import WAIT_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from fairlane.schema.task_status import TaskStatus
    from tests.e2e.processes import Program, Programs

pytestmark = pytest.mark.slow

STEPS = ["plan", "submit", "submit", "results", "sleep", "signal:paid", "book"]
OFTEN = {"maxRetries": 100, "backoffMs": 10, "backoffMultiplier": 1}
# In the order in which the run gets there; a step is also interrupted before it is recorded.
POINTS = {
    "killed": [
        *("before record 1 plan", "record 1 plan"),
        *("submit child 1", "before record 2 submit", "record 2 submit"),
        *("submit child 2", "before record 3 submit", "record 3 submit"),
        *("suspend results", "suspend sleep", "suspend signal:paid"),
        *("effect book", "before record 7 book", "record 7 book"),
        "complete",
    ],
    "lost": [
        *("record 1 plan", "submit child 1", "record 2 submit", "submit child 2"),
        *("record 3 submit", "suspend results", "suspend sleep", "suspend signal:paid"),
        *("effect book", "record 7 book", "complete"),
    ],
}


class Trip:
    """A server, a worker with the agent, and the task that is watched."""

    def __init__(self, programs: Programs, store: str, folder: Path, mode: str) -> None:
        port = lasting_port()
        self.log, self.points, self.passed = (
            folder / name for name in ("acts", "points", "passed")
        )
        self.server = programs.server(store, "--port", str(port), "--drain-seconds", "0")
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "tests.e2e.mortal_agent"]
        variables = {
            "FAIRLANE_URL": self.url,
            "TRIP_LOG": str(self.log),
            "POINTS": str(self.points),
            "PASSED": str(self.passed),
            "MODE": mode,
        }
        self.worker: Program = programs.add(
            "agent", command, r"(worker-\S+) takes tasks", variables=variables
        )
        self.kills_worker = mode == "killed"
        self.task_id = ""

    async def start(self) -> None:
        await self.server.start()
        await self.worker.start()

    async def submit(self) -> None:
        async with AsyncClient(self.url) as client:
            task = await client.submit(
                handler="plan-trip", params={"city": "Oslo"}, retry_policy=OFTEN
            )
            self.task_id = task.task_id

    def lines(self, file: Path) -> list[str]:
        return file.read_text("utf-8").splitlines() if file.exists() else []

    async def until_at(self, point: str) -> None:
        """Wait until the agent stops at the next point, which must be this one."""
        passed = len(self.lines(self.passed))
        await until(
            lambda: len(self.lines(self.points)) > passed,
            WAIT_SECONDS,
            lambda: f"it does not get to {point}: {self.lines(self.points)}",
        )
        assert self.lines(self.points)[passed:] == [point]

    async def kill(self, point: str) -> None:
        """Kill the server, and the worker if it is its turn; start them again."""
        if self.kills_worker:
            self.worker.kill()
        self.server.kill()
        await self.server.start()
        with self.passed.open("a", encoding="utf-8") as log:
            log.write(f"{point}\n")
        if self.kills_worker:
            await self.worker.start()
        if point == "suspend signal:paid":
            async with AsyncClient(self.url) as client:
                await client.send_signal(self.task_id, "paid", value={"amount": 5})

    async def ended(self) -> TaskStatus:
        async with AsyncClient(self.url) as client:
            return await client.wait(self.task_id, timeout=WAIT_SECONDS)


@pytest.mark.parametrize("mode", ["killed", "lost"])
async def test_every_step_is_recorded_once_whatever_is_killed(
    store_url: str, programs: Programs, tmp_path: Path, mode: str
) -> None:
    trip = Trip(programs, store_url, tmp_path, mode)
    await trip.start()
    await trip.submit()
    for point in POINTS[mode]:
        await trip.until_at(point)
        await trip.kill(point)
    task = await trip.ended()
    assert (task.state, task.error) == ("done", None)
    result: Any = task.result
    assert (result["programme"], result["paid"]) == ([{"day": 1}, {"day": 2}], 5)
    # The run that booked was killed before it could record that; the next one looked.
    assert result["booked"] == ("found" if mode == "killed" else "Oslo-7")
    assert task.steps is not None
    assert [(one.number, one.name) for one in task.steps] == [*enumerate(STEPS, 1)]
    acts = trip.lines(trip.log)
    assert set(acts) == {f"{trip.task_id}-plan", f"{trip.task_id}:book"}
    assert acts.count(f"{trip.task_id}:book") == 1, "it is an effect"
    async with AsyncClient(trip.url) as client:
        children = [one async for one in _echoes(client)]
        events: list[Any] = (await client.task_events(trip.task_id)).events
    assert len(children) == 2
    recorded = [event.step_number for event in events if event.type == "task.step"]
    assert recorded == list(range(1, len(STEPS) + 1))
    assert sum(event.type == "task.completed" for event in events) == 1


async def _echoes(client: AsyncClient) -> Any:
    for one in (await client.tasks()).tasks:
        if one.handler == "echo":
            yield one
