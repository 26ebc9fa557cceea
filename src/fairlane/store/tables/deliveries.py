"""Webhook deliveries, with the log of each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from fairlane.core.webhooks import DUE, Delivery
from fairlane.store.base import Connection, Row
from fairlane.store.pages import Page, read_page


class DeliveryFilter(msgspec.Struct, frozen=True):
    """Which deliveries to list; `before` and `before_id` continue below one of them."""

    agent: str | None = None
    state: str | None = None
    about: str | None = None
    before: int | None = None
    before_id: str | None = None


class DueDelivery(NamedTuple):
    """A delivery to send; `seq` is its task's, batch's or run's, `attempts` counts earlier ones."""

    id: str
    seq: int
    url: str
    event: str
    attempts: int
    agent: str


class Settlement(NamedTuple):
    """The outcome of one attempt; `line` is appended to the log."""

    id: str
    state: str
    due_at: int
    error: str | None
    settled_at: int | None
    status: int | None
    line: str


def insert(connection: Connection, owed: Iterable[DueDelivery], now: int) -> None:
    """Insert deliveries that are due at once."""
    rows = [
        (one.id, one.seq, one.url, one.event, DUE, now, one.attempts, now, one.agent)
        for one in owed
    ]
    connection.run_rows("delivery_insert", rows)


def due(connection: Connection, now: int, limit: int) -> list[DueDelivery]:
    return [DueDelivery(*row) for row in connection.run("delivery_due", now=now, limit=limit)]


def claim(connection: Connection, claims: Iterable[tuple[str, int]]) -> None:
    """Count an attempt; the delivery is due again at the given time unless it is settled."""
    connection.change_rows("delivery_claim", list(claims))


def defer(connection: Connection, later: Iterable[tuple[str, int]]) -> None:
    """Make deliveries due later."""
    connection.change_rows("delivery_defer", list(later))


def reclaim(connection: Connection, now: int) -> None:
    """Make claimed deliveries due at once."""
    connection.run("delivery_reclaim", now=now)


def settle(connection: Connection, settlements: Iterable[Settlement]) -> None:
    """Save the outcomes of attempts; a delivery that was settled meanwhile stays as it is."""
    connection.run_rows("delivery_settle", list(settlements))


def give_up(connection: Connection, settlements: Iterable[Settlement]) -> None:
    """Settle due deliveries, each of which must exist."""
    connection.change_rows("delivery_settle", list(settlements))


def send_again(connection: Connection, delivery_id: str, now: int) -> None:
    connection.change_rows("delivery_again", [(delivery_id, now)])


def by_id(connection: Connection, ids: Iterable[str]) -> list[Delivery]:
    rows = connection.run_rows("delivery_by_id", [(id_,) for id_ in dict.fromkeys(ids)])
    return [Delivery(*row) for row in rows]


# -------------------------------------------------------------------- reads


def view(connection: Connection, delivery_id: str) -> Delivery | None:
    rows = connection.run("delivery_view", id=delivery_id)
    return Delivery(*rows[0]) if rows else None


def page(connection: Connection, wanted: DeliveryFilter, limit: int) -> Page[Delivery]:
    """Return deliveries, newest first."""
    name = "delivery_list" if wanted.about is None else "delivery_list_of"
    return read_page(connection, _delivery, name, limit, **msgspec.structs.asdict(wanted))


def _delivery(row: Row) -> Delivery:
    return Delivery(*row)


def next_ms(connection: Connection, now: int) -> int | None:
    """Return how long until a delivery is due, by the authoritative clock; None if none is."""
    left: int | None = connection.run("delivery_next", now=now)[0][0]
    return left


def count_unsent(connection: Connection, limit: int) -> int:
    """Count the deliveries that wait to be sent, up to `limit`."""
    count: int = connection.run("delivery_owed", limit=limit)[0][0]
    return count
