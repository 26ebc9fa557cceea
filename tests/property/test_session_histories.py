"""Conversations at random, on the real engine: turns are counted, limited, in order; none is lost.

People talk, run out of patience, stop and reset; workers begin and report. Whatever they do, after
every step the counters equal a recount.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Final, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.core import sessions
from fairlane.core.model import Task
from fairlane.core.sessions import Session
from fairlane.engine.reads.recount import recount
from fairlane.store.sqlite import SqliteStore
from tests.store.chat import Chat
from tests.store.scheduler import Scheduler

BOUNDED: Final = settings(max_examples=40, deadline=None)
SENDERS: Final = ("ann", "bob")
STEPS_MAX: Final = 40


@contextlib.contextmanager
def _scheduler() -> Iterator[Scheduler]:
    store = SqliteStore(":memory:", "sqlite://:memory:")
    store.migrate()
    scheduler = Scheduler(store)
    try:
        yield scheduler
    finally:
        scheduler.close()
        store.close()


class Talk:
    """One conversation. Each message says a number of its own, larger than all before."""

    def __init__(self, scheduler: Scheduler, mode: str) -> None:
        self.scheduler = scheduler
        self.chat = Chat(scheduler)
        self.chat.tune(mode=mode, cap=4, debounce_ms=100)
        self.held: list[Task] = []
        self.said: dict[int, str] = {}  # who said the number
        self.told: set[int] = set()  # those whose sender knows that they are refused
        self.begun: list[str] = []  # ids in the order in which they began
        self.silenced = 0  # nothing up to this number may begin any more
        self.interrupted: list[Task] = []  # runs that have to end before anything begins

    def take(self, step: int, how: int) -> None:
        VERBS[step % len(VERBS)](self, how)
        self.check()

    def say(self, how: int) -> None:
        number = len(self.said) + 1
        sender = SENDERS[how % 2]
        self.said[number] = sender
        drop = "new" if how % 5 == 0 else "old"
        answer = self.chat.try_say(
            f"m{number}", str(number), sender=sender, drop=drop, no_merge=how % 7 == 0
        )
        mode = self.row().own.mode
        if mode in ("interrupt", "rollback"):
            self.interrupted = list(self.held)
        if not isinstance(answer, Task):
            refusals = {"session_busy"} if mode == "reject" else set()
            assert answer.code in {"session_queue_full", *refusals}
            self.told.add(number)

    def lease(self, how: int) -> None:
        grants = self.scheduler.lease(1 + how % 3)
        new = [grant.task.id for grant in grants if grant.task.id not in self.begun]
        self.held += [grant.task for grant in grants]
        self.begun += new
        assert not new or not [task for task in self.interrupted if task in self.held]
        for name in new:
            assert min(self.numbers(name)) > self.silenced
        row = self.row()
        assert len(self.held) <= row.holders
        # Tasks that began before the limit fell continue, also in another attempt; no other begins.
        assert not new or row.holders <= self.limit(row)

    def complete(self, how: int) -> None:
        if self.held:
            tokens = how * 16 % 100
            result = f'{{"usage":{{"tokens":{tokens},"contextWindow":100}}}}'
            task = self.held.pop(how % len(self.held))
            self.scheduler.complete(task, result if how % 3 == 0 else None)

    def fail(self, how: int) -> None:
        if self.held:
            self.scheduler.fail(self.held.pop(how % len(self.held)), retryable=how % 2 == 0)

    def release(self, how: int) -> None:
        if self.held:
            self.scheduler.release(self.held.pop(how % len(self.held)))

    def stop(self, _: int) -> None:
        stopped = self.chat.stop()
        assert len(stopped.stopped) + len(stopped.drained) <= 1

    def stop_all(self, how: int) -> None:
        stopped = self.chat.reset() if how % 2 else self.chat.stop_all()
        self.silenced = len(self.said)
        assert set(self.scheduler.states(*stopped.stopped, *stopped.drained)) <= {"cancelled"}

    def tune(self, how: int) -> None:
        self.chat.tune(max_concurrent=1 + how % 3)

    def use(self, how: int) -> None:
        self.chat.use(how * 20 % 100)

    def wait(self, how: int) -> None:
        for task in self.held:
            self.scheduler.renew(task)
        self.scheduler.pass_time((30, 100, 300, 2000)[how % 4])

    def row(self) -> Session:
        row = self.chat.row()
        assert row is not None
        return row

    def limit(self, row: Session) -> int:
        return sessions.limit(self.scheduler.engine.policy.sessions, row)

    def numbers(self, name: str) -> list[int]:
        return [int(text) for text in re.findall(r"\d+", self.chat.text(name))]

    def check(self) -> None:
        assert recount(self.scheduler.reader) == []
        row = self.row()
        free = not row.interrupted and row.holders < self.limit(row)
        assert not (row.waiting and free), "it stands still"

    def finish(self) -> None:
        """Let everything run that may; then all that was said is somewhere, once, and in order."""
        for _ in range(200):
            for task in self.held:
                self.scheduler.complete(task)
            self.held = []
            self.scheduler.pass_time(1000)
            self.lease(0)
            if self.row().idle:
                break
        assert self.row().idle
        kept = [name for n in self.said if self.scheduler.find(name := f"m{n}") is not None]
        numbers = [number for name in kept for number in self.numbers(name)]
        assert sorted(numbers) == sorted(self.said.keys() - self.told)
        for name in kept:
            view = self.scheduler.view(name)
            assert view.state in {"done", "failed", "parked", "cancelled"}
            assert view.state != "cancelled" or view.error, "a message that is lost says why"
        for sender in SENDERS:
            spoken = [n for name in self.begun for n in self.numbers(name)]
            mine = [number for number in spoken if self.said[number] == sender]
            assert mine == sorted(mine)


Verb = Callable[[Talk, int], None]
_OFTEN: Final[tuple[Verb, ...]] = (Talk.say, Talk.lease, Talk.complete, Talk.wait)
_SELDOM: Final[tuple[Verb, ...]] = (
    *(Talk.fail, Talk.release, Talk.stop, Talk.stop_all),
    *(Talk.tune, Talk.use),
)
VERBS: Final = (*_OFTEN, *_OFTEN, Talk.say, *_SELDOM)


# Of a chosen length, so that long ones are as frequent as short ones.
_drawn: Final = st.integers(0, STEPS_MAX).flatmap(
    lambda count: st.binary(min_size=2 * count, max_size=2 * count)
)


@BOUNDED
@given(st.sampled_from(get_args(sessions.Mode)), _drawn)
def test_a_conversation_keeps_its_promises(mode: str, drawn: bytes) -> None:
    with _scheduler() as scheduler:
        talk = Talk(scheduler, mode)
        for step, how in zip(drawn[::2], drawn[1::2], strict=True):
            talk.take(step, how)
        talk.finish()
        assert talk.row().idle
