"""Failures by error: groups of failed and parked tasks, and one retry for all of a group."""

from __future__ import annotations

from typing import Final

import msgspec

from fairlane.core import lifecycle
from fairlane.core.access import Caller
from fairlane.core.errors import NotFound
from fairlane.core.fingerprints import Failure
from fairlane.core.model import HANDLER, capability_of
from fairlane.engine.commands import Reset, Retry
from fairlane.engine.node import Node
from fairlane.engine.reads.views import Filter
from fairlane.schema import failures as schema
from fairlane.schema.failures import FailureFilter, FailureList, failure_status
from fairlane.schema.tasks import TasksChanged
from fairlane.services.pages import number
from fairlane.services.registry import implements
from fairlane.services.searching import FAILURES_MAX, time_point, visible_agent

CONSIDERED_MAX: Final = 10_000
SHOWN_MAX: Final = 100


@implements(schema.FAILURES)
async def list_failures(node: Node, caller: Caller, request: schema.ListFailures) -> FailureList:
    read = node.views.search.failure_groups
    groups, considered, complete = await node.views.read(
        read, _filter(caller, request), CONSIDERED_MAX, *_times(node, request)
    )
    shown = [failure_status(group) for group in groups[: request.limit]]
    return FailureList(shown, len(shown), considered, complete)


@implements(schema.RETRY_FAILURES)
async def retry_failures(node: Node, caller: Caller, request: schema.RetryFailures) -> TasksChanged:
    """Queue again what is failed or parked. Parents go before their children."""
    same, cursor = await _same(node, caller, request)
    if not same and request.cursor is None:
        raise NotFound(
            f"no failed or parked task has the fingerprint '{request.fingerprint[:40]}'; "
            "GET /failures lists them"
        )
    changed = 0
    if not request.dry_run:
        for state, verb in ((lifecycle.FAILED, Retry), (lifecycle.PARKED, Reset)):
            ids = [one.id for one in reversed(same) if one.state == state]
            changed += await node.for_each(verb, ids)
    shown = [one.id for one in same[:SHOWN_MAX]]
    rest = None if cursor is None else str(cursor)
    return TasksChanged(len(same), changed, request.dry_run, shown, rest)


async def _same(
    node: Node, caller: Caller, request: schema.RetryFailures
) -> tuple[list[Failure], int | None]:
    """Return the tasks of a group up to the limit, newest first, and the cursor after them."""
    read, wanted = node.views.search.failures_like, _filter(caller, request)
    since, until = _times(node, request)
    same: list[Failure] = []
    cursor = number(request.cursor)
    while True:
        wanted = msgspec.structs.replace(wanted, before=cursor)
        found, cursor = await node.views.read(read, wanted, FAILURES_MAX, request.fingerprint)
        same += [one for one in found if one.is_within(since, until)]
        if request.limit is not None and len(same) > request.limit:
            same = same[: request.limit]
            cursor = same[-1].seq
        if cursor is None or len(same) == request.limit:
            return same, cursor


def _filter(caller: Caller, request: FailureFilter) -> Filter:
    return Filter(
        agent=visible_agent(caller, request.agent),
        lane=request.lane,
        capability=None if request.handler is None else capability_of(HANDLER, request.handler),
    )


def _times(node: Node, request: FailureFilter) -> tuple[int | None, int | None]:
    return time_point(node, request.since, "since"), time_point(node, request.until, "until")
