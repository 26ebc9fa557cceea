"""One running node: the engine, its writer and its readers behind one interface.

Edges (HTTP, the worker, the embedded API) hold a `Node` and nothing below it. It passes on the
outcome of each commit: a task's end to its waiters, a stop to the worker that runs the task, a due
webhook to the sender, remaining work to other nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import msgspec

from fairlane import tracing
from fairlane.clock import Clock
from fairlane.core import lifecycle
from fairlane.core.errors import (
    BusyError,
    CallerError,
    Draining,
    NotFound,
    StoreUnavailable,
    TargetRefused,
)
from fairlane.core.model import NODE_PREFIX, Task
from fairlane.core.policy import Policy
from fairlane.engine import ids
from fairlane.engine.commands import (
    Beat,
    Cancel,
    CancelBatch,
    Enqueue,
    PolicyChange,
    Prune,
    Reclaim,
    ReclaimDeliveries,
    Reseal,
    Reset,
    Retry,
    SetPolicy,
    Submit,
    UseTemplate,
)
from fairlane.engine.engine import Engine, Key, Outcome
from fairlane.engine.reads.views import Filter, TaskView, Views
from fairlane.engine.reads.why import Explained
from fairlane.engine.telemetry.history import History
from fairlane.engine.telemetry.metrics import Metrics
from fairlane.engine.telemetry.outages import Outages
from fairlane.engine.verbs.audit import Audit
from fairlane.engine.verbs.tokens import Tokens
from fairlane.engine.writer import Writer
from fairlane.store.base import Store
from fairlane.tracing import Tracer
from fairlane.version import __version__

log = logging.getLogger("fairlane.node")

LOOK_AGAIN_SECONDS: Final = 0.5  # how often a waiter checks for changes by other nodes
PAGE: Final = 500


class Node:
    def __init__(self, store: Store, clock: Clock) -> None:
        self.name = ids.new_node_name()
        self.store = store
        self.clock = clock
        self.draining = False
        self.drained = False
        self.tracer: Tracer | None = None
        self.outages = Outages(clock)
        self.engine = Engine(store, clock, name=self.name, outages=self.outages)
        self.writer = Writer(self.engine, self._committed)
        self.views = Views(store, self.outages)
        self.audit = Audit(self.writer, clock)
        self.tokens = Tokens(store, self.views, self.writer, clock)
        self.metrics = Metrics()
        self.history = History()
        self._here = Beat(
            self.name,
            host=platform.node() or "unknown",
            pid=os.getpid(),
            version=__version__,
            started_at=clock.now(),
            alone=not store.shared,
        )
        # Raises an error for a URL that webhooks may not go to. The HTTP application sets it.
        self.check_url: Callable[[str], object] = _refuse_url
        # The capabilities of this node's worker; None while it has none.
        self.runs: Callable[[], frozenset[str] | None] = lambda: None
        self.on_stopped: list[Callable[[Sequence[Key]], None]] = []
        self.on_owed: list[Callable[[], None]] = []
        self.on_policy: list[Callable[[Policy], None]] = []  # called in the write thread
        self._told_policy = self.engine.policy
        self._followers: set[Waiter] = set()
        self.lease_waits = 0  # callers of POST /leases that have no response yet
        self._last_event = 0
        self._waiters: dict[str, list[Waiter]] = {}
        self._waiters_lock = threading.Lock()
        self._registered = False

    @property
    def policy(self) -> Policy:
        return self.engine.policy

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
                log.info("reclaimed %d leases of a node that is gone", count)
            self.writer.ask_and_wait(ReclaimDeliveries())
        self.writer.ask_and_wait(self._here)
        self._registered = True
        self.store.listen(self._heard)

    def stop(self) -> None:
        # If the store is unavailable, others notice that this node is silent.
        if self._registered and self.writer.alive and self.writer.trouble is None:
            self._registered = False
            with contextlib.suppress(StoreUnavailable):
                self.writer.ask_and_wait(msgspec.structs.replace(self._here, leaves=True))
        self.audit.flush()
        self.writer.stop()
        self.tokens.close()
        self.views.close()
        self.store.close()

    def new_id(self, prefix: str = "tsk") -> str:
        return ids.new_id(prefix, self.clock.now())

    async def beat(self) -> None:
        """Record that this node is alive; raise if that cannot be written."""
        await self.writer.ask(msgspec.structs.replace(self._here, draining=self.draining))

    async def look(self) -> None:
        """Take the next sample for the history."""
        sample = await self.views.read(self.views.sample, self.clock)
        self.history.add(sample, self.policy, self.metrics)

    @property
    def stream_clients(self) -> int:
        return len(self._followers)

    def submit(self, request: Submit | UseTemplate | Enqueue) -> Coroutine[Any, Any, list[Any]]:
        """Return a task or an error per submission."""
        if self.draining:
            raise Draining("the server is stopping; submit to another one or try again later")
        if self.tracer is None:
            return self.writer.ask(request)
        return self._traced_submit(self.tracer, request)

    async def _traced_submit(
        self, tracer: Tracer, request: Submit | UseTemplate | Enqueue
    ) -> list[Any]:
        with tracer.span(tracing.SUBMIT) as span:
            answers: list[Any] = await self.writer.ask(_traced(request, span.traceparent))
            _describe(span, answers)
            return answers

    async def cancel(self, task_id: str, agent: str | None = None) -> Task:
        """Cancel a task. With `agent`, here as below, a task of another agent is not found."""
        await self._mine(task_id, agent)
        task: Task = await self.writer.ask(Cancel(task_id))
        return task

    async def retry(self, task_id: str, agent: str | None = None) -> Task:
        await self._mine(task_id, agent)
        task: Task = await self.writer.ask(Retry(task_id))
        return task

    async def reset(self, task_id: str, agent: str | None = None) -> Task:
        await self._mine(task_id, agent)
        task: Task = await self.writer.ask(Reset(task_id))
        return task

    async def _mine(self, task_id: str, agent: str | None) -> None:
        """Check that the task belongs to the agent. The owner of a task never changes."""
        if agent is not None:
            await self.show(task_id, agent)

    async def cancel_batch(self, batch_id: str) -> int:
        count: int = await self.writer.ask(CancelBatch(batch_id))
        return count

    async def find(self, wanted: Filter) -> list[str]:
        """Return the ids of all matching tasks, oldest first."""
        found: list[tuple[int, str]] = []
        while True:
            page = await self.views.read(self.views.task_ids, wanted, PAGE)
            found += page
            if len(page) < PAGE:
                return [task_id for _, task_id in reversed(found)]
            wanted = msgspec.structs.replace(wanted, before=page[-1][0])

    async def for_each(self, request: Callable[[str], object], task_ids: Sequence[str]) -> int:
        """Send the same command for many tasks; return how many succeeded."""
        done = 0
        for start in range(0, len(task_ids), PAGE):
            asked = [self.writer.ask(request(id_)) for id_ in task_ids[start : start + PAGE]]
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(answer, Task):
                    done += 1
                elif not isinstance(answer, CallerError | BusyError):
                    assert isinstance(answer, BaseException)
                    raise answer
        return done

    async def prune(self, *, dry_run: bool) -> int:
        """Forget tasks beyond their retention, in steps; return how many."""
        total = 0
        while True:
            count: int = await self.writer.ask(Prune(dry_run))
            total += count
            if dry_run or not count:
                return total

    @contextlib.contextmanager
    def follow(self) -> Iterator[Waiter]:
        """Return a waiter that is set whenever there are new events or output."""
        waiter = Waiter(asyncio.get_running_loop())
        self._followers.add(waiter)
        try:
            yield waiter
        finally:
            self._followers.discard(waiter)

    async def set_policy(self, request: SetPolicy) -> PolicyChange:
        change: PolicyChange = await self.writer.ask(request)
        return change

    async def show(self, task_id: str, agent: str | None = None) -> TaskView:
        view = await self.views.read(self.views.task, task_id)
        if view is None or agent not in (None, view.task.agent):
            raise NotFound("task not found")
        return view

    async def why(self, task_id: str, agent: str | None = None) -> Explained:
        servers = self.views.serving(self.name, self.clock, self.runs)
        found = await self.views.read(self.views.why, task_id, self.history.pace, agent, servers)
        if found is None or agent not in (None, found.task.agent):
            raise NotFound("task not found")
        return found

    async def wait(self, task_id: str, seconds: float | None, agent: str | None = None) -> TaskView:
        """Return the task when it has ended or parked, the time is up, or the node stops."""
        waiter = Waiter(asyncio.get_running_loop())
        with self._waiters_lock:
            self._waiters.setdefault(task_id, []).append(waiter)
        try:
            return await self._wait(task_id, waiter, seconds, agent)
        finally:
            self._forget(task_id, waiter)

    async def _wait(
        self, task_id: str, waiter: Waiter, seconds: float | None, agent: str | None
    ) -> TaskView:
        end = None if seconds is None else self.clock.monotonic() + seconds
        while True:
            drained = self.drained  # read before the task, which may end in between
            view = await self.show(task_id, agent)
            left = None if end is None else end - self.clock.monotonic()
            over = view.task.terminal or view.task.state == lifecycle.PARKED
            if over or drained or (left is not None and left <= 0):
                return view
            await self._until_changed(view.task, waiter, end)

    async def _until_changed(self, task: Task, waiter: Waiter, end: float | None) -> None:
        """Wait until the task may have changed or the timeout has passed. Changes by other nodes
        are detected without reading the whole task, because many callers may wait.
        """
        while True:
            left = None if end is None else max(0.0, end - self.clock.monotonic())
            look = LOOK_AGAIN_SECONDS if left is None else min(left, LOOK_AGAIN_SECONDS)
            woken = await waiter.wait(look if self.store.shared else left)
            if woken or not self.store.shared or look == left:
                return
            if await self.views.feed.read(self.views.task_state, task.seq) != task.state:
                return

    def let_waiters_go(self) -> None:
        """Wake all waiters: nothing more will end here, so they return the current state."""
        self.drained = True
        self.writer.withdraw(None)
        self._tell_waiters(None)
        for follower in tuple(self._followers):
            follower.tell()

    def _forget(self, task_id: str, waiter: Waiter) -> None:
        with self._waiters_lock:
            waiting = self._waiters[task_id]
            waiting.remove(waiter)
            if not waiting:
                del self._waiters[task_id]

    def _committed(self, outcome: Outcome) -> None:
        """Distribute a commit's outcome. Runs in the write thread before callers are answered."""
        if outcome.access:
            self.tokens.changed()
        self.metrics.committed(outcome, self.engine.took_seconds)
        if outcome.runs_to_stop:
            for tell in self.on_stopped:
                tell(outcome.runs_to_stop)
        if (
            outcome.webhooks_due or outcome.others_wrote
        ):  # another process may have created a delivery
            for owed in self.on_owed:
                owed()
        self._tell_policy()
        if self._waiters:
            self._tell_waiters(None if outcome.others_wrote else outcome.ended_tasks)
        if outcome.last_event > self._last_event or outcome.wrote_output or outcome.others_wrote:
            self._last_event = outcome.last_event
            for follower in tuple(self._followers):
                follower.tell()
        if outcome.notify_others:
            self.store.ring()

    def _heard(self) -> None:
        """Handle a notification of another node: there may be work, or other tokens."""
        self.tokens.changed()
        self.writer.nudge()

    def _tell_policy(self) -> None:
        if self.policy is not self._told_policy:
            self._told_policy = self.policy
            for listener in self.on_policy:
                listener(self.policy)

    def _tell_waiters(self, ended: Sequence[Task] | None) -> None:
        """Wake the waiters of the ended tasks, or all if it is not known what has ended."""
        with self._waiters_lock:
            ids = list(self._waiters) if ended is None else [task.id for task in ended]
            found = [waiter for task_id in ids for waiter in self._waiters.get(task_id, ())]
        for waiter in found:
            waiter.tell()


