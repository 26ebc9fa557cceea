"""The contract between the worker's loop, the executors and their HTTP.

An executor receives a `Run`, does the work and returns its result, or raises `ExecutionFailed`.
Caution: an executor must not set a deadline of its own. Deadline, timeout and cancel all arrive as
asyncio cancellation of `execute`, which must not be swallowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from fairlane.core.json_types import JsonObject
from fairlane.core.sessions import messages_of
from fairlane.worker.executors import current
from fairlane.worker.executors.permits import Amount, Amounts, PermitBlock, ResourceNotes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from fairlane.core.approvals import ApprovalRequest
    from fairlane.core.suspensions import Until
    from fairlane.schema.approvals import ApprovalOutcome
    from fairlane.worker.executors.permits import Needs, SettlementReport
    from fairlane.worker.executors.steps import StepLog
    from fairlane.worker.executors.waiting import Waited

RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024


class Work(msgspec.Struct, frozen=True):
    """A leased task, as its handler receives it.

    Attributes:
        task_id: Id of the task
        agent: Agent that the task belongs to
        kind: `handler`, `action` or `instruction`
        lane: Lane that the task runs in
        attempt: Number of this attempt, from 1
        deadline_at: Deadline in milliseconds since the epoch, or None
        request: The submitted body with its JSON names, without what the caller left out
        max_attempts: How many attempts the task may have
        timeout_ms: How long this attempt may take, or None
        inputs: Results of the tasks that this one depends on
        approval: The decision of a person that let the task start, if it needed one
        answers: Decisions about the questions of earlier runs, by name
        traceparent: Trace of this attempt, if traces are recorded
        session: Key of the session that the task belongs to, or None
        steps: Steps that earlier runs of the task recorded: `number`, `name`, `value`
        conversation_id: The same for all tasks of its agent in its session, until the session is
            reset; None without a session
        quota: Resource that a provider's "too many requests" closes, or None
    """

    task_id: str
    agent: str
    kind: str
    lane: str
    attempt: int
    deadline_at: int | None
    request: JsonObject
    max_attempts: int = 1
    timeout_ms: int | None = None
    inputs: list[JsonObject] = []  # results of the tasks that it depended on
    approval: JsonObject | None = None  # the decision that let the task start
    answers: dict[str, JsonObject] = {}  # decisions about questions of earlier runs, by name
    traceparent: str | None = None  # of this attempt, if traces are recorded
    quota: str | None = None
    session: str | None = None
    conversation_id: str | None = None
    steps: list[JsonObject] = []  # recorded by earlier runs

    @property
    def params(self) -> JsonObject:
        """Parameters of the task; empty if it was submitted without any."""
        return self.request.get("params") or {}

    @property
    def metadata(self) -> JsonObject:
        """Metadata of the task; empty if it was submitted without any."""
        return self.request.get("metadata") or {}

    @property
    def sender(self) -> str | None:
        """Author of the message that the task was made from, or None."""
        return self.request.get("sender")

    @property
    def messages(self) -> list[JsonObject]:
        """Messages that the task was made from, oldest first.

        Each has `id` and `sender`, and `sentAt`, `media` and `metadata` if they were sent. If there
        are several, each has its `text`.
        """
        return messages_of(self.request)

    @property
    def rolled_back(self) -> list[str]:
        """Ids of messages that the agent has to forget: this message rolled their turn back."""
        return self.request.get("rolledBack") or []

    @property
    def cron(self) -> JsonObject | None:
        """Cron job that submitted the task, or None: `jobId`, `jobName`, `runId`, `trigger` and
        `slotAt`, the time of its schedule.
        """
        return self.request.get("cron")

    @property
    def trace_id(self) -> str | None:
        """Trace that the task belongs to, or None."""
        parts = str(self.traceparent or self.request.get("traceparent") or "").split("-")
        return parts[1] if len(parts) == 4 else None

    def ask(
        self,
        title: str,
        *,
        detail: str | None = None,
        form: JsonObject | None = None,
        approvers: Sequence[str] | None = None,
        count: int | None = None,
        expires_ms: int | None = None,
        on_expiry: str | None = None,
        name: str | None = None,
    ) -> Any:
        """Ask a person, and return the answer: the values of the form, or {} without a form.

        If the question is new, the run ends here: the task gives its slot back, spends no attempt,
        and runs again from its beginning after the decision; then the same question returns at
        once. Await it in an async handler; in a plain one it returns the answer itself.

        Args:
            title: The question, in one line
            detail: Background for the person who decides
            form: JSON Schema of the values that the person fills in
            approvers: Names of the tokens or agents that may decide; any by default
            count: Number of different people who must approve; default: 1 by default
            expires_ms: When to decide without a person; never by default
            on_expiry: That decision: `reject` (the default) or `approve`
            name: Name of the question; by default derived from its contents

        Raises:
            ApprovalDenied: A person rejected it, or it expired
        """
        from fairlane.worker.executors import asking  # noqa: PLC0415 - it imports this module

        fields = {
            "title": title,
            "detail": detail,
            "form": form,
            "approvers": None if approvers is None else [*approvers],
            "count": count,
            "expiresMs": expires_ms,
            "onExpiry": on_expiry,
        }
        return asking.ask({key: one for key, one in fields.items() if one is not None}, name)

    def step(
        self, name: str, function: Callable[..., object], /, *args: object, **kwargs: object
    ) -> Any:
        """Run a function once and record its result; later runs of the task return the record.

        Await it in an async handler; in a plain one it returns the result itself. The result must
        be JSON. Call the same steps in the same order in every run. A crash after the function and
        before the record runs the function again.

        Args:
            name: Name of the step, the same in every run
            function: Async or plain function to run
            args: Its arguments
            kwargs: Its keyword arguments

        Raises:
            ExecutionFailed: Earlier runs recorded another step in this place, or the result is too
                large or not JSON. No further attempt is made
        """
        from fairlane.worker.executors import steps  # noqa: PLC0415 - it is about runs

        return steps.step(name, function, args, kwargs)

    def effect(
        self,
        name: str,
        function: Callable[..., object],
        /,
        *args: object,
        check: Callable[[str], object] | None = None,
        **kwargs: object,
    ) -> Any:
        """Run a function that acts on another system, and never act twice without knowing.

        Records the intent, calls `function(key, *args, **kwargs)`, and records its result, which
        later runs return. The key is the same in every run: pass it on as idempotency key. If a run
        ends before the result is recorded, the next one asks `check`; without it the task is parked
        until an operator says whether the effect happened. Await it in an async handler.

        Args:
            name: Name of the effect, the same in every run
            function: Async or plain function that acts; raises `EffectNotDone` if it has not acted
            args: Its further arguments
            check: Async or plain function that gets the key and returns the result if the effect
                happened, or raises `EffectNotDone`
            kwargs: Its keyword arguments

        Raises:
            ExecutionFailed: Earlier runs recorded another step in this place, or the result is too
                large or not JSON. No further attempt is made
        """
        from fairlane.worker.executors import effects  # noqa: PLC0415 - it is about runs

        return effects.effect(name, function, args, kwargs, check)

    def sleep(self, seconds: float) -> Any:
        """Wait without a slot: the run ends here, and the task runs again after this time.

        Steps and waits before it return their records then. Await it in an async handler.

        Args:
            seconds: How long to wait, by the clock of the server
        """
        from fairlane.worker.executors import waiting  # noqa: PLC0415 - it is about runs

        return waiting.sleep(seconds)

    def signal(self, name: str) -> Any:
        """Wait without a slot for a signal, and return its value.

        `POST /tasks/{id}/signals/{name}` sends it; one that came before is returned at once. Await
        it in an async handler.

        Args:
            name: Name of the signal
        """
        from fairlane.worker.executors import waiting  # noqa: PLC0415 - it is about runs

        return waiting.signal(name)

    def message(self) -> Any:
        """Wait without a slot for the next message of the session, and return it.

        A message that waits already is returned at once, whatever its mode. It has `id`, `sender`
        and `text`, and `sentAt`, `media` and `metadata` if they were sent. Await it in an async
        handler.
        """
        from fairlane.worker.executors import waiting  # noqa: PLC0415 - it is about runs

        return waiting.message()

    def inbox(self) -> Any:
        """Take the messages that have reached this run, and return them, oldest first.

        The list is empty if none has come. Messages are sent to a running task with the mode
        `steer`; each has the same fields as those of `work.message`. What a run does not take
        becomes the next turn of the session. A run that starts again gets the messages of earlier
        attempts from its first call. Await it in an async handler.
        """
        from fairlane.worker.executors import waiting  # noqa: PLC0415 - it is about runs

        return waiting.inbox()

    def submit(self, **fields: object) -> Any:
        """Submit a task once, and return its id; later runs return the same id.

        Await it in an async handler. The task belongs to the agent of this one by default.

        Args:
            fields: Fields of `POST /tasks` with Python names: `handler`, `params`, `lane`, …
        """
        from fairlane.worker.executors import waiting  # noqa: PLC0415 - it is about runs

        return waiting.submit(fields)

    def results(self, children: Sequence[object]) -> Any:
        """Wait without a slot until tasks have ended, and return their results in order.

        Await it in an async handler.

        Args:
            children: Ids of the tasks, such as `work.submit` returns them

        Raises:
            ChildFailed: One of them ended `failed`, `cancelled` or `rejected`
        """
        from fairlane.worker.executors import waiting  # noqa: PLC0415 - it is about runs

        return waiting.results(children)

    def permit(
        self,
        needs: Mapping[str, Amounts] | None = None,
        /,
        *,
        wait_seconds: float | None = None,
        **resources: Amounts,
    ) -> PermitBlock:
        """Reserve resources for one call: `async with work.permit(gpt={"tokens": 3000}) as permit`.

        Waits until there is room, by default as long as the run lasts. Leaving the block settles
        the permit with what `permit.used(tokens=2710)` reported, or as reserved. A plain function
        writes `with`. A resource with a key is given as a mapping:
        `work.permit({"host/example.com": {}})`.

        Args:
            needs: Amounts by resource and unit; `{}` is 1 of each unit
            wait_seconds: Raise `ResourceBusy` after this time
            resources: The same as keyword arguments
        """
        run, loop = current.running("ask for a permit")
        return PermitBlock(run, loop, {**(needs or {}), **resources}, wait_seconds)

    def used(self, resource: str | None = None, /, **units: Amount) -> None:
        """Report how much of its `needs` the task used; the rest is refunded at its end.

        Name the resource if the task needs more than one.
        """
        self._notes().used(resource, **units)

    def closed(
        self, resource: str | None = None, /, *, retry_after: float, reason: str | None = None
    ) -> None:
        """Report that a provider refuses requests for `retry_after` seconds.

        The resource is closed for all tasks until then. If the task then fails, that costs no
        attempt.
        """
        self._notes().closed(resource, retry_after=retry_after, reason=reason)

    def observed(self, resource: str | None = None, /, **remaining: Amount) -> None:
        """Report the remaining amount of each unit, as the provider states it."""
        self._notes().observed(resource, **remaining)

    def _notes(self) -> ResourceNotes:
        return current.running("report its use of resources")[0].resources


class Run(Protocol):
    """One attempt under one lease."""

    @property
    def work(self) -> Work: ...

    async def start(self) -> None:
        """Mark the task running, durably. Raise LeaseLost if the lease is lost."""

    def output(self, text: str) -> None:
        """Store text that the work has produced so far. Return at once."""

    def progress(self, progress: object) -> None:
        """Report the progress of the work. Return at once."""

    async def ask(self, name: str, request: ApprovalRequest) -> ApprovalOutcome | None:
        """Return the decision about a question; None if the lease was suspended until then."""

    @property
    def steps(self) -> StepLog:
        """Return the recorded steps, and the number of the next step of the run."""
        ...

    async def checkpoint(self, number: int, name: str, value: bytes) -> None:
        """Record the value of a step, which is JSON, durably. Raise LeaseLost if the lease is
        lost.
        """

    async def begin_effect(self, number: int, name: str, *, checks: bool) -> str:
        """Record that the run is about to act, and return the state of the effect. Raise
        `EffectUnknown` if the task was parked instead.
        """
        ...

    async def withdraw_effect(self, number: int, name: str) -> None:
        """Record that the run has not acted."""

    async def suspend(self, number: int, name: str, until: Until) -> Waited | None:
        """Return what a wait has brought; None if the lease was suspended until then."""

    async def inbox(self) -> list[JsonObject]:
        """Take the messages that have reached the run."""
        ...

    async def submit(self, fields: JsonObject, key: str) -> str:
        """Submit a task and return its id. The same key gives the same task."""
        ...

    @property
    def resources(self) -> ResourceNotes:
        """Return where the run reports its use of the task's needs."""
        ...

    async def permit(self, needs: Needs, wait_seconds: float | None) -> str:
        """Reserve resources and return the id of the permit. Raise `ResourceBusy` if there is no
        room in time.
        """
        ...

    async def settle(self, permit_id: str, report: SettlementReport) -> None:
        """Settle a permit."""


class Executor(Protocol):
    @property
    def starts_itself(self) -> bool:
        """Return False if the engine marks the task running when it leases it."""

    async def execute(self, run: Run) -> Any:
        """Return the result, a JSON value. Raise ExecutionFailed."""

    async def close(self) -> None: ...


class ResponseStream(Protocol):
    """A response whose body arrives in pieces; PayloadTooLarge if it gets too long."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...

    def __aiter__(self) -> AsyncIterator[bytes]: ...


class HttpSender(Protocol):
    """HTTP exchanges that never follow a redirect. Leaving the context closes the connection.

    Raise OSError (including TimeoutError) if the exchange breaks, TargetRefused or InvalidRequest
    if the target is not allowed, PayloadTooLarge beyond `max_bytes`. Opening the connection has its
    own limit; `timeout_seconds` limits the whole exchange, and None leaves the rest to
    cancellation.
    """

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        max_bytes: int,
        timeout_seconds: float | None,
    ) -> AbstractAsyncContextManager[ResponseStream]: ...
