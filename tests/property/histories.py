"""Random legal histories: tasks, agents, sessions and batches, driven through the real core.

A `History` does what an engine does and no more: it hands rows to the core, keeps the rows and
counters that come back, and passes turns and places on. Each step names a verb and two numbers that
choose among what the verb could be applied to; a step that applies to nothing does nothing. What a
task waits for is a number here: the parents themselves matter only to a store.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

from fairlane.core import admission, batches, counts, dependencies, gates, leases, lifecycle
from fairlane.core.batches import Batch
from fairlane.core.counts import Tally
from fairlane.core.errors import QueueFull
from fairlane.core.model import BATCH_GATE, SESSION_GATE, Change, Submission, Task
from fairlane.core.policy import Policy, from_document
from fairlane.core.sessions import Session

BOUNDED: Final = settings(max_examples=100, deadline=None)

POLICY: Final = from_document(
    {"kinds": {"action": {"maxAttempts": 3}, "handler": {"maxAttempts": 2, "jitter": 0.5}}}
)
PRIORITIES: Final = (-30, -20, -1, 0, 10)
SESSIONS: Final = (None, None, "s1", "s2")
BATCHES: Final = (None, None, "b1", "b2", "free")
PARALLELISM: Final = {"b1": 1, "b2": 2, "free": None}
DELAYS: Final = (None, None, None, 20, 3000)
TTL_MS: Final = 5000


class Step(NamedTuple):
    verb: str
    which: int
    how: int


class History:
    def __init__(self, policy: Policy = POLICY) -> None:
        self.policy = policy
        self.now = 1_700_000_000_000
        self.token = 0
        self.tasks: dict[int, Task] = {}
        self.changes: list[Change] = []
        self.lane = Tally()
        self.lines: dict[tuple[str, str], Tally] = {}
        self.sessions: dict[str, Session] = {}
        self.batches: dict[str, Batch] = {}
        self.ended: list[tuple[str, int]] = []  # batches that were over, and when

    def take(self, step: Step) -> None:
        self.now += step.how % 7
        VERBS[step.verb](self, step)
        self._pass_turns_on()
        self._fill_batches()
        for batch in self.batches.values():
            if batches.settle(batch, self.now):
                self.ended.append((batch.id, self.now))

    def save(self, change: Change | None) -> None:
        """Keep what the core decided, as a store does."""
        if change is None:
            return
        after = change.after
        if change.before is not None:
            assert self.tasks[after.seq] == change.before
        self.tasks[after.seq] = copy.copy(after)
        self.changes.append(change)
        line = self.lines.setdefault((after.agent, after.capability), Tally())
        counts.apply(self.lane, line, change)
        if after.session:
            gates.apply(self.session(after.session), change)
        if after.batch:
            batches.apply(self.batch(after.batch), change)

    def session(self, key: str) -> Session:
        return self.sessions.setdefault(key, Session(key, limit=1 + (key == "s2")))

    def batch(self, key: str) -> Batch:
        parallelism = PARALLELISM[key.partition("-")[0]]
        return self.batches.setdefault(key, Batch(key, 1, "a", parallelism, 0, self.now))

    def batch_name(self, kind: str | None) -> str | None:
        """A batch of that kind that is not over: nothing is added to one that is."""
        if kind is None:
            return None
        own = [batch for key, batch in self.batches.items() if key.partition("-")[0] == kind]
        running = [batch.id for batch in own if batch.completed_at is None]
        return running[0] if running else f"{kind}-{len(own)}"

    def gate(self, task: Task, *, has_turn: bool = False) -> str | None:
        """The gate that a task meets next."""
        session = self.session(task.session) if task.session else None
        batch = self.batch(task.batch) if task.batch else None
        return gates.next_gate(task, session, batch, self.now, has_turn=has_turn)

    def of(self, *states: str) -> list[Task]:
        return [task for task in self.tasks.values() if task.state in states]

    def leased(self) -> list[Task]:
        return [task for task in self.tasks.values() if task.leased]

    def _pass_turns_on(self) -> None:
        for session in self.sessions.values():
            waiting = [t for t in self.of(lifecycle.QUEUED) if _waits(t, session)]
            waiting.sort(key=lambda task: (task.priority, task.seq))
            for task in waiting[: session.free]:
                batch = self.batch(task.batch) if task.batch else None
                self.save(gates.promote(task, self.now, gates.batch_gate(batch)))

    def _fill_batches(self) -> None:
        for batch in self.batches.values():
            waiting = [t for t in self.of(lifecycle.QUEUED) if t.batch == batch.id]
            waiting = [task for task in waiting if task.gate == BATCH_GATE]
            waiting.sort(key=lambda task: (task.priority, task.seq))
            for task in waiting[: batch.free]:
                self.save(gates.promote(task, self.now))


def _waits(task: Task, session: Session) -> bool:
    return task.session == session.key and task.gate == SESSION_GATE


def _one(tasks: Iterable[Task], step: Step) -> Task | None:
    found = list(tasks)
    return found[step.which % len(found)] if found else None


def _submission(history: History, step: Step) -> Submission:
    kind = ("action", "handler")[step.how % 2]
    return Submission(
        id=f"tsk_{len(history.tasks) + 1}",
        kind=kind,
        agent="abc"[step.which % 3],
        capability=kind,
        body="{}",
        priority=PRIORITIES[step.how % len(PRIORITIES)],
        session=SESSIONS[step.which % len(SESSIONS)],
        batch=history.batch_name(BATCHES[(step.which + step.how) % len(BATCHES)]),
        delay_ms=DELAYS[(step.which * 3 + step.how) % len(DELAYS)],
        preemptible=bool(step.which // 4 % 2),
    )


def _submit(history: History, step: Step) -> None:
    submission = _submission(history, step)
    change = admission.admit(
        submission,
        "main",
        history.policy,
        seq=len(history.tasks) + 1,
        line=1,
        position=history.lane.queued + 1,
        now=history.now,
    )
    change.after.gate = history.gate(change.after)
    history.save(change)


def _submit_child(history: History, step: Step) -> None:
    """A task that waits for one or two others."""
    change = admission.admit(
        _submission(history, step),
        "main",
        history.policy,
        seq=len(history.tasks) + 1,
        line=1,
        position=history.lane.queued + 1,
        now=history.now,
    )
    dependencies.block(change.after, 1 + step.which % 2)
    history.save(change)


def _meet(history: History, step: Step) -> None:
    task = _one(history.of(lifecycle.WAITING), step)
    if task:
        after = dependencies.met(task)
        if not after.unmet:
            after.state = lifecycle.step(task.state, lifecycle.UNBLOCK)
            after.gate = history.gate(after)
            after.eligible_at = after.eligible_at if after.gate == "delay" else None
        verb = lifecycle.MEET if after.unmet else lifecycle.UNBLOCK
        history.save(Change(task, after, verb))


def _orphan(history: History, step: Step) -> None:
    task = _one(history.of(lifecycle.WAITING), step)
    if task:
        history.save(dependencies.orphan(task, "tsk_0", lifecycle.FAILED, history.now))


def _reject(history: History, step: Step) -> None:
    history.save(
        admission.reject(
            _submission(history, step),
            "main",
            history.policy,
            QueueFull("rejected: global queue full"),
            seq=len(history.tasks) + 1,
            now=history.now,
        )
    )


def _lease(history: History, step: Step) -> None:
    task = _one((task for task in history.tasks.values() if task.ready), step)
    if task:
        history.token += 1
        started = bool(step.how % 2)
        history.save(
            leases.grant(
                task,
                fencing_token=history.token,
                worker="w",
                ttl_ms=TTL_MS,
                started=started,
                now=history.now,
            )
        )


def _report(decide: Callable[[History, Task, Step], leases.LeaseDecision]) -> Verb:
    """A worker's report about something that it has leased."""

    def apply(history: History, step: Step) -> None:
        task = _one(history.leased(), step)
        if task:
            history.save(decide(history, task, step).change)

    return apply


