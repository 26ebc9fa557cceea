"""Migrations: whole or not at all, once or often, alone or many at a time, never backwards."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import psycopg
import pytest

from fairlane.core.errors import StoreMismatch
from fairlane.store import migrate
from fairlane.store.opening import open_store
from fairlane.store.postgres import PostgresSchema
from tests.store.scheduler import Scheduler
from tests.store.schema import describe, kept
from tests.store.stopping import Stop, StoppingSchema, schema_of
from tests.store.stores import SQLITE, contents

if TYPE_CHECKING:
    from fairlane.store.base import Store

ROOT = Path(__file__).parents[2]
NEWEST = migrate.files()[-1][0]


def tables(store: Store) -> list[str]:
    if store.dialect == "sqlite":
        Path(store.url.removeprefix(SQLITE)).touch()
    return sorted(contents(store))


def statement_count(dialect: str) -> int:
    return sum(len(migrate.statements(text, dialect)) for _, text in migrate.files())


def test_a_fresh_schema_is_the_one_that_is_kept(store_url: str) -> None:
    store = open_store(store_url)
    store.migrate()
    assert describe(store) == kept(store).read_text("utf-8"), "python -m tests.store.schema"


def test_migrating_again_changes_nothing(store_url: str) -> None:
    store = open_store(store_url)
    store.migrate()
    scheduler = Scheduler(store)
    scheduler.submit("first")
    before = describe(store), contents(store)
    store.migrate()
    open_store(store_url).migrate()
    assert (describe(store), contents(store)) == before
    assert scheduler.names() == ["first"]
    scheduler.close()


@pytest.mark.slow
def test_an_exception_at_any_statement_leaves_the_old_schema(store_url: str) -> None:
    """On PostgreSQL, where each takes seconds, after each tenth and after the last."""
    store = open_store(store_url)
    count = statement_count(store.dialect)
    step = 10 if store.shared else 1
    for after in [*range(0, count, step), count]:
        with schema_of(store_url) as schema, pytest.raises(Stop):
            migrate.migrate(StoppingSchema(schema, after))
        assert tables(store) == [], f"after {after} statements"
    store.migrate()
    assert describe(store) == kept(store).read_text("utf-8")


@pytest.mark.slow
def test_a_kill_in_the_middle_leaves_the_old_schema(store_url: str) -> None:
    store = open_store(store_url)
    half = statement_count(store.dialect) // 2
    command = [sys.executable, "-m", "tests.store.stopping", store_url, str(half)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -9
    store.migrate()
    assert describe(store) == kept(store).read_text("utf-8")


MIGRATE = """
import sys
from fairlane.store.opening import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
store.migrate()
"""


@pytest.mark.slow
def test_processes_that_migrate_at_once_do_not_disturb_each_other(store_url: str) -> None:
    store = open_store(store_url)
    command = [sys.executable, "-c", MIGRATE, store_url]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(subprocess.Popen(command, cwd=ROOT, **pipes)) for _ in "12"]
        for node in nodes:
            assert node.stdout
            assert node.stdout.readline() == "ready\n"
        for node in nodes:
            assert node.stdin
            node.stdin.write("go\n")
            node.stdin.flush()
        assert [node.wait(30) for node in nodes] == [0, 0]
    assert describe(store) == kept(store).read_text("utf-8")
    assert [row[0] for row in contents(store)["scheduler"]] == [1]


@pytest.mark.slow
def test_nodes_wait_while_another_one_migrates(fresh_postgres: str) -> None:
    """Both are held up at the same moment, so that they really meet."""
    command = [sys.executable, "-c", MIGRATE, fresh_postgres]
    with psycopg.connect(fresh_postgres, autocommit=True) as administrator:
        administrator.execute("SELECT pg_advisory_lock(%s)", [PostgresSchema._LOCK])
        quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        nodes = [subprocess.Popen(command, cwd=ROOT, **quiet) for _ in "12"]
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while administrator.execute(waiting).fetchone() != (2,):
            assert all(node.poll() is None for node in nodes)
        administrator.execute("SELECT pg_advisory_unlock(%s)", [PostgresSchema._LOCK])
    assert [node.wait(30) for node in nodes] == [0, 0]
    store = open_store(fresh_postgres)
    assert describe(store) == kept(store).read_text("utf-8")


def set_version(url: str, version: int) -> None:
    with schema_of(url) as schema:
        schema.begin()
        schema.version()
        schema.commit(version)


def test_a_newer_schema_is_refused_and_left_alone(store_url: str) -> None:
    store = open_store(store_url)
    store.migrate()
    set_version(store_url, NEWEST + 1)
    before = describe(store), contents(store)
    with pytest.raises(StoreMismatch) as error:
        store.migrate()
    assert error.value.message == (
        f"the store was written by a newer fairlane (schema {NEWEST + 1}, this one knows "
        f"{NEWEST}); "
        "upgrade fairlane"
    )
    assert (describe(store), contents(store)) == before
    assert store.version() == NEWEST + 1


def test_the_version_of_a_store_can_be_read(store_url: str) -> None:
    store = open_store(store_url)
    assert store.version() == 0
    store.migrate()
    assert store.version() == NEWEST


def test_a_file_that_is_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear reader, " * 1000)
    with pytest.raises(StoreMismatch, match="is not a Fairlane database"):
        open_store(f"{SQLITE}{file}").migrate()
    assert file.read_text() == "Dear reader, " * 1000


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with contextlib.closing(apsw.Connection(str(file))) as connection:
        connection.execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY)")
    before = file.read_bytes()
    with pytest.raises(StoreMismatch, match="is not a Fairlane database"):
        open_store(f"{SQLITE}{file}").migrate()
    assert file.read_bytes() == before
