"""Which errors of the database mean "not now", asked of the real databases."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import apsw
import psycopg
import pytest

from fairlane.store.base import ConnectionLost
from fairlane.store.losses import UNAVAILABLE
from fairlane.store.opening import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from fairlane.store.base import Store

# One of each class, by name where the class has only one that counts.
LOSSES = {
    *("08006", "25006", "25P02", "25P03", "25P04", "28000", "3D000", "3F000", "40001", "40P01"),
    *("42501", "42P01", "53100", "53200", "53300", "55P03", "55006", "57014", "57P01", "57P03"),
    *("58000", "58030"),
}
DEFECTS = {"22003", "22021", "23502", "23505", "23514", "42601", "42703", "54000", "XX000"}


def raise_there(connection: Any, state: str) -> None:
    connection._execute(f"DO $$ BEGIN RAISE 'no' USING ERRCODE = '{state}'; END $$", None)


@pytest.mark.parametrize("state", sorted(LOSSES))
def test_what_is_about_the_database_is_a_loss(postgres_store: Store, state: str) -> None:
    with closing(postgres_store.reader()) as reader, pytest.raises(ConnectionLost, match=r"^no$"):
        raise_there(reader, state)


@pytest.mark.parametrize("state", sorted(DEFECTS))
def test_what_is_about_a_statement_or_its_values_is_not(postgres_store: Store, state: str) -> None:
    with closing(postgres_store.reader()) as reader, pytest.raises(psycopg.Error) as error:
        raise_there(reader, state)
    assert error.value.sqlstate == state


def test_every_entry_of_the_table_is_tried() -> None:
    assert {entry for entry in UNAVAILABLE if not any(s.startswith(entry) for s in LOSSES)} == set()


def test_a_database_that_is_read_only_cannot_be_written(postgres_store: Store) -> None:
    options = "options=-c%20default_transaction_read_only%3Don"
    writer = open_store(f"{postgres_store.url}&{options}").writer()
    with closing(writer), pytest.raises(ConnectionLost, match="read-only transaction"):
        writer.begin()


def test_tables_that_are_gone_are_a_store_that_is_away(fresh_postgres: str) -> None:
    writer = open_store(fresh_postgres).writer()
    with closing(writer), pytest.raises(ConnectionLost, match='"scheduler" does not exist'):
        writer.begin()


def test_a_file_that_may_not_be_written_cannot_be(sqlite_store: Store) -> None:
    writer: Any = sqlite_store.writer()
    writer._connection.pragma("query_only", True)
    writer._execute("BEGIN", ())
    with closing(writer), pytest.raises(ConnectionLost, match="readonly"):
        writer.run("secret_set", secret="x")


def test_a_file_that_is_full_cannot_be_written(sqlite_store: Store) -> None:
    writer: Any = sqlite_store.writer()
    writer._connection.pragma("max_page_count", 1)
    writer.begin()
    with closing(writer), pytest.raises(ConnectionLost, match="full"):
        writer.run_rows("request_insert", [(77, "x" * 1_000_000, None)])


def test_a_file_that_another_has_locked_cannot_be_written(
    sqlite_store: Store, tmp_path: Path
) -> None:
    writer: Any = sqlite_store.writer()
    writer._connection.set_busy_timeout(1)
    other = apsw.Connection(str(tmp_path / "fairlane.db"))
    other.execute("BEGIN IMMEDIATE")
    with closing(other), closing(writer), pytest.raises(ConnectionLost, match="locked"):
        writer.begin()
