"""Cron in the engine: commands about jobs, firing, and runs that follow their tasks.

A firing is one transaction: the task is admitted like any other, the run is logged and the job
advances. A run ends in the transaction that ends its task, so that none can be stuck. Cron tasks
are recognised by their ids, so other tasks have no extra cost.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final
from zoneinfo import ZoneInfoNotFoundError

import msgspec

from fairlane.core import cron, jobs, leases, lifecycle, moments
from fairlane.core.consequences import Webhook
from fairlane.core.cron import CronDecision, CronDefinition, Job, RunRecord
from fairlane.core.errors import Conflict, FairlaneError, InvalidRequest, NotFound
from fairlane.core.json_types import JsonObject
from fairlane.core.model import ACTION, RUN_PREFIX, Change, Submission, Task
from fairlane.engine.commands import CreateJobs, DeleteJob, RunJob, Submit, ToggleJob, UpdateJob
from fairlane.engine.verbs import tasks
from fairlane.store.tables import cron as store
from fairlane.store.transaction import Transaction

log = logging.getLogger("fairlane.cron")

STEP: Final = 100  # jobs in one transaction
SLOTS_MAX: Final = 5000  # slots examined in one transaction, give or take a job
FORGOTTEN_MAX: Final = 500
_DAY_MS: Final = 86_400_000
_STATUS: Final = {
    lifecycle.DONE: cron.OK,
    lifecycle.FAILED: cron.ERROR,
    lifecycle.REJECTED: cron.ERROR,
    lifecycle.CANCELLED: cron.CANCELLED,
}


# -------------------------------------------------------------------- verbs


def create_jobs(tx: Transaction, requests: Sequence[CreateJobs], now: int) -> Iterator[object]:
    """Create all jobs of a request or none."""
    for request in requests:
        try:
            made = [
                _new_job(tx, id_, jobs.define(document, now), request.submitter, now)
                for id_, document in zip(request.ids, request.documents, strict=True)
            ]
            _refuse_unfit(tx, made)
        except (InvalidRequest, Conflict) as error:
            yield error
            continue
        store.save_jobs(tx, made)
        yield made


def _new_job(
    tx: Transaction, id_: str, definition: CronDefinition, submitter: str | None, now: int
) -> Job:
    job = Job(tx.next_seq(), id_, definition, now, None, now, now, submitter=submitter)
    _set_going(tx, job, now)
    return job


def update_job(tx: Transaction, requests: Sequence[UpdateJob], now: int) -> Iterator[object]:
    follow(tx, now)  # an end in this transaction comes first, as in the other verbs
    for request in requests:
        yield _changed(tx, request.id, request.document, now, request.submitter)


def toggle_job(tx: Transaction, requests: Sequence[ToggleJob], now: int) -> Iterator[object]:
    follow(tx, now)
    for request in requests:
        yield _changed(tx, request.id, {"enabled": request.enabled}, now)


def _changed(
    tx: Transaction, id_: str, document: JsonObject, now: int, submitter: str | None = None
) -> Job | FairlaneError:
    job = store.jobs_by_id(tx.connection, tx.vault, [id_]).get(id_)
    if job is None:
        return not_found(id_)
    if job.damaged:
        return damaged(id_)
    before = job.definition
    try:
        job.definition = jobs.update(before, document, now)
        if job.definition == before:
            return job
        _refuse_unfit(tx, [job])
        if _moved(before, job.definition):
            _set_going(tx, job, now)
        elif before.max_runs != job.definition.max_runs and job.definition.enabled:
            cron.go_on(job)
    except (InvalidRequest, Conflict) as error:
        return error
    job.updated_at = now
    job.submitter = submitter or job.submitter
    store.save_jobs(tx, [job])
    return job


def _moved(before: CronDefinition, after: CronDefinition) -> bool:
    """Return whether the next slot has to be computed again."""
    names = ("enabled", "schedule", "start_at", "end_at")
    return any(getattr(before, name) != getattr(after, name) for name in names)


def _set_going(tx: Transaction, job: Job, now: int) -> None:
    """Start the schedule. Raise `InvalidRequest` for a job that would never run."""
    if not job.definition.enabled:
        cron.disable(job, job.disabled_reason or cron.BY_CALLER)
        return
    if job.disabled_reason == cron.BY_ERRORS:
        job.consecutive_errors = 0
    if not cron.begin(job, now):
        raise InvalidRequest(
            f"invalid job: it would never run again: it has run {job.runs} times and its "
            "schedule has no further runs; change 'schedule', 'endAt' or 'maxRuns'"
        )
    tx.note_due(job.next_run_at)


def _refuse_unfit(tx: Transaction, made: Sequence[Job]) -> None:
    """Raise `Conflict` if another job of the agent has one of the names, and `InvalidRequest` if
    one refers to a secret that tasks may not use.
    """
    for job in made:
        problem = tx.vault.problem({"task": {"llmConfig": job.definition.task.llm_config}})
        if problem is not None:
            raise InvalidRequest(f"invalid job: {problem.message}")
    names = [(job.definition.agent_id, job.definition.name) for job in made]
    found = store.jobs_by_name(tx, names)
    problems = []
    for number, (job, key) in enumerate(zip(made, names, strict=True)):
        if key in found and found[key].id != job.id:
            text = f"agent '{key[0]}' already has a job named '{key[1]}'; choose another name"
            problems.append({"index": number, "error": text, "id": found[key].id})
    if problems:
        details = {"id": problems[0]["id"], "problems": problems}
        raise Conflict(str(problems[0]["error"]), details=details)


def delete_job(tx: Transaction, requests: Sequence[DeleteJob], now: int) -> Iterator[object]:
    """Delete a job. Its log stays, and so do its tasks unless they are to be cancelled."""
    follow(tx, now)
    for request in requests:
        job = store.jobs_by_id(tx.connection, tx.vault, [request.id]).get(request.id)
        if job is None:
            yield not_found(request.id)
            continue
        store.delete_jobs(tx, [job.id])
        if request.cancel:
            _cancel(tx, store.open_tasks(tx, job.id), now)
        yield job


def _cancel(tx: Transaction, task_ids: Iterable[str], now: int) -> None:
    found = tx.tasks_by_id(task_ids)
    tx.counters.prepare(found.values())
    for task in found.values():
        decision = leases.cancel(tx.task(task.seq), task.id, now, "cancelled: its job was deleted")
        if decision.change is not None:
            tx.apply(decision.change)


def run_job(tx: Transaction, requests: Sequence[RunJob], now: int) -> Iterator[object]:
    """Run a job now; the schedule does not change. A refused run is logged too."""
    follow(tx, now)
    for request in requests:
        job = store.jobs_by_id(tx.connection, tx.vault, [request.id]).get(request.id)
        if job is None:
            yield not_found(request.id)
            continue
        if job.damaged:
            yield damaged(request.id)
            continue
        active = store.open_tasks(tx, job.id) if job.definition.overlap == cron.SKIP else []
        if active:
            yield Conflict(
                f"the job has a run in progress: task {active[0]}; cancel it or wait for it",
                details={"taskId": active[0]},
            )
            continue
        slot = cron.Slot(now, f"manual {tx.next_seq()}")
        new = _new_run(tx, job, slot, cron.MANUAL)
        job.last_run_at, job.last_status = now, cron.RUNNING
        (problem,) = _submit(tx, [(job, new, now)], now)
        _log(tx, {job.id: job}, [new])
        yield problem or new


def not_found(id_: str) -> NotFound:
    return NotFound(f"cron job '{id_[:128]}' not found")


def damaged(id_: str) -> Conflict:
    return Conflict(f"cron job '{id_[:128]}' cannot be used: {cron.DAMAGED}")


# -------------------------------------------------------------------- firing


def fire(tx: Transaction, now: int) -> None:
    """Submit the tasks of due jobs; `tx.due_at` is when the next job is due."""
    due_at = store.next_due_at(tx)
    if due_at is not None and due_at <= now:
        _fire(tx, store.due_jobs(tx, now, STEP), now)
        due_at = store.next_due_at(tx)
    tx.note_due(due_at)


def _fire(tx: Transaction, due: Sequence[Job], now: int) -> None:
    decisions = _decisions(tx, due, now)
    by_id = {job.id: job for job, _ in decisions}
    taken = store.taken_slots(tx, [(job.id, key) for job, d in decisions for key in _keys(d)])

    def new_run(job: Job, slot: cron.Slot, trigger: str) -> RunRecord:
        """Return a new run. A job that moved to another zone may reach the same wall time twice."""
        key = moments.text(slot.at) if (job.id, slot.key) in taken else slot.key
        return _new_run(tx, job, cron.Slot(slot.at, key), trigger)

    runs: list[RunRecord] = []
    submits: list[tuple[Job, RunRecord, int]] = []
    for job, decision in decisions:
        if decision.missed:
            runs.append(_missed(tx, job, decision, now))
        for slot in decision.skipped:
            late = now - slot.at > job.definition.grace_ms
            skipped = new_run(job, slot, cron.MISFIRED if late else cron.SCHEDULED)
            _end_without_task(
                job, skipped, cron.SKIPPED, "the previous run is still in progress", now
            )
            runs.append(skipped)
        fired = [(job, new_run(job, f.slot, f.trigger), f.run_at) for f in decision.fires]
        runs += [run for _, run, _ in fired]
        submits += fired
        cron.advance(job, decision, now)
    _submit(tx, submits, now)
    _log(tx, by_id, runs)


def _decisions(tx: Transaction, due: Sequence[Job], now: int) -> list[tuple[Job, CronDecision]]:
    """Yield decisions for as many jobs as fit into one transaction; the others stay due."""
    asked = [job.id for job in due if job.definition.overlap == cron.SKIP]
    active = store.active_runs(tx, asked)
    decisions = []
    slots = 0
    broken = [job.id for job in due if job.damaged]
    if broken:
        log.warning("disabled cron jobs with damaged definitions: %s", ", ".join(broken))
        store.stop_jobs(tx, broken, cron.DAMAGED)
    for job in (job for job in due if not job.damaged):
        try:
            decision = cron.decide(job, now, active.get(job.id, 0))
        except ZoneInfoNotFoundError as error:  # created by a node that knows more zones
            _give_up(tx, job, error)
            continue
        decisions.append((job, decision))
        slots += decision.missed + len(decision.skipped) + len(decision.fires)
        if slots > SLOTS_MAX:
            break
    return decisions


def _give_up(tx: Transaction, job: Job, error: ZoneInfoNotFoundError) -> None:
    """Disable a job whose schedule cannot be evaluated, so that it does not block the others."""
    log.warning("disabled cron job %s: %s", job.id, error.args[0])
    job.last_status, job.last_error = cron.ERROR, f"{error.args[0]}: change 'schedule.tz'"
    cron.disable(job, cron.BY_ERRORS)
    store.save_jobs(tx, [job])


def _keys(decision: CronDecision) -> list[str]:
    slots = (*decision.skipped, *(firing.slot for firing in decision.fires))
    return [slot.key for slot in slots]


def _new_run(tx: Transaction, job: Job, slot: cron.Slot, trigger: str) -> RunRecord:
    """Return a log entry; its ids follow from the slot."""
    digest = hashlib.blake2b(f"{job.id} {slot.key}".encode(), digest_size=8).hexdigest()
    name = f"{tx.now:012x}{digest}"
    job.logged += 1
    return RunRecord(
        seq=tx.next_seq(),
        id=f"run_{name}",
        job_id=job.id,
        job_name=job.definition.name,
        slot=slot.key,
        trigger=trigger,
        status=cron.QUEUED,
        scheduled_at=slot.at,
        number=job.logged,
        task_id=f"{RUN_PREFIX}{name}",
    )


def _missed(tx: Transaction, job: Job, decision: CronDecision, now: int) -> RunRecord:
    """Return one entry for all missed slots, which may be very many; its name is its own id."""
    assert decision.last_missed is not None
    slot = cron.Slot(decision.last_missed.at, f"missed {tx.next_seq()}")
    run = _new_run(tx, job, slot, cron.MISFIRED)
    _end_without_task(job, run, cron.MISSED, cron.missed_text(decision), now)
    return run


def _end_without_task(job: Job, run: RunRecord, status: str, error: str, now: int) -> None:
    run.task_id = None
    _end_at_once(job, run, status, error, now)


def _end_at_once(job: Job, run: RunRecord, status: str, error: str, now: int) -> None:
    run.status, run.error, run.finished_at = status, error, now
    run.forget_at = moments.later(now, job.definition.keep_days * _DAY_MS)


def _submit(
    tx: Transaction, submits: Sequence[tuple[Job, RunRecord, int]], now: int
) -> list[FairlaneError | None]:
    """Submit a task for each run. Return the errors of refused runs, which have ended, in order."""
    answers: list[Any] = []
    submissions: list[Submission] = []
    for job, run, run_at in submits:
        try:
            submissions.append(_submission(tx, job, run, run_at))
            answers.append(None)
        except (
            InvalidRequest
        ) as error:  # the policy or the settings have changed since the job was created
            answers.append(error)
    given = tasks.submit(tx, [Submit([one]) for one in submissions], now) if submissions else ()
    found = iter(given)
    problems = []
    for (job, run, _), answer in zip(submits, answers, strict=True):
        outcome = answer or next(found)
        task = outcome[0] if isinstance(outcome, list) else outcome
        if isinstance(task, Task):
            tx.tell_fired(task, job.id, run.id)
        else:
            _refused(tx, job, run, task, now)
        problems.append(task if isinstance(task, FairlaneError) else None)
    return problems


def _submission(tx: Transaction, job: Job, run: RunRecord, run_at: int) -> Submission:
    definition = job.definition
    assert run.task_id is not None
    made = jobs.submission(definition, task_id=run.task_id, session=job.session, run_at=run_at)
    seconds = tx.policy.kinds[ACTION].deadline_sec
    if made.kind == ACTION and definition.timeout_ms is None and seconds is not None:
        # An action runs until its deadline. A cron action has none and must not run forever.
        definition = msgspec.structs.replace(definition, timeout_ms=seconds * 1000)
        made = jobs.submission(definition, task_id=made.id, session=job.session, run_at=run_at)
    body = {**msgspec.json.decode(made.body), "cron": _origin(run)}
    made = msgspec.structs.replace(made, body=msgspec.json.encode(body).decode())
    if job.submitter is not None:
        made = msgspec.structs.replace(made, submitter=job.submitter)
    return made


def _origin(run: RunRecord) -> JsonObject:
    """Return the fields that tell a task about its cron job."""
    return {
        "jobId": run.job_id,
        "jobName": run.job_name,
        "runId": run.id,
        "trigger": run.trigger,
        "slotAt": moments.text(run.scheduled_at),
    }


def _refused(tx: Transaction, job: Job, run: RunRecord, error: FairlaneError, now: int) -> None:
    _end_at_once(job, run, cron.ERROR, f"{error.code}: {error.message}", now)
    _count(tx, job, run)


def _log(tx: Transaction, by_id: dict[str, Job], runs: Sequence[RunRecord]) -> None:
    store.insert_runs(tx, runs)
    store.save_jobs(tx, by_id.values())
    store.forget_excess(tx, by_id.values(), limit=1000 + 2 * len(runs))
    for job in by_id.values():
        tx.note_due(job.next_run_at)


# -------------------------------------------------------------------- ends


def follow(tx: Transaction, now: int) -> None:
    """End runs with their tasks, and reopen them with their retries."""
    if not tx.run_changes:
        return
    changes, tx.run_changes = tx.run_changes, {}
    runs = store.runs_by_task(tx, changes)
    found = store.jobs_by_id(tx.connection, tx.vault, (run.job_id for run in runs.values()))
    done: set[str] = set()
    for task_id, run in runs.items():
        job = found.get(run.job_id)
        if changes[task_id].verb == lifecycle.RETRY:
            _reopen(run, job)
        elif run.open:
            _end(tx, run, job, changes[task_id], now)
            if job is not None and _is_done_with(job, run):
                done.add(job.id)
    store.end_runs(tx, runs.values())
    store.save_jobs(tx, [job for job in found.values() if job.id not in done])
    store.delete_jobs(tx, done)


def _reopen(run: RunRecord, job: Job | None) -> None:
    run.status = cron.QUEUED
    run.started_at = run.finished_at = run.forget_at = run.error = run.summary = None
    if job is not None:
        job.last_status = cron.RUNNING


def _end(tx: Transaction, run: RunRecord, job: Job | None, change: Change, now: int) -> None:
    task = change.after
    keep_days = cron.KEEP_DAYS if job is None else job.definition.keep_days
    run.status = _STATUS[task.state]
    run.started_at, run.finished_at, run.attempts = task.started_at, now, task.attempts
    run.error = None if change.error is None else cron.cut(change.error)
    run.summary = _summary(change.result)
    run.forget_at = moments.later(now, keep_days * _DAY_MS)
    if job is not None:
        _count(tx, job, run)


def _summary(result: str | None) -> str | None:
    """Return a readable text for a result, which is JSON text."""
    if result is None:
        return None
    try:
        value = msgspec.json.decode(result)
    except (msgspec.DecodeError, RecursionError):
        value = result
    return cron.cut(value if isinstance(value, str) else result)


def _count(tx: Transaction, job: Job, run: RunRecord) -> None:
    alert = cron.count_end(job, run.status, run.error)
    if alert is not None:
        assert job.definition.alert_url is not None
        url, agent = job.definition.alert_url, job.definition.agent_id
        tx.owe(Webhook(run.id, run.seq, url, alert, agent))


def _is_done_with(job: Job, run: RunRecord) -> bool:
    """Return whether to delete a one-time job: its scheduled run, not a manual one, succeeded."""
    return job.definition.delete_after_run and run.status == cron.OK and run.trigger != cron.MANUAL


def prune(tx: Transaction, now: int) -> int:
    """Forget runs beyond their retention."""
    return store.forget_old(tx, now, FORGOTTEN_MAX)
