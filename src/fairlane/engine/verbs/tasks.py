"""The verbs, one batch function each, in the order of a task's life (leasing: `leasing.py`).

All have one shape: load what the requests name, let the core decide, apply what changed. Each takes
any number of requests and sends a handful of statements. Requests about the same task in one batch
are decided one after another, each on the result of the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from fairlane.core import admission, gates, leases
from fairlane.core import dependencies as graph
from fairlane.core.batches import Batch
from fairlane.core.errors import (
    Disabled,
    FairlaneError,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    QueueFull,
)
from fairlane.core.json_types import JsonObject
from fairlane.core.model import DEBOUNCE_GATE, SESSION_GATE, Submission, Task, is_node
from fairlane.core.retries import Backoff
from fairlane.engine.commands import (
    Cancel,
    Complete,
    Fail,
    NewBatch,
    Reclaim,
    Release,
    Renew,
    Start,
    Submit,
)
from fairlane.engine.resource_commands import (
    ResourceReport,
)
from fairlane.engine.verbs import (
    approvals,
    dependencies,
    ownership,
    permits,
    redaction,
    repetition,
    resources,
    sessions,
)
from fairlane.store.tables import events as event_table
from fairlane.store.tables import idempotency, tracebacks
from fairlane.store.tables import tasks as task_table
from fairlane.store.tables.idempotency import KeyRow
from fairlane.store.transaction import Transaction

# This many refused submissions are stored for their callers; of a flood, the rest is counted.
REJECTED_KEPT_MAX: Final = 1000

# -------------------------------------------------------------------- submit


def submit(tx: Transaction, requests: Sequence[Submit], now: int) -> Iterator[Any]:
    if not tx.policy.enabled:
        error = Disabled("the policy disables the scheduler; set enabled to true in the policy")
        return iter([error] * len(requests))
    submissions = [s for r in requests for s in r.submissions]
    lanes = [tx.policy.lane_name(s.lane, s.kind) for s in submissions]
    tx.counters.load_lines((lane, s.agent) for lane, s in zip(lanes, submissions, strict=True))
    keys = [s.session for s in submissions if s.session]
    if keys:
        tx.counters.load_sessions(keys)
    known = tx.tasks_by_id(id_ for s in submissions for id_ in s.depends_on)
    tx.load_awaited(s.id for s in submissions if s.depends_on)
    remembered = _remembered(tx, requests)

    def submit_new(request: Submit) -> object:
        return _submit_one(tx, request, remembered, known, now)

    answers = [repetition.submit_once(tx, request, submit_new) for request in requests]
    if keys:
        _let_higher_priority_pass(tx, answers, now)
    return iter(answers)


class _Refusal(msgspec.Struct):
    code: str
    message: str
    details: JsonObject | None = None


class _Memory(msgspec.Struct):
    """The result of each submission: the id of its task, or the error."""

    digest: str
    outcomes: list[str | _Refusal]


def _submit_one(
    tx: Transaction,
    request: Submit,
    remembered: dict[tuple[str, str], _Memory],
    known: dict[str, Task],
    now: int,
) -> object:
    try:
        ordered = _parents_first(request.submissions)
    except InvalidRequest as error:
        return error  # to this request only: others of the transaction are not affected
    key = request.idempotency
    if key is None:
        return _not_allowed(tx, request, known) or _admit_all(tx, request, ordered, known, now)
    memory = remembered.get((key.agent, key.key))
    if memory is not None:
        return _again(tx, memory, key.digest)
    problem = _not_allowed(tx, request, known)
    if problem is not None:
        return problem
    answers = _admit_all(tx, request, ordered, known, now)
    # A refused submission may be repeated with the same key, so it is not remembered.
    seqs = [answer.seq for answer in answers if isinstance(answer, Task)]
    if seqs:
        memory = _Memory(key.digest, [_outcome(answer) for answer in answers])
        remembered[key.agent, key.key] = memory
        text = msgspec.json.encode(memory.outcomes).decode()
        tx.unwritten.keys.append(KeyRow(key.agent, key.key, key.digest, text, max(seqs), now))
    return answers


def _not_allowed(
    tx: Transaction, request: Submit, known: Mapping[str, Task]
) -> FairlaneError | None:
    if request.caller is None:
        return None
    return ownership.refusal(tx, request.caller, request.submissions, known)


def _parents_first(submissions: Sequence[Submission]) -> Sequence[Submission]:
    """Order parents before children. Raise `InvalidRequest` for a cycle."""
    if len(submissions) == 1 and not submissions[0].depends_on:
        return submissions
    by_id = {submission.id: submission for submission in submissions}
    return [by_id[id_] for id_ in graph.in_order({s.id: s.depends_on for s in submissions})]


def _admit_all(
    tx: Transaction,
    request: Submit,
    ordered: Sequence[Submission],
    known: dict[str, Task],
    now: int,
) -> list[Task | FairlaneError]:
    """Admit all of one request, parents before children; answer in the order of the request."""
    if len(ordered) == 1 and request.batch is None:
        (only,) = ordered
        if not only.depends_on and only.message is None:
            return [_admit(tx, only, now)]  # nearly every request
    batch = None if request.batch is None else _new_batch(tx, request.batch, now)
    if batch is not None:
        tx.counters.add_batch(batch)
    answers: dict[str, Task | FairlaneError] = {}
    for submission in ordered:
        if submission.depends_on:
            answers[submission.id] = _admit_child(tx, submission, known, answers, now)
        elif submission.message is not None:
            answers[submission.id] = sessions.admit(tx, submission, now, _admit)
        else:
            answers[submission.id] = _admit(tx, submission, now)
    if batch is not None and not batch.total:
        tx.counters.drop_batch(batch.id)
    return [answers[submission.id] for submission in request.submissions]


def _new_batch(tx: Transaction, new: NewBatch, now: int) -> Batch:
    return Batch(new.id, tx.next_seq(), new.agent, new.parallelism, 0, now, new.callback_url)


def _admit_child(
    tx: Transaction,
    submission: Submission,
    known: dict[str, Task],
    answers: Mapping[str, Task | FairlaneError],
    now: int,
) -> Task | FairlaneError:
    for id_ in submission.depends_on:
        if isinstance(answers.get(id_), FairlaneError):
            return InvalidRequest(f"field 'dependsOn': {id_} was refused")
    cycle = dependencies.refuse_cycle(tx, submission)
    if cycle is not None:
        return cycle
    # A task of another request in this transaction may have been rejected meanwhile.
    others = [id_ for id_ in submission.depends_on if id_ not in known and id_ not in answers]
    if others:
        known.update(tx.tasks_by_id(others))
    edges = dependencies.edges(submission, known)
    unmet = sum(state != graph.MET for _, state in edges)
    answer = _admit(tx, submission, now, unmet)
    if isinstance(answer, Task):
        answer = dependencies.connect(tx, answer, edges, known)
        known[answer.id] = answer
    return answer


def _admit(
    tx: Transaction,
    submission: Submission,
    now: int,
    unmet: int | None = None,
    *,
    leaving: Sequence[Task] = (),
    enter: Callable[[], None] | None = None,
) -> Task | FairlaneError:
    """Admit one task. For `leaving` and `enter` see `sessions.Admit`."""
    problem = admission.problem(submission, now) or tx.vault.problem(submission.body)
    if problem:
        return problem
    policy = tx.policy
    lane = policy.lane_name(submission.lane, submission.kind)
    refusal = queue_refusal(tx, submission.agent, submission.id, lane, leaving)
    if refusal:
        change = admission.reject(submission, lane, policy, refusal, seq=tx.next_seq(), now=now)
        if submission.once:  # a stored one would be the answer when it is submitted again
            tx.count_rejected(change)
        else:
            tx.reject(change, _without_params(submission.body), REJECTED_KEPT_MAX)
        return refusal
    needs = resources.needs_for(tx, submission, lane)
    if isinstance(needs, FairlaneError):
        return needs
    parent = ownership.run_that_submits(tx, submission)
    if isinstance(parent, FairlaneError):
        return parent
    if enter is not None:
        enter()
    owner = admission.line_agent(policy, lane, submission.agent)
    change = admission.admit(
        submission,
        lane,
        policy,
        line=tx.counters.line_number(lane, owner, submission.capability),
        seq=tx.next_seq(),
        position=tx.counters.lane(lane).queued + 1,
        now=now,
    )
    after = change.after
    resources.attach(tx, after, needs, parent)
    if unmet is not None:
        graph.block(after, unmet)
    if not unmet:
        dependencies.let_in(tx, after, now)
    _debounce(tx, submission, after, now)
    tx.apply(change, body=_numbered(tx, submission), submitter=submission.submitter)
    approvals.open_gate(tx, after, submission, now)
    return after


def _debounce(tx: Transaction, submission: Submission, after: Task, now: int) -> None:
    """Let a message wait until its window ends, if it has one."""
    if submission.message is None:
        return
    window_ends = sessions.window_ends(tx, submission, now)
    if window_ends is not None:
        after.gate, after.eligible_at = DEBOUNCE_GATE, window_ends


def _numbered(tx: Transaction, submission: Submission) -> str:
    """Return the request with the generation of its session, if that was ever reset."""
    session = tx.counters.session(submission.session) if submission.session else None
    if session is None or not session.generation:
        return submission.body
    request = msgspec.json.decode(submission.body, type=JsonObject)
    request["generation"] = session.generation
    return msgspec.json.encode(request).decode()


def queue_refusal(
    tx: Transaction, agent: str, task_id: str, lane: str, leaving: Sequence[Task] = ()
) -> QueueFull | None:
    agents = [task.agent for task in leaving if task.lane == lane]
    agent_queued = 0
    if tx.policy.lanes[lane].max_per_agent is not None:
        agent_queued = sum(line.queued for line in tx.counters.lines(lane, agent).values())
        agent_queued -= agents.count(agent)
    lane_queued = tx.counters.lane(lane).queued - len(agents)
    return admission.refusal(
        agent, task_id, lane, tx.policy, lane_queued=lane_queued, agent_queued=agent_queued
    )


def _remembered(tx: Transaction, requests: Sequence[Submit]) -> dict[tuple[str, str], _Memory]:
    keys = [(r.idempotency.agent, r.idempotency.key) for r in requests if r.idempotency]
    if not keys:
        return {}
    return {
        (used.agent, used.key): _Memory(used.digest, _outcomes.decode(used.outcomes))
        for used in idempotency.find(tx.connection, keys)
    }


_outcomes = msgspec.json.Decoder(list[str | _Refusal])


def _outcome(answer: Task | FairlaneError) -> str | _Refusal:
    if isinstance(answer, Task):
        return answer.id
    return _Refusal(answer.code, answer.message, answer.details)


def _again(tx: Transaction, memory: _Memory, digest: str) -> object:
    if memory.digest != digest:
        return IdempotencyConflict(
            "this Idempotency-Key was already used with a different body; "
            "use a new key for a new request"
        )
    found = tx.tasks_by_id(id_ for id_ in memory.outcomes if isinstance(id_, str))
    return [_same_outcome(found, outcome) for outcome in memory.outcomes]


def _same_outcome(found: Mapping[str, Task], outcome: str | _Refusal) -> Task | FairlaneError:
    if isinstance(outcome, str):
        return found.get(outcome) or NotFound(
            "the task created with this Idempotency-Key is no longer stored"
        )
    error = QueueFull if outcome.code == QueueFull.code else InvalidRequest
    return error(outcome.message, details=outcome.details)


def _without_params(body: str) -> str:
    """Return a refused submission without parameters: a flood must not fill the store."""
    request = msgspec.json.decode(body)
    request.pop("params", None)
    return msgspec.json.encode(request).decode()


def _let_higher_priority_pass(tx: Transaction, answers: Sequence[object], now: int) -> None:
    """Let a task that waits for its session's turn take it from a ready one that ranks lower.

    A task that was leased before keeps its turn through retries. The check runs when a task that
    ranks higher arrives; then the first waiting task goes, whatever it waited for before.
    """
    best: dict[str, int] = {}
    for answer in answers:
        for task in answer if isinstance(answer, list) else ():
            if isinstance(task, Task) and task.gate == SESSION_GATE and task.session:
                best[task.session] = min(task.priority, best.get(task.session, task.priority))
    if not best:
        return
    ready = sorted(tx.lookup.ready_in_sessions(best), key=lambda task: (task.priority, task.seq))
    for holder in reversed(ready):  # the one that would have run last
        assert holder.session is not None
        if holder.fencing_token or best[holder.session] >= holder.priority:
            continue
        for first in tx.lookup.next_in_sessions([holder.session], 1):
            if first.priority < holder.priority:
                tx.apply(gates.hold(holder))
                gate = gates.batch_gate(tx.counters.batch_of(first))
                tx.apply(gates.promote(first, now, resources.gate(tx, first, gate)))


# -------------------------------------------------------------------- run


class _Report(Protocol):
    @property
    def seq(self) -> int: ...


def _load(tx: Transaction, requests: Sequence[_Report]) -> dict[int, Task]:
    tasks = tx.tasks_by_seq(request.seq for request in requests)
    tx.counters.prepare(tasks[request.seq] for request in requests if request.seq in tasks)
    return tasks


def _decided(
    tx: Transaction, decision: leases.LeaseDecision, report: ResourceReport | None = None
) -> Task | FairlaneError:
    if decision.change is not None:
        tx.apply(decision.change)
        resources.take_report(tx, decision.change.after, report)
    return decision.answer


def _report_problem(
    tx: Transaction, task: Task | None, request: Complete | Fail | Release | Renew
) -> FairlaneError | None:
    """Return the problem of a report about resources; ignore the report of a lost lease."""
    if request.report is None or leases.lost(task, request.fencing_token) is not None:
        return None
    return resources.report_problem(tx, task, request.report)


def start(tx: Transaction, requests: Sequence[Start], now: int) -> Iterator[object]:
    tasks = tx.tasks_by_seq(request.seq for request in requests)
    for request in requests:
        yield _decided(tx, leases.start(tasks.get(request.seq), request.fencing_token, now))


def renew(tx: Transaction, requests: Sequence[Renew], now: int) -> Iterator[object]:
    tasks = tx.tasks_by_seq(request.seq for request in requests)
    requests = redaction.reports(tx, tasks, requests, "progress")
    decisions = [_renewed(tx, tasks.get(request.seq), request, now) for request in requests]
    tx.renew(decision.change for decision in decisions if decision.change)
    for request, decision in zip(requests, decisions, strict=True):
        if decision.change is not None and request.permits:
            problem = permits.settle_renewed(tx, decision.change.after, request.permits)
            decision.answer = problem or decision.answer
        if decision.change is not None:
            resources.take_report(tx, decision.change.after, request.report)
        if request.progress is not None and decision.change is not None:
            tx.tell_progress(decision.change.after, request.progress)
    return iter([decision.answer for decision in decisions])


def _renewed(tx: Transaction, task: Task | None, request: Renew, now: int) -> leases.LeaseDecision:
    problem = _report_problem(tx, task, request)
    if problem is not None:
        return leases.LeaseDecision(None, problem)
    usual_ms = tx.policy.lease_ttl_ms(task.lane) if task else 0
    return leases.renew(task, request.fencing_token, request.ttl_ms or usual_ms, now)


def complete(tx: Transaction, requests: Sequence[Complete], now: int) -> Iterator[object]:
    tasks = _load(tx, requests)
    for request in redaction.reports(tx, tasks, requests, "result"):
        problem = _report_problem(tx, tasks.get(request.seq), request)
        if problem is not None:
            yield problem
            continue
        _begin_late(tx, tasks.get(request.seq), request, now)
        task = tasks.get(request.seq)
        kept = tx.result(request.seq) if leases.is_repeated(task, request.fencing_token) else None
        decision = leases.complete(task, request.fencing_token, request.result, now, kept=kept)
        yield _decided(tx, decision, request.report)
        if decision.change is not None and decision.change.after.session:
            sessions.report(tx, decision.change.after, request.result)


def _begin_late(tx: Transaction, task: Task | None, request: Complete | Fail, now: int) -> None:
    """Record the start of a run whose worker reports only its end."""
    change = leases.begin_late(task, request.fencing_token, now) if request.begun else None
    if change is not None:
        tx.apply(change)


def fail(tx: Transaction, requests: Sequence[Fail], now: int) -> Iterator[object]:
    tasks = _load(tx, requests)
    owns = backoffs(tx, (tasks[r.seq] for r in requests if r.seq in tasks))
    requests = redaction.reports(tx, tasks, requests, "error")
    for request in redaction.reports(tx, tasks, requests, "traceback"):
        problem = _report_problem(tx, tasks.get(request.seq), request)
        if problem is not None:
            yield problem
            continue
        _begin_late(tx, tasks.get(request.seq), request, now)
        if request.report is not None and request.report.closed:
            yield _wait_for_opening(tx, request, now)
            continue
        decision = leases.fail(
            tasks.get(request.seq),
            request.fencing_token,
            request.error,
            retryable=request.retryable,
            retry_after_ms=request.retry_after_ms,
            policy=tx.policy,
            own=owns.get(request.seq),
            now=now,
        )
        yield _decided(tx, decision, request.report)
        if request.traceback and decision.change is not None and decision.change.error:
            tracebacks.save(tx.connection, request.seq, now, request.traceback)


def _wait_for_opening(tx: Transaction, request: Fail, now: int) -> Task | FairlaneError:
    """Queue a task again because a provider refused. This costs no attempt, but counts as a
    release, so that it cannot go on forever.
    """
    late = leases.begin_late(
        tx.tasks_by_seq([request.seq]).get(request.seq), request.fencing_token, now
    )
    if late is not None:  # it ran, so what it reserved is used
        tx.apply(late)
    task = tx.tasks_by_seq([request.seq]).get(request.seq)
    last = bool(task and _released_too_often(tx, [task], nodes=True))
    decision = leases.release(task, request.fencing_token, now, last=last)
    return _decided(tx, decision, request.report)


class _Retrying(msgspec.Struct, rename="camel"):
    retry_policy: Backoff | None = None


_retrying = msgspec.json.Decoder(_Retrying)


def backoffs(tx: Transaction, tasks: Iterable[Task]) -> dict[int, Backoff | None]:
    """Return the retry settings of tasks that may be retried."""
    seqs = [task.seq for task in tasks if leases.may_retry(task)]
    if not seqs:
        return {}
    return {seq: _retry_policy(body) for seq, body in tx.lookup.requests(seqs).items()}


def _retry_policy(body: str) -> Backoff | None:
    """Return the retry settings of a request; a damaged one has none."""
    try:
        return _retrying.decode(body).retry_policy
    except msgspec.DecodeError:
        return None


def release(tx: Transaction, requests: Sequence[Release], now: int) -> Iterator[object]:
    tasks = _load(tx, requests)
    last = _released_too_often(tx, tasks.values())
    for request in requests:
        task = tasks.get(request.seq)
        problem = _report_problem(tx, task, request)
        if problem is not None:
            yield problem
            continue
        decision = leases.release(task, request.fencing_token, now, last=request.seq in last)
        yield _decided(tx, decision, request.report)


def _released_too_often(tx: Transaction, tasks: Iterable[Task], *, nodes: bool = False) -> set[int]:
    """Return tasks that external workers (with `nodes`, also nodes) released too often."""
    theirs = {
        task.seq: task.lane for task in tasks if task.worker and (nodes or not is_node(task.worker))
    }
    if not theirs:
        return set()
    tx.unwritten.write()
    counted = event_table.count_releases(tx.connection, theirs)
    found = set()
    for seq, lane in theirs.items():
        settings = tx.policy.lanes.get(lane)
        most = settings.max_releases if settings else None
        if most is not None and counted.get(seq, 0) >= most:
            found.add(seq)
    return found


def cancel(tx: Transaction, requests: Sequence[Cancel], now: int) -> Iterator[object]:
    found = tx.tasks_by_id(request.id for request in requests)
    tx.counters.prepare(found.values())
    for request in requests:
        task = found.get(request.id)
        current = tx.task(task.seq) if task else None
        yield _decided(tx, leases.cancel(current, request.id, now, request.reason))


def reclaim(tx: Transaction, requests: Sequence[Reclaim], now: int) -> Iterator[object]:
    """Reclaim the leases of dead workers at once instead of when they expire."""
    for request in requests:
        leased = tx.lookup.tasks(task_table.leased)
        tasks = [task for task in leased if (task.worker or "").startswith(request.prefix)]
        tx.counters.prepare(tasks)
        owns = backoffs(tx, tasks)
        for task in tasks:
            tx.apply(leases.reclaim(task, tx.policy, owns.get(task.seq), now))
        tx.reclaimed += tasks
        yield len(tasks)
