"""The composition root: puts stores, engine, worker, webhooks and HTTP together.

`Fairlane` is the embedded API: the same node that
`fairlane serve` runs, without HTTP; `cli/serve.py` adds HTTP, signals and a watched policy file.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import hashlib
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self, Unpack

import msgspec

from fairlane import config
from fairlane.client import transport
from fairlane.client.async_verbs import AsyncVerbs, Call, Shape, Shapes
from fairlane.client.calling import Asked
from fairlane.client.methods import Q, R
from fairlane.client.verbs import TaskFields, WhichEvents, task_body
from fairlane.clock import Clock, SystemClock
from fairlane.config import InstanceSetting
from fairlane.core import lifecycle
from fairlane.core import policy as policies
from fairlane.core.access import TRUSTED, Caller
from fairlane.core.errors import (
    BusyError,
    FairlaneError,
    InvalidPolicy,
    InvalidRequest,
    InvalidSettings,
    StoreUnavailable,
    task_failed,
)
from fairlane.core.model import ACTION, HANDLER, INSTRUCTION, Task, route_of
from fairlane.core.policy import Policy
from fairlane.embedded.listeners import Listener, Listeners
from fairlane.embedded.schedule import ScheduleFields, Scheduling, TokenEstimate
from fairlane.engine.commands import IdempotencyKey, SetPolicy, Submit, UseSecret
from fairlane.engine.node import Node
from fairlane.engine.telemetry.heartbeat import watch
from fairlane.engine.verbs.webhooks import new_secret
from fairlane.http import in_process
from fairlane.http.app import HttpApp
from fairlane.outbound.guard import Guard
from fairlane.outbound.outbox import Outbox
from fairlane.outbound.sending import Sender
from fairlane.outbound.targets import parse_target
from fairlane.outbound.webhooks import Deliverer
from fairlane.schema import bodies, sse, wire
from fairlane.schema.operation import Operation
from fairlane.services import catalog
from fairlane.store.base import ConnectionLost
from fairlane.store.opening import open_store
from fairlane.tracing import Tracer
from fairlane.worker.executors.action import ActionExecutor
from fairlane.worker.executors.base import Executor
from fairlane.worker.executors.builtin import BUILTIN, Handler, HandlerExecutor
from fairlane.worker.executors.instruction import InstructionExecutor
from fairlane.worker.executors.tabs import Instance
from fairlane.worker.loop import Loop
from fairlane.worker.source import EngineSource

log = logging.getLogger("fairlane")

NOT_STARTED: Final = "this Fairlane has not been started; use `async with`"


def tune() -> None:
    """Set up the process for throughput; call it once, when the program has been loaded.

    A scheduler makes many short-lived values and few cycles: the garbage collector looks less
    often, and never at what was loaded at the start.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


