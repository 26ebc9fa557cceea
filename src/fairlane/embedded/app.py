"""The scheduler inside your program, and the place where all parts are put together.

`Fairlane` is the node that `fairlane serve` runs, without HTTP. `cli/server.py` adds HTTP, signals
and a watched policy file.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Self, Unpack

import msgspec

from fairlane import config
from fairlane.client.arguments import as_body, encoded
from fairlane.client.base import AsyncBaseClient, AsyncShapes, WhichEvents
from fairlane.client.methods import Q, R, TaskFields
from fairlane.clock import Clock, SystemClock
from fairlane.compat import policies
from fairlane.config import InstanceSetting
from fairlane.core.access import TRUSTED
from fairlane.core.errors import (
    BusyError,
    FairlaneError,
    InvalidPolicy,
    InvalidSettings,
    StoreUnavailable,
)
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.model import ACTION, HANDLER, INSTRUCTION, capability_of
from fairlane.core.policy import Policy
from fairlane.core.submissions import TaskRequest
from fairlane.embedded.handles import BatchHandle, TaskHandle, batch_handle
from fairlane.embedded.listeners import L, Listeners
from fairlane.embedded.schedule import ScheduleFields, Scheduling, TokenEstimate
from fairlane.engine.commands import SetPolicy, UseSecret
from fairlane.engine.telemetry.heartbeat import watch
from fairlane.engine.verbs.webhooks import new_secret
from fairlane.engine.writing_node import WritingNode
from fairlane.outbound.guard import Guard
from fairlane.outbound.outbox import Outbox
from fairlane.outbound.sending import Sender
from fairlane.outbound.targets import parse_target
from fairlane.outbound.webhooks import Deliverer
from fairlane.schema import decoding
from fairlane.schema.events import LIST_EVENTS, ListEvents
from fairlane.schema.operation import Operation
from fairlane.schema.tasks import SubmitTask
from fairlane.services import catalog, following, tasks
from fairlane.store.base import ConnectionLost
from fairlane.store.opening import open_store
from fairlane.tracing import Tracer
from fairlane.worker.executors.action import ActionExecutor
from fairlane.worker.executors.base import Executor
from fairlane.worker.executors.builtin import BUILTIN, H, Handler, HandlerExecutor
from fairlane.worker.executors.instruction import InstructionExecutor
from fairlane.worker.executors.tabs import Instance
from fairlane.worker.executors.task_secrets import TaskSecrets
from fairlane.worker.loop import Loop
from fairlane.worker.source import EngineSource

log = logging.getLogger("fairlane")

NOT_STARTED: Final = "this Fairlane has not been started; use `async with`"


def tune() -> None:
    """Tune the garbage collector for throughput; call it once, after the program has been loaded.

    A scheduler creates many short-lived values and few cycles. Collections become rarer and skip
    what was loaded at the start.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


