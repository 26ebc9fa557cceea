"""PostgreSQL errors that mean that the store is unavailable.

A request cannot cause any of these: its values are parameters of fixed statements. So an error with
one of these codes concerns the database (it is stopping, recovering, read-only, full or the wrong
one), and the same request may succeed later. All other errors are about the statement or its
values; they are defects and are raised unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

import psycopg

from fairlane.store.base import ConnectionLost

# SQLSTATE, or the two characters of its class; see Appendix A of PostgreSQL's manual.
UNAVAILABLE: Final[Mapping[str, str]] = {
    "08": "the connection failed",
    "25006": "the database is read-only: a standby, or the wrong side of a failover",
    "25P02": "an earlier statement of the transaction failed",
    "25P03": "the transaction was idle for too long",
    "25P04": "the transaction took too long",
    "28": "the login is refused: roles and passwords may differ after a failover",
    "3D000": "the database does not exist",
    "3F000": "the schema does not exist",
    "40": "the transaction was rolled back: a deadlock or a conflict",
    "42501": "the role lacks a privilege: grants may differ after a failover",
    "42P01": "a table does not exist: this is another database, or it is being restored",
    "53": "out of resources: disk, memory or connections",
    "55": "an object is locked or in the wrong state",
    "57": "an operator or a timeout intervened: shutdown, recovery, cancelled statement",
    "58": "the database system failed: an I/O error or a lost file",
}


def is_loss(error: psycopg.Error) -> bool:
    """Return whether the database is unavailable, as opposed to a statement that is wrong."""
    state = error.sqlstate
    if state is None:  # libpq or the driver noticed it, not the server
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return state in UNAVAILABLE or state[:2] in UNAVAILABLE


def raise_lost(error: psycopg.Error) -> NoReturn:
    """Raise `ConnectionLost` if the database is unavailable, else the error itself."""
    if is_loss(error):
        raise ConnectionLost(first_line(error)) from error
    raise error


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
