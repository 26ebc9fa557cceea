"""A node as its edges see it: commands, reads and waiting behind one interface.

Edges (HTTP, MCP, the embedded API) hold a `Node` and nothing below it. Its commands go to a writer
in the same process (`writing_node.py`) or to the process that writes (`front_node.py`). After each
commit it receives `News`: a task's end for its waiters, new events for streams, changed tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import EllipsisType
from typing import Any, Final

import msgspec

from fairlane import tracing
from fairlane.clock import Clock
from fairlane.core import lifecycle
from fairlane.core.access import Caller
from fairlane.core.errors import (
    BusyError,
    CallerError,
    Draining,
    NotFound,
    TargetRefused,
)
from fairlane.core.model import Task
from fairlane.core.policy import Policy
from fairlane.core.workers import KnownWorker, Unserved
from fairlane.engine import ids
from fairlane.engine.command_writer import CommandWriter
from fairlane.engine.commands import (
    Cancel,
    CancelBatch,
    Enqueue,
    Lease,
    PolicyChange,
    Prune,
    Reset,
    Retry,
    SetPolicy,
    Submit,
    UseTemplate,
)
from fairlane.engine.reads.views import Filter, TaskView, Views
from fairlane.engine.reads.why import Explained
from fairlane.engine.step_commands import SendSignal, SignalOutcome
from fairlane.engine.telemetry.outages import Outages
from fairlane.engine.verbs.audit import Audit
from fairlane.engine.verbs.tokens import Tokens
from fairlane.engine.waiters import Waiter, Waiters
from fairlane.engine.worker_cache import WorkerCache
from fairlane.store.base import Store
from fairlane.tracing import Tracer

LOOK_AGAIN_SECONDS: Final = 0.5  # how often a waiter checks for changes by other nodes
PAGE: Final = 500


class News(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node learns after a commit, or when the server begins to stop.

    `ended` are the ids of tasks that have ended, None if it is unknown which have. `events`: there
    may be new events or output. `access`: tokens have changed. `policy` is the new one, if it has
    changed. `judged` is a time of the authoritative clock, and the monotonic clock at that time.
    `sessions` are those in which a message may have reached a run, None if it is unknown in which.
    """

    ended: tuple[str, ...] | None = ()
    sessions: tuple[str, ...] | None = ()
    events: bool = False
    access: bool = False
    policy: Policy | None = None
    draining: bool = False
    drained: bool = False
    judged: tuple[int, float] | None = None


