"""Fixtures for all tests: an empty database of either kind, created when first needed."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.postgres import new_database, running_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long an example takes says more about the machine than about what is tested.
settings.register_profile("fairlane", deadline=None)
settings.load_profile("fairlane")

MEMORY = Path("/dev/shm")
ROOM_BYTES_MIN = 4 << 30


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options are known in the topmost conftest only, whoever uses them."""
    parser.addoption("--kills", type=int, default=30, help="how often e2e kills a server")
    parser.addoption("--kill-tasks", type=int, default=5000, help="how many tasks meanwhile")
    parser.addoption("--cron-seconds", type=int, default=60, help="how long e2e fires jobs")
    parser.addoption("--kill-seed", type=int, help="of an earlier run, to repeat it")


def pytest_configure() -> None:
    """Keep what the tests write in memory if there is room for it: a disk takes its time over each
    commit, for the sake of a power cut, and no test cuts the power. `TMPDIR` says otherwise.
    """
    if "TMPDIR" not in os.environ and _has_room(MEMORY):
        os.environ["TMPDIR"] = str(MEMORY)  # also of the programs that tests start
        tempfile.tempdir = None  # which had been looked up before


def _has_room(folder: Path) -> bool:
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return False
    programs_run = not os.statvfs(folder).f_flag & os.ST_NOEXEC  # those of PostgreSQL may lie there
    return programs_run and shutil.disk_usage(folder).free >= ROOM_BYTES_MIN


@pytest.fixture(scope="session", autouse=True)
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What programs keep for their user is kept for these tests only."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The address of one real PostgreSQL, durable as in production (fsync on), for all tests."""
    with running_postgres() as url:
        yield url


@pytest.fixture
def fresh_postgres(postgres_url: str) -> Iterator[str]:
    """The address of an empty PostgreSQL database that is this test's own."""
    with new_database(postgres_url) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store that is this test's own, once on each database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'fairlane.db'}"
    url: str = request.getfixturevalue("fresh_postgres")
    return url
