"""Move a whole store to another address while servers may use it.

1. Triggers in the source record the key of every row that changes. Rows are copied in pages, each
   with its progress in one transaction of the target, so a killed move continues where it was.
2. Changed rows are copied again until few are left. Then all tables are compared, at one time.
3. The switch: writes to the source are locked out, the last changed rows are copied and compared,
   and the source is closed. Then the target is opened.

The target is closed until the source is, so at no time do both accept work. A kill between the two
leaves both closed; the next run opens the target.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from fairlane.clock import Clock
from fairlane.core.errors import OperatorError, StoreMismatch, StoreMissing
from fairlane.store import migrate
from fairlane.store.closed import CLOSED, FROM, SCHEDULER, TO, MoveNote, closed_error
from fairlane.store.copying.side import KEYS, StoreSide
from fairlane.store.copying.tables import EMPTY, Key, Sum, Table, all_tables

Say = Callable[[int, str], None]

FEW_CHANGES: Final = 500  # so many are copied while writes are locked out
_ROUNDS: Final = 50
_KEPT_CHANGES: Final = 50_000  # the record of changes is shortened when it is longer


class TableReport(msgspec.Struct, frozen=True):
    name: str
    rows: int
    checksum: str


class MoveReport(msgspec.Struct, frozen=True, rename="camel"):
    """`blocked_ms` is how long the source refused writes before the target was open."""

    move_id: str
    source: str
    target: str
    resumed: bool
    rows: int
    seconds: float
    blocked_ms: int
    tables: list[TableReport]


class Move:
    def __init__(self, source: StoreSide, target: StoreSide, clock: Clock) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self.say: Say = lambda _, __: None  # receives the progress
        self.on_begun: Callable[[], None] = lambda: None  # called when both stores are checked
        self._tables = all_tables()
        self._copied_rows = 0
        # Of each table in the target, kept up to date from the comparison on.
        self._sums: dict[str, Sum] = {}

    def run(self) -> MoveReport:
        """Move everything. Raise an `OperatorError` if the stores do not allow it."""
        began = self._clock.monotonic()
        self._source.lock()
        self._target.lock()
        note, resumed = self._begin()
        self.on_begun()
        if SCHEDULER in self._source.table_names():
            self._copy_all(note)
            frozen_at = self._switch(note)
        else:  # a run was killed after it closed the source
            frozen_at = self._clock.monotonic()
            self._compare()
        self._open()
        now = self._clock.monotonic()
        return MoveReport(
            move_id=note.id,
            source=self._source.location,
            target=self._target.location,
            resumed=resumed,
            rows=sum(one.rows for one in self._sums.values()),
            seconds=round(now - began, 3),
            blocked_ms=round((now - frozen_at) * 1000),
            tables=[TableReport(name, one.rows, one.text) for name, one in self._sums.items()],
        )

    def cancel(self) -> MoveNote:
        """Cancel the move: the source continues as before, and the target is emptied."""
        self._source.lock()
        self._target.lock()
        theirs, ours = self._source.note(), self._target.note()
        if theirs is not None and theirs.done:
            raise closed_error(self._source.location, msgspec.json.encode(theirs).decode())
        if theirs is None or ours is None or theirs.id != ours.id:
            raise StoreMismatch(
                f"no move from {self._source.location} to {self._target.location} is in progress"
            )
        with self._target.transaction():
            self._target.drop_all()
        with self._source.transaction():
            self._source.untrack()
            self._source.drop_note()
        return theirs

    def rows(self) -> int:
        """Return how many rows there are to copy."""
        names = self._source.table_names()
        return sum(self._source.count(table) for table in self._tables if table.name in names)

    # ---------------------------------------------------------------- begin

    def _begin(self) -> tuple[MoveNote, bool]:
        """Return the target's note: a new one, or the one of this move's last run."""
        theirs, ours = self._source.note(), self._target.note()
        _check_source(self._source, theirs, ours)
        if ours is not None and theirs is not None and ours.id == theirs.id and ours.role == TO:
            return ours, True
        check_empty(self._target)
        note = MoveNote(id=f"mov_{secrets.token_hex(8)}", role=TO, other=self._source.location)
        with self._source.transaction():
            self._source.untrack()  # of a move that was given up
            self._source.track()
            self._source.save_note(MoveNote(id=note.id, role=FROM, other=self._target.location))
        with self._target.transaction():
            note.indexes = create_tables(self._target)
            self._target.close_store()
            self._target.save_note(note)
        return note, False

    # ---------------------------------------------------------------- copy

    def _copy_all(self, note: MoveNote) -> None:
        for table in self._tables:
            if note.copied.get(table.name) is not True:
                self._take_over_changes(note)
                self._copy(table, note)
        self._create_indexes(note)
        for _ in range(_ROUNDS):
            if self._take_over_changes(note) < FEW_CHANGES:
                break
        self._verify(note)

    def _copy(self, table: Table, note: MoveNote) -> None:
        reached = note.copied.get(table.name)
        after: Key | None = tuple(reached) if isinstance(reached, list) else None
        while True:
            with self._source.snapshot():
                rows = self._source.page(table, after)
            with self._target.transaction():
                self._target.insert(table, rows)
                if rows:
                    after = table.key_of(rows[-1])
                    note.copied[table.name] = list(after)
                else:
                    note.copied[table.name] = True
                self._target.save_note(note)
            self._copied_rows += len(rows)
            self.say(self._copied_rows, f"copying {table.name}")
            if not rows:
                return

    def _create_indexes(self, note: MoveNote) -> None:
        while note.indexes:
            self.say(self._copied_rows, f"creating indexes, {len(note.indexes)} left")
            with self._target.transaction():
                self._target.create_index(note.indexes.pop(0))
                self._target.save_note(note)
        self._target.analyze()

    # ---------------------------------------------------------------- changes

    def _take_over_changes(self, note: MoveNote) -> int:
        """Copy the rows that have changed; return how many."""
        with self._source.snapshot():
            count = self._apply_changes(note)
        if count > _KEPT_CHANGES:
            with self._source.transaction():
                self._source.forget_changes(note.changes)
        return count

    def _apply_changes(self, note: MoveNote, *, check: bool = False) -> int:
        """Bring the copied part of the target to the state that the source is read in.

        All changed rows are deleted before the first is inserted: a name may have passed from one
        row to another. With `check`, read them again and compare.
        """
        last = self._source.last_change()
        changed = self._changed_keys(note, last)
        with self._target.transaction():
            for table, keys in changed.items():
                for part in _parts(keys):
                    self._count_out(table, part)
                    self._target.delete(table, part)
            for table, keys in changed.items():
                for part in _parts(keys):
                    rows = self._source.rows(table, part)
                    self._target.insert(table, rows)
                    if check and EMPTY.add(rows) != EMPTY.add(self._target.rows(table, part)):
                        raise _differs(table)
                    if table.name in self._sums:
                        self._sums[table.name] = self._sums[table.name].add(rows)
            note.changes = last
            self._target.save_note(note)
        return sum(len(keys) for keys in changed.values())

    def _count_out(self, table: Table, keys: Sequence[Key]) -> None:
        if table.name in self._sums:
            gone = self._target.rows(table, keys)
            self._sums[table.name] = self._sums[table.name].subtract(gone)

    def _changed_keys(self, note: MoveNote, last: int) -> dict[Table, list[Key]]:
        """Return what has changed in the copied part; the rest is still to be read anyway."""
        by_name = {table.name: table for table in self._tables}
        found: dict[str, set[str]] = {}
        for changes in self._source.changes(note.changes, last):
            for change in changes:
                found.setdefault(change.table, set()).add(change.key)
        changed: dict[Table, list[Key]] = {}
        for name, texts in found.items():
            keys = {tuple(msgspec.json.decode(text)) for text in texts}
            mine = [key for key in keys if _is_copied(note, name, key)]
            if mine:
                changed[by_name[name]] = sorted(mine)
        return changed

    # ---------------------------------------------------------------- switch

    def _verify(self, note: MoveNote) -> None:
        """Compare all rows of all tables, as they are at one time."""
        with self._source.snapshot():
            self._apply_changes(note)
            self._compare()

    def _compare(self) -> None:
        for table in self._tables:
            self.say(self._copied_rows, f"comparing {table.name}")
            found = _sum(self._target, table)
            if _sum(self._source, table) != found:
                raise _differs(table)
            self._sums[table.name] = found

    def _switch(self, note: MoveNote) -> float:
        """Close the source with everything copied. Return when writes were locked out."""
        for _ in range(_ROUNDS):  # the comparison took a while
            if self._take_over_changes(note) < FEW_CHANGES:
                break
        self.say(self._copied_rows, "switching")
        with self._source.frozen():
            frozen_at = self._clock.monotonic()
            self._apply_changes(note, check=True)
            for table in self._tables:
                rows = self._source.count(table)
                if not rows == self._target.count(table) == self._sums[table.name].rows:
                    raise _differs(table)
            self._source.untrack()
            self._source.close_store()
            done = MoveNote(id=note.id, role=FROM, other=self._target.location, done=True)
            self._source.save_note(done)
        return frozen_at

    def _open(self) -> None:
        with self._target.transaction():
            self._target.open_store()
            self._target.forget_clock()
            self._target.drop_note()


def create_tables(target: StoreSide) -> list[str]:
    """Create empty tables without indexes; return the statements that create those."""
    target.create_schema()
    for table in all_tables():  # rows that the migrations inserted
        for rows in list(target.all_rows(table)):
            target.delete(table, [table.key_of(row) for row in rows])
    return target.drop_indexes()


def check_empty(target: StoreSide) -> None:
    """Raise `StoreMismatch` if there is anything in the target."""
    note = target.note()
    if note is not None:
        raise StoreMismatch(
            f"{target.location} belongs to another move, {note.role} {note.other}; "
            "use an empty database or a new file"
        )
    names = sorted(target.table_names())
    if names:
        raise StoreMismatch(
            f"{target.location} is not empty (it has a table {names[0]}); "
            "use an empty database or a new file"
        )


def check_readable(source: StoreSide) -> None:
    """Raise an error if the source is not a store with the newest schema."""
    names = source.table_names()
    if CLOSED in names:
        note = source.note()
        text = None if note is None else msgspec.json.encode(note).decode()
        raise closed_error(source.location, text)
    if SCHEDULER not in names:
        raise StoreMissing(f"{source.location} is not a fairlane store; fairlane serve sets it up")
    version, newest = source.version(), migrate.newest()
    if version < newest:
        raise StoreMismatch(
            f"{source.location} has schema {version}, older than {newest}; "
            "fairlane serve upgrades it"
        )
    if version > newest:
        raise StoreMismatch(
            f"{source.location} has schema {version} of a newer fairlane; upgrade this program"
        )


def _check_source(source: StoreSide, theirs: MoveNote | None, ours: MoveNote | None) -> None:
    is_done = theirs is not None and theirs.done and ours is not None and ours.id == theirs.id
    if not is_done:
        check_readable(source)


def _sum(side: StoreSide, table: Table) -> Sum:
    total = EMPTY
    for rows in side.all_rows(table):
        total = total.add(rows)
    return total


def _is_copied(note: MoveNote, name: str, key: Key) -> bool:
    reached = note.copied.get(name, False)
    return reached if isinstance(reached, bool) else key <= tuple(reached)


def _parts(keys: Sequence[Key]) -> Iterator[Sequence[Key]]:
    return (keys[start : start + KEYS] for start in range(0, len(keys), KEYS))


def _differs(table: Table) -> OperatorError:
    return OperatorError(
        f"the copy of the table {table.name} differs from the original; nothing was switched. "
        "Cancel the move with --cancel, and report a bug"
    )
