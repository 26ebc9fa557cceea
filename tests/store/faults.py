"""Connections that can be watched and broken at named moments, over the real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.store.base import ConnectionLost

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fairlane.store.base import Connection, Row, Store

CONNECT = "connect"
BEGIN = "begin"  # about to ask for the lock
BEGUN = "begun"  # the lock is ours
SAVE = "save"  # the last statement before the commit
COMMIT = "commit"  # about to commit
COMMITTED = "committed"  # durable, but nobody has been told
MOMENTS = (CONNECT, BEGIN, BEGUN, SAVE, COMMIT, COMMITTED)

Watcher = "Callable[[str, WatchedConnection], None]"


class WatchedConnection:
    """A write connection that tells `at` where it is; `at` may raise there."""

    def __init__(self, real: Connection, at: Callable[[str, WatchedConnection], None]) -> None:
        self.real = real
        self._at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def begin(self) -> Row:
        self._at(BEGIN, self)
        row = self.real.begin()
        self._at(BEGUN, self)
        return row

    def run(self, name: str, /, **values: Any) -> list[Row]:
        if name == "writer_save":
            self._at(SAVE, self)
        return self.real.run(name, **values)

    def run_rows(self, name: str, rows: Sequence[Row], /, **values: Any) -> list[Row]:
        return self.real.run_rows(name, rows, **values)

    def commit(self) -> None:
        self._at(COMMIT, self)
        self.real.commit()
        self._at(COMMITTED, self)


class WatchedStore:
    """The store, with watched write connections."""

    def __init__(self, real: Store, at: Callable[[str, WatchedConnection], None]) -> None:
        self.real = real
        self.at = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def writer(self) -> Any:
        connection = WatchedConnection(self.real.writer(), self.at)
        try:
            self.at(CONNECT, connection)
        except BaseException:
            connection.close()
            raise
        return connection


class BreakOnce:
    """Lose the connection the first time that `moment` comes after `arm`."""

    def __init__(self, moment: str) -> None:
        self.moment = moment
        self.struck = 0
        self._armed = False

    def arm(self) -> None:
        self._armed = True

    def __call__(self, moment: str, _connection: WatchedConnection) -> None:
        if self._armed and moment == self.moment:
            self._armed = False
            self.struck += 1
            raise ConnectionLost(f"broken at {moment}")
