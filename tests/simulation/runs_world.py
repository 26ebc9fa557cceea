"""A world of durable runs on the real engine, under lost replies and crashes.

Workers lease, record steps, wait and report; callers submit, send signals, cancel and retry; time
passes, leases expire, and the process dies. Values are numbered, so a record that changes shows.
After every step the rules are checked from the tables and from what was accepted before.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any, Final

import msgspec

from fairlane.clock import ManualClock
from fairlane.core.errors import EffectUnknown, FairlaneError
from fairlane.core.model import SUSPEND_GATE, Submission, Task
from fairlane.core.suspensions import Until
from fairlane.engine.commands import Cancel, Complete, Fail, Grant, Lease, Release, Retry, Submit
from fairlane.engine.engine import Engine
from fairlane.engine.reads.recount import recount
from fairlane.engine.step_commands import (
    BeginEffect,
    Checkpoint,
    CheckpointOutcome,
    ResolveEffect,
    SendSignal,
    SignalOutcome,
    Suspend,
)
from fairlane.store.opening import open_store
from fairlane.store.tables import checkpoints, suspensions
from fairlane.store.tables import tasks as task_table
from tests.simulation.approvals_world import demand

CAPABILITY: Final = "handler/work"
SLOTS: Final = 4
SIGNALS: Final = ("paid", "go")
_ONCE: Final = (Submit, Retry, SendSignal, ResolveEffect)  # repeating them means something else
_ALL: Final = range(1, 400)  # more tasks than a history submits


class RunsWorld:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.clock = ManualClock()
        self.store = open_store("sqlite://:memory:")
        self.store.migrate()
        self.engine = self._engine()
        self.reader = self.store.reader()
        self.held: list[tuple[Task, int]] = []  # with the number of its next step
        # What was accepted: the value of each step and of each signal.
        self.recorded: dict[tuple[int, int], str] = {}
        self.signals: dict[tuple[str, str], str] = {}
        self.attempts: dict[int, int] = {}
        self.woken = self.number = self.values = 0
        # How often each effect acted, and how often it was said rightly that it did not.
        self.acted: Counter[tuple[int, int]] = Counter()
        self.parked = 0

    def _engine(self) -> Engine:
        return Engine(self.store, self.clock, name=f"node_{id(self)}_{self.clock.now()}")

    def close(self) -> None:
        self.engine.close()
        self.reader.close()
        self.store.close()

    # ------------------------------------------------------------ steps

    def step(self) -> None:
        names = (
            *("submit", "lease", "lease", "checkpoint", "checkpoint", "suspend", "suspend"),
            *("signal", "report", "wait", "trouble", "effect", "effect", "decide"),
        )
        getattr(self, self.rng.choice(names))()
        self.check()

    def submit(self) -> None:
        self.number += 1
        made = Submission(
            f"t{self.number}",
            "handler",
            "ada",
            CAPABILITY,
            "{}",
            session=self.rng.choice((None, None, f"s{self.rng.randrange(3)}")),
            max_attempts=3,
            deadline_ms=self.rng.choice((None, None, 50_000)),
        )
        self.apply([Submit([made])])

    def lease(self) -> None:
        free = SLOTS - len(task_table.leased(self.reader))
        if free > 0:
            request = Lease("w", None, frozenset({CAPABILITY}), free, 8000, start=True)
            for grant in self.apply([], [request]).grants[0]:
                self.granted(grant)

    def granted(self, grant: Grant) -> None:
        seq = grant.task.seq
        told = {(seq, one.number): one.value for one in grant.steps if not one.intent}
        mine = {key: value for key, value in self.recorded.items() if key[0] == seq}
        demand("told", holds=mine.items() <= told.items(), about=(grant.task.id, mine, told))
        stored = checkpoints.of_tasks(self.reader, [seq]).get(seq, ())
        demand("told", holds=grant.steps == stored, about=(grant.task.id, stored))
        self.woken += len(told.keys() - mine.keys())
        self.recorded |= told
        begun = [one.number for one in grant.steps if one.intent]
        self.held.append((grant.task, min(begun, default=max((n for _, n in told), default=0) + 1)))

    def _value(self) -> str:
        self.values += 1
        return str(self.values)

    def checkpoint(self) -> None:
        if not self.held:
            return
        at = self.rng.randrange(len(self.held))
        task, number = self.held[at]
        request = Checkpoint(task.seq, task.fencing_token, "step", self._value(), number)
        again = Checkpoint(task.seq, task.fencing_token, "step", self._value(), number)
        answers = self.apply([request, again]).answers
        if isinstance(answers[0], CheckpointOutcome):
            demand("first", holds=not answers[1].new, about=answers)
            self.recorded.setdefault((task.seq, number), request.value)
            self.held[at] = task, number + 1

    def effect(self) -> None:
        """Begin an effect; then crash, act and crash, or act and record."""
        if not self.held:
            return
        at = self.rng.randrange(len(self.held))
        task, number = self.held[at]
        key = task.seq, task.fencing_token
        place, checks = (task.seq, number), self.rng.random() < 0.3
        (answer,) = self.apply([BeginEffect(*key, "effect", number, checks)]).answers
        if isinstance(answer, FairlaneError):
            self.parked += isinstance(answer, EffectUnknown)
            del self.held[at]
            return
        chance = self.rng.random()
        if chance < 0.2:
            del self.held[at]  # it dies before it acts
            return
        has_acted = answer.state == "unknown" and self.acted[place] > 0
        if chance < 0.3 and not has_acted:
            self.apply([BeginEffect(*key, "effect", number, withdraws=True)])
            return
        if answer.state != "done" and not has_acted:
            self.acted[place] += 1
        if chance < 0.6:
            del self.held[at]
            return
        request = Checkpoint(*key, "effect", self._value(), number)
        (answer,) = self.apply([request]).answers
        if isinstance(answer, CheckpointOutcome):
            if answer.new:
                self.recorded[place] = request.value
            self.held[at] = task, number + 1

    def decide(self) -> None:
        """An operator who knows the truth decides about an effect."""
        seq = self.rng.randint(1, self.number + 1)
        for task in task_table.by_seq(self.reader, [seq]):
            for one in checkpoints.of_tasks(self.reader, [seq]).get(seq, ()):
                happened = self.acted[seq, one.number] > 0
                request = ResolveEffect(task.id, one.name, happened, self._value())
                (answer,) = self.apply([request]).answers
                if isinstance(answer, Task) and happened:
                    assert request.value is not None
                    self.recorded[seq, one.number] = request.value

    def suspend(self) -> None:
        if not self.held:
            return
        task, number = self.held.pop(self.rng.randrange(len(self.held)))
        others = [f"t{self.rng.randint(1, self.number)}" for _ in range(self.rng.randint(1, 3))]
        until = self.rng.choice(
            (
                Until(delay_ms=self.rng.choice((0, 500, 5000))),
                Until(signal=self.rng.choice(SIGNALS)),
                Until(tasks=others),
            )
        )
        key = task.seq, task.fencing_token
        (answer,) = self.apply([Suspend(*key, "step", until, number)]).answers
        if isinstance(answer, FairlaneError) or not answer.suspended:
            self.apply([Release(*key)])

    def signal(self) -> None:
        name = f"t{self.rng.randint(1, self.number + 1)}"
        request = SendSignal(name, self.rng.choice(SIGNALS), self._value())
        (answer,) = self.apply([request]).answers
        if isinstance(answer, SignalOutcome) and answer.accepted:
            self.signals.setdefault((name, request.name), request.value)

    def report(self) -> None:
        if self.held:
            task, _ = self.held.pop(self.rng.randrange(len(self.held)))
            key = (task.seq, task.fencing_token)
            self.apply([self.rng.choice((Complete(*key), Fail(*key, "no"), Release(*key)))])

    def wait(self) -> None:
        self.clock.advance(self.rng.choice((10, 1000, 6000)))
        self.apply([])

    def trouble(self) -> None:
        """A cancel, a retry, or a crash of the server or of a worker."""
        name = f"t{self.rng.randrange(self.number + 1)}"
        kind = self.rng.randrange(4)
        if kind == 0:
            self.apply([Cancel(name)])
        elif kind == 1:
            self.apply([Retry(name)])
        elif kind == 2 and self.held:
            self.held.pop()
        else:
            self.engine.close()
            self.engine = self._engine()

    def apply(self, batch: list[Any], waiting: list[Lease] | None = None) -> Any:
        outcome = self.engine.apply(batch, waiting or [])
        repeatable = not any(
            isinstance(one, Submit | Retry | SendSignal | ResolveEffect) for one in batch
        )
        if batch and repeatable and self.rng.random() < 0.1:  # the reply was lost
            self.engine.apply(batch)
        return outcome

    # ------------------------------------------------------------ rules

    def check(self) -> None:
        stored = checkpoints.of_tasks(self.reader, _ALL)
        found = {(seq, one.number): one.value for seq, some in stored.items() for one in some}
        kept = all(found.get(key) == value for key, value in self.recorded.items())
        demand("once", holds=kept, about=(self.recorded, found))
        demand("acts", holds=max(self.acted.values(), default=0) <= 1, about=self.acted)
        tasks = task_table.by_seq(self.reader, _ALL)
        by_id = {task.id: task for task in tasks}
        waits = suspensions.of_tasks(self.reader, _ALL)
        for task in tasks:
            if task.gate == SUSPEND_GATE:
                self.is_waiting(task, waits[task.seq].waits_for, by_id)
        for (name, signal), value in self.signals.items():
            one = suspensions.signal(self.reader, by_id[name].seq, signal)
            demand("signal", holds=one is not None and one.value == value, about=(name, signal))
        leased = [task for task in tasks if task.leased]
        demand("slots", holds=len(leased) <= SLOTS, about=leased)
        demand("recount", holds=recount(self.reader) == [], about=recount(self.reader))

    def is_waiting(self, task: Task, until: Until, by_id: dict[str, Task]) -> None:
        demand("slot", holds=not task.leased, about=task)
        if until.signal is not None:
            demand("wakes", holds=(task.id, until.signal) not in self.signals, about=task)
        if until.tasks is not None:
            ended = all(by_id[id_].terminal for id_ in until.tasks)
            demand("wakes", holds=not ended, about=(task, until))
        late = task.eligible_at is not None and task.eligible_at < self.clock.now() - 6000
        demand("wakes", holds=not late, about=task)


def run(seed: int, steps: int) -> RunsWorld:
    """Run one history. Raise `Violation` if a rule does not hold."""
    world = RunsWorld(seed)
    try:
        for _ in range(steps):
            world.step()
    finally:
        world.close()
    return world


def trace(seed: int, steps: int) -> str:
    """What a history leaves behind, as text."""
    world = run(seed, steps)
    return msgspec.json.encode([sorted(world.recorded.items()), world.values]).decode()