def _traced(request: object, traceparent: str) -> object:
    """Return the request with its trace stored in each of its submissions."""
    if isinstance(request, UseTemplate) and request.submit is not None:
        return msgspec.structs.replace(request, submit=_traced(request.submit, traceparent))
    if not isinstance(request, Submit):
        return request
    made = [
        msgspec.structs.replace(one, body=tracing.kept_in(one.body, traceparent))
        for one in request.submissions
    ]
    return msgspec.structs.replace(request, submissions=made)


def _describe(span: tracing.Span, answers: Sequence[object]) -> None:
    tasks = [answer for answer in answers if isinstance(answer, Task)]
    if len(tasks) == 1:
        span.set("task_id", tasks[0].id)
        span.set("lane", tasks[0].lane)
    span.set("tasks", len(tasks))
    if len(tasks) < len(answers):
        span.fail("refused")


class Waiter:
    """An event that another thread can set; several sets wake it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._told = asyncio.Event()
        self._ringing = False

    async def wait(self, seconds: float | None) -> bool:
        """Return whether it was set; False after the timeout."""
        try:
            async with asyncio.timeout(seconds):
                await self._told.wait()
        except TimeoutError:
            return False
        self._told.clear()
        return True

    def tell(self) -> None:
        if not self._ringing and not self._loop.is_closed():
            self._ringing = True
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._ringing = False
        self._told.set()


def _refuse_url(_: str) -> None:
    raise TargetRefused("this process has no rules for outgoing requests, so it sends none")
