"""`fairlane backup`, `restore` and `move`, as an operator types them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import psycopg
import pytest

from fairlane.cli.direct import location
from tests.cli.processes import running_server
from tests.postgres import new_database
from tests.store import version_one
from tests.store.test_move import begin_move

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import Ran

    Run = Callable[..., Ran]


@pytest.fixture
def store(run: Run, store_url: str) -> str:
    """A store of this test's own with two tasks, once on each database."""
    for agent in ("a", "b"):
        assert run("submit", "--handler", "later", "--agent", agent, "--store", store_url).code == 0
    return store_url


def agents(run: Run, store: str) -> list[str]:
    ran = run("tasks", "--json", "--store", store)
    assert ran.code == 0, ran.err
    return [task["agentId"] for task in ran.json["tasks"]]


# -------------------------------------------------------------------- backup and restore


def test_a_backup_is_a_store_of_its_own(run: Run, store: str, tmp_path: Path) -> None:
    ran = run("backup", "copy.db", "--store", store)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("wrote copy.db (")
    assert "compared by count and checksum" in ran.out
    assert agents(run, "sqlite:///copy.db") == ["b", "a"]
    assert run("doctor", "--store", "sqlite:///copy.db").code == 0
    assert (tmp_path / "copy.db").stat().st_mode & 0o077 == 0


def test_a_backup_is_restored_into_an_empty_store_of_either_kind(
    run: Run, store: str, postgres_url: str
) -> None:
    assert run("backup", "copy.db", "--store", store).code == 0
    with new_database(postgres_url) as database:
        for target in ("sqlite:///new.db", database):
            ran = run("restore", "copy.db", "--store", target)
            assert ran.code == 0, ran.err
            assert ran.out.startswith(f"restored copy.db to {location(target)}")
            assert agents(run, target) == ["b", "a"]
            assert run("doctor", "--store", target).code == 0


def test_a_report_as_json_counts_and_sums_each_table(run: Run, store: str) -> None:
    report = run("backup", "copy.db", "--json", "--store", store).json
    rows = {table["name"]: table["rows"] for table in report["tables"]}
    assert (rows["task"], rows["request"], report["file"]) == (2, 2, "copy.db")
    again = run("restore", "copy.db", "--json", "--store", "sqlite:///new.db").json
    sums = {table["name"]: table["checksum"] for table in report["tables"]}
    assert sums == {table["name"]: table["checksum"] for table in again["tables"]}


@pytest.mark.slow
def test_a_backup_of_a_running_server_is_consistent(
    run: Run, store_url: str, tmp_path: Path
) -> None:
    with running_server(store_url, tmp_path) as url:
        for _ in range(3):
            assert run("submit", "--handler", "echo", "--wait", "--url", url).code == 0
        assert run("backup", "copy.db", "--store", store_url).code == 0
        refused = run("restore", "copy.db", "--replace", "--store", store_url)
        assert refused.code == 6
        assert "in use by" in refused.err or "servers are using" in refused.err
    assert run("doctor", "--store", "sqlite:///copy.db").code == 0
    assert len(agents(run, "sqlite:///copy.db")) == 3


def test_a_store_with_something_in_it_is_only_replaced_on_request(run: Run, store: str) -> None:
    assert run("backup", "copy.db", "--store", store).code == 0
    assert run("submit", "--handler", "later", "--agent", "c", "--store", store).code == 0
    ran = run("restore", "copy.db", "--store", store)
    assert (ran.code, "is not empty" in ran.err) == (6, True)
    assert agents(run, store) == ["c", "b", "a"]
    replaced = run("restore", "copy.db", "--replace", "--json", "--store", store)
    assert replaced.code == 0, replaced.err
    assert agents(run, store) == ["b", "a"]
    if store.startswith("sqlite"):
        assert agents(run, f"sqlite:///{replaced.json['replaced']}") == ["c", "b", "a"]


def test_a_backup_of_an_older_version_is_upgraded(
    run: Run, tmp_path: Path, fresh_postgres: str
) -> None:
    version_one.make(f"sqlite:///{tmp_path / 'old.db'}")
    ran = run("restore", "old.db", "--store", fresh_postgres)
    assert ran.code == 0, ran.err
    assert run("doctor", "--store", fresh_postgres).code == 0
    with apsw.Connection(str(tmp_path / "old.db")) as old:
        assert old.pragma("user_version") == 1
    old.close()


