"""The database protocol of the rest of Fairlane, implemented per database.

A driver sends named statements and nothing else. `Connection` is one session with the database,
used by one thread at a time. Times are milliseconds, JSON is text, a missing value is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, NamedTuple, Protocol

from fairlane.store.vault import Vault

Row = tuple[Any, ...]

PART_ROWS_MIN: Final = 4
_PART_ROWS_MAX: Final = 500


class RowPage(NamedTuple):
    """The first rows of a result, and whether there are more."""

    rows: list[Row]
    more: bool


class SchedulerRow(NamedTuple):
    """The newest numbers that were assigned, and counters of the whole store.

    `moment` is the database's time if its clock is authoritative, None if the process's clock is.
    `transaction` is the number of this transaction in a shared store, which its rows bear.
    """

    last_seq: int
    last_fencing_token: int
    policy_version: int
    last_line: int
    last_event: int
    open_edges: int
    unsettled: int
    last_number: int = 0
    reservations: int = 0
    moment: int | None = None
    transaction: int | None = None


class Read(NamedTuple):
    """A statement that reads: over `rows`, unless that is None."""

    name: str
    rows: Sequence[Row] | None = None
    values: Mapping[str, object] = {}


def page_of(rows: Iterable[Row], limit: int, bytes_max: int) -> RowPage:
    """Take rows up to `limit` and `bytes_max`, but at least one; read one row further."""
    kept: list[Row] = []
    size = 0
    for row in rows:
        size += row_bytes(row)
        if kept and (len(kept) == limit or size > bytes_max):
            return RowPage(kept, more=True)
        kept.append(row)
    return RowPage(kept, more=False)


def next_part(count: int, read: int, size: int, bytes_max: int) -> int:
    """Return how many rows to read after `count` of them: more each time while they are small.

    `read` rows had `size` bytes; the next ones are likely to fit into the rest of `bytes_max`.
    """
    likely = max(0, bytes_max - size) * read // max(1, size) + 1
    return min(4 * count, likely, _PART_ROWS_MAX)


def row_bytes(row: Row) -> int:
    """Return about how many bytes the texts of a row have as JSON."""
    texts = (value for value in row if isinstance(value, str))
    return sum(len(text) if text.isascii() else 3 * len(text) for text in texts)


class Connection(Protocol):
    def run(self, name: str, /, **values: object) -> list[Row]:
        """Run one statement. A value that is None omits the lines that depend on it."""
        ...

    def run_page(self, name: str, limit: int, bytes_max: int, /, **values: object) -> RowPage:
        """Run a statement with `:limit` inside of `snapshot`, and read no more than the page.

        A page has at least one row, if there is one, and otherwise ends before `bytes_max`.
        """
        ...

    def run_rows(self, name: str, rows: Sequence[Row], /, **values: object) -> list[Row]:
        """Run one statement over a table of `rows`, however many there are."""
        ...

    def change_rows(self, name: str, rows: Sequence[Row]) -> None:
        """Run a guarded write: each row must match exactly one record, or raise `GuardFailed`.

        The check may come as late as `commit`.
        """
        ...

    def begin(self) -> SchedulerRow:
        """Open the one write transaction and return the scheduler's row."""
        ...

    def read_ahead(self, reads: Sequence[Read]) -> None:
        """Read this with the lock of the next `begin`, in its round trip; `read` returns it."""
        ...

    def read(self, reads: Sequence[Read]) -> list[list[Row]]:
        """Run statements that read, in one round trip, or in none if they were read ahead."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Return a context in which all reads see the database at one time."""
        ...

    def changed_outside(self) -> bool:
        """Return whether another connection may have written: since the last call, or on a shared
        store between the last transaction of this connection and the current one.
        """
        ...

    @property
    def round_trips(self) -> int:
        """Return how often the current or last transaction waited for the database over a network;
        0 if there is none between.
        """
        ...

    def close(self) -> None: ...


class Announcement(Protocol):
    """Shows other nodes that this process lives, from its start until it is closed."""

    def start(self) -> None: ...

    @property
    def key(self) -> int | None:
        """Return the number of its lock; None while it is not held."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """A database: opens connections and declares its particularities."""

    dialect: str
    url: str
    shared: bool  # other nodes may serve from it too, so polling decides
    vault: Vault  # seals secrets in it

    def migrate(self) -> None:
        """Bring the schema to this version; refuse a newer one."""
        ...

    def claim(self) -> None:
        """Become the one process that serves from this store, if only one may."""
        ...

    def listen(self, heard: Callable[[], None]) -> None:
        """Call `heard`, from any thread, when another node sends a notification. Notifications may
        be lost.
        """
        ...

    def announce(
        self, name: str, *, gone: Callable[[list[str]], None], changed: Callable[[], None]
    ) -> Announcement | None:
        """Show other nodes that this one lives, and call `gone` with nodes that have died. None if
        there are no other nodes.
        """
        ...

    def ring(self) -> None:
        """Notify other nodes that there is something to do. Return at once."""
        ...

    def writer(self) -> Connection: ...

    def reader(self, *, seconds: float = ...) -> Connection:
        """Open a connection for reads; it is lost if a response takes longer than `seconds`."""
        ...

    def version(self) -> int:
        """Return the schema's number, 0 if there is none yet."""
        ...

    def size_bytes(self) -> int: ...

    def damage(self) -> list[str]:
        """Return the problems that the database finds in its own pages; none are expected."""
        ...

    def close(self) -> None: ...


class GuardFailed(Exception):
    """A guarded write did not find the row as it was read: a defect or a second writer."""


class ConnectionLost(Exception):
    """The database is unavailable: unreachable, hung, read-only, full or locked.

    The outcome of a commit in progress is unknown.
    """
