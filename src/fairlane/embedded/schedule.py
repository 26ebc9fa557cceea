"""`Fairlane.schedule`: work in a session that a caller in this process waits for.

It is a message of its session like any other, so modes, caps and stops apply. It may run a function
of this process instead of a handler. A caller that stops waiting cancels the task unless others
wait for it too. The estimate of the session's context window is sent before and after each run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, TypedDict

import msgspec

from fairlane.client.arguments import as_text, given, refuse_unknown
from fairlane.core import inbox, lifecycle, validation
from fairlane.core.errors import Draining, FairlaneError, InvalidRequest, task_failed
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.model import HANDLER, Submission, capability_of
from fairlane.core.policy import FALLBACK_LANE
from fairlane.core.submissions import DEFAULT_AGENT, TaskRequest, submission, task_request
from fairlane.engine.commands import SetUsage, Submit
from fairlane.engine.node import Node
from fairlane.engine.reads.views import TaskView
from fairlane.schema import decoding, wire
from fairlane.schema.sessions import ReportUsage, SendMessage
from fairlane.services.sessions import as_message, message_of
from fairlane.worker.executors.builtin import Handler
from fairlane.worker.executors.calls import Call, CallExecutor

log = logging.getLogger("fairlane.scheduling")

# Not a word, so no handler can have this name.
FUNCTION: Final = "(function)"
# One attempt is for the function, the other for the node that fails it if this process has ended.
FUNCTION_RETRIES: Final = {"maxRetries": 1, "backoffMs": 0}
# A deadline for tasks whose caller has ended and cannot cancel them.
LEFT_OVER_MS: Final = 60_000

Usage = tuple[int, int]
TokenEstimate = Callable[[str], Usage | Awaitable[Usage | None] | None]


class ScheduleFields(TypedDict, total=False):
    """The fields of work for a session; None is the same as leaving one out."""

    handler: str | None
    message: str | None
    params: JsonMapping | None
    sender: str | None
    agent: str | None
    lane: str | None
    priority: int | str | None
    mode: str | None
    cap: int | None
    drop: str | None
    debounce_ms: int | None
    max_concurrent: int | None
    sent_at: str | datetime | None
    metadata: JsonMapping | None
    llm_config: JsonMapping | None


class Scheduling:
    def __init__(self, node: Node, estimate: TokenEstimate | None) -> None:
        self._node = node
        self._estimate = estimate
        self._calls: dict[str, Call] = {}
        self.executor = CallExecutor(self._calls)
        # On a shared store only this node may lease what only it can run.
        self._name = f"{FUNCTION}@{node.name}" if node.store.shared else FUNCTION
        self.capability = capability_of(HANDLER, self._name)

    async def schedule(
        self,
        session: str,
        function: Handler | None,
        *,
        timeout: float | None,
        fields: ScheduleFields,
    ) -> Any:
        usage = await self._estimated(session)
        made = self._submission(session, fields, is_function=function is not None, usage=usage)
        limit = asyncio.timeout(timeout)
        if timeout is not None:
            deadline_ms = round(timeout * 1000) + LEFT_OVER_MS
            made = msgspec.structs.replace(made, deadline_ms=deadline_ms)
        try:
            async with limit:
                return await self._outcome(made, Call(function))
        except TimeoutError:
            if not limit.expired():  # a timeout inside the function
                raise
            raise TimeoutError(
                f"the task was cancelled: it did not end within {timeout} s"
            ) from None

    async def give_up(self) -> None:
        """Cancel the functions that still wait for their turn; the node is stopping."""
        for task_id, call in list(self._calls.items()):
            if call.function is not None:
                call.given_up = True
                with contextlib.suppress(FairlaneError):  # it has ended, or ends at the next start
                    await self._node.cancel(task_id)

    # ---------------------------------------------------------------- requests

    def _submission(
        self, session: str, fields: ScheduleFields, *, is_function: bool, usage: Usage | None
    ) -> Submission:
        request = _request(session, fields, is_function=is_function)
        task = _task(request, fields.get("params"), is_function=is_function)
        made = submission(task, task_id=self._node.new_id())
        # A message without text, or with params, which would be lost, is never merged.
        no_merge = request.text is None or fields.get("params") is not None
        message = message_of(request, None, no_merge=no_merge)
        stored: JsonObject = {"sender": message.sender}
        if no_merge:
            stored["noMerge"] = True
        if is_function:
            stored["handler"] = self._name
            made = msgspec.structs.replace(made, capability=self.capability)
        if usage is not None:
            tokens, context_window = usage
            message = msgspec.structs.replace(message, tokens=tokens, context_window=context_window)
        return as_message(made, message, stored)

    async def _estimated(self, session: str) -> Usage | None:
        if self._estimate is None:
            return None
        try:
            found = self._estimate(session)
            found = await found if inspect.isawaitable(found) else found
            if found is None:
                return None
            tokens, context_window = map(int, found)
            said = {"key": session, "tokens": tokens, "contextWindow": context_window}
            validation.convert(said, ReportUsage)
        except Exception as error:  # noqa: BLE001 - the estimate is the caller's own
            log.warning(
                "cannot estimate the context usage of session %r: %s: %s",
                session,
                type(error).__name__,
                error,
            )
            return None
        return tokens, context_window

    # ---------------------------------------------------------------- results

    async def _outcome(self, made: Submission, call: Call) -> Any:
        assert made.session is not None
        task_id = await self._admitted_or_gone(made, call)
        call = self._calls.get(task_id, call)
        view = None
        try:
            view = await self._node.wait(task_id, None)
        finally:
            await self._leave(task_id, is_wanted=view is not None)
        taker = inbox.taker_of(view.task, view.result)
        if taker is not None:  # the message steered another run, whose answer is the answer
            view = await self._node.wait(taker, None)
        await self._report(made.session)
        return _result(view, call)

    async def _admitted_or_gone(self, made: Submission, call: Call) -> str:
        """Return the task's id. If the caller stops waiting in the meantime, cancel the task."""
        admitting = asyncio.create_task(self._admitted(made, call))
        try:
            return await asyncio.shield(admitting)
        except asyncio.CancelledError:
            await asyncio.wait([admitting])
            if admitting.exception() is None:
                await self._leave(admitting.result(), is_wanted=False)
            raise

    async def _admitted(self, made: Submission, call: Call) -> str:
        """Submit and return the task's id, or that of the message it was merged into."""
        self._calls[made.id] = call  # it may run before the response arrives
        answer: Any = None
        try:
            answer = (await self._node.submit(Submit([made])))[0]
        finally:
            if isinstance(answer, FairlaneError | None) or answer.id != made.id:
                del self._calls[made.id]
        if isinstance(answer, FairlaneError):
            raise answer
        if call.function is not None:  # a task that an earlier process submitted gets this function
            self._calls.setdefault(answer.id, call)
        if answer.id in self._calls:
            self._calls[answer.id].waiters += 1
        task_id: str = answer.id
        return task_id

    async def _leave(self, task_id: str, *, is_wanted: bool) -> None:
        """Stop waiting. The last waiter cancels the task."""
        call = self._calls.get(task_id)
        if call is None:
            return
        call.waiters -= 1
        if call.waiters:
            return
        try:
            if not is_wanted:
                with contextlib.suppress(FairlaneError):  # it has ended meanwhile
                    await self._node.cancel(task_id)
        finally:
            del self._calls[task_id]

    async def _report(self, session: str) -> None:
        usage = await self._estimated(session)
        if usage is not None:
            with contextlib.suppress(FairlaneError):  # the next report includes it
                await self._node.writer.ask(SetUsage(session, *usage))


