"""Cursors of lists that are ordered by a number."""

from __future__ import annotations


def number(cursor: str | None) -> int | None:
    """Return the number at which the previous page ended."""
    return None if cursor is None else int(cursor)
