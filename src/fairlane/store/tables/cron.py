"""Cron jobs and the log of their runs.

They are written at once, not with the tasks of a transaction, so that every lookup finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import astuple

from fairlane.core.cron import AT, QUEUED, RUNNING, CronDefinition, Job, RunRecord, Schedule
from fairlane.core.submissions import TaskRequest
from fairlane.store.base import Connection, Row
from fairlane.store.pages import Page, read_page
from fairlane.store.vault import Vault

if TYPE_CHECKING:
    from fairlane.store.transaction import Transaction

_definition = msgspec.json.Decoder(CronDefinition)
# A definition that every reader can show, without an agent.
_STAND_IN = CronDefinition(
    name="(damaged)",
    schedule=Schedule(kind=AT, at=0),
    task=TaskRequest(),
    agent_id="",
    enabled=False,
)
_RUN_WIDTH = len(RunRecord.__struct_fields__)


def job_from_row(row: Row, vault: Vault) -> Job:
    """Return the job of a row; it is `damaged` if its definition cannot be read."""
    seq, id_, text, slot_at, *rest = row
    try:
        definition, damaged = _definition.decode(vault.open_body(text)), False
    except msgspec.DecodeError:
        definition, damaged = _STAND_IN, True
    job = Job(seq, id_, definition, slot_at, *rest)
    job.alerted, job.damaged = bool(job.alerted), damaged
    return job


def run_from_row(row: Row) -> RunRecord:
    """Return the run of a row; an open run has the state of its task."""
    run = RunRecord(*row[:_RUN_WIDTH])
    if run.open:
        run.started_at, attempts = row[_RUN_WIDTH:]
        run.attempts = attempts or 0
        run.status = QUEUED if run.started_at is None else RUNNING
    return run


def jobs_by_id(connection: Connection, vault: Vault, ids: Iterable[str]) -> dict[str, Job]:
    rows = [(id_,) for id_ in dict.fromkeys(ids)]
    found = connection.run_rows("job_by_id", rows) if rows else ()
    return {job.id: job for job in _jobs(found, vault)}


def jobs_by_name(tx: Transaction, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Job]:
    """Return jobs by agent and name."""
    wanted = list(dict.fromkeys(names))
    jobs = _jobs(tx.connection.run_rows("job_by_name", wanted), tx.vault)
    if any(job.damaged for job in jobs):  # damaged ones, whose names are not known
        return {name: job for name in wanted for job in _by_name(tx, name)}
    return {(job.definition.agent_id, job.definition.name): job for job in jobs}


def _by_name(tx: Transaction, name: tuple[str, str]) -> list[Job]:
    return _jobs(tx.connection.run_rows("job_by_name", [name]), tx.vault)


def due_jobs(tx: Transaction, now: int, limit: int) -> list[Job]:
    return _jobs(tx.connection.run("job_due", now=now, limit=limit), tx.vault)


def _jobs(rows: Iterable[Row], vault: Vault) -> list[Job]:
    return [job_from_row(row, vault) for row in rows]


def next_due_at(tx: Transaction) -> int | None:
    """Return when the next job fires; None if none will."""
    due_at: int | None = tx.connection.run("job_next")[0][0]
    return due_at


def job_page(
    connection: Connection,
    vault: Vault,
    *,
    agent: str | None,
    name: str | None,
    enabled: bool | None,
    before: int | None,
    limit: int,
) -> Page[Job]:
    """Return jobs, newest first, below `before`."""
    return read_page(
        connection,
        lambda row: job_from_row(row, vault),
        "job_list",
        limit,
        agent=agent,
        name=name,
        enabled=None if enabled is None else int(enabled),
        before=before,
    )


def jobs_without_next_run(connection: Connection) -> list[str]:
    """Return the ids of enabled jobs that will never run again."""
    return [row[0] for row in connection.run("job_asleep")]


def save_jobs(tx: Transaction, jobs: Iterable[Job]) -> None:
    """Save jobs. A damaged job keeps its definition, so that it can be repaired."""
    rows = [_job_row(job, tx.vault) for job in jobs if not job.damaged]
    if rows:
        tx.connection.run_rows("job_save", rows)
        tx.changed = True


def stop_jobs(tx: Transaction, ids: Iterable[str], reason: str) -> None:
    """Disable jobs, whatever their definitions say."""
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
        job.submitter,
    )


def active_runs(tx: Transaction, job_ids: Iterable[str]) -> dict[str, int]:
    """Count the open runs of each job; jobs without one are omitted."""
    rows = [(id_,) for id_ in job_ids]
    found = tx.connection.run_rows("run_active", rows) if rows else ()
    return {row[0]: row[1] for row in found}


def open_tasks(tx: Transaction, job_id: str) -> list[str]:
    """Return the tasks of its open runs, oldest first."""
    return [row[0] for row in tx.connection.run("run_open", job=job_id)]


def taken_slots(tx: Transaction, slots: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the slots of jobs that are already in the log."""
    found = tx.connection.run_rows("run_by_slot", slots) if slots else ()
    return {(row[0], row[1]) for row in found}


def runs_by_task(tx: Transaction, task_ids: Iterable[str]) -> dict[str, RunRecord]:
    rows = [(id_,) for id_ in task_ids]
    runs = [RunRecord(*row) for row in tx.connection.run_rows("run_by_task", rows)]
    return {run.task_id: run for run in runs if run.task_id is not None}


def runs_by_seq(connection: Connection, seqs: Iterable[int]) -> dict[int, RunRecord]:
    rows = connection.run_rows("run_by_seq", [(seq,) for seq in seqs])
    return {run.seq: run for run in map(run_from_row, rows)}


def run_page(
    connection: Connection,
    job_id: str | None,
    *,
    status: str | None,
    agent: str | None,
    before: int | None,
    limit: int,
) -> Page[RunRecord]:
    """Return entries of the run log, newest first, below `before`.

    The job may be deleted already; with `agent`, only runs of its existing jobs are listed.
    """
    key = "started" if status in (QUEUED, RUNNING) else "status"
    wanted = {key: status, "before": before, "agent": agent}
    if job_id is None:
        return read_page(connection, run_from_row, "run_list", limit, **wanted)
    return read_page(connection, run_from_row, "run_list_of", limit, job=job_id, **wanted)


def runs_astray(connection: Connection) -> list[tuple[str, str | None]]:
    """Return open runs that will never end, with the states of their tasks."""
    return [(row[0], row[1]) for row in connection.run("run_astray")]


def insert_runs(tx: Transaction, runs: Iterable[RunRecord]) -> None:
    rows = [astuple(run) for run in runs]
    if rows:
        tx.connection.run_rows("run_insert", rows)
        tx.changed = True


def end_runs(tx: Transaction, runs: Iterable[RunRecord]) -> None:
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
    """Delete runs beyond the size of a job's log, at most `limit` at once."""
    rows = [(job.id, job.logged - job.definition.keep_runs) for job in jobs]
    rows = [row for row in rows if row[1] > 0]
    if rows:
        _forget(tx, tx.connection.run_rows("run_excess", rows, limit=limit))


def forget_old(tx: Transaction, now: int, limit: int) -> int:
    """Delete runs that are older than their retention; return how many."""
    rows = tx.connection.run("run_old", now=now, limit=limit)
    _forget(tx, rows)
    return len(rows)


def _forget(tx: Transaction, seqs: list[Row]) -> None:
    if seqs:
        tx.connection.run_rows("run_delete", seqs)
        tx.connection.run_rows("delivery_delete", seqs)
        tx.changed = True
