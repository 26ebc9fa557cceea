"""Tests here run on a SQLite file and on a real PostgreSQL, and end with a recount."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING

import pytest

from fairlane.store.opening import open_store
from tests.postgres import new_database
from tests.store.invariants import assert_sound
from tests.store.scheduler import NODE, Scheduler
from tests.store.stores import SQLITE, ReusedPostgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fairlane.clock import ManualClock
    from fairlane.store.base import Store


@pytest.fixture(scope="session")
def reused_postgres(postgres_url: str) -> Iterator[ReusedPostgres]:
    with new_database(postgres_url) as url, contextlib.closing(ReusedPostgres(url)) as reused:
        yield reused


@pytest.fixture
def postgres_store(reused_postgres: ReusedPostgres) -> Store:
    reused_postgres.empty()
    return open_store(reused_postgres.url)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the migrations make of an empty file: a copy costs a fiftieth of making it again."""
    file = tmp_path_factory.mktemp("migrated") / "fairlane.db"
    with contextlib.closing(open_store(f"{SQLITE}{file}")) as store:
        store.migrate()
    return file


@pytest.fixture
def sqlite_store(migrated_file: Path, tmp_path: Path) -> Iterator[Store]:
    file = shutil.copy(migrated_file, tmp_path / "fairlane.db")
    store = open_store(f"{SQLITE}{file}")
    yield store
    store.close()


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    """A migrated store without tasks, once on each database."""
    found: Store = request.getfixturevalue(f"{request.param}_store")
    return found


@pytest.fixture
def new_scheduler(store: Store) -> Iterator[Callable[..., Scheduler]]:
    """Open one engine more on the store; what it leaves behind must be sound."""
    opened: list[Scheduler] = []

    def open_one(name: str = NODE, clock: ManualClock | None = None) -> Scheduler:
        opened.append(Scheduler(store, clock, name))
        return opened[-1]

    try:
        yield open_one
        if opened:
            opened[-1].apply()
            assert_sound(opened[-1].reader, opened[-1].engine.policy)
    finally:
        for scheduler in opened:
            scheduler.close()


@pytest.fixture
def scheduler(new_scheduler: Callable[..., Scheduler]) -> Scheduler:
    return new_scheduler()
