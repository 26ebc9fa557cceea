"""Totals of handlers by hour and agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from fairlane.core.handler_totals import Key, Totals, added
from fairlane.store.base import Connection, Row

ROWS_MAX: Final = 200_000
_WIDTH: Final = 3  # columns of the key


def add(connection: Connection, totals: Mapping[Key, Totals]) -> None:
    """Add totals to the stored ones."""
    stored = {_key(row): _totals(row) for row in connection.run_rows("totals_find", [*totals])}
    rows = [(*key, *_columns(one)) for key, one in added([stored, totals]).items()]
    connection.run_rows("totals_save", rows)


def since(
    connection: Connection, hour: int, agent: str | None, capability: str | None
) -> dict[Key, Totals]:
    """Return the totals from an hour on; of one agent or capability, or of all."""
    rows = connection.run(
        "totals_since", since=hour, agent=agent, capability=capability, limit=ROWS_MAX
    )
    return {_key(row): _totals(row) for row in rows}


def forget(connection: Connection, before: int) -> None:
    connection.run("totals_forget", before=before)


def _key(row: Row) -> Key:
    return row[0], row[1], row[2]


def _columns(one: Totals) -> Row:
    *counts, waits, durations = msgspec.structs.astuple(one)
    return (*counts, msgspec.json.encode(waits).decode(), msgspec.json.encode(durations).decode())


def _totals(row: Row) -> Totals:
    *counts, waits, durations = row[_WIDTH:]
    values = [*counts, _decode(waits), _decode(durations)]
    return Totals(*values)


_decode: Final = msgspec.json.Decoder(list[int]).decode
