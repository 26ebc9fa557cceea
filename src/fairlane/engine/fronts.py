"""The fronts of a node that writes: their commands, the leases they hold, and the news they get.

A front's commands join the batches of the writer, and the answers of a commit go back in one frame.
A lease belongs to the front until the worker has received it; if the front dies before that, the
lease is released and costs no attempt. Before a change of tokens or policy is answered, every front
has confirmed it; one that does not confirm in time is ended.
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
from fairlane.engine.writing_node import Measures, WritingNode

log = logging.getLogger("fairlane.fronts")

CONFIRM_SECONDS: Final = 2.0

Call = Callable[[Any], Awaitable[object]]


class Measure(msgspec.Struct, frozen=True):
    """Answer: the `Measures` of a front."""


class Reply:
    """Takes the place of a caller's future: its result is sent to the front.

    `key` is the number of the request, `lease` whether it asks for leases.
    """

    __slots__ = ("_front", "_number", "is_done", "lease")

    def __init__(self, front: FrontLink, number: int, *, lease: bool) -> None:
        self._front = front
        self._number = number
        self.lease = lease
        self.is_done = False

    def done(self) -> bool:
        return self.is_done or self._front.link.closed

    def set_result(self, answer: object) -> None:
        self.is_done = True
        if self.lease:
            self._front.granted(self._number, answer)
        self._front.link.answer(self._number, answer)

    def set_exception(self, error: BaseException) -> None:
        self.set_result(error)


class FrontLink:
    """The writing process's end of the link to one front."""

    def __init__(self, node: WritingNode, calls: Mapping[type, Call], end: Callable[[], None]):
        """`calls` answer requests that are no writer commands. `end` ends the front's process."""
        self.link = Link(self._heard, self._lost)
        self.end = end
        self._node = node
        self._calls: dict[type, Call] = {
            **calls,
            Explain: self._explain,
            ShowRoster: self._show_roster,
            Spend: self._spend,
        }
        self._leasing: dict[int, Reply] = {}
        self._granted: dict[Key, Grant] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def granted(self, number: int, answer: object) -> None:
        """Remember leases until the worker has received them."""
        self._leasing.pop(number, None)
        for one in answer if isinstance(answer, list) else ():
            self._granted[one.task.seq, one.task.fencing_token] = one

    def _heard(self, items: Sequence[tuple[int, Any]]) -> None:
        asked: list[tuple[object, Reply]] = []
        for number, request in items:
            kind = type(request)
            if kind in VERBS or kind is Lease:
                if self._node.draining and admits(request):
                    self.link.answer(number, stopping())
                else:
                    asked.append((request, self._reply(number, request)))
            elif kind is Keep:
                for key in request.leases:
                    self._granted.pop(key, None)
            elif kind is Abandon:
                reply = self._leasing.pop(request.number, None)
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

    def _reply(self, number: int, request: object) -> Reply:
        reply = Reply(self, number, lease=isinstance(request, Lease))
        if reply.lease:
            self._leasing[number] = reply
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
        """Release undelivered leases of the front; its waiting lease requests count as answered."""
        granted, self._granted = self._granted, {}
        self._leasing.clear()
        if granted:
            log.warning("released %d leases that a front had not delivered", len(granted))
            self._node.writer.give_back(list(granted.values()))
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
        found = await asyncio.gather(*(self._answered(front, Measure()) for front in self._links))
        return [one for one in found if isinstance(one, Measures)]

    async def silent(self) -> int:
        """Return how many fronts do not respond."""
        return len(self._links) - len(await self.measures())

    def _tell(self) -> None:
        self._telling = False  # first, so that later news schedule another send
        while self._news:
            news = self._news.popleft()
            for front in self._links:
                front.link.tell(news)

    def _confirm(self, news: News, heard: threading.Event) -> None:
        confirming = asyncio.gather(*(self._confirmed(front, news) for front in self._links))
        confirming.add_done_callback(lambda _: heard.set())

    async def _confirmed(self, front: FrontLink, news: News) -> None:
        if isinstance(await self._answered(front, news), TimeoutError):
            log.warning("a front did not confirm a change of tokens or policy; ending it")
            front.end()

    async def _answered(self, front: FrontLink, value: object) -> object:
        """Return the answer of a front, or the error if there is none."""
        try:
            return await asyncio.wait_for(front.link.ask(value)[1], CONFIRM_SECONDS)
        except (TimeoutError, ConnectionError) as error:
            return error
