"""From an address to a store: the only place that names a database driver."""

from __future__ import annotations

from fairlane.core.errors import OperatorError, StoreMismatch
from fairlane.store.base import Store
from fairlane.store.sqlite import MEMORY, SqliteStore


def open_store(url: str) -> Store:
    """`sqlite:///path`, `sqlite://:memory:` or `postgresql://…`."""
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and rest == MEMORY:
        return SqliteStore(MEMORY, url)
    if scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        # Three slashes and a relative path, or four and an absolute one, as is the custom.
        return SqliteStore(rest[1:], url)
    if scheme in ("postgresql", "postgres"):
        return _postgres_store(url)
    shown = url if not separator else f"{scheme}://…"
    raise OperatorError(
        f"{shown!r} is not the address of a store; use sqlite:///PATH or postgresql://HOST/NAME"
    )


def _postgres_store(url: str) -> Store:
    try:
        from fairlane.store.postgres import PostgresStore  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise StoreMismatch(
            "PostgreSQL needs its driver: pip install 'fairlane[postgres]'"
        ) from None
    return PostgresStore(url)
