"""Pages of lists: a page ends at its limit of items or of bytes, whichever comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from fairlane.store.base import Connection, Row

T = TypeVar("T")

# A response is in memory several times while it is built and sent.
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024


class Page(list[T]):
    """Some items of a list, and whether `more` follow."""

    def __init__(self, items: Iterable[T], *, more: bool) -> None:
        super().__init__(items)
        self.more = more


def read_page(
    connection: Connection,
    make: Callable[[Row], T],
    name: str,
    limit: int,
    bytes_max: int = PAGE_BYTES_MAX,
    /,
    **values: object,
) -> Page[T]:
    """Run a statement up to the limits of a page, and build an item from each row."""
    with connection.snapshot():
        rows, more = connection.run_page(name, limit, bytes_max, **values)
    return Page(map(make, rows), more=more)
