"""kill -9 of a worker between the intent and the outcome of an effect: it acts once."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from fairlane import AsyncClient
from tests.e2e.effect_worker import NAME

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.processes import Programs

pytestmark = pytest.mark.slow

AGAIN = {"maxRetries": 5, "backoffMs": 0}


@pytest.mark.parametrize("checks", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_each_key_reaches_the_sink_once_whenever_the_worker_is_killed(
    store_url: str, programs: Programs, tmp_path: Path, when: str, *, checks: bool
) -> None:
    server = programs.server(store_url)
    await server.start()
    command = [sys.executable, "-m", "tests.e2e.effect_worker", server.url, str(tmp_path)]
    worker = programs.add("payer", command, r"(leases)\n")
    await worker.start()
    async with AsyncClient(server.url) as client:
        params = {"when": when, "checks": checks}
        task = await client.submit(handler="pay", params=params, retry_policy=AGAIN)
        assert await worker.end() == -signal.SIGKILL
        await worker.start()
        shown = await client.wait(task.task_id)
        if not checks:
            assert (shown.state, shown.attempts) == ("parked", 2)
            assert NAME in (shown.parked_reason or "")
            await client.resolve_effect(
                task.task_id, NAME, happened=when == "after", value=_value(when)
            )
            shown = await client.wait(task.task_id)
        assert (shown.state, shown.result) == ("done", "charged")
    sink = (tmp_path / "sink.log").read_text("utf-8").splitlines()
    assert sink == [f"{task.task_id}:{NAME}"]


def _value(when: str) -> str | None:
    return "charged" if when == "after" else None
