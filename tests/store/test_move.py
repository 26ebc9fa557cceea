"""A whole store moves to another address: every row, whatever happens meanwhile, and once."""

from __future__ import annotations

import base64
import contextlib
import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlane.clock import ManualClock, SystemClock
from fairlane.core.errors import Conflict, StoreInUse, StoreMismatch, StoreMissing, StoreMoved
from fairlane.engine.commands import SetPolicy, Submit
from fairlane.store import closed
from fairlane.store.copying import postgres_side
from fairlane.store.copying.move import Move, MoveReport
from fairlane.store.copying.tables import all_tables
from fairlane.store.opening import carry_keys, key_path, open_side, open_store
from tests.fakes.waiting import WAIT_SECONDS
from tests.postgres import new_database
from tests.store.histories import play
from tests.store.invariants import assert_sound
from tests.store.scheduler import Scheduler, submission
from tests.store.stores import SQLITE, contents, execute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.store.base import Row, Store
    from fairlane.store.copying.side import StoreSide

KEY = base64.b64encode(bytes(32)).decode()
WIDE = {"maxInflight": 100, "maxQueueSize": 1000}
DIRECTIONS = [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite")]


def opened(url: str) -> Store:
    return open_store(url, secret_key=KEY)


class Stage:
    """Two addresses: a store with a history, and nothing yet."""

    def __init__(self, source: str, target: str, kept: Path | None = None) -> None:
        """With `kept`, the history is in that file."""
        self.source = source
        self.target = target
        if kept is not None:
            shutil.copy(kept, source.removeprefix(SQLITE))
        store = opened(source)
        store.migrate()
        self.scheduler = Scheduler(store, ManualClock())
        if kept is None:
            play(self.scheduler)

    @contextlib.contextmanager
    def sides(self) -> Iterator[tuple[StoreSide, StoreSide]]:
        with contextlib.ExitStack() as stack:
            source = stack.enter_context(contextlib.closing(open_side(self.source, "source")))
            target = stack.enter_context(contextlib.closing(open_side(self.target, "target")))
            yield source, target

    def move(self, on_progress: Callable[[], None] = lambda: None) -> MoveReport:
        with self.sides() as sides:
            moving = Move(*sides, SystemClock())
            moving.say = lambda *_: on_progress()
            return moving.run()

    def cancel(self) -> None:
        with self.sides() as sides:
            Move(*sides, SystemClock()).cancel()

    def submit(self, *names: str) -> None:
        self.scheduler.apply(Submit([submission(name) for name in names]))

    def open_stores(self) -> list[str]:
        """Which of the two a server would accept work on."""
        found = []
        for url in (self.source, self.target):
            with contextlib.suppress(StoreMoved, StoreMismatch):
                if opened(url).version():
                    found.append(url)
        return found


@pytest.fixture
def new_url(tmp_path: Path, postgres_url: str) -> Iterator[Callable[[str], str]]:
    numbers = itertools.count()
    with contextlib.ExitStack() as stack:

        def make(kind: str) -> str:
            if kind == "sqlite":
                return f"{SQLITE}{tmp_path}/{next(numbers)}.db"
            return stack.enter_context(new_database(postgres_url))

        yield make


@pytest.fixture(params=DIRECTIONS, ids="-to-".join)
def stage(request: pytest.FixtureRequest, new_url: Callable[[str], str]) -> Iterator[Stage]:
    source, target = request.param
    found = Stage(new_url(source), new_url(target))
    yield found
    found.scheduler.close()


@pytest.fixture
def files(new_url: Callable[[str], str]) -> Iterator[Stage]:
    found = Stage(new_url("sqlite"), new_url("sqlite"))
    yield found
    found.scheduler.close()


def everything(store: Store) -> dict[str, list[Row]]:
    """All rows, of a closed store too, without the clock of the machine that served."""
    found = contents(store)
    for name in (closed.MOVE, closed.CHANGES):
        found.pop(name, None)
    row = found.pop(closed.CLOSED, None) or found.pop(closed.SCHEDULER)
    columns = next(table for table in all_tables() if table.name == closed.SCHEDULER).columns
    clock = {columns.index(name) for name in ("clock_boot", "clock_ahead")}
    found[closed.SCHEDULER] = [
        tuple(value for place, value in enumerate(one) if place not in clock) for one in row
    ]
    return found


def test_every_row_arrives_and_only_the_new_store_accepts_work(stage: Stage) -> None:
    before = everything(stage.scheduler.store)
    report = stage.move()
    target = opened(stage.target)
    assert everything(target) == before
    assert report.rows == sum(len(rows) for rows in before.values())
    assert {one.name for one in report.tables} == {table.name for table in all_tables()}
    assert stage.open_stores() == [stage.target]
    with contextlib.closing(Scheduler(target, stage.scheduler.clock)) as scheduler:
        scheduler.apply(Submit([submission("after")]))
        assert scheduler.view("after").state == "queued"
        assert_sound(scheduler.reader, scheduler.engine.policy)


def test_an_engine_on_the_old_store_learns_that_it_was_moved(stage: Stage) -> None:
    stage.move()
    with pytest.raises(StoreMoved, match="was moved to target; use that store"):
        stage.submit("late")
    with pytest.raises(StoreMoved, match="was moved to target"):
        opened(stage.source).migrate()


def test_what_changes_during_the_copy_arrives_too(stage: Stage) -> None:
    numbers = itertools.count()

    def work() -> None:
        number = next(numbers)
        if number % 8:
            return
        stage.submit(f"during-{number}")
        with contextlib.suppress(Conflict):
            stage.scheduler.cancel(f"during-{number // 16 * 8}")
        stage.scheduler.lease(1)

    stage.move(work)
    assert next(numbers) > len(all_tables())
    assert everything(opened(stage.target)) == everything(opened(stage.source))


def test_the_schema_of_the_new_store_is_the_one_that_migrations_make(
    stage: Stage, new_url: Callable[[str], str]
) -> None:
    stage.move()
    fresh = new_url("sqlite" if stage.target.startswith(SQLITE) else "postgres")
    opened(fresh).migrate()
    with (
        contextlib.closing(open_side(stage.target, "moved")) as moved,
        contextlib.closing(open_side(fresh, "fresh")) as made,
    ):
        assert moved.table_names() == made.table_names()
        assert sorted(moved.drop_indexes()) == sorted(made.drop_indexes())


class Crash(BaseException):
    """The process is gone."""


class Mortal:
    """A side whose process dies before its n-th step."""

    def __init__(self, side: StoreSide, steps: Iterator[int], dies_at: int) -> None:
        self._side = side
        self._steps = steps
        self._dies_at = dies_at

    def __getattr__(self, name: str) -> Any:
        if name != "close" and next(self._steps) == self._dies_at:
            raise Crash
        return getattr(self._side, name)


def crash(stage: Stage, dies_at: int) -> int | None:
    """Move until the step; how many steps it took if it did not die."""
    steps = itertools.count()
    with stage.sides() as (source, target):
        mortals: list[Any] = [Mortal(side, steps, dies_at) for side in (source, target)]
        try:
            Move(*mortals, SystemClock()).run()
        except Crash:
            return None
    return next(steps)


def begin_move(source: str, target: str) -> None:
    """Leave an unfinished move behind."""
    steps = itertools.count()
    with (
        contextlib.closing(open_side(source, "source")) as ours,
        contextlib.closing(open_side(target, "target")) as theirs,
        contextlib.suppress(Crash),
    ):
        mortals: list[Any] = [Mortal(side, steps, 100) for side in (ours, theirs)]
        Move(*mortals, SystemClock()).run()


@pytest.mark.slow
def test_a_move_that_dies_at_any_step_can_be_repeated(new_url: Callable[[str], str]) -> None:
    stage = Stage(new_url("sqlite"), new_url("sqlite"))
    stage.scheduler.close()
    file = Path(stage.source.removeprefix(SQLITE))
    kept = shutil.copy(file, file.with_suffix(".kept"))
    total = crash(stage, -1)
    assert total is not None
    begin, switch = range(0, 12, 3), range(total - 18, total, 2)
    for dies_at in (*begin, total // 2, *switch):
        again = Stage(new_url("sqlite"), new_url("sqlite"), kept=kept)
        assert crash(again, dies_at) is None
        accepting = again.open_stores()
        assert len(accepting) <= 1, f"both stores accept work after a death at {dies_at}"
        if again.source in accepting:
            again.submit("between")
        before = everything(again.scheduler.store)
        if accepting != [again.target]:
            again.move()
        assert everything(opened(again.target)) == before, f"after a death at {dies_at}"
        assert again.open_stores() == [again.target]
        again.scheduler.close()


def test_a_move_that_dies_on_postgres_can_be_repeated(new_url: Callable[[str], str]) -> None:
    stage = Stage(new_url("sqlite"), new_url("postgres"))
    for dies_at in (30, 120, 200, 260):
        crash(stage, dies_at)
        assert len(stage.open_stores()) <= 1
    if stage.source in stage.open_stores():
        stage.submit("between")
    before = everything(stage.scheduler.store)
    if stage.open_stores() != [stage.target]:
        assert stage.move().resumed
    assert everything(opened(stage.target)) == before
    stage.scheduler.close()


def test_an_unfinished_copy_serves_nobody(files: Stage) -> None:
    assert crash(files, 100) is None
    assert files.open_stores() == [files.source]
    with pytest.raises(
        StoreMoved, match="is an unfinished copy of source; run fairlane move again"
    ):
        opened(files.target).migrate()


def test_a_target_with_anything_in_it_is_refused(stage: Stage) -> None:
    store = opened(stage.target)
    store.migrate()
    before = contents(store)
    with pytest.raises(StoreMismatch, match=r"target is not empty \(it has a table \w+\)"):
        stage.move()
    assert contents(store) == before
    assert stage.source in stage.open_stores()


def test_the_unfinished_copy_of_another_store_is_refused(
    files: Stage, new_url: Callable[[str], str]
) -> None:
    crash(files, 100)
    other = Stage(new_url("sqlite"), files.target)
    with pytest.raises(StoreMismatch, match="belongs to another move, to source"):
        other.move()
    other.scheduler.close()
    assert files.move().resumed


def test_a_moved_store_cannot_be_moved_again(files: Stage, new_url: Callable[[str], str]) -> None:
    files.move()
    files.target = new_url("sqlite")
    with pytest.raises(StoreMoved, match="was moved to target"):
        files.move()


def test_something_that_is_no_store_cannot_be_moved(new_url: Callable[[str], str]) -> None:
    with (
        contextlib.closing(open_side(new_url("sqlite"), "source")) as source,
        contextlib.closing(open_side(new_url("sqlite"), "target")) as target,
        pytest.raises(StoreMissing, match="source is not a fairlane store"),
    ):
        Move(source, target, SystemClock()).run()


def test_an_older_schema_is_not_moved(files: Stage) -> None:
    execute(files.scheduler.store, "PRAGMA user_version = 3")
    with pytest.raises(StoreMismatch, match="has schema 3, older than"):
        files.move()


def test_two_moves_of_one_store_do_not_run_at_once(stage: Stage) -> None:
    with stage.sides() as (source, _):
        source.lock()
        with pytest.raises(StoreInUse, match="another fairlane process is copying source"):
            stage.move()


def test_a_move_waits_until_the_session_of_a_dead_one_has_ended(
    new_url: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_side, "_ENDING_MS", round(1000 * WAIT_SECONDS))
    stage = Stage(new_url("postgres"), new_url("sqlite"))
    with (
        stage.sides() as (source, _),
        contextlib.closing(open_side(stage.source, "again")) as again,
        ThreadPoolExecutor() as threads,
    ):
        source.lock()
        asked = threads.submit(again.lock)
        with pytest.raises(TimeoutError):
            asked.result(0.2)
        source.close()
        asked.result(WAIT_SECONDS)
    stage.scheduler.close()


def test_a_cancelled_move_leaves_the_old_store_as_it_was(stage: Stage) -> None:
    before = contents(stage.scheduler.store)
    assert crash(stage, 100) is None
    stage.cancel()
    assert contents(stage.scheduler.store) == before
    assert stage.open_stores() == [stage.source]
    with contextlib.closing(open_side(stage.target, "target")) as target:
        assert target.table_names() == set()
    assert not stage.move().resumed


def test_there_is_nothing_to_cancel_without_a_move(files: Stage) -> None:
    with pytest.raises(StoreMismatch, match="no move from source to target is in progress"):
        files.cancel()
    files.move()
    with pytest.raises(StoreMoved):
        files.cancel()


def test_guards_still_hold_while_changes_are_recorded(stage: Stage) -> None:
    crash(stage, 100)
    stage.scheduler.apply(SetPolicy({"lanes": {"main": WIDE}}, "test"))
    stage.submit(*(f"many-{number}" for number in range(600)))
    assert len(stage.scheduler.lease(20)) == 20
    assert stage.move().resumed
    assert stage.open_stores() == [stage.target]


def test_a_copy_that_differs_is_not_switched_to(files: Stage) -> None:
    def spoil() -> None:
        if closed.CLOSED in tables(files.target):
            execute(opened(files.target), "UPDATE task SET agent = 'other'")

    with pytest.raises(Exception, match="the copy of the table task differs"):
        files.move(spoil)
    assert files.open_stores() == [files.source]


def tables(url: str) -> set[str]:
    with contextlib.closing(open_side(url, "side")) as side:
        return side.table_names()


def test_the_new_store_can_open_the_secrets(files: Stage) -> None:
    source = key_path(files.source)
    sealed = open_store(files.source).vault.seal("secret")
    assert carry_keys(files.source, files.target) == key_path(files.target)
    assert open_store(files.target).vault.open(sealed) == "secret"
    assert carry_keys(files.source, files.target) is None, "once is enough"
    assert key_path(files.target).stat().st_mode & 0o077 == 0
    assert source.read_text() == key_path(files.target).read_text()


def test_the_keys_that_the_new_store_has_stay_first(files: Stage) -> None:
    own = open_store(files.target).vault.seal("own")
    theirs = open_store(files.source).vault.seal("theirs")
    first = key_path(files.target).read_text()
    carry_keys(files.source, files.target)
    vault = open_store(files.target).vault
    assert (vault.open(own), vault.open(theirs)) == ("own", "theirs")
    assert key_path(files.target).read_text().startswith(first)