class Node:
    def __init__(
        self, store: Store, clock: Clock, *, name: str, writer: CommandWriter, outages: Outages
    ) -> None:
        self.name = name
        self.store = store
        self.clock = clock
        self.draining = False
        self.drained = False
        self.tracer: Tracer | None = None
        self.outages = outages
        self.writer = writer
        self.views = Views(store, self.outages)
        self.audit = Audit(self.writer, clock)
        self.tokens = Tokens(store, self.views, self.writer, clock)
        # Raises an error for a URL that webhooks may not go to. The HTTP application sets it.
        self.check_url: Callable[[str], object] = _refuse_url
        self._followers: set[Waiter] = set()
        self._until_drained: set[Waiter] = set()
        self.lease_waits = 0  # callers of POST /leases that have no response yet
        self._ends = Waiters()  # by task
        self._lines = Waiters()  # by session
        self.worker_cache = WorkerCache(self.workers, clock)

    @property
    def policy(self) -> Policy:
        return self.writer.policy

    def hear(self, news: News) -> None:
        """Wake the waiters that the news concerns. Thread-safe."""
        if news.access:
            self.tokens.changed()
        self.draining |= news.draining
        if news.drained:
            self._let_go()
        if self._ends and news.ended != ():
            self._ends.tell(news.ended)
        if self._lines and news.sessions != ():
            self._lines.tell(news.sessions)
        if news.events:
            for follower in tuple(self._followers):
                follower.tell()

    def new_id(self, prefix: str = "tsk") -> str:
        return ids.new_id(prefix, self.clock.now())

    @property
    def stream_clients(self) -> int:
        return len(self._followers)

    @property
    def counts_elsewhere(self) -> bool:
        """Whether requests are counted against the rate of their token in another process."""
        return False

    async def spend(self, caller: Caller) -> None:
        """Count a request against the rate of the caller's token; raise `RateLimited` beyond it."""
        self.tokens.spend(caller)

    async def workers(self) -> Sequence[KnownWorker]:
        """Return the workers that this server knows, with their states."""
        raise NotImplementedError

    async def unserved(self, capability: str, lane: str, agent: str) -> Unserved | None:
        """Return why no worker can run a task with this capability, or None."""
        return await self.worker_cache.unserved(capability, lane, agent)

    def unserved_at_hand(
        self, capability: str, lane: str, agent: str
    ) -> Unserved | EllipsisType | None:
        """Return the same, or `...` if it has to be read first."""
        return self.worker_cache.at_hand(capability, lane, agent)

    async def why(self, task_id: str, agent: str | None = None) -> Explained:
        """Explain why a task does not run yet."""
        raise NotImplementedError

    def submit(self, request: Submit | UseTemplate | Enqueue) -> Coroutine[object, None, list[Any]]:
        """Return a task or an error per submission."""
        if self.draining:
            raise stopping()
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

    async def retry(self, task_id: str, agent: str | None = None, *, fresh: bool = False) -> Task:
        await self._mine(task_id, agent)
        task: Task = await self.writer.ask(Retry(task_id, fresh))
        return task

    async def reset(self, task_id: str, agent: str | None = None, *, fresh: bool = False) -> Task:
        await self._mine(task_id, agent)
        task: Task = await self.writer.ask(Reset(task_id, fresh))
        return task

    async def signal(self, request: SendSignal, agent: str | None = None) -> SignalOutcome:
        await self._mine(request.id, agent)
        done: SignalOutcome = await self.writer.ask(request)
        return done

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
            page = await self.views.read(self.views.search.ids, wanted, PAGE)
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

    @contextlib.contextmanager
    def follow_inbox(self, task: Task) -> Iterator[Waiter]:
        """Return a waiter that is set when messages of the task's session may have come, or when
        the task has ended.
        """
        waiter = Waiter(asyncio.get_running_loop())
        with (
            self._ends.including(waiter, task.id),
            self._lines.including(waiter, task.session or ""),
        ):
            yield waiter

    @contextlib.contextmanager
    def until_drained(self) -> Iterator[Waiter]:
        """Return a waiter that is set when the node stops."""
        waiter = Waiter(asyncio.get_running_loop())
        self._until_drained.add(waiter)
        if self.drained:
            waiter.tell()
        try:
            yield waiter
        finally:
            self._until_drained.discard(waiter)

    async def set_policy(self, request: SetPolicy) -> PolicyChange:
        change: PolicyChange = await self.writer.ask(request)
        return change

    async def show(self, task_id: str, agent: str | None = None) -> TaskView:
        view = await self.views.read(self.views.task, task_id)
        if view is None or agent not in (None, view.task.agent):
            raise NotFound("task not found")
        return view

    async def wait(self, task_id: str, seconds: float | None, agent: str | None = None) -> TaskView:
        """Return the task when it has ended or is parked, the time is up, or the node stops."""
        waiter = Waiter(asyncio.get_running_loop())
        with self._ends.including(waiter, task_id):
            return await self._wait(task_id, waiter, seconds, agent)

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

    def _let_go(self) -> None:
        """Wake all waiters: no more tasks will end here, so they return the current state."""
        self.drained = True
        self._ends.tell(None)
        self._lines.tell(None)
        for follower in (*self._followers, *self._until_drained):
            follower.tell()


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


def admits(request: object) -> bool:
    """Return whether a command submits tasks or leases them."""
    return isinstance(request, Submit | UseTemplate | Enqueue | Lease)


def stopping() -> Draining:
    return Draining("the server is stopping; submit to another one or try again later")


def _refuse_url(_: str) -> None:
    raise TargetRefused("this process has no rules for outgoing requests, so it sends none")
