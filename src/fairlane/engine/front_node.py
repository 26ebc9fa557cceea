"""The node of a front: a process that serves requests beside the one that writes.

It reads the store itself, and sends commands to the process that writes. That process pushes the
news of each commit, so streams and waits work as they do there. The commands of this module ask it
for data that only it has.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from fairlane.clock import Clock
from fairlane.core.access import Caller
from fairlane.core.policy import Policy
from fairlane.core.workers import KnownWorker
from fairlane.engine.command_writer import releases
from fairlane.engine.links import Link
from fairlane.engine.node import News, Node
from fairlane.engine.reads.why import Explained
from fairlane.engine.telemetry.outages import Outages
from fairlane.engine.verbs.tokens import Tokens
from fairlane.store.base import Store

Key = tuple[int, int]


class Explain(msgspec.Struct, frozen=True):
    """Answer: `Explained`, why a task does not run yet."""

    task_id: str
    agent: str | None


class ShowRoster(msgspec.Struct, frozen=True):
    """Answer: a list of `KnownWorker`, the workers that the server knows."""


class Spend(msgspec.Struct, frozen=True):
    """Answer: None, or `RateLimited`. Count a request against the rate of the caller's token."""

    caller: Caller


class Owe(msgspec.Struct, frozen=True):
    """No answer. Charge the cost of a request beyond the first unit."""

    caller: Caller
    cost: int


class ShowMetrics(msgspec.Struct, frozen=True):
    """Answer: the text of `GET /metrics`."""


class Abandon(msgspec.Struct, frozen=True):
    """No answer. The caller of a waiting lease or permit has disconnected."""

    number: int


class Keep(msgspec.Struct, frozen=True):
    """No answer. The worker has received these leases."""

    leases: list[Key]


class RemoteWriter:
    """Sends commands to the process that writes. Only `tell` may be called in any thread."""

    def __init__(self, link: Link, policy: Policy, clock: Clock) -> None:
        self.policy = policy
        self.judged: tuple[int, float] | None = None
        self._link = link
        self._clock = clock
        self._thread = threading.get_ident()

    def moment(self) -> int:
        if self.judged is None:
            return self._clock.now()
        return self.judged[0] + round((self._clock.monotonic() - self.judged[1]) * 1000)

    async def ask(self, request: object) -> Any:
        number, future = self._link.ask(request)
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give_back(future.result())  # the caller left while the answer arrived
            else:
                self._link.tell(Abandon(number))
            raise

    def tell(self, request: object) -> None:
        if threading.get_ident() == self._thread:
            self._link.tell(request)
        else:
            self._link.loop.call_soon_threadsafe(self._link.tell, request)

    def give_back(self, answer: object) -> None:
        for one in releases(answer):
            self.tell(one)

    def keep(self, leases: Sequence[Key]) -> None:
        self._link.tell(Keep(list(leases)))


class FrontTokens(Tokens):
    """The cache of tokens in a front. Requests are counted in the process that writes."""

    def owe(self, caller: Caller, cost: int) -> None:
        if cost and self.rate_of(caller) is not None:
            self._writer.tell(Owe(caller, cost))


class FrontNode(Node):
    writer: RemoteWriter

    def __init__(
        self, store: Store, clock: Clock, *, name: str, writer: RemoteWriter, draining: bool
    ) -> None:
        """`name` is that of the node that writes: to callers both are one server."""
        super().__init__(store, clock, name=name, writer=writer, outages=Outages(clock))
        self.tokens = FrontTokens(store, self.views, writer, clock)
        self.draining = draining

    def hear(self, news: News) -> None:
        if news.policy is not None:
            self.writer.policy = news.policy
        if news.judged is not None:
            self.writer.judged = news.judged
        super().hear(news)

    def close(self) -> None:
        self.audit.flush()
        self.tokens.close()
        self.views.close()
        self.store.close()

    async def workers(self) -> Sequence[KnownWorker]:
        found: list[KnownWorker] = await self.writer.ask(ShowRoster())
        return found

    async def why(self, task_id: str, agent: str | None = None) -> Explained:
        found: Explained = await self.writer.ask(Explain(task_id, agent))
        return found

    @property
    def counts_elsewhere(self) -> bool:
        return self.tokens.limited

    async def spend(self, caller: Caller) -> None:
        if self.tokens.rate_of(caller) is not None:
            await self.writer.ask(Spend(caller))
