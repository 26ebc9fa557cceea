"""Methods that every client has besides the operations: follow events and output, and wait."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Coroutine,
    Generator,
    Iterable,
    Sequence,
)
from typing import Final, Literal, Self, TypedDict, Unpack, overload

from fairlane.client import bulk
from fairlane.client.arguments import as_list, refuse_unknown
from fairlane.client.methods import AsyncMethods, Methods
from fairlane.clock import SystemClock
from fairlane.core import lifecycle
from fairlane.core.errors import BusyError
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.types import LIST_LIMIT_MAX
from fairlane.schema.cron import CronJobPage
from fairlane.schema.events import LIST_EVENTS, EventPage, ListEvents
from fairlane.schema.task_status import TaskStatus
from fairlane.schema.task_streams import SUBMIT_LINES, LineOutcome, SubmitLines
from fairlane.schema.tasks import TaskOutput

# How long one request waits on the server; a parked task is noticed when the request ends.
WAIT_SLICE_SECONDS: Final = 1.0
# Where a task stays until a person acts.
AT_REST: Final = lifecycle.TERMINAL | {lifecycle.PARKED}

Shape = JsonObject
Shapes = Generator[Shape, None, None]
AsyncShapes = AsyncGenerator[Shape, None]


class WhichEvents(TypedDict, total=False):
    """Filters for events; an event must match all of them."""

    task: str | None
    batch: str | None
    agent: str | None
    lane: str | None
    session: str | None
    types: Sequence[str]
    since: str | None


class BaseClient(Methods):
    """The methods of clients without an event loop."""

    _clock = SystemClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    @abstractmethod
    def _follow_events(self, request: ListEvents) -> Shapes:
        """Return events as they happen. Nothing that happens after this call is missed."""

    @abstractmethod
    def _follow_output(self, task_id: str) -> Shapes:
        """Return the output of a task until its end."""

    def wait(self, task_id: str, timeout: float | None = None) -> TaskStatus:
        """Wait until the task has ended or is parked, and return it.

        After `timeout` seconds, return the task as it is.
        """
        end = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            left = WAIT_SLICE_SECONDS
            if end is not None:
                left = min(left, max(0.0, end - self._clock.monotonic()))
            task = self.wait_once(task_id, timeout_ms=round(left * 1000))
            over = end is not None and self._clock.monotonic() >= end
            if over or task.state in AT_REST:
                return task

    def events(
        self, *, after: int | None = None, follow: bool = True, **which: Unpack[WhichEvents]
    ) -> Shapes:
        """Iterate over events after the id `after`, in order, each once.

        With `follow`, start at this call unless `after` is given, and continue until the generator
        is closed. Without it, start with the oldest event and end with the newest. Raise
        `Unreachable` if a lost server does not come back.
        """
        request = _events_request(after, which)
        return self._follow_events(request) if follow else self._pages(request)

    @overload
    def output(self, task_id: str, *, follow: Literal[False] = False) -> TaskOutput: ...

    @overload
    def output(self, task_id: str, *, follow: Literal[True]) -> Shapes: ...

    def output(self, task_id: str, *, follow: bool = False) -> TaskOutput | Shapes:
        """Return the text that the newest attempt has produced so far.

        With `follow`, iterate over the text of all attempts, piece by piece, until the task has
        ended or is parked.
        """
        return self._follow_output(task_id) if follow else self.task_output(task_id)

    def submit_many(
        self, tasks: Iterable[JsonMapping], *, idempotency_key: str | None = None
    ) -> Generator[LineOutcome, None, None]:
        """Submit any number of tasks and yield the outcome of each, in order.

        The tasks, each as for `POST /tasks`, are sent in pieces; a piece that gets no response is
        sent again, which submits nothing twice. With your own idempotency key you can also repeat
        the whole call. Raise `Unreachable` if there is no server at first, or none for a minute.
        """
        for piece in bulk.pieces(tasks, idempotency_key):
            yield from self.submit_piece(piece)

    def submit_piece(self, piece: SubmitLines) -> Sequence[LineOutcome]:
        """Submit a piece of a stream; repeat it while the server is busy or away."""
        tries = bulk.Tries(piece, self._clock.monotonic())
        while True:
            try:
                return self.perform(SUBMIT_LINES, piece).tasks
            except BusyError as error:
                self._clock.sleep(tries.pause(error, self._clock.monotonic()))

    def create_cron_jobs(self, documents: Sequence[JsonMapping]) -> CronJobPage:
        """Create all of these jobs or, when something is wrong with one, none."""
        created = self.create_cron_job({"jobs": list(documents)})
        assert isinstance(created, CronJobPage)
        return created

    def last_events(self, count: int, **which: Unpack[WhichEvents]) -> list[Shape]:
        """Return the newest events, oldest first."""
        request, found = _newest_request(which, count), list[Shape]()
        while not _has_newest(request, self.perform(LIST_EVENTS, request), count, found):
            pass
        return found[::-1]

    def _pages(self, request: ListEvents) -> Shapes:
        request.limit = LIST_LIMIT_MAX
        while True:
            page = self.perform(LIST_EVENTS, request)
            yield from page.to_dict()["events"]
            if not _continued(request, page):
                return


class AsyncBaseClient(AsyncMethods):
    """The methods of clients with an event loop, and of the scheduler in this process."""

    @abstractmethod
    def _follow_events(self, request: ListEvents) -> AsyncShapes:
        """Return events as they happen."""

    @abstractmethod
    def _follow_output(self, task_id: str) -> AsyncShapes:
        """Return the output of a task until its end."""

    def events(
        self, *, after: int | None = None, follow: bool = True, **which: Unpack[WhichEvents]
    ) -> AsyncShapes:
        """Iterate over events after the id `after`, in order, each once.

        With `follow`, start with what happens from now on unless `after` is given, and continue
        until the generator is closed. Without it, start with the oldest event and end with the
        newest. A client raises `Unreachable` if a lost server does not come back.
        """
        request = _events_request(after, which)
        return self._follow_events(request) if follow else self._pages(request)

    @overload
    def output(
        self, task_id: str, *, follow: Literal[False] = False
    ) -> Coroutine[object, None, TaskOutput]: ...

    @overload
    def output(self, task_id: str, *, follow: Literal[True]) -> AsyncShapes: ...

    def output(
        self, task_id: str, *, follow: bool = False
    ) -> Coroutine[object, None, TaskOutput] | AsyncShapes:
        """Return the text that the newest attempt has produced so far.

        With `follow`, iterate over the text of all attempts, piece by piece, until the task has
        ended or is parked.
        """
        return self._follow_output(task_id) if follow else self.task_output(task_id)

    async def submit_many(
        self,
        tasks: Iterable[JsonMapping] | AsyncIterable[JsonMapping],
        *,
        idempotency_key: str | None = None,
    ) -> AsyncGenerator[LineOutcome, None]:
        """Submit any number of tasks and yield the outcome of each, in order.

        The tasks, each as for `POST /tasks`, are sent in pieces; a piece that gets no response is
        sent again, which submits nothing twice. With your own idempotency key you can also repeat
        the whole call. Raise `Unreachable` if there is no server at first, or none for a minute.
        """
        async for piece in bulk.async_pieces(tasks, idempotency_key):
            for outcome in await self.submit_piece(piece):
                yield outcome

    async def submit_piece(self, piece: SubmitLines) -> Sequence[LineOutcome]:
        """Submit a piece of a stream; repeat it while the server is busy or away."""
        clock = asyncio.get_running_loop().time
        tries = bulk.Tries(piece, clock())
        while True:
            try:
                return (await self.perform(SUBMIT_LINES, piece)).tasks
            except BusyError as error:
                await asyncio.sleep(tries.pause(error, clock()))

    async def create_cron_jobs(self, documents: Sequence[JsonMapping]) -> CronJobPage:
        """Create all of these jobs or, when something is wrong with one, none."""
        created = await self.create_cron_job({"jobs": list(documents)})
        assert isinstance(created, CronJobPage)
        return created

    async def last_events(self, count: int, **which: Unpack[WhichEvents]) -> list[Shape]:
        """Return the newest events, oldest first."""
        request, found = _newest_request(which, count), list[Shape]()
        while not _has_newest(request, await self.perform(LIST_EVENTS, request), count, found):
            pass
        return found[::-1]

    async def _pages(self, request: ListEvents) -> AsyncShapes:
        request.limit = LIST_LIMIT_MAX
        while True:
            page = await self.perform(LIST_EVENTS, request)
            for event in page.to_dict()["events"]:
                yield event
            if not _continued(request, page):
                return


def _newest_request(which: WhichEvents, count: int) -> ListEvents:
    request = _events_request(None, which)
    request.order, request.limit = "newest", min(LIST_LIMIT_MAX, count)
    return request


def _has_newest(request: ListEvents, page: EventPage, count: int, found: list[Shape]) -> bool:
    """Keep the events of a page; return False if the request is now that of another one."""
    found += page.to_dict()["events"]
    request.limit = min(LIST_LIMIT_MAX, count - len(found))
    request.before = page.next_before
    return request.before is None or request.limit <= 0


def _events_request(after: int | None, which: WhichEvents) -> ListEvents:
    refuse_unknown("events", which, WhichEvents.__annotations__)
    types = as_list(which.get("types") or None)
    others = {name: value for name, value in which.items() if name != "types"}
    return ListEvents(types=types, after=after, **others)  # type: ignore[arg-type]  # a typed dict has no types as **


def pop_after(request: ListEvents) -> str:
    """Take `after` out of a request and return it as the header Last-Event-ID spells it."""
    after, request.after = request.after, None
    return "" if after is None else str(after)


def _continued(request: ListEvents, page: EventPage) -> bool:
    """Move the request to the next page. Return whether there is one."""
    request.after = page.next_after
    return page.more
