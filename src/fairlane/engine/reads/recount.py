"""The doctor's recount: every counter of the store against the rows that it counts."""

from __future__ import annotations

from typing import Final

from fairlane.core.batches import Batch
from fairlane.core.counts import Line, Tally
from fairlane.store.base import Connection, Row

_COUNTED: Final = ("queued", "ready", "urgent", "inflight", "slots", "parked")


def recount(connection: Connection) -> list[str]:
    """Every counter against the tasks it counts."""
    real: dict[tuple[str, str, str], Row] = {
        (r[0], r[1], r[2]): r[3:] for r in connection.run("recount")
    }
    lines = {
        (ln.lane, ln.agent, ln.route): ln for r in connection.run("line_all") for ln in [Line(*r)]
    }
    problems: list[str] = []
    for key in sorted(real.keys() | lines.keys()):
        line = lines.get(key, Line())
        _compare(f"line {'/'.join(key)}", line, real.get(key, (0,) * len(_COUNTED)), problems)
    for row in connection.run("lane_all"):
        tally = Tally(*row[1:])
        mine = [counts for key, counts in real.items() if key[0] == row[0]]
        sums = tuple(sum(column) for column in zip(*mine, strict=True)) or (0,) * len(_COUNTED)
        _compare(f"lane {row[0]}", tally, sums, problems)
        if not tally.balanced:
            problems.append(f"lane {row[0]}: what was submitted is not all accounted for")
    return [
        *problems,
        *_recount_sessions(connection),
        *_recount_batches(connection),
        *_recount_dependencies(connection),
        *_astray(connection),
    ]


def _compare(what: str, tally: Tally, real: Row, problems: list[str]) -> None:
    for name, value in zip(_COUNTED, real, strict=True):
        if getattr(tally, name) != value:
            problems.append(f"{what}: {name} is {getattr(tally, name)}, the tasks say {value}")


def _recount_sessions(connection: Connection) -> list[str]:
    real = {row[0]: tuple(row[1:]) for row in connection.run("session_recount")}
    kept = {row[0]: tuple(row[1:]) for row in connection.run("session_all")}
    problems = []
    for key in sorted(real.keys() | kept.keys()):
        *counted, interrupted = kept.get(key, (0,) * 5)
        *expected, stopped = real.get(key, (0,) * 5)
        if counted != expected:
            problems.append(f"session {key}: has {tuple(counted)}, the tasks say {tuple(expected)}")
        if interrupted and not 0 < stopped == expected[0]:
            problems.append(f"session {key}: waits for runs to stop that were not interrupted")
    return problems


def _recount_batches(connection: Connection) -> list[str]:
    """A batch remembers how many tasks it had, even those that are not kept any more."""
    real = {row[0]: tuple(row[1:]) for row in connection.run("batch_recount")}
    kept = {b.id: b for row in connection.run("batch_all") for b in [Batch(*row)]}
    problems = [
        f"batch {id_}: its tasks are there, it is not" for id_ in sorted(real.keys() - kept.keys())
    ]
    for id_, batch in sorted(kept.items()):
        total, *counted = real.get(id_, (0, 0, 0, 0))
        numbers = [batch.open, batch.holders, batch.waiting]
        if batch.total < total or numbers != counted:
            has = (batch.total, *numbers)
            problems.append(f"batch {id_}: has {has}, the tasks say {(total, *counted)}")
    return problems


def _recount_dependencies(connection: Connection) -> list[str]:
    edges, open_edges, unsettled, parents = connection.run("dependency_recount")[0]
    problems = []
    if edges != open_edges:
        problems.append(f"dependencies: {edges} are counted as open, {open_edges} are")
    if unsettled != parents:
        problems.append(
            f"dependencies: {unsettled} parents are counted as unsettled, {parents} are"
        )
    for id_, unmet, real in connection.run("unmet_recount"):
        if unmet != real or not real:
            problems.append(f"task {id_}: waits for {unmet} others, its dependencies say {real}")
    return problems


def _astray(connection: Connection) -> list[str]:
    """Runs of cron that nothing will end, and jobs that nothing will wake."""
    runs = [
        f"run {run_id}: goes on, its task {'is gone' if state is None else f'is {state}'}"
        for run_id, state in connection.run("run_astray")
    ]
    asleep = [row[0] for row in connection.run("job_asleep")]
    return [*runs, *(f"job {job_id}: is enabled, but has no next run" for job_id in asleep)]
