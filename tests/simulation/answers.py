"""What was answered: who asked is told what has really happened, and is refused for a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fairlane.core.errors import (
    Conflict,
    Disabled,
    FairlaneError,
    IdempotencyConflict,
    InvalidRequest,
    LeaseLost,
    NotFound,
    QueueFull,
)
from fairlane.core.model import Task
from fairlane.engine.commands import Cancel, CancelBatch, Complete, Reset, Retry, Start, Submit
from tests.simulation.causes import REPORTS, Causes, Step, Violation, demand
from tests.simulation.histories import CANCELLED, ENDINGS, PARKED, REQUEUED
from tests.simulation.ledger import ENDS, Seen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fairlane.engine.engine import Outcome
    from tests.simulation.ground import Ground


class Key(msgspec.Struct):
    """An idempotency key that has to be remembered: for each submission its task's id, or None."""

    digest: str
    ids: list[str | None]
    newest: int  # the task that it is forgotten with


class Answers:
    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._keys: dict[tuple[str, str], Key] = {}

    def judge(self, step: Step, outcome: Outcome, causes: Causes, gone: Sequence[Task]) -> None:
        ground = self._ground
        self._judge_told(step, outcome)
        old = {seen.after.seq: seen.before for seen in ground.changed}
        before: dict[int, Task | None] = {**ground.reader.tasks, **{t.seq: t for t in gone}, **old}
        seen = {one.after.seq: one for one in ground.changed}
        for request, answer in zip(step.batch, outcome.answers, strict=True):
            if isinstance(request, REPORTS):
                self._judge_report(request, answer, before.get(request.seq), causes)
            elif isinstance(request, Cancel):
                self._judge_cancel(request, answer, before, seen)
            elif isinstance(request, Retry | Reset):
                self._judge_revival(request, answer, before, seen)
            elif isinstance(request, CancelBatch):
                self._judge_batch_cancel(request, answer, causes)
            elif isinstance(request, Submit):
                self._judge_submit(request, answer)

    def _judge_told(self, step: Step, outcome: Outcome) -> None:
        ground = self._ground
        ended = {seen.after.seq for seen in ground.changed if seen.has(*ENDINGS)}
        parked = {seen.after.seq for seen in ground.changed if seen.has(PARKED)}
        told = {task.seq for task in outcome.ended_tasks}
        demand("told", told == ended | parked, f"ended {ended} {parked}, told {told}")
        asked = {seen.after.seq for seen in ground.changed if _is_asked_to_stop(seen)}
        # A task that was cancelled and then retried may have been leased again in the same step.
        mine = [
            task
            for task in map(ground.reader.tasks.get, ended | asked)
            if task and task.worker == step.by and (task.terminal or task.seq in asked)
        ]
        stopped = {(t.seq, t.fencing_token) for t in mine if t.lease_expires_at is not None}
        open_then = set(outcome.runs_to_stop)
        demand("told", stopped <= open_then, f"stopped {stopped}, told {open_then}")
        over = ended | asked
        if outcome.others_wrote:
            over |= _to_be_stopped(ground.reader.tasks.values())
        demand("told", {seq for seq, _ in open_then} <= over, f"told to stop: {open_then}")
        given = {g.task.fencing_token for grants in outcome.grants for g in grants}
        leased = {seen.after.fencing_token for seen in ground.changed if seen.granted}
        demand("told", given == leased, f"leased {leased}, told {given}")

    def _judge_report(self, request: Any, answer: Any, row: Task | None, causes: Causes) -> None:
        valid = (
            row is not None
            and row.lease_expires_at is not None
            and row.fencing_token == request.fencing_token
        )
        name = f"{type(request).__name__} of task {request.seq} with token {request.fencing_token}"
        if isinstance(answer, Task):
            repeated = isinstance(request, Complete) and self._is_done(request, row)
            demand("fencing", valid or repeated, f"{name} was accepted")
            gone = request.seq not in self._ground.reader.tasks
            kept = not repeated or gone or self._keeps(request)
            demand("result", kept, f"{name} was accepted, and its result was dropped")
        else:
            demand("fencing", isinstance(answer, LeaseLost), f"{name}: {answer!r}")
            repeated = isinstance(request, Complete) and self._is_done(request)
            again = repeated and self._keeps(request)
            demand("fencing", not again, f"{name} was refused although its result is kept")
            assert row is not None or not valid
            rivals = valid and (len(causes.of(row, *REPORTS)) > 1 or causes.lost(row))
            over = valid and isinstance(request, Start) and _cannot_start(row, causes.now)
            demand("fencing", not valid or rivals or over, f"{name} was refused")

    def _is_done(self, request: Complete, row: Task | None = None) -> bool:
        """Whether its lease has completed the task; `row` is the task when it has just gone."""
        task = self._ground.reader.tasks.get(request.seq, row)
        return (
            task is not None
            and task.state == "done"
            and task.fencing_token == request.fencing_token
        )

    def _keeps(self, request: Complete) -> bool:
        """Whether its result is kept, if it brings one."""
        found = self._ground.reader.sql("SELECT result FROM result WHERE seq = ?", (request.seq,))
        return request.result in (None, found[0][0] if found else None)

    def _judge_cancel(
        self,
        request: Cancel,
        answer: Any,
        before: Mapping[int, Task | None],
        seen: Mapping[int, Seen],
    ) -> None:
        seq = self._ground.ids.get(request.id, 0)
        change = seen.get(seq)
        if isinstance(answer, Task):
            demand("cancel", change and change.has(CANCELLED), f"{request.id} goes on")
        elif isinstance(answer, Conflict):
            was = before.get(seq)
            over = (was and was.state in ENDS) or (change and change.has(*ENDINGS))
            demand("cancel", over, f"{request.id} could have been cancelled")
        else:
            there = before.get(seq) is not None
            demand("cancel", isinstance(answer, NotFound) and not there, f"{answer!r}")

    def _judge_revival(
        self,
        request: Retry | Reset,
        answer: Any,
        before: Mapping[int, Task | None],
        seen: Mapping[int, Seen],
    ) -> None:
        seq = self._ground.ids.get(request.id, 0)
        was, change = before.get(seq), seen.get(seq)
        name = f"{type(request).__name__} of {request.id}: {answer!r}"
        if isinstance(answer, Task):
            demand("revival", change and change.has(REQUEUED), name)
        elif isinstance(answer, NotFound):
            demand("revival", was is None, name)
        elif isinstance(answer, QueueFull):
            task = was or (change and change.after)
            limits = task and self._ground.policy.lanes[task.lane]
            limited = limits and (limits.max_queue_size or limits.max_per_agent)
            demand("revival", limited, name)
        else:
            demand("revival", isinstance(answer, Conflict), name)
            states = ("parked",) if isinstance(request, Reset) else ("failed", "cancelled")
            other = was is None or was.state not in states or bool(change and change.word)
            stopping = was is not None and was.lease_expires_at is not None
            broken = isinstance(request, Retry) and self._ground.families.is_broken(request.id)
            demand("revival", other or stopping or broken, f"{name}, for no reason")

    def _judge_batch_cancel(self, request: CancelBatch, answer: Any, causes: Causes) -> None:
        ground, id_ = self._ground, request.id
        if isinstance(answer, int):
            back = any(s.after.batch == id_ and s.has(REQUEUED) for s in ground.changed)
            left = ground.books.members.get(id_, [0])[0]
            demand("cancel", back or not left, f"{left} of batch {id_} go on")
        elif isinstance(answer, Conflict):
            demand("cancel", ground.groups.is_completed(id_), f"{answer!r}")
        else:
            there = ground.groups.is_kept(id_) and id_ not in causes.batches
            demand("cancel", isinstance(answer, NotFound) and not there, f"{answer!r}")

    def _judge_submit(self, request: Submit, answer: Any) -> None:
        ground = self._ground
        if not isinstance(answer, list):
            wanted = {s.id: s.depends_on for s in request.submissions}
            if isinstance(answer, InvalidRequest):
                among = any(_reaches(id_, wanted) for id_ in wanted)
                demand("cycle", among and "cycle" in answer.message, f"{answer!r}")
            return
        for submission, task in zip(request.submissions, answer, strict=True):
            if isinstance(task, Task) and ground.ids.get(task.id) != task.seq:
                raise Violation("lost", f"{task} was accepted and is not there")
            # A repeated request is told of the cycle that the first one would have made.
            if isinstance(task, InvalidRequest) and f"cycle: {submission.id} " in task.message:
                there = ground.families.cycle_through(submission.id, submission.depends_on)
                demand("cycle", there, f"{submission.id}: {task.message}")

    # ------------------------------------------------------------ idempotency

    def judge_keys(self, step: Step, gone: Sequence[Task]) -> None:
        """The same key and body give the same tasks, until the newest of them is forgotten."""
        answers = step.outcome.answers if step.outcome else [None] * len(step.batch)
        lately = {task.id for task in gone}
        for request, answer in zip(step.batch, answers, strict=True):
            if isinstance(request, Submit) and request.idempotency is not None:
                if any(one.message for one in request.submissions):
                    continue  # its words tell
                self._judge_key(request, answer, step, lately)
        if not gone:
            return
        kept = self._ground.reader.tasks
        self._keys = {place: key for place, key in self._keys.items() if key.newest in kept}

    def _judge_key(self, request: Submit, answer: Any, step: Step, lately: set[str]) -> None:
        assert request.idempotency is not None
        digest = request.idempotency.digest
        place = (request.idempotency.agent, request.idempotency.key)
        ids = [s.id if self._is_admitted(s.id) else None for s in request.submissions]
        known = self._keys.get(place)
        if known is None:
            if any(ids):
                newest = max(self._ground.ids[id_] for id_ in ids if id_)
                self._keys[place] = Key(digest, ids, newest)
            return
        demand("idempotency", not any(ids), f"{place} made {ids} again")
        if step.outcome is None or isinstance(answer, Disabled):
            return
        other = isinstance(answer, IdempotencyConflict)
        demand("idempotency", other == (digest != known.digest), f"{place}: {answer!r}")
        if not other:
            for id_, one in zip(known.ids, answer, strict=True):
                same = isinstance(one, Task) and one.id == id_
                same = same or (id_ is None and isinstance(one, FairlaneError))
                kept = self._ground.task(id_ or "") is not None and id_ not in lately
                demand("idempotency", same or not kept, f"{place}: {one!r} instead of {id_}")

    def _is_admitted(self, task_id: str) -> bool:
        task = self._ground.task(task_id)
        return task is not None and task.state != "rejected"


def _reaches(start: str, graph: Mapping[str, Sequence[str]]) -> bool:
    """Whether a way leads from `start` back to it."""
    ahead, met = list(graph[start]), set()
    while ahead:
        one = ahead.pop()
        if one == start:
            return True
        if one not in met:
            met.add(one)
            ahead += graph.get(one, ())
    return False


def _is_asked_to_stop(seen: Seen) -> bool:
    """Whether its run goes on and was asked to stop just now."""
    known = seen.before is not None and seen.before.preempt == 1 and not seen.granted
    return seen.after.preempt == 1 and seen.after.lease_expires_at is not None and not known


def _to_be_stopped(tasks: Iterable[Task]) -> set[int]:
    """Runs that go on although they should not: a neighbour may have ended them."""
    return {
        task.seq
        for task in tasks
        if task.lease_expires_at is not None and (task.terminal or task.preempt == 1)
    }


def _cannot_start(task: Task | None, now: int) -> bool:
    """Whether it has ended although its lease is open, or ends now because it never began."""
    assert task is not None
    late = task.deadline_at is not None and task.deadline_at <= now
    return task.state in ENDS or (task.state == "assigned" and late)
