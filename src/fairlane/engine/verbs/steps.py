"""Steps in the store: a run records them under its lease, and the next lease carries them.

Tasks without steps never get here, and leasing looks for steps only where a task has some.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fairlane.core import leases, steps
from fairlane.core.effects import HAPPENED
from fairlane.core.errors import FairlaneError
from fairlane.core.model import Task, copied
from fairlane.core.steps import Step, StepBrief, StepIndex
from fairlane.engine.step_commands import Checkpoint, CheckpointOutcome
from fairlane.engine.verbs import redaction
from fairlane.store.tables import checkpoints as table
from fairlane.store.tables import idempotency
from fairlane.store.transaction import Transaction


def checkpoint(tx: Transaction, requests: Sequence[Checkpoint], now: int) -> Iterator[object]:
    """Record steps. A step that was recorded before keeps its first value."""
    tasks = tx.tasks_by_seq(request.seq for request in requests)
    known = tx.step_indexes(tasks[r.seq] for r in requests if r.seq in tasks)
    new: list[Step] = []
    settled: list[Step] = []
    answers: list[object] = []
    for request in redaction.reports(tx, tasks, requests, "value"):
        task = tasks.get(request.seq)
        problem = leases.lost(task, request.fencing_token)
        if task is None or problem is not None or task.terminal:
            answers.append(problem or leases.ended(task))
            continue
        answer = _decided(tx.task(task.seq), known[task.seq], request)
        if isinstance(answer, CheckpointOutcome) and answer.settles:
            step = Step(task.seq, answer.number, request.name, request.value, now, HAPPENED)
            settled.append(step)
            tx.tell_step(answer.task, step)
        elif isinstance(answer, CheckpointOutcome) and answer.new:
            new.append(Step(task.seq, answer.number, request.name, request.value, now))
            tx.count_steps(answer.task, new[-1])
        answers.append(answer)
    if new:
        tx.save_steps(new)
    if settled:
        tx.settle_steps(settled)
    return iter(answers)


def _decided(
    task: Task, recorded: StepIndex, request: Checkpoint
) -> CheckpointOutcome | FairlaneError:
    """Return the task with one more step, or as it is if the step was recorded before."""
    size = len(request.value)
    found = steps.record(
        recorded,
        name=request.name,
        number=request.number,
        size=size,
        fencing_token=request.fencing_token,
    )
    if isinstance(found, FairlaneError):
        return found
    if found.settles:
        recorded.add(StepBrief(task.seq, found.number, request.name, size, HAPPENED))
        return CheckpointOutcome(task, found.number, new=True, settles=True)
    if not found.new:
        return CheckpointOutcome(task, found.number, new=False)
    recorded.add(StepBrief(task.seq, found.number, request.name, size))
    after = copied(task)
    after.steps = (task.steps or 0) + 1
    return CheckpointOutcome(after, found.number, new=True)


def of_tasks(tx: Transaction, tasks: Iterable[Task]) -> Mapping[int, tuple[Step, ...]]:
    """Return the recorded steps of tasks that are being leased."""
    seqs = [task.seq for task in tasks if task.steps]
    return table.of_tasks(tx.connection, seqs) if seqs else {}


def forget(tx: Transaction, task: Task) -> None:
    """Let a task that is queued again by hand start from the beginning, with new children."""
    if task.steps is not None:
        task.steps = None
        tx.forget_steps(task)
        idempotency.forget(tx.connection, task.agent, child_key(task.id, ""))


def child_key(task_id: str, number: object) -> str:
    """Return the idempotency key of the task that a step submits."""
    return f"{task_id}.{number}"
