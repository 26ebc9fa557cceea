"""The verbs, one batch function each, in the order of a task's life (leasing: `leasing.py`).

All have one shape: load what the requests name, let the core decide, apply what changed. Each
takes any number of requests and sends a handful of statements. Requests about the same task in one
batch are decided one after another, on what the one before has left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from fairlane.core import admission, gates, leases
from fairlane.core.errors import (
    Disabled,
    FairlaneError,
    IdempotencyConflict,
    InvalidPolicy,
    InvalidRequest,
    NotFound,
    QueueFull,
)
from fairlane.core.model import SESSION_GATE, Submission, Task
from fairlane.core.policy import Policy, merge, to_document
from fairlane.engine.requests import (
    Cancel,
    ClaimDeliveries,
    Complete,
    Fail,
    OwedDelivery,
    Reclaim,
    ReclaimDeliveries,
    Release,
    Renew,
    SetPolicy,
    SettleDelivery,
    Start,
    Submit,
    UseSecret,
)
from fairlane.store.base import Row
from fairlane.store.transaction import Transaction

# -------------------------------------------------------------------- submit


def submit(tx: Transaction, requests: Sequence[Submit], now: int) -> Iterator[Any]:
    if not tx.policy.enabled:
        error = Disabled("the scheduler is disabled by its policy; set enabled to true")
        return iter([error] * len(requests))
    tx.load_lines(
        (tx.policy.lane_name(s.lane, s.kind), s.agent) for r in requests for s in r.submissions
    )
    tx.load_sessions(s.session for r in requests for s in r.submissions if s.session)
    remembered = _remembered(tx, requests)
    answers = [_submit_one(tx, request, remembered, now) for request in requests]
    _let_higher_priority_pass(tx, answers, now)
    return iter(answers)


class _Refusal(msgspec.Struct):
    code: str
    message: str
    details: dict[str, Any] | None = None


class _Memory(msgspec.Struct):
    """What became of each submission: the id of its task, or why there is none."""

    digest: str
    outcomes: list[str | _Refusal]


def _submit_one(
    tx: Transaction, request: Submit, remembered: dict[tuple[str, str], _Memory], now: int
) -> Any:
    key = request.idempotency
    if key is None:
        return [_admit(tx, submission, now) for submission in request.submissions]
    memory = remembered.get((key.agent, key.key))
    if memory is not None:
        return _again(tx, memory, key.digest)
    answers = [_admit(tx, submission, now) for submission in request.submissions]
    # A refused submission is to be tried again with the same key, so it is not remembered.
    seqs = [answer.seq for answer in answers if isinstance(answer, Task)]
    if seqs:
        memory = _Memory(key.digest, [_outcome(answer) for answer in answers])
        remembered[key.agent, key.key] = memory
        text = msgspec.json.encode(memory.outcomes).decode()
        row = (key.agent, key.key, key.digest, text, max(seqs), now)
        tx.remember_key(row)
    return answers


def _admit(tx: Transaction, submission: Submission, now: int) -> Task | FairlaneError:
    problem = admission.problem(submission, now)
    if problem:
        return problem
    lane = tx.policy.lane_name(submission.lane, submission.kind)
    lane_queued = tx.lane(lane).queued
    agent_queued = sum(line.queued for line in tx.lines(lane, submission.agent).values())
    refusal = admission.refusal(
        submission, lane, tx.policy, lane_queued=lane_queued, agent_queued=agent_queued
    )
    seq = tx.next_seq()
    if refusal:
        change = admission.reject(submission, lane, tx.policy, refusal, seq=seq, now=now)
        tx.apply(change, body=_without_params(submission.body))
        return refusal
    change = admission.admit(
        submission, lane, tx.policy, seq=seq, position=lane_queued + 1, now=now
    )
    session = tx.session(submission.session) if submission.session else None
    change.after.gate = gates.entry_gate(session)
    tx.apply(change, body=submission.body)
    return change.after


def _remembered(tx: Transaction, requests: Sequence[Submit]) -> dict[tuple[str, str], _Memory]:
    keys = [(r.idempotency.agent, r.idempotency.key) for r in requests if r.idempotency]
    if not keys:
        return {}
    rows = tx.connection.run_rows("idempotency_find", list(dict.fromkeys(keys)))
    return {(row[0], row[1]): _Memory(row[2], _outcomes.decode(row[3])) for row in rows}


_outcomes = msgspec.json.Decoder(list[str | _Refusal])


def _outcome(answer: Task | FairlaneError) -> str | _Refusal:
    if isinstance(answer, Task):
        return answer.id
    return _Refusal(answer.code, answer.message, answer.details)


def _again(tx: Transaction, memory: _Memory, digest: str) -> Any:
    if memory.digest != digest:
        return IdempotencyConflict(
            "this Idempotency-Key was used with another body; use a new key for a new request"
        )
    found = tx.tasks_by_id(id_ for id_ in memory.outcomes if isinstance(id_, str))
    return [_same_outcome(found, outcome) for outcome in memory.outcomes]


def _same_outcome(found: Mapping[str, Task], outcome: str | _Refusal) -> Task | FairlaneError:
    if isinstance(outcome, str):
        return found.get(outcome) or NotFound(
            "the task of this Idempotency-Key is not kept any more"
        )
    error = QueueFull if outcome.code == QueueFull.code else InvalidRequest
    return error(outcome.message, details=outcome.details)


def _without_params(body: str) -> str:
    """A refused flood must not fill the store: its records keep everything but the parameters."""
    request = msgspec.json.decode(body)
    request.pop("params", None)
    return msgspec.json.encode(request).decode()


def _let_higher_priority_pass(tx: Transaction, answers: Sequence[Any], now: int) -> None:
    """A task that waits for its session's turn may take it from a ready one that ranks lower.

    Not from one that was leased before: it keeps its turn through retries. So whoever waited when
    it got its turn ranks no higher, and to look at those that came just now is enough.
    """
    waiting: dict[str, list[Task]] = {}
    for answer in answers:
        for task in answer if isinstance(answer, list) else ():
            if isinstance(task, Task) and task.gate == SESSION_GATE and task.session:
                waiting.setdefault(task.session, []).append(task)
    if not waiting:
        return
    for holder in tx.ready_in_sessions(waiting):
        assert holder.session is not None
        if holder.token:
            continue
        best = min(waiting[holder.session], key=lambda task: (task.priority, task.seq))
        if best.priority < holder.priority and best.gate == SESSION_GATE:
            tx.apply(gates.hold(holder))
            change = gates.promote(best, now)
            tx.apply(change)
            waiting[holder.session].remove(best)
            waiting[holder.session].append(change.after)


# -------------------------------------------------------------------- run


class _Report(Protocol):
    @property
    def seq(self) -> int: ...


def _load(tx: Transaction, requests: Sequence[_Report]) -> dict[int, Task]:
    tasks = tx.tasks_by_seq(request.seq for request in requests)
    tx.prepare(tasks[request.seq] for request in requests if request.seq in tasks)
    return tasks


def _decided(tx: Transaction, decision: leases.Decision) -> Task | FairlaneError:
    if decision.change is not None:
        tx.apply(decision.change)
    return decision.answer


def start(tx: Transaction, requests: Sequence[Start], now: int) -> Iterator[Any]:
    tasks = _load(tx, requests)
    for request in requests:
        yield _decided(tx, leases.start(tasks.get(request.seq), request.token, now))


def renew(tx: Transaction, requests: Sequence[Renew], now: int) -> Iterator[Any]:
    tasks = tx.tasks_by_seq(request.seq for request in requests)
    decisions = [leases.renew(tasks.get(r.seq), r.token, r.ttl_ms, now) for r in requests]
    tx.renew(decision.change for decision in decisions if decision.change)
    return iter([decision.answer for decision in decisions])


def complete(tx: Transaction, requests: Sequence[Complete], now: int) -> Iterator[Any]:
    tasks = _load(tx, requests)
    for request in requests:
        task = tasks.get(request.seq)
        yield _decided(tx, leases.complete(task, request.token, request.result, now))


def fail(tx: Transaction, requests: Sequence[Fail], now: int) -> Iterator[Any]:
    tasks = _load(tx, requests)
    for request in requests:
        decision = leases.fail(
            tasks.get(request.seq),
            request.token,
            request.error,
            retryable=request.retryable,
            retry_after_ms=request.retry_after_ms,
            policy=tx.policy,
            now=now,
        )
        yield _decided(tx, decision)


def release(tx: Transaction, requests: Sequence[Release], now: int) -> Iterator[Any]:
    tasks = _load(tx, requests)
    for request in requests:
        yield _decided(tx, leases.release(tasks.get(request.seq), request.token, now))


def cancel(tx: Transaction, requests: Sequence[Cancel], now: int) -> Iterator[Any]:
    found = tx.tasks_by_id(request.id for request in requests)
    tx.prepare(found.values())
    for request in requests:
        task = found.get(request.id)
        current = tx.task(task.seq) if task else None
        yield _decided(tx, leases.cancel(current, request.id, now))


def reclaim(tx: Transaction, requests: Sequence[Reclaim], now: int) -> Iterator[Any]:
    """Take back what dead workers hold, at once instead of when their leases run out."""
    for request in requests:
        leased = tx.tasks("task_leased")
        tasks = [task for task in leased if (task.worker or "").startswith(request.prefix)]
        tx.prepare(tasks)
        for task in tasks:
            tx.apply(leases.reclaim(task, tx.policy, now))
        yield len(tasks)


# -------------------------------------------------------------------- operate


def set_policy(tx: Transaction, requests: Sequence[SetPolicy], now: int) -> Iterator[Any]:
    for request in requests:
        try:
            policy = merge(tx.policy, request.document)
        except InvalidPolicy as error:
            yield error
            continue
        if policy != tx.policy:
            _adopt(tx, policy, request.source, now)
        yield policy


def _adopt(tx: Transaction, policy: Policy, source: str, now: int) -> None:
    old, tx.policy = tx.policy, policy
    tx.policy_version += 1
    document = msgspec.json.encode(to_document(policy)).decode()
    tx.connection.run(
        "policy_insert", version=tx.policy_version, document=document, source=source, now=now
    )
    tx.connection.run("policy_use", version=tx.policy_version)
    names = old.agents.keys() | policy.agents.keys()
    changed = sorted(name for name in names if old.weight(name) != policy.weight(name))
    if changed:
        tx.reshare(tx.connection.run("line_agents", agents=changed))
    tx.write()
    for lane in sorted(policy.lanes.keys() & old.lanes.keys()):
        if policy.lanes[lane].strategy != old.lanes[lane].strategy:
            by_agent = 1 if policy.lanes[lane].strategy == "fair-fifo" else 0
            tx.connection.run("task_reline", lane=lane, by_agent=by_agent)


# -------------------------------------------------------------------- webhooks owed


def claim_deliveries(
    tx: Transaction, requests: Sequence[ClaimDeliveries], now: int
) -> Iterator[Any]:
    tx.write()
    for request in requests:
        rows = tx.connection.run("delivery_due", now=now, limit=request.limit)
        held = [(row[0], now + request.hold_ms) for row in rows]
        tx.connection.change_rows("delivery_claim", held)
        yield [OwedDelivery(row[0], row[1], row[2], row[3], row[4] + 1) for row in rows]


def reclaim_deliveries(
    tx: Transaction, requests: Sequence[ReclaimDeliveries], now: int
) -> Iterator[Any]:
    """Only a failed try leaves an error, so one without has been claimed and not settled."""
    tx.connection.run("delivery_reclaim", now=now)
    return iter([None] * len(requests))


def settle_delivery(tx: Transaction, requests: Sequence[SettleDelivery], now: int) -> Iterator[Any]:
    rows: list[Row] = []
    for request in requests:
        row: Row
        if request.delivered:
            row = (request.id, "delivered", now, None, now)
        elif request.retry_after_ms is None:
            row = (request.id, "given_up", now, request.error, now)
        else:
            row = (request.id, "due", now + request.retry_after_ms, request.error, None)
        rows.append(row)
    tx.connection.run_rows("delivery_settle", rows)
    return iter([None] * len(requests))


def use_secret(tx: Transaction, requests: Sequence[UseSecret], _: int) -> Iterator[Any]:
    for request in requests:
        kept = tx.connection.run("secret_get")[0][0]
        if kept is None:
            kept = request.candidate
            tx.connection.run("secret_set", secret=kept)
        yield kept
