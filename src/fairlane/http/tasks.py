"""Routes of tasks: submit one or many, look, wait, cancel."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from fairlane import wire
from fairlane.core.errors import FairlaneError, InvalidRequest
from fairlane.core.policy import nearest
from fairlane.core.model import Submission, Task
from fairlane.engine.node import Node
from fairlane.engine.requests import IdempotencyKey, Submit
from fairlane.engine.views import Filter, TaskView
from fairlane.http.answers import header, read_body, send_json

WAIT_MS_MAX: Final = 60_000
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_FILTERS: Final = {"agentId": "agent", "lane": "lane", "sessionKey": "session", "batchId": "batch"}


class Tasks:
    def __init__(self, node: Node, check_url: Callable[[str], object]) -> None:
        """`check_url` raises when a callback may not be sent to an address."""
        self._node = node
        self._check_url = check_url

    async def submit(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await read_body(scope, receive)
        submission = wire.parse_task(raw, id=self._node.new_id())
        self._check_callback(submission)
        key = _idempotency(scope, submission.agent, raw)
        answers = await self._node.submit(Submit([submission], key))
        answer = answers[0]
        if isinstance(answer, FairlaneError):
            raise answer
        await send_json(send, 202, wire.accepted(answer))

    async def submit_batch(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = await read_body(scope, receive)
        batch = self._node.new_id("bat")
        ids = [self._node.new_id() for _ in range(wire.HANDLER_BATCH_MAX)]
        items = [self._checked(item) for item in wire.parse_batch(raw, ids=ids, batch=batch)]
        good = [item for _, item in items if isinstance(item, Submission)]
        answers: list[Any] = []
        if good:
            key = _idempotency(scope, good[0].agent, raw)
            answers = await self._node.submit(Submit(good, key))
        shape = wire.batch(*_outcomes(batch, items, answers))
        await send_json(send, 202, shape)

    async def list(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = _query(scope, {*_FILTERS, "state", "limit", "cursor"})
        wanted = Filter(
            states=wire.parse_states(query.get("state", "")),
            before=_number(query, "cursor", None, 1, 2**62),
            **{name: query[key] for key, name in _FILTERS.items() if query.get(key)},
        )
        limit = _number(query, "limit", wire.LIST_LIMIT_DEFAULT, 1, wire.LIST_LIMIT_MAX)
        assert limit is not None
        views = self._node.views
        found = await views.read(views.tasks, wanted, limit + 1)
        page = found[:limit]
        shape: dict[str, Any] = {"tasks": [_shape(view) for view in page], "count": len(page)}
        if len(found) > limit:
            shape["nextCursor"] = str(page[-1].task.seq)
        await send_json(send, 200, shape)

    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        view = await self._node.show(scope["path_params"]["id"])
        await send_json(send, 200, _shape(view))

    async def wait(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = _query(scope, {"timeoutMs"})
        timeout_ms = _number(query, "timeoutMs", 30_000, 0, WAIT_MS_MAX)
        assert timeout_ms is not None
        view = await self._node.wait(scope["path_params"]["id"], timeout_ms / 1000)
        await send_json(send, 200, _shape(view))

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = await self._node.cancel(scope["path_params"]["id"])
        await send_json(send, 200, {"status": "cancelled", "taskId": task.id})

    async def stats(self, scope: Scope, receive: Receive, send: Send) -> None:
        views = self._node.views
        lanes, agents = await views.read(views.stats)
        await send_json(send, 200, wire.stats(lanes, agents, self._node.policy))

    def _check_callback(self, submission: Submission) -> None:
        if submission.callback_url is not None:
            try:
                self._check_url(submission.callback_url)
            except FairlaneError as error:
                message = f"invalid task: invalid callbackUrl: {error.message}"
                raise InvalidRequest(message) from None

    def _checked(
        self, item: tuple[str, Submission | InvalidRequest]
    ) -> tuple[str, Submission | InvalidRequest]:
        id, submission = item
        if isinstance(submission, Submission):
            try:
                self._check_callback(submission)
            except InvalidRequest as error:
                return id, error
        return item


def _outcomes(
    batch: str, items: Sequence[tuple[str, Submission | InvalidRequest]], answers: Sequence[Any]
) -> tuple[str, list[tuple[str, Task | FairlaneError]]]:
    """Items and answers side by side. A repeated batch has the ids, and the name, of the first."""
    left = iter(answers)
    outcomes: list[tuple[str, Task | FairlaneError]] = []
    for id, item in items:
        outcome = item if isinstance(item, InvalidRequest) else next(left)
        if isinstance(outcome, Task):
            batch = outcome.batch or batch
            id = outcome.id
        outcomes.append((id, outcome))
    return batch, outcomes


def _shape(view: TaskView) -> dict[str, Any]:
    return wire.task(view.task, view.body, view.result, view.error)


def _idempotency(scope: Scope, agent: str, raw: bytes) -> IdempotencyKey | None:
    key = header(scope, b"idempotency-key")
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key must be 1 to 255 visible ASCII characters")
    return IdempotencyKey(agent, key, hashlib.sha256(raw).hexdigest())


def _query(scope: Scope, known: set[str]) -> dict[str, str]:
    """The query's values; the first of each. Unknown names are refused, not ignored."""
    values = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    for name in values:
        if name not in known:
            hint = nearest(name, known)
            raise InvalidRequest(f"unknown query parameter '{name[:40]}'{hint}")
    return {name: found[0] for name, found in values.items()}


def _number(
    query: dict[str, str], name: str, default: int | None, low: int, high: int
) -> int | None:
    text = query.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and low <= int(text[:20]) <= high):
        raise InvalidRequest(
            f"query parameter '{name}' must be a whole number from {low} to {high}"
        )
    return int(text)
