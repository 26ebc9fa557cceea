"""The lock that shows the other nodes on PostgreSQL that this process lives.

A thread holds an advisory lock in a database session of its own, and looks a few times a second
whether other nodes still hold theirs. The database releases the lock when the process dies, because
its socket closes. A process that is only stopped keeps the socket, and so the lock. If the session
alone breaks, the thread notices at once and takes the lock again.
"""

from __future__ import annotations

import hashlib
import logging
import selectors
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Final, Protocol

from fairlane.clock import SystemClock
from fairlane.core import presence
from fairlane.core.presence import LOOK_SECONDS
from fairlane.store.base import ConnectionLost, Row

log = logging.getLogger("fairlane.store")

# After so long without a check, no process should rely on the lock: the session may be broken
# without the process having noticed, for example when a network drops its packets.
CERTAIN_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.05
_RETRY_SECONDS_MAX: Final = 1.0
_monotonic: Final = SystemClock().monotonic


def key_of(name: str) -> int:
    """Return the number of a node's lock: 63 bits, so that no two nodes share one."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


class LockSession(Protocol):
    """A session with the database that is kept for the lock it holds."""

    def run(self, name: str, /, **values: object) -> list[Row]: ...

    def wait_for_end(self, seconds: float) -> None:
        """Wait for a time. Raise `ConnectionLost` as soon as the database has ended the session."""
        ...

    def close(self) -> None: ...


class NodeLock:
    """`open_session` connects. `gone` gets the nodes that have died, and `changed` is called when
    the lock was taken or lost. All are called in the thread of the lock.
    """

    def __init__(
        self,
        open_session: Callable[[], LockSession],
        name: str,
        *,
        gone: Callable[[list[str]], None],
        changed: Callable[[], None],
    ) -> None:
        self._open_session = open_session
        self._name = name
        self._gone = gone
        self._changed = changed
        self._key = key_of(name)
        self._held = False
        self._looked_at = 0.0
        self._returned = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fairlane-lock", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def key(self) -> int | None:
        """Return the number of the lock; None while it is not certain that this process holds
        it. Then the node is judged by its leases alone.
        """
        certain = self._held and _monotonic() - self._looked_at < CERTAIN_SECONDS
        return self._key if certain else None

    def close(self) -> None:
        """Release the lock soon; this does not wait for it."""
        self._closed.set()

    def _run(self) -> None:
        pause = 0.0
        while not self._closed.wait(pause):
            try:
                with closing(self._open_session()) as connection:
                    pause = 0.0
                    if not self._keep(connection):
                        return
            except ConnectionLost as error:
                log.debug("the session of this node's lock was lost: %s", error)
            except Exception:
                log.exception("the lock of this node failed")
                pause = _RETRY_SECONDS_MAX
            self._returned = True
            self._tell(held=False)
            pause = min(max(2 * pause, _RETRY_SECONDS), _RETRY_SECONDS_MAX)

    def _keep(self, connection: LockSession) -> bool:
        """Hold the lock until the node stops or the session breaks. Return False if this database
        does not keep locks for a session.
        """
        watch = presence.watch(_monotonic(), returned=self._returned)
        owns = False
        while not self._closed.is_set():
            if not owns:
                # An earlier session of this process may hold it until the database notices its end.
                owns = bool(connection.run("node_lock", lock_key=self._key)[0][0])
                if owns:
                    self._looked_at = _monotonic()
                    self._tell(held=True)
            missing = [
                row[0]
                for row in connection.run("node_missing", name=self._name, lock_key=self._key)
            ]
            if owns and self._name in missing:
                log.warning(
                    "the database does not keep this node's lock, perhaps because of a connection "
                    "pooler: other nodes notice its death when its leases expire"
                )
                self._tell(held=False)
                return False
            others = [name for name in missing if name != self._name]
            self._looked_at = _monotonic()
            watch, gone = presence.look(watch, others, self._looked_at)
            if gone and owns:
                self._gone(gone)
            connection.wait_for_end(LOOK_SECONDS)
        return True

    def _tell(self, *, held: bool) -> None:
        if held != self._held:
            self._held = held
            self._changed()


def wait_readable(fileno: int, seconds: float) -> bool:
    """Return whether a socket has something to read within a time; a closed one does."""
    with selectors.DefaultSelector() as selector:
        selector.register(fileno, selectors.EVENT_READ)
        return bool(selector.select(seconds))
