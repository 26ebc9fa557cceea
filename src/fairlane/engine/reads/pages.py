"""Pages of lists: a page ends at its limit of items or of bytes, whichever comes first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

T = TypeVar("T")

# An answer is in memory several times while it is made and sent.
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024


class Page(list[T]):
    """Some items of a list, and whether `more` follow. Only the last page says that none do."""

    def __init__(self, items: Iterable[T], *, more: bool) -> None:
        super().__init__(items)
        self.more = more
