"""Events as JSON: pages of the log, and the events of one task.

One read covers a bounded number of ids, so a filter that matches nothing does not take long.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairlane.core import events
from fairlane.core.access import Caller
from fairlane.core.errors import InvalidRequest
from fairlane.core.model import HANDLER
from fairlane.core.policy import nearest
from fairlane.core.types import LIST_LIMIT_MAX
from fairlane.engine.node import Node
from fairlane.engine.reads.views import EventFilter, EventView, Views
from fairlane.schema import events as schema
from fairlane.schema.events import EventPage, EventShown, TaskEventList, event_shown
from fairlane.services.registry import implements
from fairlane.services.searching import time_point
from fairlane.store.pages import PAGE_BYTES_MAX, Page

WINDOW: Final = 5000


@implements(schema.LIST_EVENTS)
async def list_events(node: Node, caller: Caller, request: schema.ListEvents) -> EventPage:
    views, wanted = node.views, event_filter(caller, request)
    after, size = await starting_id(node, request) or 0, 0
    if request.order == "newest":
        return await _newest(node, wanted, request, after)
    found: list[Any] = []  # as JSON, encoded outside the event loop
    last = await views.read(views.last_event)
    more = after < last
    while more and len(found) < request.limit and size < PAGE_BYTES_MAX:
        left = (request.limit - len(found), PAGE_BYTES_MAX - size)
        encoded, after = await views.read(_encoded, views, wanted, after, last, left)
        found += encoded
        size += sum(len(memoryview(one)) for one in encoded)
        more = after < last
    return EventPage(events=found, next_after=after, more=more)


async def _newest(
    node: Node, wanted: EventFilter, request: schema.ListEvents, after: int
) -> EventPage:
    """Return the events after the one with this id, newest first."""
    views = node.views
    last = await views.read(views.last_event)
    until = last if request.before is None else min(last, request.before - 1)
    found: list[EventView] = []
    while until > after and len(found) < request.limit:
        floor = max(after, until - WINDOW)
        left = request.limit - len(found)
        page = await views.read(views.newest_events, wanted, floor, until, left)
        found += page
        until = page[-1].event.id - 1 if page.more else floor
    more = until > after
    newest = found[0].event.id if found else last
    return EventPage([shown(one) for one in found], newest, more, until + 1 if more else None)


@implements(schema.TASK_EVENTS)
async def list_task_events(node: Node, caller: Caller, request: schema.TaskEvents) -> TaskEventList:
    view = await node.show(request.task_id, caller.agent)
    views = node.views
    last = await views.read(views.last_event)
    found = await views.read(views.events, EventFilter(task=view.task.id), 0, last, LIST_LIMIT_MAX)
    return TaskEventList(events=[shown(one) for one in found], count=len(found))


def event_filter(caller: Caller, request: schema.ListEvents) -> EventFilter:
    """Return the filter of a request. Raise an error if the caller may not see these events."""
    caller.agent_for(request.agent)
    words = [events.ALIASES.get(word, word) for word in request.types or ()]
    for word in words:
        if word not in events.TYPES:
            hint = nearest(word, (*events.TYPES, *events.ALIASES))
            known = f"; use one of {', '.join(events.TYPES)}"
            raise InvalidRequest(f"'{word[:40]}' is not an event type{hint or known}")
    return EventFilter(
        task=request.task,
        batch=request.batch,
        agent=request.agent,
        lane=request.lane,
        session=request.session,
        types=tuple(words) or None,
        owner=caller.agent,
    )


def first_id(request: schema.ListEvents) -> int | None:
    """Return the id to continue after. The id that a reconnecting browser sends is newer than its
    URL.
    """
    return request.after if request.last_event_id is None else int(request.last_event_id)


async def starting_id(node: Node, request: schema.ListEvents) -> int | None:
    """Return the id to continue after, by id and by time; None if neither is given."""
    since = time_point(node, request.since, "since")
    given = first_id(request)
    if since is None:
        return given
    return max(given or 0, await node.views.read(node.views.events_before, since))


def window(
    views: Views, wanted: EventFilter, after: int, last: int, left: tuple[int, int]
) -> tuple[Page[EventView], int]:
    """Return the events of the next window and where to continue; `left` limits items and bytes."""
    until = min(after + WINDOW, last)
    found = views.events(wanted, after, until, *left)
    return found, found[-1].event.id if found.more else until


def shown(view: EventView) -> EventShown:
    return event_shown(
        view.event,
        task_id=view.task_id,
        agent=view.agent,
        lane=view.lane,
        batch=view.batch,
        result=view.result,
        session=view.session,
        handler=_handler(view.capability),
    )


def _handler(capability: str | None) -> str | None:
    """Return the handler that a capability names; None for another kind of task."""
    kind, _, name = (capability or "").partition("/")
    return name if kind == HANDLER and name else None


def _encoded(
    views: Views, wanted: EventFilter, after: int, last: int, left: tuple[int, int]
) -> tuple[list[msgspec.Raw], int]:
    found, after = window(views, wanted, after, last, left)
    return [msgspec.Raw(msgspec.json.encode(shown(one))) for one in found], after
