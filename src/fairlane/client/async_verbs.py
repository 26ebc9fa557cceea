"""The verbs for who has an event loop: answers are awaited, and what is followed is a stream."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from typing import Any, Literal, Unpack, overload

from fairlane.client.methods import AsyncMethods
from fairlane.client.verbs import Verbs, WhichEvents, event_query, task_path
from fairlane.schema import sse, wire
from fairlane.schema.cron import CronJobPage

Shape = dict[str, Any]
Shapes = AsyncGenerator[Shape, None]
Call = Coroutine[Any, Any, Shape]


class AsyncVerbs(Verbs[Call], AsyncMethods):
    @abstractmethod
    def _stream(
        self, path: str, query: Mapping[str, Any], last_id: str
    ) -> AsyncGenerator[sse.Event, None]:
        """What a route streams behind the event `last_id`, over as many connections as it takes."""

    def events(
        self, *, after: int | None = None, follow: bool = True, **which: Unpack[WhichEvents]
    ) -> Shapes:
        """Iterate over events after the id `after`, in order, each once.

        With `follow`, start with what happens from now on unless `after` is given, and continue
        until the generator is closed. Without it, start with the oldest event and end with the
        newest. A client raises `Unreachable` if a lost server does not come back.
        """
        query = event_query(which)
        if not follow:
            return self._pages(query, after or 0)
        return _decoded(self._stream("/events", query, "" if after is None else str(after)))

    @overload
    def output(self, task_id: str, *, follow: Literal[False] = False) -> Call: ...

    @overload
    def output(self, task_id: str, *, follow: Literal[True]) -> Shapes: ...

    def output(self, task_id: str, *, follow: bool = False) -> Call | Shapes:
        """Return the text that the newest attempt has produced so far.

        With `follow`, iterate over the text of all attempts, piece by piece, until the task has
        ended or is parked.
        """
        path = task_path(task_id, "/output")
        if not follow:
            return self.call("GET", path)
        return _decoded(self._stream(path, {}, ""), until="end")

    async def create_cron_jobs(self, documents: Sequence[Mapping[str, Any]]) -> CronJobPage:
        """Create all of these jobs or, when something is wrong with one, none."""
        created = await self.create_cron_job({"jobs": list(documents)})
        assert isinstance(created, CronJobPage)
        return created

    async def _pages(self, query: Mapping[str, Any], after: int) -> Shapes:
        while True:
            where = {**query, "after": after, "limit": wire.LIST_LIMIT_MAX}
            page = await self.call("GET", "/events", query=where)
            for event in page["events"]:
                yield event
            after = page["nextAfter"]
            # A page may be short because its events are large; an older server does not say.
            if not page.get("more", len(page["events"]) == wire.LIST_LIMIT_MAX):
                return


async def _decoded(stream: AsyncGenerator[sse.Event, None], until: str | None = None) -> Shapes:
    async with contextlib.aclosing(stream):
        async for event in stream:
            if event.name == until:
                return
            yield wire.decode(event.data)
