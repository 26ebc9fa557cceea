"""Tasks are found by each condition, in both orders and on both databases."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fairlane.core import task_conditions
from fairlane.core.fingerprints import fingerprint
from fairlane.store.tables import events as event_table
from fairlane.store.tables import task_search
from fairlane.store.tables.events import EventFilter
from fairlane.store.tables.task_search import Filter
from tests.store.scheduler import WORK, Scheduler, submission


def found(scheduler: Scheduler, *, oldest: bool = False, **wanted: Any) -> list[str]:
    rows = task_search.ids(scheduler.reader, Filter(**wanted), 100, oldest=oldest)
    return [task_id for _, task_id in rows]


def where(*texts: str) -> str | None:
    return task_conditions.stored(texts)


def submit(scheduler: Scheduler, name: str, **body: Any) -> None:
    scheduler.submit(name, body=msgspec.json.encode({"handler": "work", **body}).decode())


def test_a_value_of_params_or_metadata_is_found_as_it_reads(scheduler: Scheduler) -> None:
    submit(scheduler, "number", metadata={"customer": 42, "plan": {"name": "Grün"}})
    submit(scheduler, "text", metadata={"customer": "42"}, params={"deep": {"on": True}})
    submit(scheduler, "list", metadata={"tags": ["a", "b", 7]}, params={"customer": 42})
    submit(scheduler, "other", metadata={"customer": 421}, llmConfig={"apiKey": "42"})
    submit(scheduler, "bare")
    assert found(scheduler, where=where("metadata.customer=42")) == ["text", "number"]
    assert found(scheduler, where=where("metadata.tags=b")) == ["list"]
    assert found(scheduler, where=where("metadata.tags=7", "params.customer=42")) == ["list"]
    assert found(scheduler, where=where("metadata.tags=7", "params.customer=43")) == []
    assert found(scheduler, where=where("metadata.plan.name=Grün")) == ["number"]
    assert found(scheduler, where=where("metadata.plan=Grün")) == []
    assert found(scheduler, where=where("params.deep.on=true")) == ["text"]
    assert found(scheduler, where=where("metadata.none=42")) == []


def test_a_text_is_found_in_what_callers_sent_but_not_in_secrets(scheduler: Scheduler) -> None:
    submit(scheduler, "one", params={"url": "https://A.example/50%"})
    submit(scheduler, "two", metadata={"customer": "Ada"}, llmConfig={"apiKey": "a.example"})
    like = task_conditions.like
    assert found(scheduler, text=like("a.EXAMPLE/50%")) == ["one"]
    assert found(scheduler, text=like("ada")) == ["two"]
    assert found(scheduler, text=like("_")) == []


def test_times_of_creation_and_end_are_ranges(scheduler: Scheduler) -> None:
    start = scheduler.clock.now()
    for name in ("t1", "t2", "t3"):
        scheduler.submit(name)
        scheduler.clock.advance(1000)
    scheduler.cancel("t2")
    assert found(scheduler, since=start + 1000) == ["t3", "t2"]
    assert found(scheduler, until=start + 1000, oldest=True) == ["t1"]
    assert found(scheduler, since=start, until=start + 2000, oldest=True) == ["t1", "t2"]
    assert found(scheduler, finished_since=start + 3000) == ["t2"]
    assert found(scheduler, finished_until=start + 3000) == []
    assert task_search.counts(scheduler.reader, Filter(since=start)) == {
        "queued": 2,
        "cancelled": 1,
    }


def test_failures_come_newest_first_with_the_time_of_the_failure(scheduler: Scheduler) -> None:
    for number, kind in enumerate(("handler", "action", "handler")):
        one = submission(f"t{number}", kind=kind, max_attempts=1)
        scheduler.submit(one.id, kind=kind, max_attempts=1, capability=one.capability)
        task = scheduler.lease_one()
        scheduler.start(task)
        scheduler.clock.advance(100)
        scheduler.fail(task, f"broke after {number} s", retryable=kind == "handler")
    scheduler.submit("fine")
    rows = task_search.failures(scheduler.reader, Filter(), 10)
    assert [row.id for row in rows] == ["t2", "t1", "t0"]
    assert {row.state for row in rows} == {"failed", "parked"}
    assert [row.at for row in rows] == [scheduler.clock.now() - late for late in (0, 100, 200)]
    assert {fingerprint(row.error) for row in rows} == {fingerprint("broke after 9 s")}
    limited = task_search.failures(scheduler.reader, Filter(before=rows[0].seq), 1)
    assert [row.id for row in limited] == ["t1"]
    assert len(task_search.failures(scheduler.reader, Filter(states=["failed"]), 10)) == 1


@pytest.mark.parametrize("agent", [None, "a"])
def test_ids_are_found_by_their_beginning(scheduler: Scheduler, agent: str | None) -> None:
    scheduler.submit("tsk_0001aa", "tsk_0001ab", "tsk_0002")
    scheduler.submit("tsk_0003", agent="b")

    def begin(prefix: str) -> list[str]:
        return task_search.with_prefix(scheduler.reader, "task", prefix, agent, 5)

    assert begin("tsk_0001") == ["tsk_0001aa", "tsk_0001ab"]
    assert begin("tsk_0002") == ["tsk_0002"]
    assert begin("tsk_0003") == ([] if agent else ["tsk_0003"])
    assert begin("0001") == []
    for table in task_search.SHORT_IDS:
        assert task_search.with_prefix(scheduler.reader, table, "zzz", agent, 5) == []


def test_events_are_read_newest_first_and_from_a_time_on(scheduler: Scheduler) -> None:
    for name in ("t1", "t2", "t3"):
        scheduler.submit(name)
        scheduler.clock.advance(1000)
    now, reader = scheduler.clock.now(), scheduler.reader
    last = event_table.last(reader)
    page = event_table.page(reader, EventFilter(), after=0, until=last, limit=2, newest=True)
    assert [(one.task_id, one.capability) for one in page] == [("t3", WORK), ("t2", WORK)]
    assert page.more
    assert event_table.before(reader, now - 2000) == page[1].event.id - 1
    assert event_table.before(reader, now) == last
    assert event_table.before(reader, 0) == 0