def _fail(history: History, task: Task, step: Step) -> leases.LeaseDecision:
    return leases.fail(
        task,
        task.fencing_token,
        "no luck",
        retryable=step.how % 4 != 0,
        retry_after_ms=(None, 3, 60_000)[step.how % 3],
        policy=history.policy,
        own=None,
        now=history.now,
    )


def _reclaim(history: History, step: Step) -> None:
    task = _one(history.leased(), step)
    if task:
        history.save(leases.reclaim(task, history.policy, None, history.now))


def _cancel(history: History, step: Step) -> None:
    task = _one(history.tasks.values(), step)
    if task:
        history.save(leases.cancel(task, task.id, history.now).change)


def _expire(history: History, step: Step) -> None:
    task = _one(history.of(*lifecycle.IN_QUEUE, *lifecycle.IN_FLIGHT), step)
    if task:
        history.save(leases.expire(task, history.now))


def _promote(history: History, step: Step) -> None:
    """The moment that a task waits for comes."""
    task = _one((task for task in history.tasks.values() if task.gate == "delay"), step)
    if task:
        assert task.eligible_at is not None
        history.now = max(history.now, task.eligible_at)
        gate = history.gate(task, has_turn=gates.holds_turn(task))
        history.save(gates.promote(task, history.now, gate))


