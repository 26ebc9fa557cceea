"""The node that writes: the engine and its writer, and the effects of each commit.

It passes on the outcome of a commit: to its own waiters and those of other processes of the same
server, a stop to the worker that runs the task, a due webhook to the sender, remaining work to
other nodes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import EllipsisType

import msgspec

from fairlane.clock import Clock
from fairlane.core.errors import NotFound, StoreUnavailable
from fairlane.core.inbox import sessions_with_messages
from fairlane.core.model import NODE_PREFIX
from fairlane.core.policy import Policy
from fairlane.core.workers import KnownWorker, Unserved
from fairlane.engine import ids
from fairlane.engine.commands import Beat, Reclaim, ReclaimDeliveries, Reseal
from fairlane.engine.engine import Engine, Key, Outcome
from fairlane.engine.node import News, Node
from fairlane.engine.presence_commands import ReclaimGone
from fairlane.engine.reads.why import Explained
from fairlane.engine.reads.workers import Presence
from fairlane.engine.telemetry.history import History
from fairlane.engine.telemetry.metrics import Metrics
from fairlane.engine.telemetry.outages import Outages
from fairlane.engine.telemetry.resource_history import ACCOUNTS_MAX, ResourceHistory, use_samples
from fairlane.engine.writer import Writer
from fairlane.store.base import Announcement, Store
from fairlane.version import __version__

log = logging.getLogger("fairlane.node")


class Measures(msgspec.Struct, frozen=True):
    """The gauges of one process. `process` are those of the operating system, by name."""

    stream_clients: int
    lease_waits: int
    process: dict[str, float]


async def _no_fronts() -> list[Measures]:
    return []


async def _none_silent() -> int:
    return 0


class WritingNode(Node):
    writer: Writer

    def __init__(self, store: Store, clock: Clock) -> None:
        name, outages = ids.new_node_name(), Outages(clock)
        self.engine = Engine(store, clock, name=name, outages=outages)
        writer = Writer(self.engine, self._committed)
        super().__init__(store, clock, name=name, writer=writer, outages=outages)
        self.metrics = Metrics()
        self.history = History()
        self.resource_history = ResourceHistory()
        self._here = Beat(
            self.name,
            host=platform.node() or "unknown",
            pid=os.getpid(),
            version=__version__,
            started_at=clock.now(),
            alone=not store.shared,
        )
        # The capabilities of this node's worker; None while it has none.
        self.runs: Callable[[], frozenset[str] | None] = lambda: None
        self.on_stopped: list[Callable[[Sequence[Key]], None]] = []
        self.on_owed: list[Callable[[], None]] = []
        self.on_policy: list[Callable[[Policy], None]] = []  # called in the write thread
        # Passes news on to other processes; if True, it returns when they have heard them.
        self.on_news: list[Callable[[News, bool], None]] = []
        self.silent_fronts: Callable[[], Awaitable[int]] = _none_silent
        self.measure_fronts: Callable[[], Awaitable[list[Measures]]] = _no_fronts
        self._told_policy = self.engine.policy
        self._last_event = 0
        self._registered = False
        self._roster_read = 0  # its last change of which the worker cache knows
        self._lock: Announcement | None = None  # shows other nodes that this one lives

    def start(self) -> None:
        """Open the store and start. Raise an `OperatorError` if that is not possible."""
        self.store.claim()  # first, so that the schema of another store is not touched
        self.store.migrate()
        self.writer.start()
        if self.store.vault.changing:
            log.info("sealed %d rows with the new key", self.writer.ask_and_wait(Reseal()))
        # Only one process serves from a private store, so every lease of a node there is orphaned.
        if not self.store.shared:
            count = self.writer.ask_and_wait(Reclaim(NODE_PREFIX))
            if count:
                log.info("reclaimed %d leases of a node that has ended", count)
            self.writer.ask_and_wait(ReclaimDeliveries())
        self.writer.ask_and_wait(self._here)
        self._registered = True
        self.store.listen(self._heard)
        self._lock = self.store.announce(self.name, gone=self._find_gone, changed=self._announce)
        if self._lock is not None:
            self._lock.start()

    def stop(self) -> None:
        # If the store is unavailable, others notice that this node is silent.
        if self._registered and self.writer.alive and self.writer.trouble is None:
            self._registered = False
            self.engine.totals.hurry()
            with contextlib.suppress(StoreUnavailable):
                self.writer.ask_and_wait(msgspec.structs.replace(self._here, leaves=True))
        if self._lock is not None:  # after the node has left, so that no other node misses it
            self._lock.close()
        self.audit.flush()
        self.writer.stop()
        self.tokens.close()
        self.views.close()
        self.store.close()

    async def beat(self) -> None:
        """Record that this node is alive; raise if that cannot be written."""
        await self.writer.ask(self._beat())

    def _beat(self) -> Beat:
        key = None if self._lock is None else self._lock.key
        return msgspec.structs.replace(self._here, draining=self.draining, lock_key=key)

    def _announce(self) -> None:
        """Record that this node holds its lock, or no longer does. Runs in the lock's thread."""
        if self._registered:
            self.writer.tell(self._beat())

    def _find_gone(self, names: list[str]) -> None:
        """Reclaim the leases of nodes that have died. Runs in the lock's thread."""
        log.warning("nodes that have died: %s; their tasks run elsewhere", ", ".join(names))
        self.writer.tell(ReclaimGone(names))

    async def look(self) -> None:
        """Take the next sample for the history."""
        sample = await self.views.read(self.views.sample, self.clock)
        sample = sample.without_unserved(await self.worker_cache.known())
        self.history.add(sample, self.policy, self.metrics)
        if self.policy.resources:
            found = await self.views.read(
                self.views.resources.sampled, self.clock, self.policy, ACCOUNTS_MAX
            )
            self.resource_history.add(sample.at, use_samples(found, self.policy))

    async def workers(self) -> Sequence[KnownWorker]:
        return await self.views.read(self.views.workers, self.clock, self._presence())

    async def unserved(self, capability: str, lane: str, agent: str) -> Unserved | None:
        if self.worker_cache.has(capability) or capability in (self.runs() or ()):
            return None
        found = await super().unserved(capability, lane, agent)
        newest = self.engine.roster.changes
        if found is not None and found.unknown and self._roster_read != newest:
            self._roster_read = newest  # a worker has just come
            self.worker_cache.forget()
            found = await super().unserved(capability, lane, agent)
        return self._sure(found)

    def unserved_at_hand(
        self, capability: str, lane: str, agent: str
    ) -> Unserved | EllipsisType | None:
        found = super().unserved_at_hand(capability, lane, agent)
        if found is None or found is ...:
            return found
        if capability in (self.runs() or ()):
            return None
        if found.unknown and self._roster_read != self.engine.roster.changes:
            return ...
        return self._sure(found)

    def _sure(self, found: Unserved | None) -> Unserved | None:
        """Return the answer unless it is a guess: without a server on a private store, no worker
        can be there.
        """
        knows = self._registered or self.store.shared
        return found if found is None or found.unknown or knows else None

    def _presence(self) -> Presence | None:
        """Return what this server knows about workers; None if it only reads and writes."""
        if not self._registered:
            return None
        heard = self.engine.roster.present(self.clock.monotonic(), self.engine.moment())
        waiting = self.writer.lease_waiters
        return Presence(self.name, heard, waiting, self.runs(), self.draining)

    async def why(self, task_id: str, agent: str | None = None) -> Explained:
        servers = self.views.serving(self.name, self.clock, self.runs)
        why = partial(self.views.why, clock=self.clock, workers=await self.workers())
        found = await self.views.read(why, task_id, self.history.pace, agent, servers)
        if found is None or agent not in (None, found.task.agent):
            raise NotFound("task not found")
        return found

    def refuse_new(self) -> None:
        """Accept no more tasks and grant no more leases."""
        self._spread(News(draining=True))
        self.writer.withdraw(None)

    def let_waiters_go(self) -> None:
        """Wake all waiters: nothing more will end here, so they return the current state."""
        self.writer.withdraw(None)
        self._spread(News(events=True, drained=True))

    def _committed(self, outcome: Outcome) -> None:
        """Distribute a commit's outcome. Runs in the write thread before callers are answered."""
        if outcome.access:
            self.tokens.changed()
        engine = self.engine
        self.metrics.committed(
            outcome,
            engine.took_seconds,
            held_seconds=engine.held_seconds,
            round_trips=engine.round_trips,
        )
        if outcome.runs_to_stop:
            for tell in self.on_stopped:
                tell(outcome.runs_to_stop)
        if (
            outcome.webhooks_due or outcome.others_wrote
        ):  # another process may have created a delivery
            for owed in self.on_owed:
                owed()
        news = self._news(outcome)
        # Callers are answered after every process refuses a revoked token and has the new policy.
        self._spread(news, confirmed=news.access or news.policy is not None)
        if outcome.notify_others:
            self.store.ring()

    def _news(self, outcome: Outcome) -> News:
        ended: tuple[str, ...] | None = ()
        sessions: tuple[str, ...] | None = ()
        if outcome.others_wrote:
            ended = sessions = None
        elif self.on_news:
            ended, sessions = _ended(outcome), tuple(sessions_with_messages(outcome.changes))
        else:
            ended = _ended(outcome) if self._ends else ()
            sessions = tuple(sessions_with_messages(outcome.changes)) if self._lines else ()
        newer = outcome.last_event > self._last_event
        events = newer or outcome.wrote_output or outcome.others_wrote
        if events:
            self._last_event = outcome.last_event
        return News(
            ended=ended,
            sessions=sessions,
            events=events,
            access=outcome.access,
            policy=self._new_policy(),
            judged=self.engine.judged,
        )

    def _spread(self, news: News, *, confirmed: bool = False) -> None:
        self.hear(news)
        for tell in self.on_news:
            tell(news, confirmed)

    def _heard(self) -> None:
        """Handle a notification of another node: there may be work, or other tokens."""
        self._spread(News(access=True))
        self.writer.nudge()

    def _new_policy(self) -> Policy | None:
        """Return the policy if it has changed, after telling the listeners."""
        if self.policy is self._told_policy:
            return None
        self._told_policy = self.policy
        for listener in self.on_policy:
            listener(self.policy)
        return self.policy


def _ended(outcome: Outcome) -> tuple[str, ...]:
    return tuple(task.id for task in outcome.ended_tasks)
