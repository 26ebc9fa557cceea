"""The audit log: nothing in it changes, floods cost little, and the oldest go."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from fairlane.clock import ManualClock
from fairlane.core.audit import BLOCKED, DENIED, DONE, Entry, Written
from fairlane.engine import audit
from fairlane.engine.audit import Audit, facts
from fairlane.engine.engine import Engine
from fairlane.engine.requests import Record
from fairlane.engine.views import Views
from fairlane.engine.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fairlane.store.base import Store
    from tests.store.scheduler import Scheduler

ALL = dict.fromkeys(("who", "action", "outcome", "before", "after"))
MINUTE_MS = 60_000


class Scene:
    def __init__(self, store: Store) -> None:
        self.clock = ManualClock()
        self.writer = Writer(Engine(store, self.clock, name="node_1"))
        self.audit = Audit(self.writer, self.clock)
        self.views = Views(store)
        self.writer.start()

    def entries(self, **wanted: object) -> list[Written]:
        """All that fit, oldest first; what was told before is there."""
        self.writer.ask_and_wait(Record((), trim=False))
        return self.views.audit({**ALL, **wanted}, 10_000)[::-1]

    def close(self) -> None:
        self.writer.stop()
        self.views.close()


@pytest.fixture
def scene(store: Store) -> Iterator[Scene]:
    with contextlib.closing(Scene(store)) as scene:
        yield scene


async def test_what_was_done_is_durable_when_it_is_told(scene: Scene) -> None:
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


def test_a_blocked_target_is_told(scene: Scene) -> None:
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


def test_the_oldest_go_by_number_and_by_age(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "ENTRIES_MAX", 10)
    entries = tuple(Entry("ann", f"deed {n}", "", DONE) for n in range(30))
    views = Views(scheduler.store)
    try:
        scheduler.ask(Record(entries))
        assert len(views.audit(ALL, 100)) == 30
        scheduler.ask(Record((Entry("ann", "newest", "", DONE),), trim=True))
        kept = [one.action for one in views.audit(ALL, 100)]
        assert kept == ["newest", *(f"deed {n}" for n in range(29, 20, -1))]
        monkeypatch.setattr(audit, "DAYS", -1)
        scheduler.ask(Record((), trim=True))
        assert views.audit(ALL, 100) == []
    finally:
        views.close()


def test_only_a_few_words_of_an_answer_are_told() -> None:
    shape = {"name": "n", "token": "fl_secret", "taskIds": ["a", "b"], "note": "", "version": 3}
    assert facts(shape, ("name", "version", "note", "taskIds")) == "name n, version 3, taskIds 2"
    assert facts({}, ("name",)) is None
    assert facts(["no object"], ("name",)) is None
