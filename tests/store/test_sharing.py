"""Concurrent use of a store: one owner of a file, readers that never wait."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fairlane.core.errors import OperatorError, StoreInUse
from fairlane.store.base import GuardFailed
from fairlane.store.opening import open_store
from tests.fakes.waiting import WAIT_SECONDS
from tests.store.scheduler import Scheduler
from tests.store.stores import SQLITE

if TYPE_CHECKING:
    from collections.abc import Callable

    from fairlane.store.base import Store

ROOT = Path(__file__).parents[2]

OWNER = """
import sys
from fairlane.store.sqlite import SqliteStore
store = SqliteStore(sys.argv[1], "")
store.migrate()
store.claim()
print("claimed", flush=True)
sys.stdin.readline()
"""


# -------------------------------------------------------------------- one owner of a file


def test_a_second_owner_of_a_file_is_refused_and_told_what_to_do(sqlite_store: Store) -> None:
    sqlite_store.claim()
    sqlite_store.claim()
    second = open_store(sqlite_store.url)
    with pytest.raises(StoreInUse) as error:
        second.claim()
    path = sqlite_store.url.removeprefix(SQLITE)
    assert error.value.message == (
        f"{path} is in use by another fairlane server (process {os.getpid()}); stop that server, "
        "or use another file with --store sqlite:///PATH"
    )
    sqlite_store.close()
    second.claim()
    second.close()


def test_an_owner_is_found_under_another_name_of_its_file(
    sqlite_store: Store, tmp_path: Path
) -> None:
    sqlite_store.claim()
    link = tmp_path / "link.db"
    link.symlink_to(sqlite_store.url.removeprefix(SQLITE))
    with pytest.raises(StoreInUse):
        open_store(f"{SQLITE}{link}").claim()


@pytest.mark.slow
def test_a_file_belongs_to_its_process_until_that_is_killed(sqlite_store: Store) -> None:
    path = sqlite_store.url.removeprefix(SQLITE)
    command = [sys.executable, "-c", OWNER, path]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as owner:
        assert owner.stdout
        assert owner.stdout.readline() == "claimed\n"
        with pytest.raises(StoreInUse, match=rf"\(process {owner.pid}\)"):
            sqlite_store.claim()
        beside = Scheduler(sqlite_store)
        beside.submit("from the command line")
        beside.close()
        owner.kill()
    sqlite_store.claim()


def test_any_number_of_nodes_may_serve_from_postgres(postgres_store: Store) -> None:
    postgres_store.claim()
    open_store(postgres_store.url).claim()
    assert postgres_store.shared


# -------------------------------------------------------------------- readers and writers


def test_readers_do_not_wait_for_the_writer(store: Store) -> None:
    scheduler = Scheduler(store)
    scheduler.submit("first")
    writer, late = store.writer(), None
    with contextlib.closing(writer):
        writer.begin()
        names = ("last_seq", "last_token", "last_line", "last_event", "open_edges", "unsettled")
        numbers = dict.fromkeys((*names, "last_number", "reservations"), 77)
        writer.run("scheduler_save", **numbers)
        writer.run_rows("request_insert", [(77, "{}", None)])
        late = store.reader()
        assert scheduler.states("first") == ["queued"]
        assert late.run("task_view", id="first")
        assert scheduler.tally().queued == 1  # here, or never: the writer ends after them
        writer.rollback()
    late.close()
    scheduler.close()


def test_a_reader_sees_what_was_acknowledged_and_nothing_else(
    new_scheduler: Callable[..., Scheduler], store: Store
) -> None:
    one, other = new_scheduler("one"), new_scheduler("other")
    for number in range(5):
        one.submit(f"t{number}")
        assert other.tally().queued == number + 1
    writer = store.writer()
    writer.begin()
    writer.run("secret_set", secret="not yet")
    assert other.reader.run("secret_get") == [(None,)]
    writer.commit()
    assert other.reader.run("secret_get") == [("not yet",)]
    writer.close()


def test_reads_in_a_snapshot_see_one_moment(new_scheduler: Callable[..., Scheduler]) -> None:
    scheduler = new_scheduler()
    scheduler.submit("first")
    with scheduler.reader.snapshot():
        before = scheduler.tally()
        scheduler.submit("second")
        assert scheduler.tally() == before
        assert scheduler.find("second") is None
    assert scheduler.tally().queued == 2


def test_a_reader_cannot_write(store: Store) -> None:
    reader = store.reader()
    with pytest.raises(Exception, match=r"(?i)read.?only"):
        reader.run("secret_set", secret="x")
    reader.close()


def test_writers_of_one_store_wait_for_each_other(new_scheduler: Callable[..., Scheduler]) -> None:
    schedulers = [new_scheduler(f"node{number}") for number in range(4)]
    for number in range(20):
        schedulers[number % 4].submit(f"t{number}", "x" + str(number))
    assert [task.seq for task in schedulers[0].submit("last")] == [41]


def test_a_guarded_write_that_misses_its_row_is_an_error(store: Store) -> None:
    scheduler = Scheduler(store)
    (task,) = scheduler.submit("first")
    writer = store.writer()
    writer.begin()
    guards = (task.seq, "running", 5)
    columns = ("done", None, 1, None, None, 0, None, 1, 5, None, None, None, None, None, None)
    row = (*guards, *columns)

    def change() -> None:
        writer.change_rows("task_update", [row])
        writer.commit()

    with pytest.raises(GuardFailed):
        change()
    writer.rollback()
    writer.close()
    assert scheduler.states("first") == ["queued"]
    scheduler.close()


@pytest.mark.parametrize("before", range(8))
def test_a_request_that_cannot_be_stored_does_not_spoil_those_that_follow(
    store: Store, before: int
) -> None:
    """However often the statements behind the one that fails have been sent before."""
    scheduler = Scheduler(store)
    scheduler.apply()
    scheduler.submit("taken", *(f"in one {number}" for number in range(3)))
    for number in range(before):
        scheduler.submit(f"before {number}")
    with pytest.raises(Exception, match=r"(?i)unique"):
        scheduler.submit("taken")
    scheduler.submit("after")
    assert scheduler.states("taken", "after") == ["queued", "queued"]
    scheduler.close()


def test_a_change_by_another_connection_is_noticed(sqlite_store: Store) -> None:
    """A file may be written by a command beside the server, which has to look at it then."""
    mine, other = sqlite_store.writer(), Scheduler(sqlite_store)
    assert not mine.changed_outside()
    mine.begin()
    mine.run("secret_set", secret="mine")
    mine.commit()
    assert not mine.changed_outside()
    other.submit("first")
    assert mine.changed_outside()
    assert not mine.changed_outside()
    mine.close()
    other.close()


# -------------------------------------------------------------------- bells


def test_nodes_hear_each_other_and_not_themselves(postgres_store: Store) -> None:
    other = open_store(postgres_store.url)
    here, there = threading.Event(), threading.Event()
    postgres_store.listen(here.set)
    other.listen(there.set)
    try:
        ring_until(other.ring, here)
        there.clear()
        ring_until(postgres_store.ring, there)
        while here.wait(0.1):  # an old ring may still be on its way
            here.clear()
        for _ in range(5):
            there.clear()
            ring_until(postgres_store.ring, there)
        assert not here.is_set()
    finally:
        postgres_store.close()
        other.close()


def ring_until(ring: Callable[[], None], heard: threading.Event) -> None:
    """Rings may get lost, above all while a listener is not there yet."""
    give_up_at = time.monotonic() + WAIT_SECONDS
    while not heard.wait(0.05):
        ring()
        assert time.monotonic() < give_up_at


# -------------------------------------------------------------------- the files


def test_the_database_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    store = open_store(f"{SQLITE}{folder / 'fairlane.db'}")
    store.migrate()
    scheduler = Scheduler(store)
    scheduler.submit("first")
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in folder.glob("*")}
    assert modes == dict.fromkeys(("fairlane.db", "fairlane.db-wal", "fairlane.db-shm"), "0o600")
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    scheduler.close()


def test_commits_are_synced_to_the_disk(sqlite_store: Store) -> None:
    connection = sqlite_store.writer()
    pragma = connection._connection.pragma  # type: ignore[attr-defined]  # only SQLite has it
    assert (pragma("journal_mode"), pragma("synchronous")) == ("wal", 2)
    connection.close()


def test_a_place_that_cannot_be_written_is_refused_clearly(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OperatorError, match=r"^cannot use .* as a store: .*--store "):
        open_store(f"{SQLITE}{tmp_path / 'file' / 'fairlane.db'}")


def test_a_store_in_memory_is_one_store_for_all_its_connections() -> None:
    store = open_store("sqlite://:memory:")
    store.migrate()
    scheduler = Scheduler(store)
    scheduler.submit("first")
    assert scheduler.states("first") == ["queued"]
    other = open_store("sqlite://:memory:")
    other.migrate()
    assert other.version() == store.version()
    nobody = Scheduler(other)
    assert nobody.find("first") is None
    for one in (scheduler, nobody):
        one.close()
    for each in (store, other):
        each.close()
