"""Access tokens, and the number that changes with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import astuple

from fairlane.core.access import Token
from fairlane.store.base import Connection


def all_tokens(connection: Connection) -> list[Token]:
    """Return all tokens, oldest first, with logins."""
    return [Token(*row) for row in connection.run("token_all")]


def by_id(connection: Connection, ids: Iterable[str]) -> list[Token]:
    return [Token(*row) for row in connection.run_rows("token_find", [(id_,) for id_ in ids])]


def insert(connection: Connection, token: Token) -> None:
    connection.run_rows("token_insert", [astuple(token)])


def revoke(connection: Connection, token_id: str, now: int) -> None:
    connection.change_rows("token_revoke", [(token_id, now)])


def save_uses(connection: Connection, used_at: Mapping[str, int]) -> None:
    """Save when tokens were last used, unless the store has a later time."""
    connection.run_rows("token_use", list(used_at.items()))


def forget(connection: Connection, ids: Iterable[str]) -> None:
    connection.run_rows("token_forget", [(id_,) for id_ in ids])


def version(connection: Connection) -> int:
    """Return the number that changes whenever tokens are created or revoked."""
    number: int = connection.run("access_version")[0][0]
    return number


def next_version(connection: Connection) -> None:
    connection.run("access_changed")