class Fairlane(AsyncBaseClient):
    """A scheduler inside your program; use it as an async context manager.

    Register handlers with `@app.handler("name")`. Tasks without a handler here wait for a worker
    elsewhere. All methods that talk to the scheduler are coroutines.

    Args:
        store: URL of the database: `sqlite:///file.db`, `sqlite://:memory:` or `postgresql://…`
        policy: Policy document that is merged over the stored policy at the start
        instances: Browser instances, each as a URL or an `InstanceSetting` with its token
        agent: Agent server that runs instructions
        allow_outbound: Addresses that webhooks and executors may reach although the guard blocks
            them
        deny_outbound: Addresses that nothing may reach
        webhook_secret: Secret that signs webhooks; the store creates one by default
        secret_key: Key that seals secrets in the store; by default one beside the database file
        allow_secrets: References (`env:NAME`, `file:NAME`) that tasks may use
        secrets_folder: Folder of the files that tasks may refer to
        drain_seconds: How long running tasks may continue after `stop`
        token_estimate: Function that returns (tokens, context window) of a session
        clock: Clock to use instead of the system's; for tests
        tracer: OpenTelemetry tracer, see `fairlane.tracing`
        capture_output: Whether what handlers print and log becomes output of their tasks
    """

    def __init__(
        self,
        store: str = "sqlite:///fairlane.db",
        *,
        policy: JsonMapping | None = None,
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
        capture_output: bool = True,
    ) -> None:
        self.clock = clock or SystemClock()
        self._task_secrets = TaskSecrets(allow_secrets, folder=secrets_folder)
        references = self._task_secrets.references
        self.node = WritingNode(
            open_store(store, secret_key=secret_key, references=references), self.clock
        )
        self.node.tracer = tracer
        self.guard = Guard(allow_outbound, deny=deny_outbound, on_blocked=self._blocked)
        browsers = config.servers("instances", instances)
        agents = config.servers("agent", [] if agent is None else [agent])
        # Only executors may reach these servers; webhooks go where agents ask.
        trusted = [*_authorities("instance", browsers), *_authorities("agent", agents)]
        self._executor_guard = Guard(
            [*allow_outbound, *trusted], deny=deny_outbound, on_blocked=self._blocked
        )
        self.port: int | None = None
        self._policy = policy
        self._policy_notes: list[str] = []
        self._instances = [Instance(one.url, one.token) for one in browsers]
        self._agent = Instance(agents[0].url, agents[0].token) if agents else None
        self._webhook_secret = webhook_secret
        self._drain_seconds = drain_seconds
        self._handlers: dict[str, Handler] = dict(BUILTIN)
        self._handler_executor = HandlerExecutor(self._handlers, capture_output=capture_output)
        self._scheduling = Scheduling(self.node, token_estimate)
        # Empty until they are asked for.
        self._executor_of: Mapping[str, Executor] = {}
        self._capabilities: frozenset[str] = frozenset()
        self._sender: Sender | None = None
        self._action_executor: ActionExecutor | None = None
        self._instruction_executor: InstructionExecutor | None = None
        self._worker: Loop | None = None
        self._worker_count = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners = Listeners()
        self._started = False
        self._tasks: list[asyncio.Task[None]] = []

    # ---------------------------------------------------------------- life

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store and start the worker and the webhooks. `async with` calls this."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        try:
            await asyncio.to_thread(self.node.start)
        except ConnectionLost as error:
            raise StoreUnavailable(f"the store does not respond: {error}") from None
        self.node.check_url = self.guard.check
        self._started = True
        self._listeners.begin(self.events)
        if self._policy:
            await self.lay_policy(self._policy, "start")
        self._start_worker()
        await self._start_deliverer()
        self._tasks.append(asyncio.create_task(watch(self.node), name="fairlane-watch"))

    async def lay_policy(self, document: JsonMapping, source: str) -> None:
        """Merge a document over the policy and record the change in the audit log."""
        notes, self._policy_notes = self._policy_notes, policies.notes(document)
        if self._policy_notes != notes:
            for note in self._policy_notes:
                log.info("the policy (%s): %s", source, note)
        change = await self.node.set_policy(SetPolicy({**document}, source))
        if change.after != change.before:
            detail = f"version {change.version}"
            await self.node.audit.note("settings", "policy", source, detail=detail)

    def refuse_new(self) -> None:
        """Stop accepting tasks and starting attempts."""
        self.node.refuse_new()
        if self._worker is not None:
            self._worker.take_nothing_new()

    async def drain(self) -> None:
        """Accept no new tasks, let running ones finish within `drain_seconds`, and interrupt the
        rest.
        """
        self.refuse_new()
        if self._worker is not None:
            await self._worker.drain(self._drain_seconds)
            await self._scheduling.give_up()
        self.node.let_waiters_go()

    async def stop(self) -> None:
        """Drain and close everything. `async with` calls this."""
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
        """Forbid outbound requests to a port of this process."""
        self.port = port
        self.guard.own_ports.add(port)
        self._executor_guard.own_ports.add(port)

    def _blocked(self, host: str, reason: str) -> None:
        """Record a refused address in the audit log, which counts repetitions."""
        self.node.audit.blocked("outbound", host, reason=reason)

    async def _submit_child(self, fields: JsonObject, key: str) -> str:
        """Submit a task for a run of this process, once."""
        return (await super().submit(idempotency_key=key, **fields)).task_id

    def _start_worker(self) -> None:
        node = self.node
        self._sender = Sender(self._executor_guard)
        self._action_executor = ActionExecutor(self._instances, self._sender)
        if self._agent is not None:
            self._instruction_executor = InstructionExecutor(
                self._agent, self._sender, self._task_secrets.resolved
            )
        source = EngineSource(node.writer, node.name, lambda: node.policy, self._submit_child)
        worker = Loop(source, self._executors, lambda: node.policy.worker_count, tracer=node.tracer)
        node.runs = self._runs
        node.on_stopped.append(worker.stop_runs)
        node.on_policy.append(self._policy_changed)
        self._worker_count = node.policy.worker_count
        self._loop = asyncio.get_running_loop()
        self._worker = worker
        self._tasks.append(asyncio.create_task(worker.run(), name="fairlane-worker"))

    def _policy_changed(self, policy: Policy) -> None:
        """Ask for leases again only if the worker count has changed: a new request withdraws the
        pending one and releases leases that are being granted.
        """
        if policy.worker_count == self._worker_count:
            return
        self._worker_count = policy.worker_count
        if self._worker is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._worker.poke)

    def _executors(self) -> Mapping[str, Executor]:
        """Return the executor of each capability. Every lease request asks for them."""
        if not self._executor_of:
            assert self._action_executor is not None
            found: dict[str, Executor] = {
                capability_of(HANDLER, name): self._handler_executor for name in self._handlers
            }
            found[self._scheduling.capability] = self._scheduling.executor
            found[capability_of(ACTION)] = self._action_executor
            if self._instruction_executor is not None:
                found[capability_of(INSTRUCTION)] = self._instruction_executor
            self._executor_of, self._capabilities = found, frozenset(found)
        return self._executor_of

    def _runs(self) -> frozenset[str]:
        """Return the capabilities of this worker. Every submission asks for them."""
        self._executors()
        return self._capabilities

    async def _start_deliverer(self) -> None:
        # Always requested, so that a node with the wrong key does not start.
        kept = await self.node.writer.ask(UseSecret(new_secret()))
        secret = self._webhook_secret or kept
        source = Outbox(self.node)
        deliverer = Deliverer(
            source, self.guard, lambda _: secret, self.clock.now, tracer=self.node.tracer
        )
        self._tasks.append(asyncio.create_task(deliverer.run(), name="fairlane-webhooks"))

    # ---------------------------------------------------------------- use

    def handler(self, name: str) -> Callable[[H], H]:
        """Register an async or plain function as the handler `name`.

        The function takes a `Work` and returns the result. A plain function runs in a thread.
        """

        def register(function: H) -> H:
            self._handlers[name] = function
            self._executor_of = {}
            if self._worker is not None:
                self._worker.poke()
            return function

        return register

    def on_event(self, listener: L) -> L:
        """Call an async or plain function for every event from now on; use it as a decorator.

        Listeners receive events one at a time, in order; on a shared store also those of other
        nodes. An exception in a listener is logged and ignored.
        """
        self._listeners.add(listener)
        if self._started:
            self._listeners.begin(self.events)
        return listener

    async def submit(  # type: ignore[override]  # a handle can do more than a response
        self, *, idempotency_key: str | None = None, **fields: Unpack[TaskFields]
    ) -> TaskHandle:
        """Submit one task and return its handle. Raise a `FairlaneError` if it is refused.

        The fields are those of `POST /tasks` with Python names: `handler`, `agent`, `params`,
        `priority`, `delay_ms`, `depends_on`, …
        """
        if idempotency_key is not None:
            return TaskHandle(self, await super().submit(idempotency_key=idempotency_key, **fields))
        # The same checks and the same service, without the layers for all operations: a third less.
        self._require_start()
        raw = encoded(as_body(TaskRequest, "submit", fields))
        request = SubmitTask(decoding.decode(raw, TaskRequest))
        return TaskHandle(self, await tasks.submit(self.node, TRUSTED, request))

    async def submit_batch(
        self,
        tasks: Sequence[Mapping[str, Any]],
        *,
        parallelism: int | None = None,
        agent: str | None = None,
        callback_url: str | None = None,
        idempotency_key: str | None = None,
    ) -> BatchHandle:
        """Submit many tasks together and return a handle; each is accepted or rejected on its own.

        Args:
            tasks: The tasks, each as for `POST /tasks`; a handle may stand for a parent's id
            parallelism: Maximum number of the batch's tasks in flight, 1 to 10
            agent: Agent that the batch belongs to
            callback_url: URL that receives a POST when the batch finishes
            idempotency_key: A repeated request with the same key has no further effect
        """
        accepted = await super().submit_batch(
            tasks,
            parallelism=parallelism,
            agent=agent,
            callback_url=callback_url,
            idempotency_key=idempotency_key,
        )
        return batch_handle(self, accepted)

    @contextlib.asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[dict[str, Self]]:
        """Run the scheduler while a web application runs: `FastAPI(lifespan=app.lifespan)`.

        Requests find it as `request.state.fairlane`. Running tasks may finish when the application
        stops; the others run after the next start.
        """
        async with self:
            yield {"fairlane": self}

    async def schedule(
        self,
        *,
        session: str,
        fn: Handler | None = None,
        timeout: float | None = None,
        **fields: Unpack[ScheduleFields],
    ) -> Any:
        """Run a function, a handler or a message when its session has a turn, and return the
        result.

        Raise what `fn` raises, `TaskFailed` if a handler failed, `TimeoutError` after `timeout`
        seconds, or another `FairlaneError` if the task was refused or did not run. A caller that
        stops waiting cancels the task.
        """
        self._require_start()
        return await self._scheduling.schedule(session, fn, timeout=timeout, fields=fields)

    def events(
        self, *, after: int | None = None, follow: bool = True, **which: Unpack[WhichEvents]
    ) -> AsyncShapes:
        """Iterate over events after the id `after`, in order, each once.

        With `follow`, start at this call unless `after` is set, and end when the node stops.
        Without it, start with the oldest event and end with the newest.
        """
        if follow and after is None:
            # Read now, so that everything the caller does next comes after it.
            after = self.node.views.last_event()
        return super().events(after=after, follow=follow, **which)

    async def perform(self, operation: Operation[Q, R], request: Q) -> R:
        """Carry out a declared operation and return its typed response."""
        self._require_start()
        return await catalog.perform(self.node, TRUSTED, operation, request)

    def _follow_events(self, request: ListEvents) -> AsyncShapes:
        self._require_start()
        return following.each_event(self.node, TRUSTED, catalog.checked(LIST_EVENTS, request))

    def _follow_output(self, task_id: str) -> AsyncShapes:
        self._require_start()
        return following.each_piece(self.node, TRUSTED, task_id)

    def _require_start(self) -> None:
        if not self._started:
            raise RuntimeError(NOT_STARTED)


