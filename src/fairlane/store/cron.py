"""Cron jobs and their runs in the store: rows in, rows out. Nothing is decided here.

They are written at once, not with the tasks of a transaction: what looks for them finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import astuple

from fairlane.core.cron import AT, QUEUED, RUNNING, Definition, Job, Run, Schedule
from fairlane.store.base import Row
from fairlane.store.transaction import Transaction
from fairlane.store.vault import Vault

_definition = msgspec.json.Decoder(Definition)
# What every reader of jobs can show; its agent is nobody.
_STAND_IN = Definition(
    name="(damaged)", schedule=Schedule(kind=AT, at=0), task={}, agent_id="", enabled=False
)
_RUN_WIDTH = len(Run.__struct_fields__)


def job_from_row(row: Row, vault: Vault) -> Job:
    """Return the job of a row; one whose definition cannot be read is `damaged`."""
    seq, id_, definition, slot_at, *rest = row
    try:
        kept, damaged = _definition.decode(vault.open_body(definition)), False
    except msgspec.DecodeError:
        kept, damaged = _STAND_IN, True
    job = Job(seq, id_, kept, slot_at, *rest)
    job.alerted, job.damaged = bool(job.alerted), damaged
    return job


def run_from_row(row: Row) -> Run:
    """A run; one that is under way has what its task says."""
    run = Run(*row[:_RUN_WIDTH])
    if run.open:
        run.started_at, attempts = row[_RUN_WIDTH:]
        run.attempts = attempts or 0
        run.status = QUEUED if run.started_at is None else RUNNING
    return run


def jobs_by_id(tx: Transaction, ids: Iterable[str]) -> dict[str, Job]:
    rows = [(id_,) for id_ in dict.fromkeys(ids)]
    found = tx.connection.run_rows("job_by_id", rows) if rows else ()
    return {job.id: job for job in _jobs(tx, found)}


def jobs_by_name(tx: Transaction, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Job]:
    """By agent and name."""
    wanted = list(dict.fromkeys(names))
    found = _jobs(tx, tx.connection.run_rows("job_by_name", wanted))
    if any(job.damaged for job in found):  # which do not say their names
        return {name: job for name in wanted for job in _by_name(tx, name)}
    return {(job.definition.agent_id, job.definition.name): job for job in found}


def _by_name(tx: Transaction, name: tuple[str, str]) -> list[Job]:
    return _jobs(tx, tx.connection.run_rows("job_by_name", [name]))


def due_jobs(tx: Transaction, now: int, limit: int) -> list[Job]:
    return _jobs(tx, tx.connection.run("job_due", now=now, limit=limit))


def _jobs(tx: Transaction, rows: Iterable[Row]) -> list[Job]:
    return [job_from_row(row, tx.vault) for row in rows]


def next_due_at(tx: Transaction) -> int | None:
    found: int | None = tx.connection.run("job_next")[0][0]
    return found


def save_jobs(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Write jobs. A damaged one keeps what it has, so that a person can repair it."""
    rows = [_job_row(job, tx.vault) for job in jobs if not job.damaged]
    if rows:
        tx.connection.run_rows("job_save", rows)
        tx.changed = True


def stop_jobs(tx: Transaction, ids: Iterable[str], reason: str) -> None:
    """Let jobs fire no more, whatever their definitions say."""
    rows = [(id_, reason) for id_ in ids]
    if rows:
        tx.connection.run_rows("job_stop", rows)
        tx.changed = True


def delete_jobs(tx: Transaction, ids: Iterable[str]) -> None:
    rows = [(id_,) for id_ in ids]
    if rows:
        tx.connection.run_rows("job_delete", rows)
        tx.changed = True


def _job_row(job: Job, vault: Vault) -> Row:
    definition = job.definition
    return (
        job.seq,
        job.id,
        definition.agent_id,
        definition.name,
        vault.seal_body(msgspec.json.encode(definition).decode()),
        int(definition.enabled),
        job.slot_at,
        job.next_run_at,
        job.created_at,
        job.updated_at,
        job.disabled_reason,
        job.runs,
        job.logged,
        job.consecutive_errors,
        int(job.alerted),
        job.last_run_at,
        job.last_status,
        job.last_error,
    )


def active_runs(tx: Transaction, job_ids: Iterable[str]) -> dict[str, int]:
    """How many runs of each job have not ended; only those that have some."""
    rows = [(id_,) for id_ in job_ids]
    found = tx.connection.run_rows("run_active", rows) if rows else ()
    return {row[0]: row[1] for row in found}


def open_tasks(tx: Transaction, job_id: str) -> list[str]:
    """The tasks of its runs that have not ended, oldest first."""
    return [row[0] for row in tx.connection.run("run_open", job=job_id)]


def taken_slots(tx: Transaction, slots: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Which of these slots of jobs are in the log already."""
    found = tx.connection.run_rows("run_by_slot", slots) if slots else ()
    return {(row[0], row[1]) for row in found}


def runs_by_task(tx: Transaction, task_ids: Iterable[str]) -> dict[str, Run]:
    rows = [(id_,) for id_ in task_ids]
    found = [Run(*row) for row in tx.connection.run_rows("run_by_task", rows)]
    return {run.task_id: run for run in found if run.task_id is not None}


def insert_runs(tx: Transaction, runs: Iterable[Run]) -> None:
    rows = [astuple(run) for run in runs]
    if rows:
        tx.connection.run_rows("run_insert", rows)
        tx.changed = True


def end_runs(tx: Transaction, runs: Iterable[Run]) -> None:
    rows: list[Row] = [
        (
            run.seq,
            run.status,
            run.started_at,
            run.finished_at,
            run.attempts,
            run.error,
            run.summary,
            run.forget_at,
        )
        for run in runs
    ]
    if rows:
        tx.connection.run_rows("run_end", rows)
        tx.changed = True


def forget_excess(tx: Transaction, jobs: Iterable[Job], limit: int) -> None:
    """Each log keeps so many of its newest entries; at most `limit` go at once."""
    rows = [(job.id, job.logged - job.definition.keep_runs) for job in jobs]
    rows = [row for row in rows if row[1] > 0]
    if rows:
        _forget(tx, tx.connection.run_rows("run_excess", rows, limit=limit))


def forget_old(tx: Transaction, now: int, limit: int) -> int:
    """What has been kept long enough; how many that were."""
    found = tx.connection.run("run_old", now=now, limit=limit)
    _forget(tx, found)
    return len(found)


def _forget(tx: Transaction, seqs: list[Row]) -> None:
    if seqs:
        tx.connection.run_rows("run_delete", seqs)
        tx.connection.run_rows("delivery_delete", seqs)
        tx.changed = True
