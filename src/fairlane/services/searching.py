"""Find tasks by a filter, in ranges of bounded size.

Texts, values and times have no index. One read covers at most a range of sequence numbers, so its
cost does not grow with the store; a cursor continues with the next range.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC
from typing import Final

import msgspec

from fairlane.core import lifecycle, task_conditions, time_points
from fairlane.core.access import Caller
from fairlane.core.errors import InvalidRequest
from fairlane.core.fingerprints import Failure
from fairlane.core.model import HANDLER, PRIORITY_MAX, PRIORITY_NAMES, capability_of
from fairlane.core.policy import nearest
from fairlane.engine.node import Node
from fairlane.engine.reads.views import Filter
from fairlane.schema.task_filters import TaskFilter

# How many tasks one read covers: with a text or a value, which are in the largest rows, or a time.
SEARCHED_MAX: Final = 20_000
SEARCHED_BY_TIME_MAX: Final = 500_000
FAILURES_MAX: Final = 5_000
IDS_MAX: Final = 5_000  # of one read
RANGES_MAX: Final = 20  # of one call that counts


class Search(msgspec.Struct, frozen=True):
    """What to find, and in which order. `failure` is a fingerprint, which no database knows."""

    wanted: Filter
    oldest: bool = False
    failure: str | None = None

    @property
    def range(self) -> int | None:
        """Return how many tasks one read may cover; None if the filter needs no limit."""
        wanted = self.wanted
        if wanted.text is not None or wanted.where is not None or wanted.error is not None:
            return SEARCHED_MAX
        times = (wanted.since, wanted.until, wanted.finished_since, wanted.finished_until)
        return None if times == (None,) * 4 else SEARCHED_BY_TIME_MAX


def filter_of(
    node: Node, caller: Caller, request: TaskFilter, states: Sequence[str] | None
) -> Filter:
    """Return the filter of a request. Raise `InvalidRequest` or `Forbidden`."""
    return Filter(
        agent=visible_agent(caller, request.agent),
        states=None if states is None else list(states),
        lane=request.lane,
        session=request.session,
        batch=request.batch,
        kind=request.kind,
        capability=None if request.handler is None else capability_of(HANDLER, request.handler),
        parent=request.depends_on,
        since=time_point(node, request.since, "since"),
        until=time_point(node, request.until, "until"),
        finished_since=time_point(node, request.finished_since, "finishedSince"),
        finished_until=time_point(node, request.finished_until, "finishedUntil"),
        error=task_conditions.like(request.error),
        text=task_conditions.like(request.text),
        where=task_conditions.stored(request.where or (), request.tag),
        priority=None if request.priority is None else _priority(request.priority),
    )


def _priority(text: str) -> int:
    try:
        number = PRIORITY_NAMES[text] if text in PRIORITY_NAMES else int(text)
    except ValueError:
        number = None
    if number is None or abs(number) > PRIORITY_MAX:
        names = ", ".join(PRIORITY_NAMES)
        raise InvalidRequest(f"field 'priority' must be a whole number or one of {names}")
    return number


def visible_agent(caller: Caller, agent: str | None) -> str | None:
    """Return the agent whose tasks a caller may see: its own, or the requested one."""
    return agent if caller.agent is None else caller.agent_for(agent)


def time_point(node: Node, text: str | None, field: str) -> int | None:
    """Return the time that a field means. Raise `InvalidRequest` that names the field."""
    if text is None:
        return None
    try:
        return time_points.parse(text, node.clock.now(), UTC)
    except ValueError as error:
        raise InvalidRequest(f"field '{field}': {error}") from None


def parse_states(text: str) -> list[str] | None:
    """Return the states of a comma list, None for no filter. Raise for an unknown state."""
    states = []
    for word in (one.strip() for one in text.split(",") if one.strip()):
        state = lifecycle.state_from(word)
        if state is None:
            known = ", ".join(lifecycle.STATES)
            hint = nearest(word, lifecycle.STATES)
            raise InvalidRequest(f"'{word[:40]}' is not a state{hint or f'; use one of {known}'}")
        states.append(state)
    return states or None


# -------------------------------------------------------------------- ranges


async def next_range(node: Node, search: Search, cursor: int | None) -> tuple[Filter, int | None]:
    """Return the filter of the range that begins at a cursor, and the cursor after it; None if
    the range is the last one.
    """
    wanted, size = search.wanted, search.range
    views = node.views
    if search.oldest:
        wanted = msgspec.structs.replace(wanted, after=cursor)
        last = (cursor or 0) + (size or 0)
        if size is None or last >= await views.read(views.search.newest):
            return wanted, None
        return msgspec.structs.replace(wanted, before=last + 1), last
    if size is None:
        return msgspec.structs.replace(wanted, before=cursor), None
    top = cursor or await views.read(views.search.newest) + 1
    floor = max(0, top - 1 - size)
    found = msgspec.structs.replace(wanted, before=top, after=floor)
    return found, floor + 1 if floor else None


async def ids(
    node: Node, search: Search, *, limit: int | None, cursor: int | None
) -> tuple[list[tuple[int, str]], int | None]:
    """Return numbers and ids in the order of the search, and the cursor after them if more may
    follow. Without `limit`, return all.
    """
    found: list[tuple[int, str]] = []
    while True:
        left = None if limit is None else limit - len(found)
        if search.failure is None:
            page, cursor = await _page_of_ids(node, search, left, cursor)
            found += page
        else:
            same, cursor = await _page_of_failures(node, search, left, cursor)
            found += [(one.seq, one.id) for one in same]
        if cursor is None or (limit is not None and len(found) >= limit):
            return found, cursor


async def _page_of_ids(
    node: Node, search: Search, left: int | None, cursor: int | None
) -> tuple[list[tuple[int, str]], int | None]:
    wanted, end = await next_range(node, search, cursor)
    limit = IDS_MAX if left is None else min(left, IDS_MAX)
    page = await node.views.read(node.views.search.ids, wanted, limit, oldest=search.oldest)
    return page, page[-1][0] if len(page) == limit else end


async def _page_of_failures(
    node: Node, search: Search, left: int | None, cursor: int | None
) -> tuple[list[Failure], int | None]:
    """Return tasks with the wanted fingerprint among the next few thousand failures."""
    wanted = msgspec.structs.replace(search.wanted, before=cursor)
    read = node.views.search.failures_like
    same, rest = await node.views.read(read, wanted, FAILURES_MAX, search.failure)
    if left is not None and len(same) > left:
        return same[:left], same[left - 1].seq
    return same, rest


async def count(node: Node, search: Search) -> tuple[dict[str, int], bool]:
    """Count matching tasks by state; return also whether all tasks were covered."""
    counts: dict[str, int] = {}
    cursor: int | None = None
    for _ in range(RANGES_MAX):
        if search.failure is None:
            wanted, cursor = await next_range(node, search, cursor)
            found = await node.views.read(node.views.search.counts, wanted)
        else:
            same, cursor = await _page_of_failures(node, search, None, cursor)
            found = Counter(one.state for one in same)
        for state, number in found.items():
            counts[state] = counts.get(state, 0) + number
        if cursor is None:
            break
    return counts, cursor is None
