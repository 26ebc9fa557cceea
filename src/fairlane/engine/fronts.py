"""The fronts of a node that writes: their commands, the leases they hold, and the news they get.

A front's commands join the batches of the writer, and the answers of a commit go back in one frame.
A lease belongs to the front until the worker has received it; if the front dies before that, the
lease is released and costs no attempt. Connections that workers keep open to a front end with it.
Before a change of tokens or policy is answered, every front has confirmed it; one that does not
confirm in time is ended, and so is one that is silent for long. News for a front that does not read
are merged, so that they do not fill the memory.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from fairlane.core.errors import FairlaneError
from fairlane.engine.commands import Grant, Lease, Release
from fairlane.engine.engine import VERBS
from fairlane.engine.front_node import Abandon, Explain, Keep, Key, Owe, ShowRoster, Spend
from fairlane.engine.links import Link
from fairlane.engine.node import News, admits, stopping
from fairlane.engine.presence_commands import ClosePresence, OpenPresence
from fairlane.engine.writer import waits
from fairlane.engine.writing_node import Measures, WritingNode

log = logging.getLogger("fairlane.fronts")

CONFIRM_SECONDS: Final = 2.0
SILENT_SECONDS: Final = 30.0  # after which a front without an answer is ended

Call = Callable[[Any], Awaitable[object]]


class Measure(msgspec.Struct, frozen=True):
    """Answer: the `Measures` of a front."""


class Reply:
    """Takes the place of a caller's future: its result is sent to the front.

    `waits` is whether the request may wait for leases or a permit.
    """

    __slots__ = ("_front", "_number", "is_done", "waits")

    def __init__(self, front: FrontLink, number: int, *, waits: bool) -> None:
        self._front = front
        self._number = number
        self.waits = waits
        self.is_done = False

    def done(self) -> bool:
        return self.is_done or self._front.link.closed

    def set_result(self, answer: object) -> None:
        self.is_done = True
        if self.waits:
            self._front.granted(self._number, answer)
        self._front.link.answer(self._number, answer)

    def set_exception(self, error: BaseException) -> None:
        self.set_result(error)


class FrontLink:
    """The writing process's end of the link to one front."""

    def __init__(self, node: WritingNode, calls: Mapping[type, Call], end: Callable[[], None]):
        """`calls` answer requests that are no writer commands. `end` ends the front's process."""
        self.link = Link(self._heard, self._lost, drained=self._catch_up)
        self.end = end
        self.begun = False  # it serves, so it must confirm news
        self._node = node
        self._calls: dict[type, Call] = {
            **calls,
            Explain: self._explain,
            ShowRoster: self._show_roster,
            Spend: self._spend,
        }
        self._waiting: dict[int, Reply] = {}
        self._missed: News | None = None
        self._granted: dict[Key, Grant] = {}
        self._present: dict[str, ClosePresence] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def tell(self, news: News) -> None:
        """Pass news on. While the front does not read, they are merged until it does."""
        if self.link.full:
            self._missed = news if self._missed is None else _merged(self._missed, news)
        else:
            self.link.tell(news)

    def _catch_up(self) -> None:
        missed, self._missed = self._missed, None
        if missed is not None:
            self.link.tell(missed)

    def granted(self, number: int, answer: object) -> None:
        """Remember leases until the worker has received them."""
        self._waiting.pop(number, None)
        for one in answer if isinstance(answer, list) else ():
            if isinstance(one, Grant):
                self._granted[one.task.seq, one.task.fencing_token] = one

    def _heard(self, items: Sequence[tuple[int, Any]]) -> None:
        asked: list[tuple[object, Reply]] = []
        for number, request in items:
            kind = type(request)
            if kind in VERBS or kind is Lease:
                if self._node.draining and admits(request):
                    self.link.answer(number, stopping())
                else:
                    self._note_presence(request)
                    asked.append((request, self._reply(number, request)))
            elif kind is Keep:
                for key in request.leases:
                    self._granted.pop(key, None)
            elif kind is Abandon:
                reply = self._waiting.pop(request.number, None)
                if reply is not None:
                    reply.is_done = True
            elif kind is Owe:
                self._node.tokens.owe(request.caller, request.cost)
            else:
                task = asyncio.create_task(self._call(number, request))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if asked:
            self._node.writer.take(asked, self.link.loop)

    def _note_presence(self, request: object) -> None:
        if isinstance(request, OpenPresence):
            closed = ClosePresence(request.worker, request.id, request.agent, gone=False)
            self._present[request.id] = closed
        elif isinstance(request, ClosePresence):
            self._present.pop(request.id, None)

    def _reply(self, number: int, request: object) -> Reply:
        reply = Reply(self, number, waits=waits(request))
        if reply.waits:
            self._waiting[number] = reply
        elif isinstance(request, Release):
            self._granted.pop((request.seq, request.fencing_token), None)
        return reply

    async def _call(self, number: int, request: object) -> None:
        try:
            answer = await self._calls[type(request)](request)
        except FairlaneError as error:
            answer = error
        except Exception as error:
            log.exception("a request of a front failed")
            answer = error
        self.link.answer(number, answer)

    async def _explain(self, asked: Explain) -> object:
        return await self._node.why(asked.task_id, asked.agent)

    async def _show_roster(self, _: ShowRoster) -> object:
        return list(await self._node.workers())

    async def _spend(self, asked: Spend) -> None:
        await self._node.tokens.refresh()
        self._node.tokens.spend(asked.caller)

    def _lost(self) -> None:
        """Release undelivered leases of the front; its waiting requests count as answered. Workers
        that were connected to it connect to another.
        """
        granted, self._granted = self._granted, {}
        self._waiting.clear()
        if granted:
            log.warning("released %d leases that a front had not delivered", len(granted))
            self._node.writer.give_back(list(granted.values()))
        present, self._present = self._present, {}
        for closed in present.values():
            self._node.writer.tell(closed)
        for task in self._tasks:
            task.cancel()


