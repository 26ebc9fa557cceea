"""Routes of tasks: submit one or many, look, wait, cancel, try again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from fairlane.core import lifecycle
from fairlane.core.access import Caller, Scope
from fairlane.core.errors import FairlaneError, IdempotencyConflict, InvalidRequest
from fairlane.core.model import Submission, Task
from fairlane.engine.commands import Cancel, IdempotencyKey, NewBatch, Reset, Retry, Submit
from fairlane.engine.node import Node
from fairlane.engine.reads.views import Filter, TaskView
from fairlane.http.messages import (
    Answer,
    Request,
    Route,
    Routes,
    page_cursor,
    page_limit,
    whole_number,
)
from fairlane.schema import bodies, fields, wire

WAIT_MS_DEFAULT: Final = 30_000
WAIT_MS_MAX: Final = 60_000
SHOWN_MAX: Final = 100
_OPEN: Final = tuple(state for state in lifecycle.STATES if state not in lifecycle.TERMINAL)
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
# How many tasks one call looks through for a text, which no index knows.
SEARCHED_MAX: Final = 20_000
TEXT_CHARACTERS_MAX: Final = 200
_FILTERS: Final = {
    "agentId": "agent",
    "lane": "lane",
    "sessionKey": "session",
    "batchId": "batch",
    "dependsOn": "parent",
}

Item = Submission | InvalidRequest
Outcome = Task | FairlaneError


class Tasks:
    def __init__(self, node: Node, check_url: Callable[[str], object]) -> None:
        """`check_url` raises when a callback may not be sent to an address."""
        self._node = node
        self._check_url = check_url

    def routes(self) -> Routes:
        return {
            "/tasks": {
                "POST": Route(self.submit, Scope.SUBMIT),
                "GET": Route(self.list, Scope.READ),
            },
            "/tasks/batch": {"POST": Route(self.submit_batch, Scope.SUBMIT)},
            "/tasks/cancel": {"POST": Route(self.cancel_many, Scope.CANCEL)},
            "/tasks/retry": {"POST": Route(self.retry_many, Scope.OPERATE)},
            "/tasks/reset": {"POST": Route(self.reset_many, Scope.OPERATE)},
            "/tasks/prune": {"POST": Route(self.prune, Scope.OPERATE, agents=False)},
            "/tasks/{id}": {
                "GET": Route(self.show, Scope.READ),
                "DELETE": Route(self.delete, Scope.CANCEL),
            },
            "/tasks/{id}/cancel": {"POST": Route(self.cancel, Scope.CANCEL)},
            "/tasks/{id}/retry": {"POST": Route(self.retry, Scope.OPERATE)},
            "/tasks/{id}/reset": {"POST": Route(self.reset, Scope.OPERATE)},
            "/tasks/{id}/wait": {"GET": Route(self.wait, Scope.READ, waits=True)},
            "/tasks/{id}/why": {"GET": Route(self.why, Scope.READ)},
        }

    async def submit(self, request: Request) -> Answer:
        raw = await request.body()
        caller = request.caller
        submission = bodies.parse_task(raw, task_id=self._node.new_id(), agent=caller.agent)
        caller.agent_for(submission.agent)
        self.check_callback(submission)
        key = idempotency_key(request, submission.agent, raw)
        made = Submit([submission], key, caller=submitter(request))
        answer = (await self._node.submit(made))[0]
        if isinstance(answer, FairlaneError):
            raise answer
        return Answer(202, wire.accepted(answer))

    async def submit_batch(self, request: Request) -> Answer:
        raw = await request.body()
        ids = [self._node.new_id() for _ in range(bodies.WORK_BATCH_MAX)]
        caller = request.caller
        new_id = self._node.new_id("bat")
        batch = bodies.parse_batch(raw, ids=ids, batch=new_id, agent=caller.agent)
        caller.agent_for(batch.agent)
        self._node.tokens.owe(caller, len(batch.items) - 1)
        refused = self._callback_problem(batch.callback_url)
        items = [self._checked(item, refused) for item in batch.items]
        good = [item for item in items if isinstance(item, Submission)]
        answers: list[Any] = []
        if good:
            key = idempotency_key(request, good[0].agent, raw)
            new = NewBatch(batch.id, batch.agent, batch.parallelism, batch.callback_url)
            answers = await self._node.submit(Submit(good, key, new, submitter(request)))
        if len(answers) != len(good):  # repeated, but other items of it are in order now
            raise IdempotencyConflict("this Idempotency-Key stands for another set of tasks")
        return Answer(202, wire.batch(*_side_by_side(batch.id, items, answers)))

    async def list(self, request: Request) -> Answer:
        query = request.query(*_FILTERS, "kind", "state", "text", "brief", "limit", "cursor")
        before = page_cursor(query)
        text = _pattern(query.get("text", ""))
        wanted = Filter(
            states=fields.parse_states(query.get("state", "")),
            kind=bodies.parse_kind(query.get("kind")),
            before=before,
            text=text,
            floor=None if text is None else await self._search_floor(before),
            **{name: query[key] for key, name in _FILTERS.items() if query.get(key)},
        )
        wanted = _of_caller(request, wanted)
        limit = page_limit(query)
        views = self._node.views
        brief = query.get("brief") in ("1", "true")
        page = await views.read(views.brief_tasks if brief else views.tasks, wanted, limit)
        shapes = [_brief(view) if brief else _shape(view) for view in page]
        shape: dict[str, Any] = {"tasks": shapes, "count": len(page)}
        if page.more:
            shape["nextCursor"] = str(page[-1].task.seq)
        elif wanted.floor:
            shape["nextCursor"] = str(wanted.floor + 1)
        return Answer(200, shape)

    async def _search_floor(self, before: int | None) -> int:
        """How far down one call may look for a text, from the cursor or the newest task on."""
        views = self._node.views
        newest = await views.read(views.task_ids, Filter(), 1) if before is None else []
        top = before or (newest[0][0] + 1 if newest else 1)
        return max(0, top - 1 - SEARCHED_MAX)

    async def show(self, request: Request) -> Answer:
        return Answer(200, _shape(await self._node.show(*_task(request))))

    async def why(self, request: Request) -> Answer:
        found = await self._node.why(*_task(request))
        return Answer(200, wire.why(found.task, found.why))

    async def wait(self, request: Request) -> Answer:
        query = request.query("timeoutMs")
        timeout_ms = whole_number(query, "timeoutMs", WAIT_MS_DEFAULT, low=0, high=WAIT_MS_MAX)
        assert timeout_ms is not None
        task_id, agent = _task(request)
        found = await self._node.wait(task_id, timeout_ms / 1000, agent)
        await self._node.tokens.require(request.caller)
        return Answer(200, _shape(found))

    async def cancel(self, request: Request) -> Answer:
        task = await self._node.cancel(*_task(request))
        return Answer(200, {"status": "cancelled", "taskId": task.id})

    async def delete(self, request: Request) -> Answer:
        task = await self._node.cancel(*_task(request))
        return Answer(200, {"taskId": task.id, "cancelled": True, "state": task.state})

    async def retry(self, request: Request) -> Answer:
        return Answer(200, _again(await self._node.retry(*_task(request))))

    async def reset(self, request: Request) -> Answer:
        task = await self._node.reset(*_task(request))
        return Answer(200, {"schemaVersion": 1, "reset": task.id, **_again(task)})

    async def cancel_many(self, request: Request) -> Answer:
        return await self._for_each(request, Cancel, _OPEN, newest_first=True)

    async def retry_many(self, request: Request) -> Answer:
        return await self._for_each(request, Retry, (lifecycle.FAILED, lifecycle.CANCELLED))

    async def reset_many(self, request: Request) -> Answer:
        return await self._for_each(request, Reset, (lifecycle.PARKED,))

    async def prune(self, request: Request) -> Answer:
        body = bodies.parse_prune(await request.body())
        count = await self._node.prune(dry_run=body.dry_run)
        return Answer(200, {"tasks": count, "dryRun": body.dry_run})

    async def _for_each(
        self,
        request: Request,
        verb: Callable[[str], Any],
        states: Sequence[str],
        *,
        newest_first: bool = False,
    ) -> Answer:
        """Do the same to all tasks that fit a filter and are in a state where it can be done.

        Parents before their children, or else children before the parents that take them along.
        """
        body = bodies.parse_many(await request.body())
        wanted = Filter(
            agent=body.agent_id,
            states=[state for state in states if body.states is None or state in body.states],
            lane=body.lane,
            session=body.session_key,
            batch=body.batch_id,
            kind=body.kind,
        )
        wanted = _of_caller(request, wanted)
        found = await self._node.find(wanted) if wanted.states else []
        order = found[::-1] if newest_first else found
        changed = 0 if body.dry_run else await self._node.for_each(verb, order)
        shape = {"matched": len(found), "changed": changed, "dryRun": body.dry_run}
        return Answer(200, {**shape, "taskIds": found[:SHOWN_MAX]})

    def check_callback(self, submission: Submission) -> None:
        problem = self._callback_problem(submission.callback_url)
        if problem is not None:
            raise problem

    def _callback_problem(self, url: str | None) -> InvalidRequest | None:
        if url is None:
            return None
        try:
            self._check_url(url)
        except FairlaneError as error:
            return InvalidRequest(f"invalid task: invalid callbackUrl: {error.message}")
        return None

    def _checked(self, item: Item, refused: InvalidRequest | None) -> Item:
        """The item, or what is wrong with it; `refused` is what is wrong with its batch."""
        if not isinstance(item, Submission):
            return item
        return refused or self._callback_problem(item.callback_url) or item


def _task(request: Request) -> tuple[str, str | None]:
    """The id of the task that a request is about, and the agent whose it has to be."""
    return request.path["id"], request.caller.agent


def _of_caller(request: Request, wanted: Filter) -> Filter:
    """The same, of what the caller may see."""
    if request.caller.agent is None:
        return wanted
    return msgspec.structs.replace(wanted, agent=request.caller.agent_for(wanted.agent))


def submitter(request: Request) -> Caller | None:
    """Who submits, where that has to be looked at; nobody looks at those who may do all."""
    caller = request.caller
    return None if caller.agent is None and caller.max_open is None else caller


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


def _pattern(text: str) -> str | None:
    """A pattern of LIKE for all that holds the text; None for no text."""
    if not text.strip():
        return None
    if len(text) > TEXT_CHARACTERS_MAX:
        raise InvalidRequest(f"'text' must not be longer than {TEXT_CHARACTERS_MAX} characters")
    return "%" + re.sub(r"([!%_])", r"!\1", text.strip()) + "%"


def _shape(view: TaskView) -> dict[str, Any]:
    return wire.task(view.task, view.body, view.result, view.error, view.log)


def _brief(view: TaskView) -> dict[str, Any]:
    return wire.brief(view.task, view.body, view.error, view.log)


def _again(task: Task) -> dict[str, Any]:
    return {"taskId": task.id, "state": task.state, "retryCount": max(0, task.attempts - 1)}


def idempotency_key(request: Request, agent: str, raw: bytes) -> IdempotencyKey | None:
    key = request.header(b"idempotency-key")
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise InvalidRequest("Idempotency-Key must be 1 to 255 visible ASCII characters")
    return IdempotencyKey(agent, key, hashlib.sha256(raw).hexdigest())
