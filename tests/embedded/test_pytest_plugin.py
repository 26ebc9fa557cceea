"""The fixtures that `fairlane.pytest_plugin` offers to the tests of users."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "python.md"

TESTS = """
import pytest

@pytest.fixture
def fairlane_options():
    return {"policy": {"kinds": {"handler": {"backoffMs": 60_000}}}}

async def test_time_is_moved(fairlane_app, fairlane_clock):
    before = fairlane_clock.now()
    task = await fairlane_app.submit(handler="echo", params={"n": 1}, delay_ms=60_000)
    await fairlane_app.advance(60)
    assert await task.result() == {"n": 1}
    assert fairlane_clock.now() - before == 60_000
    policy = await fairlane_app.policy()
    assert policy.to_dict()["policy"]["kinds"]["handler"]["backoffMs"] == 60_000
"""


@pytest.mark.slow
def test_the_fixtures_run_a_scheduler_in_memory(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["fairlane.pytest_plugin"]\n')
    (tmp_path / "test_mine.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:xdist"]
    ran = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed" in ran.stdout
