"""One running node: the engine, its writer and its readers behind one door.

Edges (HTTP, the worker, the embedded API) hold a `Node` and nothing below it. What a commit has
done is told here to whoever waits for it: a task's end to its waiters, a stop to the worker that
runs the task, a webhook owed to the deliverer, work left over to other nodes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from fairlane.clock import Clock
from fairlane.core import lifecycle
from fairlane.core.errors import Draining, NotFound
from fairlane.core.model import Task
from fairlane.core.policy import Policy
from fairlane.engine import ids
from fairlane.engine.engine import Engine, Key, Outcome
from fairlane.engine.requests import (
    Cancel,
    Reclaim,
    ReclaimDeliveries,
    SetPolicy,
    Submit,
    UseTemplate,
)
from fairlane.engine.views import TaskView, Views
from fairlane.engine.writer import Writer
from fairlane.store.base import Store

log = logging.getLogger("fairlane.node")

LOOK_AGAIN_SECONDS: Final = 0.5  # how often a waiter looks for what another node has done


class Node:
    def __init__(self, store: Store, clock: Clock) -> None:
        self.name = ids.new_node_name()
        self.store = store
        self.clock = clock
        self.draining = False
        self._drained = False
        self.engine = Engine(store, clock, name=self.name)
        self.writer = Writer(self.engine, self._committed)
        self.views = Views(store)
        self.on_stopped: list[Callable[[Sequence[Key]], None]] = []
        self.on_owed: list[Callable[[], None]] = []
        self._waiters: dict[str, list[_Waiter]] = {}
        self._waiters_lock = threading.Lock()

    @property
    def policy(self) -> Policy:
        return self.engine.policy

    def start(self) -> None:
        """Open the store and begin. Raises an `OperatorError` when that cannot be."""
        self.store.claim()  # first: nobody else's schema is touched
        self.store.migrate()
        self.writer.start()
        # Only one process serves from a private store, so whatever a node holds there is orphaned.
        if not self.store.shared:
            count = self.writer.ask_and_wait(Reclaim(ids.NODE_PREFIX))
            if count:
                log.info("took back %d leases of a node that is gone", count)
            self.writer.ask_and_wait(ReclaimDeliveries())
        self.store.listen(self.writer.nudge)

    def stop(self) -> None:
        self.writer.stop()
        self.views.close()
        self.store.close()

    def new_id(self, prefix: str = "tsk") -> str:
        return ids.new_id(prefix, self.clock.now())

    async def submit(self, request: Submit | UseTemplate) -> list[Any]:
        """A task or an error per submission."""
        if self.draining:
            raise Draining("the server is stopping; submit to another one or try again later")
        answers: list[Any] = await self.writer.ask(request)
        return answers

    async def cancel(self, task_id: str) -> Task:
        task: Task = await self.writer.ask(Cancel(task_id))
        return task

    async def set_policy(self, document: dict[str, Any], source: str) -> Policy:
        policy: Policy = await self.writer.ask(SetPolicy(document, source))
        return policy

    async def show(self, task_id: str) -> TaskView:
        view = await self.views.read(self.views.task, task_id)
        if view is None:
            raise NotFound("task not found")
        return view

    async def wait(self, task_id: str, seconds: float | None) -> TaskView:
        """The task when it has ended or parked, or as it is when time is up or the node stops."""
        waiter = _Waiter(asyncio.get_running_loop())
        with self._waiters_lock:
            self._waiters.setdefault(task_id, []).append(waiter)
        try:
            return await self._wait(task_id, waiter, seconds)
        finally:
            self._forget(task_id, waiter)

    async def _wait(self, task_id: str, waiter: _Waiter, seconds: float | None) -> TaskView:
        end = None if seconds is None else self.clock.monotonic() + seconds
        while True:
            view = await self.show(task_id)
            left = None if end is None else end - self.clock.monotonic()
            over = view.task.terminal or view.task.state == lifecycle.PARKED
            if over or self._drained or (left is not None and left <= 0):
                return view
            if self.store.shared:
                left = LOOK_AGAIN_SECONDS if left is None else min(left, LOOK_AGAIN_SECONDS)
            await waiter.wait(left)

    def let_waiters_go(self) -> None:
        """Nothing more will end here: whoever waits is answered with what there is."""
        self._drained = True
        self._tell_waiters(None)

    def _forget(self, task_id: str, waiter: _Waiter) -> None:
        with self._waiters_lock:
            waiting = self._waiters[task_id]
            waiting.remove(waiter)
            if not waiting:
                del self._waiters[task_id]

    def _committed(self, outcome: Outcome) -> None:
        """Runs in the write thread, after the commit and before the callers are answered."""
        if outcome.stopped:
            for tell in self.on_stopped:
                tell(outcome.stopped)
        if outcome.owes:
            for owed in self.on_owed:
                owed()
        if self._waiters:
            self._tell_waiters(None if outcome.others else outcome.ended)
        if outcome.elsewhere:
            self.store.ring()

    def _tell_waiters(self, ended: Sequence[Task] | None) -> None:
        """Those of the ended tasks, or all when it is not known what has ended."""
        with self._waiters_lock:
            ids = list(self._waiters) if ended is None else [task.id for task in ended]
            found = [waiter for task_id in ids for waiter in self._waiters.get(task_id, ())]
        for waiter in found:
            waiter.tell()


class _Waiter:
    """An event that another thread can set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._told = asyncio.Event()

    async def wait(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._told.wait()
        except TimeoutError:
            return
        self._told.clear()

    def tell(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._told.set)
