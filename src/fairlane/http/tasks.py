"""Routes of tasks: submit one or many, look, wait, cancel, try again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from fairlane import bodies, fields, wire
from fairlane.core import lifecycle
from fairlane.core.errors import FairlaneError, IdempotencyConflict, InvalidRequest
from fairlane.core.model import Submission, Task
from fairlane.engine.node import Node
from fairlane.engine.requests import Cancel, IdempotencyKey, NewBatch, Reset, Retry, Submit
from fairlane.engine.views import Filter, TaskView
from fairlane.http.answers import Answer, Handler, Request, whole_number

WAIT_MS_DEFAULT: Final = 30_000
WAIT_MS_MAX: Final = 60_000
SHOWN_MAX: Final = 100
_OPEN: Final = tuple(state for state in lifecycle.STATES if state not in lifecycle.TERMINAL)
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_FILTERS: Final = {"agentId": "agent", "lane": "lane", "sessionKey": "session", "batchId": "batch"}

Item = Submission | InvalidRequest
Outcome = Task | FairlaneError


class Tasks:
    def __init__(self, node: Node, check_url: Callable[[str], object]) -> None:
        """`check_url` raises when a callback may not be sent to an address."""
        self._node = node
        self._check_url = check_url

    def routes(self) -> dict[str, dict[str, Handler]]:
        return {
            "/tasks": {"POST": self.submit, "GET": self.list},
            "/tasks/batch": {"POST": self.submit_batch},
            "/tasks/cancel": {"POST": self.cancel_many},
            "/tasks/retry": {"POST": self.retry_many},
            "/tasks/reset": {"POST": self.reset_many},
            "/tasks/prune": {"POST": self.prune},
            "/tasks/{id}": {"GET": self.show, "DELETE": self.delete},
            "/tasks/{id}/cancel": {"POST": self.cancel},
            "/tasks/{id}/retry": {"POST": self.retry},
            "/tasks/{id}/reset": {"POST": self.reset},
            "/tasks/{id}/wait": {"GET": self.wait},
            "/tasks/{id}/why": {"GET": self.why},
            "/scheduler/stats": {"GET": self.stats},
        }

    async def submit(self, request: Request) -> Answer:
        raw = await request.body()
        submission = bodies.parse_task(raw, task_id=self._node.new_id())
        self.check_callback(submission)
        key = idempotency_key(request, submission.agent, raw)
        answer = (await self._node.submit(Submit([submission], key)))[0]
        if isinstance(answer, FairlaneError):
            raise answer
        return Answer(202, wire.accepted(answer))

    async def submit_batch(self, request: Request) -> Answer:
        raw = await request.body()
        ids = [self._node.new_id() for _ in range(bodies.WORK_BATCH_MAX)]
        batch = bodies.parse_batch(raw, ids=ids, batch=self._node.new_id("bat"))
        items = [self._checked(item) for item in batch.items]
        good = [item for item in items if isinstance(item, Submission)]
        answers: list[Any] = []
        if good:
            key = idempotency_key(request, good[0].agent, raw)
            new = NewBatch(batch.id, batch.agent, batch.parallelism, batch.callback_url)
            answers = await self._node.submit(Submit(good, key, new))
        if len(answers) != len(good):  # repeated, but other items of it are in order now
            raise IdempotencyConflict("this Idempotency-Key stands for another set of tasks")
        return Answer(202, wire.batch(*_side_by_side(batch.id, items, answers)))

    async def list(self, request: Request) -> Answer:
        query = request.query(*_FILTERS, "kind", "state", "limit", "cursor")
        wanted = Filter(
            states=fields.parse_states(query.get("state", "")),
            kind=bodies.parse_kind(query.get("kind")),
            before=whole_number(query, "cursor", None, low=1, high=2**62),
            **{name: query[key] for key, name in _FILTERS.items() if query.get(key)},
        )
        limit = whole_number(
            query, "limit", wire.LIST_LIMIT_DEFAULT, low=1, high=wire.LIST_LIMIT_MAX
        )
        assert limit is not None
        views = self._node.views
        found = await views.read(views.tasks, wanted, limit + 1)
        page = found[:limit]
        shape: dict[str, Any] = {"tasks": [_shape(view) for view in page], "count": len(page)}
        if len(found) > limit:
            shape["nextCursor"] = str(page[-1].task.seq)
        return Answer(200, shape)

    async def show(self, request: Request) -> Answer:
        return Answer(200, _shape(await self._node.show(request.path["id"])))

    async def why(self, request: Request) -> Answer:
        found = await self._node.why(request.path["id"])
        return Answer(200, wire.why(found.task, found.why))

    async def wait(self, request: Request) -> Answer:
        query = request.query("timeoutMs")
        timeout_ms = whole_number(query, "timeoutMs", WAIT_MS_DEFAULT, low=0, high=WAIT_MS_MAX)
        assert timeout_ms is not None
        return Answer(200, _shape(await self._node.wait(request.path["id"], timeout_ms / 1000)))

    async def cancel(self, request: Request) -> Answer:
        task = await self._node.cancel(request.path["id"])
        return Answer(200, {"status": "cancelled", "taskId": task.id})

    async def delete(self, request: Request) -> Answer:
        task = await self._node.cancel(request.path["id"])
        return Answer(200, {"taskId": task.id, "cancelled": True, "state": task.state})

    async def retry(self, request: Request) -> Answer:
        return Answer(200, _again(await self._node.retry(request.path["id"])))

    async def reset(self, request: Request) -> Answer:
        task = await self._node.reset(request.path["id"])
        return Answer(200, {"schemaVersion": 1, "reset": task.id, **_again(task)})

    async def cancel_many(self, request: Request) -> Answer:
        return await self._for_each(request, Cancel, _OPEN)

    async def retry_many(self, request: Request) -> Answer:
        return await self._for_each(request, Retry, (lifecycle.FAILED, lifecycle.CANCELLED))

    async def reset_many(self, request: Request) -> Answer:
        return await self._for_each(request, Reset, (lifecycle.PARKED,))

    async def prune(self, request: Request) -> Answer:
        body = bodies.parse_prune(await request.body())
        count = await self._node.prune(dry_run=body.dry_run)
        return Answer(200, {"tasks": count, "dryRun": body.dry_run})

    async def _for_each(
        self, request: Request, verb: Callable[[str], Any], states: Sequence[str]
    ) -> Answer:
        """Do the same to all tasks that fit a filter and are in a state where it can be done."""
        body = bodies.parse_many(await request.body())
        wanted = Filter(
            agent=body.agent_id,
            states=[state for state in states if body.states is None or state in body.states],
            lane=body.lane,
            session=body.session_key,
            batch=body.batch_id,
            kind=body.kind,
        )
        found = await self._node.find(wanted) if wanted.states else []
        changed = 0 if body.dry_run else await self._node.for_each(verb, found)
        shape = {"matched": len(found), "changed": changed, "dryRun": body.dry_run}
        return Answer(200, {**shape, "taskIds": found[:SHOWN_MAX]})

    async def stats(self, request: Request) -> Answer:
        request.query()
        lanes, agents = await self._node.views.read(self._node.views.stats)
        return Answer(200, wire.stats(lanes, agents, self._node.policy))

    def check_callback(self, submission: Submission) -> None:
        if submission.callback_url is not None:
            try:
                self._check_url(submission.callback_url)
            except FairlaneError as error:
                message = f"invalid task: invalid callbackUrl: {error.message}"
                raise InvalidRequest(message) from None

    def _checked(self, item: Item) -> Item:
        if isinstance(item, Submission):
            try:
                self.check_callback(item)
            except InvalidRequest as error:
                return error
        return item


def _side_by_side(
    batch: str, items: Sequence[Item], answers: Sequence[Any]
) -> tuple[str, list[Outcome]]:
    """Items and answers in one list. A repeated batch has the ids, and the name, of the first."""
    left = iter(answers)
    outcomes: list[Outcome] = []
    for item in items:
        answer = item if isinstance(item, InvalidRequest) else next(left)
        if isinstance(answer, Task):
            batch = answer.batch or batch
        outcomes.append(answer)
    return batch, outcomes


def _shape(view: TaskView) -> dict[str, Any]:
    return wire.task(view.task, view.body, view.result, view.error, view.log)


def _again(task: Task) -> dict[str, Any]:
    return {"taskId": task.id, "state": task.state, "retryCount": max(0, task.attempts - 1)}


def idempotency_key(request: Request, agent: str, raw: bytes) -> IdempotencyKey | None:
    key = request.header(b"idempotency-key")
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key must be 1 to 255 visible ASCII characters")
    return IdempotencyKey(agent, key, hashlib.sha256(raw).hexdigest())