def test_what_is_no_backup_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database " * 100)
    with apsw.Connection(str(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
    connection.close()
    for name, complaint in (
        ("missing.db", "there is no such file"),
        ("text.db", "is not a Fairlane database"),
        ("other.db", "is not a Fairlane database"),
    ):
        ran = run("restore", name, "--store", "sqlite:///new.db")
        assert ran.code in (2, 6)
        assert complaint in ran.err
    assert not (tmp_path / "new.db").exists()


def test_a_backup_never_overwrites_a_file(run: Run, store: str, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("precious")
    ran = run("backup", "copy.db", "--store", store)
    assert (ran.code, "already exists" in ran.err) == (2, True)
    assert (tmp_path / "copy.db").read_text() == "precious"
    missing = run("backup", "no/folder/copy.db", "--store", store)
    assert (missing.code, "cannot write beside" in missing.err) == (6, True)
    assert [file for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_a_backup_during_a_move_is_an_ordinary_store(run: Run, tmp_path: Path) -> None:
    url = "sqlite:///own.db"
    assert run("submit", "--handler", "later", "--agent", "a", "--store", url).code == 0
    begin_move(f"sqlite:///{tmp_path / 'own.db'}", f"sqlite:///{tmp_path / 'half.db'}")
    assert run("backup", "copy.db", "--store", url).code == 0
    assert agents(run, "sqlite:///copy.db") == ["a"]
    half = run("backup", "other.db", "--store", "sqlite:///half.db")
    assert (half.code, "unfinished copy" in half.err) == (6, True)


# -------------------------------------------------------------------- move


def test_a_store_moves_to_postgresql_and_back(run: Run, fresh_postgres: str) -> None:
    assert (
        run("submit", "--handler", "later", "--agent", "a", "--store", "sqlite:///a.db").code == 0
    )
    ran = run("move", "sqlite:///a.db", fresh_postgres)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"moved a.db to {location(fresh_postgres)}\n")
    assert agents(run, fresh_postgres) == ["a"]
    old = run("tasks", "--json", "--store", "sqlite:///a.db")
    assert (old.code, old.json["code"]) == (6, "store_moved")
    back = run("move", fresh_postgres, "sqlite:///b.db", "--json")
    assert back.code == 0, back.err
    assert {table["name"]: table["rows"] for table in back.json["tables"]}["task"] == 1
    assert agents(run, "sqlite:///b.db") == ["a"]
    with psycopg.connect(fresh_postgres) as connection:
        functions = "SELECT count(*) FROM pg_proc WHERE proname LIKE 'move_%'"
        assert connection.execute(functions).fetchall() == [(0,)]


def test_a_move_that_cannot_work_says_why(run: Run, store: str, tmp_path: Path) -> None:
    for target, complaint in (
        (store, "cannot be moved to itself; name another store as TO"),
        ("sqlite://:memory:", "ends with its process; use sqlite:///PATH"),
        ("mysql://host/name", "is not the address of a store"),
        ("postgresql://127.0.0.1:1/none", "does not respond"),
    ):
        ran = run("move", store, target)
        assert ran.code in (2, 5, 6)
        assert complaint in ran.err
    missing = run("move", "sqlite:///missing.db", "sqlite:///new.db")
    assert (missing.code, "no store exists at missing.db" in missing.err) == (6, True)
    assert not (tmp_path / "new.db").exists()
    assert agents(run, store) == ["b", "a"]


def test_a_refused_move_leaves_the_key_file_alone(run: Run, tmp_path: Path) -> None:
    task = '{"instruction": "x", "llmConfig": {"provider": "x", "apiKey": "sk"}}'
    (tmp_path / "task.json").write_text(task)
    for name in ("a", "b"):
        url = f"sqlite:///{name}.db"
        assert run("submit", "--file", "task.json", "--store", url).code == 0
    before = (tmp_path / "b.db.key").read_text()
    assert run("move", "sqlite:///a.db", "sqlite:///b.db").code == 6
    assert (tmp_path / "b.db.key").read_text() == before
    ran = run("move", "sqlite:///a.db", "sqlite:///c.db", "--json")
    assert ran.json["keyFile"] == str(tmp_path / "c.db.key")
    assert (tmp_path / "c.db.key").read_text() == (tmp_path / "a.db.key").read_text()


def test_other_tables_of_a_database_survive_a_replacement(run: Run, fresh_postgres: str) -> None:
    store = fresh_postgres
    assert run("submit", "--handler", "later", "--store", store).code == 0
    with psycopg.connect(fresh_postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE precious (id INTEGER)")
        assert run("backup", "copy.db", "--store", store).code == 0
        assert run("restore", "copy.db", "--replace", "--store", store).code == 0
        assert connection.execute("SELECT count(*) FROM precious").fetchall() == [(0,)]


def test_cancelling_a_move_that_nobody_began_is_refused(run: Run, store: str) -> None:
    ran = run("move", store, "sqlite:///new.db", "--cancel")
    assert (ran.code, "is in progress" in ran.err) == (6, True)