def _hold(history: History, step: Step) -> None:
    task = _one((task for task in history.tasks.values() if task.ready and task.session), step)
    if task:
        history.save(gates.hold(task))


def _stop(history: History, step: Step) -> None:
    in_flight = history.of(*lifecycle.IN_FLIGHT)
    task = _one((task for task in in_flight if task.preempt == 0), step)
    if task:
        history.save(leases.preempt(task))


def _reset(history: History, step: Step) -> None:
    task = _one(history.tasks.values(), step)
    if task:
        _begin_again(history, leases.reset(task, task.id, history.now), unmet=0)


def _revive(history: History, step: Step) -> None:
    task = _one(history.tasks.values(), step)
    if task:
        unmet = 0 if task.unmet is None else step.how % 2
        _begin_again(history, leases.retry(task, task.id, history.now), unmet=unmet)


def _begin_again(history: History, decision: leases.LeaseDecision, *, unmet: int) -> None:
    change = decision.change
    if change is None:
        return
    if change.after.unmet is not None:
        dependencies.block(change.after, unmet)
    if not unmet:
        change.after.gate = history.gate(change.after)
    history.save(change)


Verb = Callable[[History, Step], None]
VERBS: Final[dict[str, Verb]] = {
    "submit": _submit,
    "reject": _reject,
    "lease": _lease,
    "start": _report(lambda h, task, _: leases.start(task, task.fencing_token, h.now)),
    "renew": _report(lambda h, task, _: leases.renew(task, task.fencing_token, TTL_MS, h.now)),
    "complete": _report(lambda h, task, _: leases.complete(task, task.fencing_token, "1", h.now)),
    "fail": _report(_fail),
    "release": _report(lambda h, task, _: leases.release(task, task.fencing_token, h.now)),
    "reclaim": _reclaim,
    "cancel": _cancel,
    "expire": _expire,
    "promote": _promote,
    "hold": _hold,
    "reset": _reset,
    "retry": _revive,
    "submit child": _submit_child,
    "meet": _meet,
    "orphan": _orphan,
    "stop": _stop,
}
# More often, so that tasks live long enough for the rest to happen to them.
_OFTEN: Final = ("submit", "lease", "lease", "start", "fail", "fail", "promote", "promote", "meet")
_DRAWN: Final = (*VERBS, *_OFTEN, *_OFTEN)
STEPS_MAX: Final = 50


def _steps(drawn: bytes) -> list[Step]:
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    return [Step(_DRAWN[verb % len(_DRAWN)], number % 16, number // 16) for verb, number in pairs]


# Drawn as bytes of a chosen length: many times faster than a list of steps, and as often long as
# short.
step_lists: Final = (
    st.integers(0, STEPS_MAX)
    .flatmap(lambda count: st.binary(min_size=2 * count, max_size=2 * count))
    .map(_steps)
)


def lived(steps: list[Step]) -> History:
    """A history that these steps have made, with at least one task in it."""
    history = History()
    history.take(Step("submit", 0, 1))
    for step in steps:
        history.take(step)
    return history


histories = step_lists.map(lived)