def _request(session: str, fields: ScheduleFields, *, is_function: bool) -> SendMessage:
    """Check the arguments like a message; the task does not wait for further messages."""
    refuse_unknown("schedule", fields, ScheduleFields.__annotations__)
    if is_function and fields.get("handler") is not None:
        raise InvalidRequest("give either 'fn' or 'handler', not both")
    if not is_function and fields.get("handler") is None and fields.get("message") is None:
        raise InvalidRequest("nothing to run: give 'fn', 'handler' or 'message'")
    task_request(session=session)  # or the refusal would name a field of the message
    named = {name: value for name, value in fields.items() if name not in ("params", "sent_at")}
    said = given(**named, sent_at=as_text(fields.get("sent_at")))
    raw = wire.encode({"key": session, "debounceMs": 0, **said})
    return decoding.decode(raw, SendMessage)


def _task(request: SendMessage, params: JsonMapping | None, *, is_function: bool) -> TaskRequest:
    handler = "function" if is_function else request.handler
    if handler is not None:  # it gets the message among its params, like any handler
        sender = request.sender or request.agent or DEFAULT_AGENT
        said = {} if request.text is None else {"message": request.text, "sender": sender}
        params = {**said, **(params or {})}
    body = given(
        session=request.key,
        handler=handler,
        instruction=request.text if handler is None else None,
        params=params,
        agent=request.agent,
        lane=request.lane or FALLBACK_LANE,
        priority=request.priority,
        metadata=request.metadata,
        llm_config=request.llm_config,
        retry_policy=FUNCTION_RETRIES if is_function else None,
    )
    return decoding.decode(wire.encode(body), TaskRequest)


def _result(view: TaskView, call: Call) -> Any:
    """Return the task's result, or raise the reason why there is none."""
    task = view.task
    if task.state == lifecycle.DONE:
        return None if view.result is None else msgspec.json.decode(view.result)
    at_rest = task.terminal or task.state == lifecycle.PARKED
    if (call.given_up and task.state == lifecycle.CANCELLED) or not at_rest:
        raise Draining(f"this node stopped before task {task.id} ended")
    if call.error is not None and task.state == lifecycle.FAILED:
        raise call.error
    raise task_failed(task.id, task.state, view.error)
