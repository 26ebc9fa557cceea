"""Routes of the plan and of the queue, in the words and fields of cool-workflow's `sched` and
`queue` where it has them.

The trap: an import is as large as a file may be, so it has a limit of its own for its body.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fairlane.core import policy as policies
from fairlane.core.access import Scope
from fairlane.core.counts import Tally
from fairlane.core.errors import InvalidPolicy, InvalidRequest, NotFound
from fairlane.core.model import Task
from fairlane.core.policy import Policy, nearest
from fairlane.engine.commands import PATCH, Drain, Drained, Enqueue, SetPolicy, TakeBack, TakenBack
from fairlane.engine.engine import kept_policy
from fairlane.engine.node import Node
from fairlane.engine.reads.plan import Asked, Plan
from fairlane.engine.reads.views import TaskView
from fairlane.http.messages import Answer, Request, Route, Routes, actor, page_limit, whole_number
from fairlane.http.routes.tasks import submitter
from fairlane.schema import entries, fields, wire
from fairlane.schema.entries import LANE, SCHEMA_VERSION

PLAN_LIMIT_DEFAULT: Final = 100
LOOK: Final = 100  # among so many entries that wait is the one whose reason is told
_CURSOR_PARTS: Final = 2


class Queue:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {
            "/leases/reclaim": {"POST": Route(self.reclaim, Scope.LEASE)},
            "/scheduler/plan": {"GET": Route(self.plan, Scope.READ, agents=False)},
            "/scheduler/policy": {
                "GET": Route(self.policy, Scope.READ),
                "PATCH": Route(self.set_policy, Scope.ADMIN, agents=False),
            },
            "/queue": {"POST": Route(self.add, Scope.SUBMIT), "GET": Route(self.list, Scope.READ)},
            "/queue/drain": {"POST": Route(self.drain, Scope.LEASE)},
            "/queue/import": {"POST": Route(self.import_, Scope.OPERATE, agents=False)},
            "/queue/{id}": {"GET": Route(self.show, Scope.READ)},
        }

    async def plan(self, request: Request) -> Answer:
        query = request.query("lane", "now", "limit")
        limit = whole_number(query, "limit", PLAN_LIMIT_DEFAULT, low=1, high=wire.LIST_LIMIT_MAX)
        assert limit is not None
        now = query.get("now")
        at = fields.parse_deadline(now, "now") if now is not None else None
        asked = Asked(query.get("lane") or LANE, at, limit)
        views = self._node.views
        return Answer(200, _plan(await views.read(views.plan, asked, self._node.clock)))

    async def reclaim(self, request: Request) -> Answer:
        _nothing(await request.body())
        ids: list[str] = []
        while True:
            taken: TakenBack = await self._node.writer.ask(TakeBack(request.caller.agent))
            ids += taken.ids
            if not taken.more:
                shape = {"now": wire.moment(taken.now), "reclaimed": ids}
                return Answer(200, {"schemaVersion": SCHEMA_VERSION, **shape})

    async def add(self, request: Request) -> Answer:
        raw, caller = await request.body(), request.caller
        entry = entries.parse_entry(raw, entry_id=self._node.new_id(), agent=caller.agent)
        caller.agent_for(entry.submission.agent)
        (task,) = await self._node.submit(Enqueue([entry], submitter(request)))
        return Answer(201, entries.shape(task, entry.submission.body, None))

    async def list(self, request: Request) -> Answer:
        query = request.query("status", "limit", "cursor")
        states = entries.parse_status(query.get("status"))
        limit = page_limit(query)
        views = self._node.views
        agent, place = request.caller.agent, _cursor(query.get("cursor"))
        page = await views.read(views.entries, states, agent, place, limit)
        lanes = await views.read(views.lanes, agent)
        shape: dict[str, Any] = {
            "schemaVersion": SCHEMA_VERSION,
            "total": _total(lanes.get(LANE, Tally()), query.get("status")),
            "count": len(page),
            "entries": [_entry(view) for view in page],
        }
        if page.more:
            shape["nextCursor"] = f"{page[-1].task.rank}.{page[-1].task.seq}"
        return Answer(200, shape)

    async def show(self, request: Request) -> Answer:
        entry_id = request.path["id"]
        view = await self._node.views.read(self._node.views.task, entry_id)
        mine = view is not None and request.caller.owns(view.task.agent)
        if view is None or not mine or view.task.lane != LANE:
            raise NotFound(f'there is no entry "{entry_id[:128]}" in the queue')
        return Answer(200, _entry(view))

    async def drain(self, request: Request) -> Answer:
        body = entries.parse_drain(await request.body())
        drained: Drained = await self._node.writer.ask(Drain(body.limit, request.caller.agent))
        shapes = [entries.shape(grant.task, grant.body, None) for grant in drained.grants]
        shape = {"drained": shapes, "remaining": drained.remaining}
        if len(shapes) < body.limit and drained.remaining:
            shape["reason"] = await self._why_no_more(request.caller.agent)
        return Answer(200, {"schemaVersion": SCHEMA_VERSION, **shape})

    async def _why_no_more(self, agent: str | None) -> str:
        """Return what keeps back the entry that would have been drained next."""
        views, waiting = self._node.views, entries.parse_status(entries.PENDING)
        found = [one.task for one in await views.read(views.entries, waiting, agent, None, LOOK)]
        task = next((one for one in found if one.ready), found[0] if found else None)
        why = None if task is None else (await self._node.why(task.id, agent)).why
        if task is None or why is None or (why.ready and not why.ceilings):
            return "others became ready since; drain again"
        return f"{task.id} is next: {why.reason}"

    async def import_(self, request: Request) -> Answer:
        raw = await request.body(entries.IMPORT_BYTES_MAX)
        tasks = await self._node.submit(Enqueue(entries.parse_file(raw), submitter(request)))
        by_status: dict[str, int] = {}
        for task in tasks:
            status = entries.status_of(task)
            by_status[status] = by_status.get(status, 0) + 1
        shape = {"imported": len(tasks), "byStatus": dict(sorted(by_status.items()))}
        return Answer(200, {"schemaVersion": SCHEMA_VERSION, **shape})

    # ---------------------------------------------------------------- policy

    async def policy(self, request: Request) -> Answer:
        request.query()
        views = self._node.views
        view = await views.read(views.policy, None)
        if view is None:
            return Answer(200, _policy(Policy(), "default"))
        return Answer(200, _policy(kept_policy(view.version, view.document), "store"))

    async def set_policy(self, request: Request) -> Answer:
        document = fields.parse_object(await request.body())
        known = policies.flat(Policy())
        unknown = [name for name in document if name not in known]
        if unknown:
            told = [f"unknown key {name[:40]}{nearest(name, known)}" for name in unknown]
            raise InvalidPolicy(told)
        change = await self._node.set_policy(
            SetPolicy(document, "sched policy set", PATCH, author=actor(request))
        )
        return Answer(200, _policy(change.after, "store"))


# -------------------------------------------------------------------- shapes


def _plan(plan: Plan) -> dict[str, Any]:
    shape: dict[str, Any] = {
        "schemaVersion": SCHEMA_VERSION,
        "now": wire.moment(plan.now),
        "lane": plan.lane,
        "policyVersion": plan.policy_version,
        "maxConcurrent": plan.ceiling,
        "inFlight": plan.in_flight,
        "available": plan.available,
        "leases": [_would_lease(task) for task in plan.leases],
        "skipped": [_skipped(task, reason) for task, reason in plan.skipped],
        "counts": {"leases": len(plan.leases), **plan.counts},
        "truncated": plan.truncated,
    }
    if plan.at_least:
        shape["atLeast"] = plan.at_least
    return shape


def _would_lease(task: Task) -> dict[str, Any]:
    """Without an id: that holds a fencing token, which only a lease that is granted has."""
    assert task.lease_expires_at is not None
    return {
        "id": task.id,
        "leaseExpiresAt": wire.moment(task.lease_expires_at),
        "attempts": entries.failures(task),
        "priority": task.priority,
    }


def _skipped(task: Task, reason: str) -> dict[str, Any]:
    shape = {"id": task.id, "reason": reason}
    if task.eligible_at is not None:
        shape["nextEligibleAt"] = wire.moment(task.eligible_at)
    return shape


def _entry(view: TaskView) -> dict[str, Any]:
    return entries.shape(view.task, view.body, view.error)


def _policy(policy: Policy, source: str) -> dict[str, Any]:
    flat = {"schemaVersion": SCHEMA_VERSION, **policies.flat(policy)}
    return {"schemaVersion": SCHEMA_VERSION, "policy": flat, "source": source}


_TALLIED: Final = {
    entries.PENDING: "queued",
    entries.READY: "queued",
    entries.LEASED: "inflight",
    entries.PARKED: "parked",
    entries.DRAINED: "completed",
    entries.CANCELLED: "cancelled",
    entries.FAILED: "failed",
}


def _total(tally: Tally, status: str | None) -> int:
    """From the counters: what has ended counts also when it is not kept any more."""
    names = [_TALLIED[status]] if status else sorted(set(_TALLIED.values()))
    return sum(getattr(tally, name) for name in names)


def _cursor(text: str | None) -> tuple[int, int] | None:
    """A place in the queue: rank and sequence number."""
    if not text:
        return None
    parts = text.split(".")
    if len(parts) != _CURSOR_PARTS or not all(_is_number(part) for part in parts):
        raise InvalidRequest("query parameter 'cursor' must be the nextCursor of a page")
    return int(parts[0]), int(parts[1])


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= 18


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A body that says nothing."""


_nothing_decoder = msgspec.json.Decoder(_Nothing)


def _nothing(raw: bytes) -> None:
    fields.decoded(_nothing_decoder, raw or b"{}", frozenset())
