"""Open the store of an address: the only place that names a database driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairlane import config
from fairlane.core.errors import (
    InvalidSettings,
    OperatorError,
    StoreMismatch,
    StoreUnavailable,
)
from fairlane.core.secrets import References
from fairlane.store import vault
from fairlane.store.base import ConnectionLost, Store
from fairlane.store.copying.side import StoreSide
from fairlane.store.copying.sqlite_side import SqliteSide
from fairlane.store.sqlite import MEMORY, SqliteStore
from fairlane.store.vault import Vault

if TYPE_CHECKING:
    from fairlane.store.postgres import PostgresStore

MEMORY_URL: Final = f"sqlite://{MEMORY}"


def open_store(
    url: str, *, secret_key: str | None = None, references: References | None = None
) -> Store:
    """Open `sqlite:///path`, `sqlite://:memory:` or `postgresql://…`.

    `secret_key`, one or more separated by blanks, seals the secrets in it. Without it a key file is
    used, and created if there is none: beside a database file, otherwise in the user's data folder.
    """
    store = _store(url)
    keys = _own_keys(store) if secret_key is None else _parse_keys(secret_key)
    store.vault = Vault(keys, references)
    return store


def _parse_keys(text: str) -> Callable[[], Sequence[bytes]]:
    try:
        keys = vault.read_keys(text)
    except ValueError as error:
        raise InvalidSettings([f"secret_key: {error}"]) from None
    return lambda: keys


def _own_keys(store: Store) -> Callable[[], Sequence[bytes]]:
    if not isinstance(store, SqliteStore):
        return lambda: vault.keys_of_file(config.key_file())
    if store.path == MEMORY:
        return lambda: [vault.new_key()]
    # One file may have several names, but has one key.
    return lambda: vault.keys_of_file(Path(os.path.realpath(store.path) + ".key"))


def sqlite_path(url: str) -> str | None:
    """Return the path in the address of a SQLite store; None for PostgreSQL. Opens nothing.

    Raise `OperatorError` if it is not the address of a store.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and rest == MEMORY:
        return MEMORY
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        # Three slashes and a relative path, or four and an absolute one, as is customary.
        return rest[1:]
    if scheme in ("postgresql", "postgres"):
        return None
    shown = url if not separator else f"{scheme}://…"
    raise OperatorError(
        f"{shown!r} is not the address of a store; use sqlite:///PATH or postgresql://HOST/NAME"
    )


def _store(url: str) -> Store:
    path = sqlite_path(url)
    return _postgres_store(url) if path is None else SqliteStore(path, url)


def _postgres_store(url: str) -> PostgresStore:
    try:
        from fairlane.store.postgres import PostgresStore  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise StoreMismatch(
            "PostgreSQL needs its driver: pip install '.[postgres]' in a clone of fairlane"
        ) from None
    return PostgresStore(url)


# -------------------------------------------------------------------- copies


def open_side(url: str, location: str) -> StoreSide:
    """Open a store for a copy of all its tables. Messages call it `location`."""
    path = sqlite_path(url)
    if path is None:
        return _postgres_side(url, location)
    if path == MEMORY:
        raise OperatorError(f"{url} ends with its process; use sqlite:///PATH")
    store = SqliteStore(path, url)
    store.refuse_others()  # opening a file as a store changes it
    return SqliteSide(path, location, store.open_file())


def _postgres_side(url: str, location: str) -> StoreSide:
    from fairlane.store.copying.postgres_side import PostgresSide  # noqa: PLC0415 - an optional extra

    try:
        return PostgresSide(location, _postgres_store(url).copier())
    except ConnectionLost as error:
        raise StoreUnavailable(f"{location} does not respond: {error}") from None


def key_path(url: str) -> Path:
    """Return the file with the keys of a store, if the settings name no key."""
    path = sqlite_path(url)
    return config.key_file() if path is None else Path(os.path.realpath(path) + ".key")


def carry_keys(source_url: str, target_url: str) -> Path | None:
    """Add the source's keys to the target's key file; return that file if it has changed."""
    source, target = key_path(source_url), key_path(target_url)
    if source == target or not source.exists():
        return None
    return target if vault.add_keys(target, vault.keys_of_file(source)) else None