class Fairlane(AsyncVerbs):
    """A scheduler inside your own program.

    Use it as an async context manager. `handler` registers what runs tasks here; tasks for which
    nothing is registered wait for a worker elsewhere. The verbs of `Verbs` are to be awaited.
    """

    def __init__(
        self,
        store: str = "sqlite:///fairlane.db",
        *,
        policy: Mapping[str, Any] | None = None,
        instances: str | Sequence[str | InstanceSetting] = (),
        agent: str | InstanceSetting | None = None,
        allow_outbound: Sequence[str] = (),
        deny_outbound: Sequence[str] = (),
        webhook_secret: str | None = None,
        secret_key: str | None = None,
        allow_secrets: Sequence[str] = (),
        secrets_folder: str | None = None,
        drain_seconds: float = 10.0,
        token_estimate: TokenEstimate | None = None,
        clock: Clock | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.clock = clock or SystemClock()
        self._task_secrets = config.task_secrets(allow_secrets, secrets_folder)
        references = self._task_secrets.references
        self.node = Node(
            open_store(store, secret_key=secret_key, references=references), self.clock
        )
        self.node.tracer = tracer
        self.guard = Guard(allow_outbound, deny=deny_outbound, on_blocked=self._blocked)
        browsers = config.servers("instances", instances)
        agents = config.servers("agent", [] if agent is None else [agent])
        # Only executors may reach these servers: a webhook is an agent's own wish.
        trusted = [*_authorities("instance", browsers), *_authorities("agent", agents)]
        self._executor_guard = Guard(
            [*allow_outbound, *trusted], deny=deny_outbound, on_blocked=self._blocked
        )
        self._policy = policy
        self._policy_notes: list[str] = []
        self._instances = [Instance(one.url, one.token) for one in browsers]
        self._agent = Instance(agents[0].url, agents[0].token) if agents else None
        self._webhook_secret = webhook_secret
        self._drain_seconds = drain_seconds
        self._handlers: dict[str, Handler] = dict(BUILTIN)
        self._handler_executor = HandlerExecutor(self._handlers)
        self._scheduling = Scheduling(self.node, token_estimate)
        self._sender: Sender | None = None
        self._action_executor: ActionExecutor | None = None
        self._instruction_executor: InstructionExecutor | None = None
        self._worker: Loop | None = None
        self._worker_count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners = Listeners()
        self._http: HttpApp | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # ---------------------------------------------------------------- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        try:
            await asyncio.to_thread(self.node.start)
        except ConnectionLost as error:
            raise StoreUnavailable(f"the store does not answer: {error}") from None
        self._http = HttpApp(self.node, self.guard.check)
        self._listeners.begin(self.events)
        if self._policy:
            await self.lay_policy(self._policy, "start")
        self._start_worker()
        await self._start_deliverer()
        self._tasks.append(asyncio.create_task(watch(self.node), name="fairlane-watch"))

    async def lay_policy(self, document: Mapping[str, Any], source: str) -> None:
        """Lay what the settings or a file say over the policy, and tell the audit log."""
        notes, self._policy_notes = self._policy_notes, policies.notes(document)
        if self._policy_notes != notes:
            for note in self._policy_notes:
                log.info("the policy (%s): %s", source, note)
        change = await self.node.set_policy(SetPolicy({**document}, source))
        if change.after != change.before:
            detail = f"version {change.version}"
            await self.node.audit.note("settings", "policy", source, detail=detail)

    def refuse_new(self) -> None:
        """Take nothing new from now on: no task, and no attempt at one that waits."""
        self.node.draining = True
        self.node.writer.withdraw(None)
        if self._worker is not None:
            self._worker.take_nothing_new()

    async def drain(self) -> None:
        """Take nothing new, let what runs finish within the drain limit, interrupt the rest."""
        self.refuse_new()
        if self._worker is not None:
            await self._worker.drain(self._drain_seconds)
            await self._scheduling.give_up()
        self.node.let_waiters_go()

    async def stop(self) -> None:
        await self.drain()
        await self._listeners.end(self._drain_seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._handler_executor.close()
        await self._scheduling.executor.close()
        if self._action_executor is not None:
            await self._action_executor.close()
        if self._sender is not None:
            await self._sender.close()
        await asyncio.to_thread(self.node.stop)

    def listens_on(self, port: int) -> None:
        """A port of this process: nothing that leaves may come back to it."""
        self.guard.own_ports.add(port)
        self._executor_guard.own_ports.add(port)

    def _blocked(self, host: str, reason: str) -> None:
        """Into the audit log, which counts what comes in floods."""
        self.node.audit.blocked("outbound", host, reason=reason)

    def _start_worker(self) -> None:
        node = self.node
        self._sender = Sender(self._executor_guard)
        self._action_executor = ActionExecutor(self._instances, self._sender)
        if self._agent is not None:
            self._instruction_executor = InstructionExecutor(
                self._agent, self._sender, self._task_secrets.resolved
            )
        source = EngineSource(node.writer, node.name, lambda: node.policy)
        worker = Loop(source, self._executors, lambda: node.policy.worker_count, tracer=node.tracer)
        node.runs = lambda: frozenset(self._executors())
        node.on_stopped.append(worker.stop_runs)
        node.on_policy.append(self._policy_changed)
        self._worker_count = node.policy.worker_count
        self._loop = asyncio.get_running_loop()
        self._worker = worker
        self._tasks.append(asyncio.create_task(worker.run(), name="fairlane-worker"))

    def _policy_changed(self, policy: Policy) -> None:
        """Only this changes what the worker asks for; to ask again for nothing would give back
        what is being granted at this moment.
        """
        if policy.worker_count == self._worker_count:
            return
        self._worker_count = policy.worker_count
        if self._worker is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._worker.poke)

    def _executors(self) -> Mapping[str, Executor]:
        assert self._action_executor is not None
        routes: dict[str, Executor] = {
            route_of(HANDLER, name): self._handler_executor for name in self._handlers
        }
        routes[self._scheduling.route] = self._scheduling.executor
        routes[route_of(ACTION)] = self._action_executor
        if self._instruction_executor is not None:
            routes[route_of(INSTRUCTION)] = self._instruction_executor
        return routes

    async def _start_deliverer(self) -> None:
        # Asked for in any case: so a node with the wrong key does not even start.
        kept = await self.node.writer.ask(UseSecret(new_secret()))
        secret = self._webhook_secret or kept
        source = Outbox(self.node)
        deliverer = Deliverer(
            source, self.guard, lambda _: secret, self.clock.now, tracer=self.node.tracer
        )
        self._tasks.append(asyncio.create_task(deliverer.run(), name="fairlane-webhooks"))

    # ---------------------------------------------------------------- use

    def handler(self, name: str) -> Callable[[Handler], Handler]:
        """Register a function, async or plain, for tasks with `handler=name`."""

        def register(function: Handler) -> Handler:
            self._handlers[name] = function
            if self._worker is not None:
                self._worker.poke()
            return function

        return register

    def on_event(self, listener: Listener) -> Listener:
        """Tell a function, async or plain, of everything that happens from now on.

        Listeners hear one event after the other, in order; on a shared store also those of other
        nodes. What one raises is logged and ignored.
        """
        self._listeners.add(listener)
        if self._http is not None:
            self._listeners.begin(self.events)
        return listener

    async def submit(
        self, *, idempotency_key: str | None = None, **fields: Unpack[TaskFields]
    ) -> TaskHandle:
        """Submit one task. Raises a `FairlaneError` when it is refused."""
        raw = wire.encode(task_body(fields))
        submission = bodies.parse_task(raw, task_id=self.node.new_id())
        if submission.callback_url:
            self._check_callback(submission.callback_url)
        key = None
        if idempotency_key is not None:
            digest = hashlib.sha256(raw).hexdigest()
            key = IdempotencyKey(submission.agent, idempotency_key, digest)
        answer = (await self.node.submit(Submit([submission], key)))[0]
        if isinstance(answer, FairlaneError):
            raise answer
        return TaskHandle(self, answer)

    async def schedule(
        self,
        *,
        session: str,
        fn: Handler | None = None,
        timeout: float | None = None,
        **fields: Unpack[ScheduleFields],
    ) -> Any:
        """Run a function of this process, a handler or a message when its session has a turn.

        Returns the result. Raises a `FairlaneError` when it is refused or did not run, what `fn`
        raises, `TaskFailed` for a failed handler, `TimeoutError` when time is up. Whoever stops
        waiting cancels it.
        """
        if self._http is None:
            raise RuntimeError(NOT_STARTED)
        return await self._scheduling.schedule(session, fn, timeout=timeout, fields=fields)

    def _check_callback(self, url: str) -> None:
        try:
            self.guard.check(url)
        except FairlaneError as error:
            raise InvalidRequest(f"invalid task: invalid callbackUrl: {error.message}") from None

    def events(
        self, *, after: int | None = None, follow: bool = True, **which: Unpack[WhichEvents]
    ) -> Shapes:
        """Events after the one with the id `after`, in order, each once.

        Following begins, without `after`, with what happens from this call on, and ends when the
        node stops. Not following begins with the oldest and ends with the newest.
        """
        if follow and after is None:
            # Read here and now: what the caller does next has to be behind it.
            after = self.node.views.last_event()
        return super().events(after=after, follow=follow, **which)

    def _stream(
        self, path: str, query: Mapping[str, Any], last_id: str
    ) -> AsyncGenerator[sse.Event, None]:
        return in_process.follow(self._routes, path, query, last_id)

    def call_as(self, caller: Caller) -> Callable[..., Call]:
        """`call`, for somebody who may see and do less than this process."""
        return functools.partial(self._call, caller)

    async def call(self, method: str, path: str, **asked: Unpack[Asked]) -> Shape:
        return await self._call(TRUSTED, method, path, **asked)

    async def _call(self, caller: Caller, method: str, path: str, **asked: Unpack[Asked]) -> Shape:
        request = transport.build(method, path, timeout_seconds=0, **asked)
        return transport.understood(
            await in_process.ask(self._routes, request, caller), "this process"
        )

    async def perform(self, operation: Operation[Q, R], request: Q) -> R:
        if self._http is None:
            raise RuntimeError(NOT_STARTED)
        return await catalog.perform(self.node, TRUSTED, operation, request)

    @property
    def _routes(self) -> HttpApp:
        if self._http is None:
            raise RuntimeError(NOT_STARTED)
        return self._http


class TaskHandle:
    """A submitted task, from the side of who submitted it."""

    def __init__(self, app: Fairlane, task: Task) -> None:
        self.id = task.id
        self.position = task.position
        self._app = app

    async def show(self) -> Shape:
        return await self._app.show(self.id)

    async def cancel(self) -> Shape:
        return await self._app.cancel(self.id)

    async def retry(self) -> Shape:
        return await self._app.retry(self.id)

    async def reset(self) -> Shape:
        return await self._app.reset(self.id)

    async def result(self, timeout: float | None = None) -> Any:
        """The result when it is done. Raises `TaskFailed`, or `TimeoutError` when time is up."""
        view = await self._app.node.wait(self.id, timeout)
        if not view.task.terminal and view.task.state != lifecycle.PARKED:
            raise TimeoutError(f"task {self.id} is {view.task.state} after {timeout} s")
        if view.task.state != "done":
            raise task_failed(self.id, view.task.state, view.error)
        return None if view.result is None else msgspec.json.decode(view.result)


Loaded = Mapping[str, Any] | Awaitable[Mapping[str, Any]]


class ConfigWatcher:
    """Reads a configuration again and again and lays it over the policy when it has changed.

    `load`, async or plain, returns a policy document; PinchTab's configuration, whole or only its
    scheduler's, is one too. What it raises, and a document that is refused, is logged and changes
    nothing. `name` is what the log calls the configuration.
    """

    def __init__(
        self,
        interval_seconds: float,
        load: Callable[[], Loaded],
        app: Fairlane,
        *,
        name: str = "the configuration",
    ) -> None:
        self._interval_seconds = interval_seconds
        self._load = load
        self._app = app
        self._name = name
        self._seen: bytes | None = None
        self._complaint = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="fairlane-config")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def look(self) -> None:
        """Read once. Raises what is wrong with it."""
        document = await self._loaded()
        # The text, not the object: a loader may keep one and change it in place.
        text = msgspec.json.encode(document, order="deterministic")
        if text == self._seen:
            return
        try:
            await self._app.lay_policy(document, "config")
        except BusyError:
            raise  # the store was away: the same document is worth another try
        except FairlaneError:
            self._seen = text
            raise
        self._seen = text

    async def _loaded(self) -> dict[str, Any]:
        """Return a copy of what `load` returns. A plain function runs in a thread."""
        load = self._load
        loaded = load() if inspect.iscoroutinefunction(load) else await asyncio.to_thread(load)
        document = await loaded if inspect.isawaitable(loaded) else loaded
        if not isinstance(document, Mapping):
            raise InvalidPolicy(["a policy is a JSON object"])
        return copy.deepcopy({**document})

    async def _run(self) -> None:
        while True:
            try:
                await self.look()
            except Exception as error:  # noqa: BLE001 - the loader is the caller's own
                self._complain(str(error))
            else:
                self._complaint = ""
            await asyncio.sleep(self._interval_seconds)

    def _complain(self, what: str) -> None:
        """Once: a file that stays wrong is looked at many times."""
        if what != self._complaint:
            log.warning("%s was not taken over, the old one stays: %s", self._name, what)
        self._complaint = what


def _authorities(key: str, servers: Sequence[InstanceSetting]) -> list[str]:
    """Host and port of each server: what an operator names, an operator trusts."""
    try:
        return [parse_target(server.url).authority for server in servers]
    except FairlaneError as error:
        raise InvalidSettings([f"{key}: {error.message}"]) from None
