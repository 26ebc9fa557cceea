"""Output: the text that runs have produced, in numbered parts."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlane.store.base import Connection, Row
from fairlane.store.pages import PAGE_BYTES_MAX, Page, read_page

LeaseKey = tuple[int, int]  # a task's sequence number and its fencing token


class Piece(msgspec.Struct, frozen=True):
    """A part of a run's output; `token` (the lease's fencing token) and `part` say where to
    continue.
    """

    fencing_token: int
    part: int
    attempt: int
    text: str


def insert(connection: Connection, pieces: Iterable[tuple[int, Piece]]) -> None:
    """Insert pieces by the sequence numbers of their tasks; an existing part stays."""
    rows = [(seq, p.fencing_token, p.part, p.attempt, p.text) for seq, p in pieces]
    connection.run_rows("output_insert", rows)


def sizes(connection: Connection, leases: Iterable[LeaseKey]) -> dict[LeaseKey, tuple[int, int]]:
    """Return the number of the next part and the number of characters stored, by lease."""
    rows = list(dict.fromkeys(leases))
    counted = connection.run_rows("output_sizes", rows) if rows else ()
    return {(row[0], row[1]): (row[2], row[3]) for row in counted}


def newest_token(connection: Connection, seq: int) -> int:
    """Return the fencing token of the newest attempt with output; 0 if there is none."""
    token: int | None = connection.run("output_newest", seq=seq)[0][0]
    return token or 0


def page(
    connection: Connection,
    seq: int,
    *,
    token: int,
    part: int,
    limit: int,
    bytes_max: int = PAGE_BYTES_MAX,
) -> Page[Piece]:
    """Return the pieces after `part` of the lease with this fencing token, in order."""
    place = {"seq": seq, "token": token, "part": part}
    return read_page(connection, _piece, "output_view", limit, bytes_max, **place)


def _piece(row: Row) -> Piece:
    return Piece(*row)
