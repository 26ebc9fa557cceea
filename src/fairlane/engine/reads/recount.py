"""Recount for `fairlane doctor`: compare each counter in the store with the rows that it counts."""

from __future__ import annotations

from typing import Final

from fairlane.core.counts import Line, Tally
from fairlane.engine.reads import resource_recount
from fairlane.store.base import Connection
from fairlane.store.tables import (
    approvals,
    batches,
    checkpoints,
    cron,
    dependencies,
    lines,
    sessions,
    suspensions,
)
from fairlane.store.tables.batches import BatchCounts
from fairlane.store.tables.sessions import SessionCounts

_COUNTED: Final = ("queued", "ready", "urgent", "inflight", "slots", "parked")


def recount(connection: Connection) -> list[str]:
    """Compare every counter with the tasks that it counts."""
    real = lines.recount(connection)
    stored = {
        (line.lane, line.agent, line.capability): line for line in lines.all_lines(connection)
    }
    problems: list[str] = []
    for key in sorted(real.keys() | stored.keys()):
        line = stored.get(key, Line())
        _compare(f"line {'/'.join(key)}", line, real.get(key, (0,) * len(_COUNTED)), problems)
    for name, tally in lines.lanes(connection).items():
        mine = [counts for key, counts in real.items() if key[0] == name]
        sums = tuple(sum(column) for column in zip(*mine, strict=True)) or (0,) * len(_COUNTED)
        _compare(f"lane {name}", tally, sums, problems)
        if not tally.balanced:
            problems.append(f"lane {name}: not all submitted tasks are accounted for")
    return [
        *problems,
        *_recount_sessions(connection),
        *_recount_batches(connection),
        *_recount_dependencies(connection),
        *_recount_approvals(connection),
        *_recount_steps(connection),
        *_recount_suspensions(connection),
        *_astray(connection),
        *resource_recount.recount(connection),
    ]


def _compare(what: str, tally: Tally, real: tuple[int, ...], problems: list[str]) -> None:
    for name, value in zip(_COUNTED, real, strict=True):
        if getattr(tally, name) != value:
            problems.append(
                f"{what}: {name} is {getattr(tally, name)}, but a recount gives {value}"
            )


def _recount_sessions(connection: Connection) -> list[str]:
    real, stored = sessions.recount(connection), sessions.stored_counts(connection)
    problems = []
    for key in sorted(real.keys() | stored.keys()):
        *counted, interrupted = stored.get(key, SessionCounts())
        *expected, stopped = real.get(key, SessionCounts())
        if counted != expected:
            problems.append(
                f"session {key}: has {tuple(counted)}, but a recount gives {tuple(expected)}"
            )
        if interrupted and not 0 < stopped == expected[0]:
            problems.append(
                f"session {key}: waits for interrupted runs to stop, but no run was interrupted"
            )
    return problems


def _recount_batches(connection: Connection) -> list[str]:
    """Recount batches. A batch's total includes tasks that have been pruned."""
    real = batches.recount(connection)
    stored = {batch.id: batch for batch in batches.all_batches(connection)}
    missing = sorted(real.keys() - stored.keys())
    problems = [f"batch {id_}: the batch is missing, but its tasks exist" for id_ in missing]
    for id_, batch in sorted(stored.items()):
        has = BatchCounts(batch.total, batch.open, batch.holders, batch.waiting)
        said = real.get(id_, BatchCounts())
        if has.total < said.total or has[1:] != said[1:]:
            problems.append(f"batch {id_}: has {tuple(has)}, but a recount gives {tuple(said)}")
    return problems


def _recount_dependencies(connection: Connection) -> list[str]:
    edges, open_edges, unsettled, parents = dependencies.recount(connection)
    problems = []
    if edges != open_edges:
        problems.append(
            f"dependencies: {edges} are counted as open, but a recount gives {open_edges}"
        )
    if unsettled != parents:
        problems.append(
            f"dependencies: {unsettled} parents are counted as unsettled, but a recount gives "
            f"{parents}"
        )
    for id_, unmet, real in dependencies.recount_unmet(connection):
        if unmet != real or not real:
            problems.append(f"task {id_}: waits for {unmet} tasks, but a recount gives {real}")
    return problems


def _recount_approvals(connection: Connection) -> list[str]:
    return [
        f"task {id_}: {'waits' if waits else 'does not wait'} for a decision, "
        f"{count} approvals are open"
        for id_, waits, count in approvals.recount(connection)
    ]


def _recount_steps(connection: Connection) -> list[str]:
    return [
        f"task {id_}: has {count} steps, but a recount gives {real}"
        for id_, count, real in checkpoints.recount(connection)
        if count != real
    ]


def _recount_suspensions(connection: Connection) -> list[str]:
    return [
        f"task {id_}: {'is suspended without a wait' if is_ else 'has a wait but is not suspended'}"
        for id_, is_, has in suspensions.recount(connection)
        if is_ != has
    ]


def _astray(connection: Connection) -> list[str]:
    """Return cron runs that will never end and jobs that will never run again."""
    runs = [
        (
            f"cron run {run_id}: is in progress, but its task "
            f"{'does not exist' if state is None else f'is {state}'}"
        )
        for run_id, state in cron.runs_astray(connection)
    ]
    asleep = cron.jobs_without_next_run(connection)
    return [*runs, *(f"cron job {job_id}: is enabled, but has no next run" for job_id in asleep)]
