"""The rights of the callers that submit messages: their tokens' agents and scopes.

Messages of callers with different rights are kept apart: they are never merged into one run, and
none reaches the inbox of the other's run.
"""

from __future__ import annotations

from collections.abc import Iterable

from fairlane.core import access
from fairlane.store.base import Connection
from fairlane.store.tables import tokens


def of_submitters(
    connection: Connection, ids: Iterable[str | None], now: int
) -> dict[str | None, str]:
    """Return a word for the rights of each token; the same word for the same rights.

    None is a caller without a token, who may do everything. A token that is no longer valid has
    rights of its own.
    """
    wanted = set(ids)
    if len(wanted) < 2:  # nearly always: then there is nothing to tell apart
        return dict.fromkeys(wanted, "")
    found = tokens.by_id(connection, [id_ for id_ in wanted if id_ is not None])
    known = {one.id: one.rights for one in found if one.valid(now)}
    everything = access.rights_of(None, access.ALL)
    return {id_: everything if id_ is None else known.get(id_, f"token {id_}") for id_ in wanted}


def same(connection: Connection, first: str | None, second: str | None, now: int) -> bool:
    found = of_submitters(connection, (first, second), now)
    return found[first] == found[second]
