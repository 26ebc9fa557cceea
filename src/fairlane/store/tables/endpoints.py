"""Endpoints: callback URLs with their own secret, which is sealed here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from fairlane.core.webhooks import Endpoint
from fairlane.store.base import Connection, Row
from fairlane.store.pages import Page, read_page

_ENDPOINT_WIDTH: Final = len(Endpoint.__struct_fields__)


class SealedEndpoint(msgspec.Struct, frozen=True):
    """An endpoint with its secrets as sealed in the store."""

    endpoint: Endpoint
    secret: str
    previous: str | None

    @property
    def id(self) -> str:
        return self.endpoint.id


def _sealed(row: Row) -> SealedEndpoint:
    return SealedEndpoint(Endpoint(*row[:_ENDPOINT_WIDTH]), *row[_ENDPOINT_WIDTH:])


def _endpoint(row: Row) -> Endpoint:
    return Endpoint(*row)


def by_url(connection: Connection, targets: Iterable[tuple[str, str]]) -> list[SealedEndpoint]:
    """Return endpoints by agent and URL."""
    return list(map(_sealed, connection.run_rows("endpoint_by_url", list(targets))))


def by_id(connection: Connection, endpoint_id: str) -> SealedEndpoint | None:
    rows = connection.run_rows("endpoint_by_id", [(endpoint_id,)])
    return _sealed(rows[0]) if rows else None


def subscribed(connection: Connection) -> list[Endpoint]:
    """Return the endpoints that subscribe to events."""
    return list(map(_endpoint, connection.run("endpoint_subscribed")))


def insert(connection: Connection, endpoint: Endpoint, secret: str) -> None:
    connection.run_rows("endpoint_insert", [(*msgspec.structs.astuple(endpoint), secret)])


def rotate(connection: Connection, rotated: SealedEndpoint) -> None:
    """Save the secrets of an endpoint, and their times of validity."""
    one = rotated.endpoint
    row = (one.id, one.rotated_at, one.previous_until, rotated.secret, rotated.previous)
    connection.change_rows("endpoint_rotate", [row])


def enable(connection: Connection, endpoint_id: str) -> None:
    connection.change_rows("endpoint_able", [(endpoint_id, None)])


def disable(connection: Connection, ids: Iterable[str], now: int) -> None:
    connection.run_rows("endpoint_able", [(id_, now) for id_ in ids])


def delete(connection: Connection, endpoint_id: str) -> None:
    connection.run_rows("endpoint_delete", [(endpoint_id,)])


# -------------------------------------------------------------------- reads


def view(connection: Connection, endpoint_id: str) -> Endpoint | None:
    rows = connection.run("endpoint_view", id=endpoint_id)
    return Endpoint(*rows[0]) if rows else None


def page(
    connection: Connection, agent: str | None, before: int | None, limit: int
) -> Page[Endpoint]:
    """Return endpoints, newest first, below `before`."""
    return read_page(connection, _endpoint, "endpoint_list", limit, agent=agent, before=before)
