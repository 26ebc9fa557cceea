"""The audit log: nothing in it changes, floods cost little, and the oldest go."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from fairlane.clock import ManualClock
from fairlane.core.audit import BLOCKED, DENIED, DONE, REFUSED, AuditRecord, Entry
from fairlane.engine.commands import Record
from fairlane.engine.engine import Engine
from fairlane.engine.reads.views import Views
from fairlane.engine.verbs import audit
from fairlane.engine.verbs.audit import Audit, facts
from fairlane.engine.writer import Writer
from tests.store.stores import execute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.store.base import Store
    from tests.store.scheduler import Scheduler

ALL = dict.fromkeys(("who", "action", "outcome", "before", "after"))
MINUTE_MS = 60_000
DAY_MS = 86_400_000


class Scene:
    def __init__(self, store: Store) -> None:
        self.clock = ManualClock()
        self.writer = Writer(Engine(store, self.clock, name="node_1"))
        self.audit = Audit(self.writer, self.clock)
        self.views = Views(store)
        self.writer.start()

    def entries(self, **wanted: object) -> list[AuditRecord]:
        """All that fit, oldest first; what was told before is there."""
        self.writer.ask_and_wait(Record(()))
        return self.views.audit({**ALL, **wanted}, 10_000)[::-1]

    def close(self) -> None:
        self.writer.stop()
        self.views.close()


@pytest.fixture
def scene(store: Store) -> Iterator[Scene]:
    with contextlib.closing(Scene(store)) as scene:
        yield scene


async def test_an_entry_is_durable_before_the_response(scene: Scene) -> None:
    await scene.audit.note("ann", "PATCH /policy", "main", detail="version 2")
    (one,) = scene.views.audit(ALL, 10)
    assert (one.who, one.action, one.target) == ("ann", "PATCH /policy", "main")
    assert (one.outcome, one.detail) == (DONE, "version 2")
    assert one.at == scene.clock.now() or scene.writer.engine.store.shared


def test_the_same_denial_is_written_once_and_then_counted(scene: Scene) -> None:
    for _ in range(1000):
        scene.audit.denied("unknown at 10.0.0.9", "GET /tasks", reason="unauthenticated")
    assert [one.detail for one in scene.entries()] == ["unauthenticated"]
    scene.clock.advance(MINUTE_MS)
    scene.audit.denied("unknown at 10.0.0.9", "GET /tasks", reason="unauthenticated")
    assert [one.detail for one in scene.entries()] == [
        "unauthenticated",
        "unauthenticated; 999 more within a minute",
        "unauthenticated",
    ]


def test_however_many_different_things_come_a_minute_has_few_entries(scene: Scene) -> None:
    for number in range(5000):
        scene.audit.denied(f"unknown at {number}", f"GET /{number}", reason="unauthenticated")
    scene.audit.flush()
    found = scene.entries()
    assert len(found) == audit.KINDS_MAX + 2
    assert (found[-2].who, found[-2].detail) == ("(others)", None)
    assert found[-1].detail == f"{5000 - audit.KINDS_MAX - 1} more within a minute"
    assert {one.outcome for one in found} == {DENIED}


def test_a_blocked_target_is_recorded(scene: Scene) -> None:
    scene.audit.blocked("webhook", "169.254.169.254", reason="link-local")
    (one,) = scene.entries(outcome=BLOCKED)
    assert (one.who, one.action, one.target) == ("fairlane", "webhook", "169.254.169.254")


def test_what_callers_wrote_is_cleaned_and_cut(scene: Scene) -> None:
    scene.audit.denied("a\nb\x1b[1m" + "x" * 999, "GET /", "token=abcdef", reason="\u202e")
    (one,) = scene.entries()
    assert one.who.startswith("a\\nb\\x1b[1mxxx")
    assert len(one.who) < 200
    assert (one.target, one.detail) == ("token=***", "\\u202e")


def test_entries_are_found_by_who_what_and_number(scene: Scene) -> None:
    for who in ("ann", "ben"):
        scene.audit.denied(who, "GET /policy", reason="forbidden")
        scene.audit.denied(who, "GET /tokens", reason="forbidden")
    both = scene.entries(action="GET /policy")
    assert [one.who for one in both] == ["ann", "ben"]
    assert [one.action for one in scene.entries(who="ben")] == ["GET /policy", "GET /tokens"]
    assert [one.who for one in scene.entries(after=both[0].id, action="GET /policy")] == ["ben"]
    assert [one.who for one in scene.entries(before=both[1].id, action="GET /policy")] == ["ann"]


def fill(scheduler: Scheduler, numbers: range, *, who: str, action: str, outcome: str) -> None:
    """An entry for each `n`, in their order and older than what is written through the engine."""
    at, oldest = scheduler.clock.now(), -10 * audit.ENTRIES_MAX
    execute(
        scheduler.store,
        f"""
        WITH RECURSIVE number (n) AS (
          SELECT {numbers.start} UNION ALL SELECT n + 1 FROM number WHERE n + 1 < {numbers.stop}
        )
        INSERT INTO audit (id, at, who, action, target, outcome)
        SELECT {oldest} + n, {at}, {who}, {action}, '', '{outcome}' FROM number
        """,
    )


KEEP = 100
AT_ONCE = KEEP // 10


def test_the_oldest_go_by_number_and_by_age(scheduler: Scheduler) -> None:
    views, more = Views(scheduler.store), 3

    def kept() -> list[str]:
        return [one.action for one in views.audit(ALL, 2 * KEEP)]

    with contextlib.closing(views):
        numbers = range(KEEP + more)
        scheduler.ask(Record(tuple(Entry("ann", f"deed {n}", "", DONE) for n in numbers)))
        assert len(kept()) == len(numbers)
        scheduler.ask(Record((Entry("ann", "newest", "", DONE),), keep=KEEP))
        assert kept() == ["newest", *(f"deed {n}" for n in numbers[: more + AT_ONCE : -1])]
        scheduler.pass_time(audit.DAYS * DAY_MS)
        scheduler.ask(Record((Entry("ann", "later", "", DONE),), keep=KEEP))
        assert len(kept()) == KEEP - AT_ONCE + 1, "as old as may be"
        scheduler.pass_time(1)
        scheduler.ask(Record((), keep=KEEP))
        assert kept() == ["later"]


@pytest.mark.parametrize("outcome", [DONE, REFUSED, DENIED, BLOCKED])
def test_a_flood_pushes_out_itself_and_not_what_others_did(
    scheduler: Scheduler, outcome: str
) -> None:
    views = Views(scheduler.store)
    # By one name, or, where it comes from outside, by as many as it likes.
    many = outcome in (DENIED, BLOCKED)

    def flood(number: int) -> Entry:
        return Entry(f"bot {number if many else ''}", "flood", "", outcome)

    with contextlib.closing(views):
        for who in ("ann", "ben"):
            deeds = tuple(Entry(who, f"deed {n}", "", DONE) for n in range(KEEP // 4))
            scheduler.ask(Record(deeds, keep=KEEP))
        for begin in range(0, 5 * KEEP, AT_ONCE):
            entries = tuple(flood(begin + number) for number in range(AT_ONCE))
            scheduler.ask(Record(entries, keep=KEEP))
        names = [one.who for one in views.audit(ALL, 10 * KEEP)]
    assert (names.count("ann"), names.count("ben")) == (KEEP // 4, KEEP // 4)
    assert KEEP // 2 - AT_ONCE - 1 <= len(names) - KEEP // 2 <= KEEP // 2


def test_only_a_few_fields_of_a_response_are_recorded() -> None:
    shape = {"name": "n", "token": "fl_secret", "taskIds": ["a", "b"], "note": "", "version": 3}
    assert facts(shape, ("name", "version", "note", "taskIds")) == "name n, version 3, taskIds 2"
    assert facts({}, ("name",)) is None
    assert facts(["no object"], ("name",)) is None