Loaded = JsonMapping | Awaitable[JsonMapping]


class ConfigWatcher:
    """Reload a configuration every `interval_seconds` and merge it over the policy when it changes.

    `load` is an async or plain function that returns a policy document, either Fairlane's own or
    that of another program (`compat/`). If `load` raises or the document is invalid, the policy
    stays and the problem is logged. `name` is what the log calls the configuration.
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
        """Start watching in the background."""
        self._task = asyncio.create_task(self._run(), name="fairlane-config")

    async def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def look(self) -> None:
        """Load once and apply a change. Raise an error if the document is invalid."""
        document = await self._loaded()
        # Compare the text: a loader may change one object in place.
        text = msgspec.json.encode(document, order="deterministic")
        if text == self._seen:
            return
        try:
            await self._app.lay_policy(document, "config")
        except BusyError:
            raise  # the store was unavailable: try the same document again
        except FairlaneError:
            self._seen = text
            raise
        self._seen = text

    async def _loaded(self) -> JsonObject:
        """Return a copy of what `load` returns. A plain function runs in a thread."""
        load = self._load
        loaded = load() if inspect.iscoroutinefunction(load) else await asyncio.to_thread(load)
        document = await loaded if inspect.isawaitable(loaded) else loaded
        if not isinstance(document, Mapping):
            raise InvalidPolicy(["a policy must be a JSON object"])
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
        """Log a problem once, however often it is seen."""
        if what != self._complaint:
            log.warning("%s was refused; the previous policy stays in effect: %s", self._name, what)
        self._complaint = what


def _authorities(key: str, servers: Sequence[InstanceSetting]) -> list[str]:
    """Return host and port of each server that the operator named, and so trusts."""
    try:
        return [parse_target(server.url).authority for server in servers]
    except FairlaneError as error:
        raise InvalidSettings([f"{key}: {error.message}"]) from None