class FrontLinks:
    """All fronts of a node. `spread` may be called in any thread, the rest in the event loop."""

    def __init__(self, node: WritingNode) -> None:
        self._loop = asyncio.get_running_loop()
        self._links: list[FrontLink] = []
        self._news: deque[News] = deque()
        self._telling = False  # a send of the collected news is scheduled
        node.on_news.append(self.spread)
        node.measure_fronts = self.measures
        node.silent_fronts = self.silent

    def add(self, front: FrontLink) -> None:
        self._links.append(front)

    def remove(self, front: FrontLink) -> None:
        self._links.remove(front)

    def spread(self, news: News, confirmed: bool) -> None:  # noqa: FBT001 - called by the node
        """Send news to all fronts. If `confirmed`, block until each has them."""
        if not self._links:
            return
        if not confirmed:
            self._news.append(news)
            if not self._telling:
                self._telling = True
                self._loop.call_soon_threadsafe(self._tell)
            return
        heard = threading.Event()
        self._loop.call_soon_threadsafe(self._confirm, news, heard)
        if not heard.wait(CONFIRM_SECONDS + 1):
            log.warning("the event loop did not pass on a change of tokens or policy in time")

    async def measures(self) -> list[Measures]:
        """Return what each front measures; one that does not respond in time is left out."""
        asked = (self._answered(front, Measure(), CONFIRM_SECONDS) for front in self._links)
        found = await asyncio.gather(*asked)
        return [one for one in found if isinstance(one, Measures)]

    async def silent(self) -> int:
        """Return how many fronts do not respond."""
        return len(self._links) - len(await self.measures())

    def _tell(self) -> None:
        self._telling = False  # first, so that later news schedule another send
        while self._news:
            news = self._news.popleft()
            for front in self._links:
                front.tell(news)

    def _confirm(self, news: News, heard: threading.Event) -> None:
        for front in self._links:
            if not front.begun:  # it has heard them before it gets its first connection
                front.tell(news)
        serving = [front for front in self._links if front.begun]
        confirming = asyncio.gather(*(self._confirmed(front, news) for front in serving))
        confirming.add_done_callback(lambda _: heard.set())

    async def _confirmed(self, front: FrontLink, news: News) -> None:
        if isinstance(await self._answered(front, news, CONFIRM_SECONDS), TimeoutError):
            log.warning("a front did not confirm a change of tokens or policy; ending it")
            front.end()

    async def end_silent(self) -> None:
        """End the fronts that do not respond: their connections would wait for ever."""
        serving = [front for front in self._links if front.begun]
        answers = (self._answered(front, Measure(), SILENT_SECONDS) for front in serving)
        for front, answer in zip(serving, await asyncio.gather(*answers), strict=True):
            if isinstance(answer, TimeoutError):
                log.warning("a front did not respond for %g seconds; ending it", SILENT_SECONDS)
                front.end()

    @staticmethod
    async def _answered(front: FrontLink, value: object, seconds: float) -> object:
        """Return the answer of a front, or the error if there is none."""
        try:
            return await asyncio.wait_for(front.link.ask(value)[1], seconds)
        except (TimeoutError, ConnectionError) as error:
            return error


def _merged(one: News, other: News) -> News:
    """Return what both say. It is not known then which tasks and sessions they are about."""
    return News(
        ended=() if one.ended == other.ended == () else None,
        sessions=() if one.sessions == other.sessions == () else None,
        events=one.events or other.events,
        access=one.access or other.access,
        policy=other.policy or one.policy,
        draining=one.draining or other.draining,
        drained=one.drained or other.drained,
        judged=other.judged or one.judged,
    )
