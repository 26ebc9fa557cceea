"""Reports: everything that a worker reports about its leases, in one request.

The reports of a request are applied in order. Consecutive reports with the same verb become one
call of that verb, together with those of other requests, so that the number of statements does not
grow with the number of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from fairlane.engine.commands import (
    AppendOutput,
    Complete,
    Fail,
    LeaseCommand,
    Release,
    Renew,
    Report,
    Start,
)
from fairlane.engine.step_commands import Checkpoint
from fairlane.engine.verbs import output, steps, tasks
from fairlane.store.transaction import Transaction

_VERBS: Final[Mapping[type, Callable[[Transaction, Sequence[Any], int], Iterator[Any]]]] = {
    Start: tasks.start,
    Renew: tasks.renew,
    AppendOutput: output.output,
    Checkpoint: steps.checkpoint,
    Complete: tasks.complete,
    Fail: tasks.fail,
    Release: tasks.release,
}
_NO_TASK: Final = 0  # no task has this number

Place = tuple[int, int]  # a request and one of its reports


def report(tx: Transaction, requests: Sequence[Report], now: int) -> Iterator[list[object]]:
    named = [_own(tx, request) for request in requests]
    answers: list[list[object]] = [[None] * len(reports) for reports in named]
    for step in _steps(named):
        for kind, places in step.items():
            reports = [named[number][at] for number, at in places]
            found = _VERBS[kind](tx, reports, now)
            for (number, at), answer in zip(places, found, strict=True):
                answers[number][at] = answer
    return iter(answers)


def _own(tx: Transaction, request: Report) -> Sequence[LeaseCommand]:
    """Return the reports; for an agent, those about other agents' tasks name no task."""
    if request.agent is None:
        return request.reports
    found = tx.tasks_by_seq(one.seq for one in request.reports)
    own = {seq for seq, task in found.items() if task.agent == request.agent}
    return [
        one if one.seq in own else msgspec.structs.replace(one, seq=_NO_TASK)
        for one in request.reports
    ]


def _steps(named: Sequence[Sequence[LeaseCommand]]) -> list[dict[type, list[Place]]]:
    """Return the places of reports by verb: first the leading equal verbs of all requests, then
    the next ones, and so on.
    """
    steps: list[dict[type, list[Place]]] = []
    for number, reports in enumerate(named):
        step, last = -1, None
        for at, one in enumerate(reports):
            if type(one) is not last:
                step, last = step + 1, type(one)
                if step == len(steps):
                    steps.append({})
            steps[step].setdefault(type(one), []).append((number, at))
    return steps
