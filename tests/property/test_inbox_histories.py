"""Conversations in all modes, at random, on the real engine: each message is consumed once.

People with different rights send and withdraw; workers lease, read, acknowledge, lose responses,
crash, lose leases and wait for messages. A message is consumed when a run begins with it or takes
it. At the end each accepted message was consumed by one task, or its task says why it was not. The
planted bugs prove that each check can fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import msgspec
import pytest

from fairlane.core import inbox as core
from fairlane.core.access import Token
from fairlane.core.errors import LeaseLost, MessageTaken
from fairlane.core.inbox import InboxPage, parse_cursor
from fairlane.core.model import Task
from fairlane.core.suspensions import Until
from fairlane.engine.commands import Grant, Reclaim, Submit
from fairlane.engine.inbox_commands import TakeMessages, WithdrawMessage
from fairlane.engine.reads.recount import recount
from fairlane.engine.step_commands import Suspend
from fairlane.engine.verbs import inbox as verbs
from fairlane.engine.verbs import rights
from fairlane.store.sqlite import SqliteStore
from fairlane.store.tables import tokens
from tests.store.chat import Chat
from tests.store.scheduler import Scheduler

SEEDS: Final = range(40)
STEPS: Final = 80
MODES: Final = ("queue", "collect", "steer", "steer", "steer", "reject", "interrupt", "rollback")
SENDERS: Final = ("ann", "bob")
TOKENS: Final = ("small", "large")
MOSTLY: Final = ("small", "small", "small", "large")
KEPT: Final = ("withdrawn: ", "interrupted: ", "rolled_back: ")


@contextmanager
def _scheduler() -> Iterator[Scheduler]:
    store = SqliteStore(":memory:", "sqlite://:memory:")
    store.migrate()
    scheduler = Scheduler(store)
    connection = store.writer()
    connection.begin()
    for seq, (name, scopes) in enumerate(zip(TOKENS, ("submit", "admin submit"), strict=True)):
        tokens.insert(connection, Token(seq + 1, name, name, "x", scopes, 0))
    connection.commit()
    connection.close()
    try:
        yield scheduler
    finally:
        scheduler.close()
        store.close()


class Run:
    """An attempt, and what its worker knows: the messages that it took, and its cursor."""

    def __init__(self, grant: Grant) -> None:
        self.task = grant.task
        self.seen: list[str] = []
        self.shown: list[str] = []  # by a read that is not acknowledged
        self.cursor = "0"


class History:
    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        self.scheduler = scheduler
        self.chat = Chat(scheduler)
        self.chat.tune(cap=1000, debounce_ms=100)
        self.random = random.Random(seed)
        self.runs: list[Run] = []
        self.accepted: dict[str, tuple[str, str, str]] = {}  # id: sender, rights, its task
        self.consumed: dict[str, list[str]] = {}  # the messages of each task, in order
        self.log: list[str] = []  # messages in the order of their first consumption
        self.withdrawn: set[str] = set()
        self.problems: list[str] = []

    def play(self) -> list[str]:
        often = [self.say] * 6 + [self.lease] * 3 + [self.read] * 6 + [self.take] * 2
        rare = (self.end, self.crash, self.withdraw, self.listen, self.wait, self.cancel)
        for _ in range(STEPS):
            self.random.choice((*often, *rare))()
        self.finish()
        self.problems += map(str, recount(self.scheduler.reader))
        return self.problems

    def say(self) -> None:
        name = f"m{len(self.accepted) + 1:03}"
        sender, token = self.random.choice(SENDERS), self.random.choice(MOSTLY)
        mode, window = self.random.choice(MODES), self.random.choice((0, 100))
        if mode in ("interrupt", "rollback") and self.random.random() < 0.8:
            mode = "steer"
        made = self.chat.message(
            name, sender=f"{sender}", mode=mode, debounce_ms=window, message_id=name
        )
        made = msgspec.structs.replace(made, submitter=token)
        (answer,) = self.scheduler.ask(Submit([made]))
        if isinstance(answer, Task):
            self.accepted[name] = (sender, token, answer.id)

    def lease(self) -> None:
        for grant in self.scheduler.lease(1):
            run = Run(grant)
            self.runs.append(run)
            body = msgspec.json.decode(grant.body)
            self.consume(run.task, [one["id"] for one in body["messages"]])
            for step in grant.steps:
                value = msgspec.json.decode(step.value)
                self.consume(run.task, [one["id"] for one in value.get("messages", [value])])

    def consume(self, task: Task, ids: list[str]) -> None:
        known = self.consumed.setdefault(task.id, [])
        for id_ in ids:
            if id_ not in known:
                known.append(id_)
                self.log.append(id_)
        if len({self.accepted[id_][1] for id_ in known}) > 1:
            self.problems.append(f"rights: {known} are of different rights")

    def read(self) -> None:
        """Read with the cursor, which takes what it came with; now and then the answer is lost."""
        if run := self.some():
            cursor = parse_cursor(run.cursor)
            page = self.page(TakeMessages(*key(run), cursor.count, cursor.shown))
            if page is None:
                return
            self.consume(run.task, [id_ for id_ in run.shown if self.state(id_) == "done"])
            if self.random.random() < 0.2:
                return
            self.keep(run, run.shown)
            run.shown, run.cursor = [one.id for one in page.messages], page.cursor
            taken = len(page.messages) - len(waiting_in(page))
            self.keep(run, run.shown[:taken])
            run.shown = run.shown[taken:]

    def take(self) -> None:
        if run := self.some():
            if run.shown:
                return self.read()
            count = parse_cursor(run.cursor).count
            page = self.page(TakeMessages(*key(run), count))
            if page is None:
                return None
            self.consume(run.task, [one.id for one in page.messages])
            if self.random.random() < 0.2:
                return None
            self.keep(run, [one.id for one in page.messages])
            run.cursor = page.cursor
        return None

    def keep(self, run: Run, ids: list[str]) -> None:
        for id_ in ids:
            if id_ in run.seen:
                self.problems.append(f"twice: an attempt of {run.task.id} got {id_} again")
        run.seen += [id_ for id_ in ids if id_ not in self.withdrawn]
        self.consume(run.task, [id_ for id_ in ids if self.state(id_) == "done"])

    def page(self, take: TakeMessages) -> InboxPage | None:
        answer = self.scheduler.apply(take).answers[0]
        if isinstance(answer, LeaseLost):
            return None
        page: InboxPage = answer.page
        return page

    def state(self, id_: str) -> str:
        return self.scheduler.view(self.accepted[id_][2]).state

    def some(self) -> Run | None:
        return self.random.choice(self.runs) if self.runs else None

    def end(self) -> None:
        if run := self.some():
            self.runs.remove(run)
            if self.random.random() < 0.5:
                self.scheduler.complete(run.task)
            else:
                self.scheduler.fail(run.task, retryable=self.random.random() < 0.5)

    def crash(self) -> None:
        """A worker has died; its task runs again or fails."""
        if self.runs and self.random.random() < 0.5:
            self.scheduler.ask(Reclaim("node"))
            self.runs.clear()

    def cancel(self) -> None:
        run = self.some()
        if (
            run
            and self.random.random() < 0.3
            and not self.scheduler.view(run.task.id).task.terminal
        ):
            self.scheduler.cancel(run.task.id)

    def withdraw(self) -> None:
        if self.accepted:
            name = self.random.choice(sorted(self.accepted))
            answer = self.scheduler.apply(WithdrawMessage("chat", name)).answers[0]
            if not isinstance(answer, Exception):
                self.withdrawn.add(name)
                if any(name in ids for ids in self.consumed.values()):
                    self.problems.append(f"withdrawn: {name} was consumed")
            elif isinstance(answer, MessageTaken) and self.state(name) == "queued":
                run = self.accepted[name][2]
                if run not in self.consumed:
                    self.problems.append(f"withdrawn: {name} waits and is refused")

    def listen(self) -> None:
        if (run := self.some()) and not run.shown and self.random.random() < 0.5:
            wait = Suspend(*key(run), f"wait{len(self.log)}", Until(message=True))
            answer = self.scheduler.apply(wait).answers[0]
            if isinstance(answer, Exception):
                return
            if answer.suspended:
                self.runs.remove(run)
            else:
                value = msgspec.json.decode(answer.value)
                self.consume(run.task, [one["id"] for one in value.get("messages", [value])])

    def wait(self) -> None:
        self.scheduler.pass_time(self.random.choice((20, 120)))

    def finish(self) -> None:
        """Let everything run to its end; then each message is somewhere, once and in order."""
        for _ in range(400):
            for run in self.runs:
                self.scheduler.complete(run.task)
            self.runs.clear()
            self.scheduler.pass_time(3000)
            self.lease()
            row = self.chat.row()
            if not self.runs and (row is None or not (row.waiting or row.debouncing)):
                break
            if not self.runs:  # the run that has the turn waits for a message of its own rights
                self.chat.stop()
        owners: dict[str, list[str]] = {}
        for task, ids in self.consumed.items():
            for id_ in ids:
                owners.setdefault(id_, []).append(task)
        for id_, (_, _, task) in self.accepted.items():
            self.check(id_, owners.get(id_, []), task)
        self.check_order()

    def check(self, id_: str, owners: list[str], task: str) -> None:
        if len(owners) > 1:
            self.problems.append(f"twice: {id_} was consumed by {owners}")
        if owners or id_ in self.withdrawn:
            return
        view = self.scheduler.view(task)
        if not (view.error or "").startswith(KEPT):
            self.problems.append(f"lost: {id_} is {view.state} in {task}: {view.error}")

    def check_order(self) -> None:
        for sender in SENDERS:
            said = [id_ for id_ in self.log if self.accepted[id_][0] == sender]
            said = list(dict.fromkeys(said))
            if said != sorted(said):
                self.problems.append(f"order: {sender}'s messages went as {said}")


def key(run: Run) -> tuple[int, int]:
    return run.task.seq, run.task.fencing_token


def waiting_in(page: InboxPage) -> list[str]:
    """Those of a page that are not taken yet: the cursor names their tasks, the last ones."""
    shown = len(parse_cursor(page.cursor).shown)
    tasks = list(dict.fromkeys(one.task for one in page.messages))[-shown:] if shown else []
    return [one.id for one in page.messages if one.task in tasks]


def played(seed: int) -> list[str]:
    with _scheduler() as scheduler:
        return History(scheduler, seed).play()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_is_consumed_once_in_order_and_apart(seed: int) -> None:
    assert played(seed) == []


# -------------------------------------------------------------------- planted bugs


def forget_to_end(_tx: Any, _chosen: Any, _run: Any, _now: Any) -> None:
    """A taken message keeps its turn, too."""


def take_unread(chosen: Callable[..., Any]) -> Callable[..., Any]:
    """A cursor takes everything up to its newest message, read or not."""

    def taken(tx: Any, run: Any, request: TakeMessages, now: int) -> Any:
        if request.shown:
            every = tuple(range(max(request.shown) + 10))
            request = msgspec.structs.replace(request, shown=every)
        return chosen(tx, run, request, now)

    return taken


def equal_rights(_connection: Any, ids: Any, _now: int) -> dict[str | None, str]:
    return dict.fromkeys(ids, "")


def overtake(
    run: core.Address, waiting: Any, *, any_mode: bool = False, **_limits: int
) -> list[core.WaitingMessage]:
    return [one for one in waiting if one.address == run and (one.steers or any_mode)]


PLANTS: Final[dict[str, tuple[Any, str, Any]]] = {
    "twice": (verbs, "_end", forget_to_end),
    "lost": (verbs, "_taken", take_unread(verbs._taken)),
    "rights": (rights, "of_submitters", equal_rights),
    "order": (core, "reachable", overtake),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTS[name])
    assert any(problem.startswith(f"{name}: ") for seed in SEEDS for problem in played(seed))
