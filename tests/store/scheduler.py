"""An engine on a store, spoken to in short sentences. Tests say only what matters to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fairlane.clock import ManualClock
from fairlane.core.batches import Batch
from fairlane.core.counts import Tally
from fairlane.core.errors import FairlaneError
from fairlane.core.events import Event
from fairlane.core.model import Submission, Task, capability_of
from fairlane.engine.commands import (
    Cancel,
    CancelBatch,
    Complete,
    Fail,
    Grant,
    IdempotencyKey,
    Lease,
    NewBatch,
    PolicyChange,
    Release,
    Renew,
    Reset,
    Retry,
    SetPolicy,
    Start,
    Submit,
)
from fairlane.engine.engine import Engine, Outcome, apply_one
from fairlane.store.tables import task_search
from fairlane.store.tables.task_search import Filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlane.core.policy import Policy
    from fairlane.store.base import Connection, Store

WORK = capability_of("handler", "work")
LANES = ("browser", "main", "queue")
TTL_MS = 15_000
NODE = "node_1"
_WIDTH = len(Task.__struct_fields__)
_EVENT_WIDTH = len(Event.__struct_fields__)


class View(msgspec.Struct):
    """A task as a reader finds it."""

    task: Task
    body: dict[str, Any]
    result: str | None
    error: str | None

    @property
    def state(self) -> str:
        return self.task.state


def submission(name: str, agent: str = "a", **fields: Any) -> Submission:
    """A `handler` task of the route `handler/work`, unless told otherwise."""
    kind = fields.setdefault("kind", "handler")
    fields.setdefault("capability", WORK if kind == "handler" else capability_of(kind))
    body = {"agentId": agent, "name": name, "params": {"of": name}}
    fields.setdefault("body", msgspec.json.encode(body).decode())
    return Submission(id=name, agent=agent, **fields)


def lease_request(limit: int = 1, **fields: Any) -> Lease:
    fields.setdefault("worker", NODE)
    fields.setdefault("lanes", LANES)
    fields.setdefault("capabilities", frozenset({WORK, "action"}))
    fields.setdefault("ttl_ms", TTL_MS)
    return Lease(limit=limit, **fields)


def task_rows(reader: Connection, limit: int = 1_000_000, **wanted: Any) -> list[Any]:
    """Tasks as rows with request, result and error, newest first."""
    found = task_search.ids(reader, Filter(**wanted), limit)
    rows = reader.run_rows("task_view_many", [(seq,) for seq, _ in found])
    return sorted(rows, key=lambda row: -row[0])


class Scheduler:
    def __init__(self, store: Store, clock: ManualClock | None = None, name: str = NODE) -> None:
        self.store = store
        self.clock = clock or ManualClock()
        self.engine = Engine(store, self.clock, name=name)
        self.reader = store.reader()

    def close(self) -> None:
        self.engine.close()
        self.reader.close()

    # ------------------------------------------------------------ ask

    def apply(self, *batch: Any, waiting: Sequence[Lease] = ()) -> Outcome:
        return self.engine.apply(list(batch), waiting)

    def ask(self, request: Any) -> Any:
        return apply_one(self.engine, request)

    def refused(self, request: Any) -> FairlaneError:
        """The error that the request is answered with."""
        answer = self.apply(request).answers[0]
        error = answer[0] if isinstance(answer, list) else answer
        assert isinstance(error, FairlaneError), answer
        return error

    def submit(self, *names: str, agent: str = "a", **fields: Any) -> list[Task]:
        """Submit all in one request; none may be refused."""
        answers = self.try_submit(*names, agent=agent, **fields)
        assert all(isinstance(answer, Task) for answer in answers), answers
        return answers

    def try_submit(
        self, *names: str, agent: str = "a", key: IdempotencyKey | None = None, **fields: Any
    ) -> list[Any]:
        request = Submit([submission(name, agent, **fields) for name in names], idempotency=key)
        answers: list[Any] = self.ask(request)
        return answers

    def batch(
        self,
        *items: Submission,
        name: str = "batch",
        agent: str = "a",
        parallelism: int | None = None,
        callback_url: str | None = None,
    ) -> list[Any]:
        """Submit a batch; what became of each item."""
        new = NewBatch(name, agent, parallelism, callback_url)
        items = tuple(msgspec.structs.replace(item, batch=name) for item in items)
        answers: list[Any] = self.ask(Submit(list(items), batch=new))
        return answers

    def lease(self, limit: int = 1, **fields: Any) -> list[Grant]:
        return self.apply(waiting=[lease_request(limit, **fields)]).grants[0]

    def lease_one(self, **fields: Any) -> Task:
        (grant,) = self.lease(1, **fields)
        return grant.task

    def names(self, limit: int = 1, **fields: Any) -> list[str]:
        """Lease, and say only which tasks were given."""
        return [grant.task.id for grant in self.lease(limit, **fields)]

    def start(self, task: Task) -> Task:
        return self.task_from(Start(task.seq, task.fencing_token))

    def renew(self, task: Task, ttl_ms: int = TTL_MS) -> Task:
        return self.task_from(Renew(task.seq, task.fencing_token, ttl_ms))

    def complete(self, task: Task, result: str | None = None) -> Task:
        return self.task_from(Complete(task.seq, task.fencing_token, result))

    def fail(self, task: Task, error: str = "broken", **fields: Any) -> Task:
        return self.task_from(Fail(task.seq, task.fencing_token, error, **fields))

    def release(self, task: Task) -> Task:
        return self.task_from(Release(task.seq, task.fencing_token))

    def cancel(self, name: str) -> Task:
        return self.task_from(Cancel(name))

    def cancel_batch(self, name: str = "batch") -> int:
        count: int = self.ask(CancelBatch(name))
        return count

    def retry(self, name: str) -> Task:
        return self.task_from(Retry(name))

    def reset(self, name: str) -> Task:
        return self.task_from(Reset(name))

    def complete_next(self, result: str | None = None, **fields: Any) -> Task:
        """Lease one, and complete it."""
        return self.complete(self.lease_one(**fields), result)

    def fail_next(self, **fields: Any) -> Task:
        """Lease one, and fail it for good."""
        return self.fail(self.lease_one(**fields), retryable=False)

    def settle(self, most: int = 1000) -> int:
        """Apply until nothing is left of what follows from ends; how often that took."""
        for times in range(most):
            if not self.unsettled():
                return times
            self.apply()
        raise AssertionError("the children of what has ended are not all settled")

    def task_from(self, request: Any) -> Task:
        answer = self.ask(request)
        assert isinstance(answer, Task)
        return answer

    def set_policy(self, **document: Any) -> Policy:
        change: PolicyChange = self.ask(SetPolicy(document, source="test"))
        return change.after

    def keep_policy(self, document: str) -> None:
        """Put the next version into the store as another program would, whatever it holds."""
        connection = self.store.writer()
        _, _, version, *_ = connection.begin()
        connection.run(
            "policy_insert",
            version=version + 1,
            document=document,
            source="elsewhere",
            author=None,
            note=None,
            now=self.clock.now(),
        )
        connection.run("policy_use", version=version + 1)
        connection.commit()
        connection.close()

    def set_lane(self, name: str = "main", **settings: Any) -> None:
        self.set_policy(lanes={name: settings})

    def pass_time(self, milliseconds: int) -> Outcome:
        """Move the clock, and let time do its part."""
        self.clock.advance(milliseconds)
        return self.apply()

    def run_to_end(self, **fields: Any) -> list[str]:
        """Run whatever is ready, one at a time; the names in the order of the leases."""
        order = []
        while grants := self.lease(1, **fields):
            order.append(grants[0].task.id)
            self.complete(grants[0].task)
        return order

    # ------------------------------------------------------------ read

    def find(self, name: str) -> View | None:
        rows = self.reader.run("task_view", id=name)
        if not rows:
            return None
        (row,) = rows
        body, result, error = row[_WIDTH:]
        return View(Task(*row[:_WIDTH]), msgspec.json.decode(body), result, error)

    def view(self, name: str) -> View:
        found = self.find(name)
        assert found, f"{name} is not there"
        return found

    def states(self, *names: str) -> list[str]:
        return [self.view(name).state for name in names]

    def tally(self, lane: str = "main") -> Tally:
        found = {row[0]: Tally(*row[1:]) for row in self.reader.run("lane_view")}
        return found.get(lane, Tally())

    def batch_view(self, name: str = "batch") -> Batch:
        (row,) = self.reader.run("batch_view", id=name)
        return Batch(*row)

    def events(self, name: str | None = None, **filters: Any) -> list[Event]:
        """The events, of one task or of all, oldest first."""
        rows = self.reader.run(
            "event_list", after=0, until=2**60, limit=2**30, task=name, **filters
        )
        return [Event(*row[:_EVENT_WIDTH]) for row in rows]

    def types(self, name: str | None = None) -> list[str]:
        return [event.type.partition(".")[2] for event in self.events(name)]

    def open_edges(self) -> tuple[int, int]:
        """As they are counted, and as they are."""
        (row,) = self.reader.run("dependency_recount")
        return row[0], row[1]

    def unsettled(self) -> int:
        rows: int = self.reader.run("dependency_recount")[0][3]
        return rows
