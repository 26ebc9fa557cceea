"""What the rest of Fairlane may ask of a database: a small protocol, implemented per database.

A driver sends named statements and nothing else. `Connection` is one session with the database,
used by one thread at a time. Moments are milliseconds, JSON is text, a missing value is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from fairlane.store.vault import Vault

Row = tuple[Any, ...]


class Connection(Protocol):
    def run(self, name: str, /, **values: Any) -> list[Row]:
        """Run one statement. A value that is None leaves out the lines that depend on it."""
        ...

    def run_rows(self, name: str, rows: Sequence[Row], /, **values: Any) -> list[Row]:
        """Run one statement over a table of `rows`, however many there are."""
        ...

    def change_rows(self, name: str, rows: Sequence[Row]) -> None:
        """Run a guarded write: each row must hit exactly one record, or `GuardFailed` is raised.

        The check may come as late as `commit`.
        """
        ...

    def begin(self) -> Row:
        """Open the one write transaction: the scheduler's row, and the database's own time.

        The time is None where the process's clock judges.
        """
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Reads inside see one moment of the database."""
        ...

    def changed_outside(self) -> bool:
        """Whether another connection may have written since this was last asked."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """A database: where connections come from, and what is particular to it."""

    dialect: str
    url: str
    shared: bool  # other nodes may serve from it too, so polling is the truth
    vault: Vault  # seals what must not stand in it as it is

    def migrate(self) -> None:
        """Bring the schema to this version, or refuse when it is newer."""
        ...

    def claim(self) -> None:
        """Become the one process that serves from this store, where only one may."""
        ...

    def listen(self, heard: Callable[[], None]) -> None:
        """Call `heard`, from any thread, when another node rings. Rings may get lost."""
        ...

    def ring(self) -> None:
        """Tell other nodes that there is something to do. Returns at once."""
        ...

    def writer(self) -> Connection: ...

    def reader(self) -> Connection: ...

    def version(self) -> int:
        """The schema's number, 0 where there is none yet."""
        ...

    def size_bytes(self) -> int: ...

    def damage(self) -> list[str]:
        """What the database finds wrong with its own pages; empty is what it should be."""
        ...

    def close(self) -> None: ...


class GuardFailed(Exception):
    """A guarded write did not find the row as it was read: a defect or a second writer."""


class ConnectionLost(Exception):
    """The database went away. The outcome of a commit under way is unknown."""
