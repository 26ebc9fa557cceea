"""Dependencies in the store: edges are created with a task and change when a parent ends.

The end of a parent reaches its children in the transaction that ends it, up to a bounded number of
steps. The rest is stored and continues in the next transaction, so neither a parent of a hundred
thousand tasks nor a chain of ten thousand blocks the writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from fairlane.core import admission, dependencies, gates, leases, lifecycle
from fairlane.core.consequences import EdgeChange
from fairlane.core.dependencies import BROKEN, MET, OPEN
from fairlane.core.errors import Conflict, FairlaneError, InvalidRequest
from fairlane.core.model import APPROVAL_GATE, DELAY_GATE, ORPHANED, Change, Submission, Task
from fairlane.engine.verbs import approvals, resources, suspending
from fairlane.store.tables import dependencies as table
from fairlane.store.tables import tasks as task_table
from fairlane.store.tables.dependencies import Unsettled
from fairlane.store.transaction import Transaction

LEVELS_MAX: Final = 50
EDGES_MAX: Final = 1000
_PARENTS_MAX: Final = 256
INPUT_CHARACTERS_MAX: Final = 1_048_576

Edge = tuple[str, int]
Inputs = tuple[tuple[str, str, str | None], ...]


def edges(submission: Submission, parents: Mapping[str, Task]) -> list[Edge]:
    """Return the edges of a new task. It also waits for a parent that does not exist yet."""
    found = []
    for id_ in submission.depends_on:
        parent = parents.get(id_)
        state = OPEN if parent is None else dependencies.EDGE_AFTER.get(parent.state, OPEN)
        found.append((id_, state))
    return found


def connect(tx: Transaction, task: Task, made: Sequence[Edge], parents: Mapping[str, Task]) -> Task:
    """Store the edges of a task that was just admitted; return the task afterwards.

    A task that depends on one that failed or was cancelled is cancelled at once.
    """
    tx.connect(task.seq, made)
    broken = next((id_ for id_, state in made if state == BROKEN), None)
    if broken is None:
        return task
    change = dependencies.orphan(task, broken, parents[broken].state, tx.now)
    tx.apply(change)
    return change.after


def refuse_cycle(tx: Transaction, submission: Submission) -> InvalidRequest | None:
    """Raise if a task would wait, directly or indirectly, for a task that waits for it."""
    if not tx.is_awaited(submission.id):
        return None
    came_from: dict[str, str] = {}
    level = list(submission.depends_on)
    came_from.update(dict.fromkeys(level, submission.id))
    while level and submission.id not in level:
        found = tx.tasks_by_id(level)
        by_seq = {task.seq: id_ for id_, task in found.items()}
        level = []
        for child, parents in table.of_children(tx.connection, by_seq).items():
            for parent, state in parents.items():
                if state == OPEN and came_from.setdefault(parent, by_seq[child]) == by_seq[child]:
                    level.append(parent)
    return _cycle(submission.id, came_from) if level else None


def _cycle(start: str, came_from: Mapping[str, str]) -> InvalidRequest:
    names = [start]
    while names[-1] != start or len(names) == 1:
        names.append(came_from[names[-1]])
    return dependencies.cycle_error(names[::-1])


def block_again(tx: Transaction, task: Task) -> FairlaneError | None:
    """Make a retried task wait for its parents; refuse if one of them failed or was cancelled."""
    if task.unmet is None:
        return None
    found = table.of_children(tx.connection, [task.seq]).get(task.seq, {})
    broken = next((parent for parent, state in found.items() if state == BROKEN), None)
    if broken is not None:
        return Conflict(
            f'task "{task.id}" depends on "{broken}", which is not done; retry that task first',
            details={"dependency": broken},
        )
    dependencies.block(task, sum(state == OPEN for state in found.values()))
    return None


def let_in(tx: Transaction, task: Task, now: int) -> None:
    """Pass the dependency gate: only a time, the session and the batch remain.

    If the task had parents, the deadline of its kind starts here. `queued_at` stays the time of its
    submission.
    """
    if not (task.session or task.batch or task.eligible_at or task.unmet is not None):
        if task.unapproved:
            task.gate = APPROVAL_GATE
        elif task.needs is not None:
            task.gate = resources.gate(tx, task, None)
        return  # nearly every task: no gate holds it
    if task.unmet is not None and task.deadline_at is None and not task.unapproved:
        since = max(now, task.eligible_at or now)
        task.deadline_at = admission.deadline(tx.policy, task.kind, since)
        if task.deadline_at is not None:
            task.deadline_ms = task.deadline_at - task.queued_at
    first = gates.next_gate(task, tx.counters.session_of(task), tx.counters.batch_of(task), now)
    task.gate = resources.gate(tx, task, first)
    if task.gate != DELAY_GATE:
        task.eligible_at = None


def place_again(tx: Transaction, tasks: Iterable[Task]) -> None:
    """Assign ended tasks to their lines again: the policy may have changed."""
    placed = list(tasks)
    for task in placed:
        owner = admission.line_agent(tx.policy, task.lane, task.agent)
        task.line = tx.counters.line_number(task.lane, owner, task.capability)
        task.rank = admission.rank(tx.policy.lanes[task.lane], task.priority, task.created_at)
    tx.place(placed)


# -------------------------------------------------------------------- ends of parents


def settle(tx: Transaction, now: int) -> None:
    """Update the children of ended tasks, level by level."""
    if tx.unsettled:
        _load(tx)
    budget = EDGES_MAX
    awaited: dict[str, EdgeChange] = {}
    for _ in range(LEVELS_MAX):
        if not tx.settling or budget <= 0:
            break
        awaited |= {id_: one for id_, one in tx.settling.items() if one.leaves == OPEN}
        budget -= _level(tx, budget, now)
    if awaited and tx.open_edges and suspending.arrive(tx, list(awaited), now):
        tx.settling = awaited | tx.settling
    if tx.settling:
        _keep(tx)
        tx.note_due(now)


def _load(tx: Transaction) -> None:
    """Load stored rests first, so that newer ends cannot delay them forever."""
    newer, tx.settling = tx.settling, {}
    for parent, goes, state in table.take_unsettled(tx.connection):
        left = BROKEN if goes == OPEN else OPEN
        # Restore what a retried parent has not restored yet before its new end can count.
        if parent not in newer or (goes == OPEN and newer[parent].becomes == MET):
            tx.settling[parent] = EdgeChange(left, goes, state)
    for parent, work in newer.items():
        tx.settling.setdefault(parent, work)
    tx.unsettled = 0
    tx.changed = True


def _keep(tx: Transaction) -> None:
    left = [Unsettled(parent, goes, state) for parent, (_, goes, state) in tx.settling.items()]
    table.save_unsettled(tx.connection, left)
    tx.unsettled = len(left)
    tx.settling = {}


def _level(tx: Transaction, budget: int, now: int) -> int:
    """Go one step down from some of the parents; return how many edges that took."""
    parents = dict(list(tx.settling.items())[:_PARENTS_MAX])
    wanted = [(parent, leaves) for parent, (leaves, _, _) in parents.items()]
    found = table.children(tx.connection, wanted, budget)
    if len(found) < budget:  # all of their edges are loaded
        for parent in parents:
            del tx.settling[parent]
        _catch_up(tx, [parent for parent, (_, goes, _) in parents.items() if goes == OPEN])
    if not found:
        return 0
    moved = [(child, parent, parents[parent][1]) for parent, child in found]
    table.change(tx.connection, moved)
    tx.open_edges += sum(1 if goes == OPEN else -1 for _, _, goes in moved)
    children = tx.tasks_by_seq(child for child, _, _ in moved)
    tx.counters.prepare(children[child] for child, _, _ in moved)
    _follow(tx, moved, {parent: state for parent, (_, _, state) in parents.items()}, now)
    # Last: a restored child counts all of its edges as they are now.
    _mend_all(tx, [child for child, _, goes in moved if goes == OPEN], now)
    return len(found)


def _catch_up(tx: Transaction, mended: Sequence[str]) -> None:
    """Restore remaining children of a retried parent that has ended again."""
    for parent, task in tx.tasks_by_id(mended).items() if mended else ():
        if task.terminal:
            goes = dependencies.EDGE_AFTER[task.state]
            tx.settling.setdefault(parent, EdgeChange(OPEN, goes, task.state))


def _follow(
    tx: Transaction, moved: Iterable[tuple[int, str, int]], states: Mapping[str, str], now: int
) -> None:
    """Update the waiting children of parents that ended in these states."""
    for seq, parent, goes in moved:
        child = tx.task(seq)
        if child.state == lifecycle.WAITING and goes == MET:
            _meet(tx, child, now)
        elif child.state == lifecycle.WAITING and goes == BROKEN:
            tx.apply(dependencies.orphan(child, parent, states[parent], now))


def _meet(tx: Transaction, child: Task, now: int) -> None:
    after = dependencies.met(child)
    if after.unmet:
        tx.apply(Change(child, after, lifecycle.MEET))
        return
    after.state = lifecycle.step(child.state, lifecycle.UNBLOCK)
    let_in(tx, after, now)
    after.queued_at = now
    tx.apply(Change(child, after, lifecycle.UNBLOCK))


def _mend_all(tx: Transaction, children: Sequence[int], now: int) -> None:
    """Requeue the children that were cancelled because of parents that are now retried."""
    orphans = [child for child in dict.fromkeys(children) if _orphaned(tx.task(child))]
    if not orphans:
        return
    edges_of = table.of_children(tx.connection, orphans)
    since = tx.requeued_at(orphans)
    mended = []
    for seq in orphans:
        states = edges_of[seq].values()
        if BROKEN not in states:
            child = tx.task(seq)
            change = leases.retry(child, child.id, now, since.get(seq)).change
            assert change is not None
            dependencies.block(change.after, sum(state == OPEN for state in states))
            approvals.ask_again(tx, change.after, now)
            tx.apply(change)
            mended.append(change.after)
    place_again(tx, mended)


def _orphaned(task: Task) -> bool:
    return task.unmet == ORPHANED and task.state == lifecycle.CANCELLED


# -------------------------------------------------------------------- results of parents


def inputs(tx: Transaction, tasks: Iterable[Task]) -> dict[int, Inputs]:
    """Return ids, states and results of the parents of each task, without results beyond the limit.

    Read the sizes first, so that no result is read only to be discarded.
    """
    children = [task.seq for task in tasks if task.unmet is not None]
    tx.unwritten.write()  # a parent may have ended in this transaction
    parents = table.parents_of(tx.connection, children) if children else []
    sizes: dict[int, int] = {}
    wanted: set[int] = set()
    fitting: set[tuple[int, int]] = set()
    for child, parent, _, _, size in parents:
        sizes[child] = sizes.get(child, 0) + (size or 0)
        if size is not None and sizes[child] <= INPUT_CHARACTERS_MAX:
            wanted.add(parent)
            fitting.add((child, parent))
    results = task_table.results(tx.connection, sorted(wanted))
    found: dict[int, list[tuple[str, str, str | None]]] = {}
    for child, parent, id_, state, _ in parents:
        kept = results[parent] if (child, parent) in fitting else None
        found.setdefault(child, []).append((id_, state, kept))
    return {child: tuple(some) for child, some in found.items()}
