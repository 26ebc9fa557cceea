"""The roster: which workers are stored, when, and how they are judged, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core.workers import ONLINE, SILENT
from fairlane.engine.commands import Beat
from fairlane.engine.reads import workers as rosters
from fairlane.engine.reads.workers import Presence
from fairlane.engine.roster import CHANGE_SECONDS, HEARD_MAX, REFRESH_SECONDS, Roster
from fairlane.store.tables import workers as table
from tests.store.scheduler import NODE, Scheduler, lease_request

if TYPE_CHECKING:
    from fairlane.core.workers import KnownWorker
    from fairlane.engine.commands import Lease

SECOND = 1000


def asks(worker: str, *handlers: str, **fields: Any) -> Lease:
    capabilities = frozenset(f"handler/{one}" for one in handlers)
    fields = {"any_handler": False, "until": None, **fields}
    return lease_request(worker=worker, capabilities=capabilities, **fields)


def hear(scheduler: Scheduler, *requests: Lease) -> None:
    for request in requests:
        scheduler.engine.roster.heard(request, scheduler.clock.monotonic())


def stored(scheduler: Scheduler) -> dict[str, KnownWorker]:
    return {one.name: one for one in table.all_workers(scheduler.reader)}


def commit(scheduler: Scheduler, *waiting: Lease) -> None:
    """Commit something that has nothing to do with workers."""
    scheduler.apply(Beat("node_1", "h", 1, "1", 0), waiting=waiting)


def test_a_worker_is_stored_with_the_next_commit(scheduler: Scheduler) -> None:
    request = asks(
        "w1", "sum", "echo", lanes=("main",), agent="a", slots=3, version="1", address="10.0.0.7"
    )
    hear(scheduler, request)
    assert stored(scheduler) == {}
    commit(scheduler)
    one = stored(scheduler)["w1"]
    assert (one.handlers, one.lanes, one.agent) == (["echo", "sum"], ("main",), "a")
    assert (one.slots, one.version, one.address, one.server) == (3, "1", "10.0.0.7", NODE)
    assert one.seen_at == one.first_seen_at == scheduler.clock.now()


def test_asking_alone_commits_nothing(scheduler: Scheduler) -> None:
    request = asks("w1", "echo")
    hear(scheduler, request)
    assert not scheduler.apply(waiting=[request]).committed
    assert stored(scheduler) == {}


def test_a_worker_that_goes_on_is_refreshed_every_few_seconds(scheduler: Scheduler) -> None:
    request = asks("w1", "echo")
    hear(scheduler, request)
    commit(scheduler)
    first = stored(scheduler)["w1"].seen_at
    scheduler.clock.advance(round(REFRESH_SECONDS * SECOND) - 1)
    commit(scheduler, request)
    assert stored(scheduler)["w1"].seen_at == first
    scheduler.clock.advance(1)
    commit(scheduler, request)
    one = stored(scheduler)["w1"]
    assert (one.seen_at, one.first_seen_at) == (scheduler.clock.now(), first)


def test_a_changed_worker_is_stored_soon(scheduler: Scheduler) -> None:
    hear(scheduler, asks("w1", "echo", slots=2, version="1"))
    commit(scheduler)
    hear(scheduler, asks("w1", "echo", "sum"))
    commit(scheduler)
    assert stored(scheduler)["w1"].handlers == ["echo"]
    scheduler.clock.advance(round(CHANGE_SECONDS * SECOND))
    commit(scheduler)
    one = stored(scheduler)["w1"]
    assert one.handlers == ["echo", "sum"]
    assert (one.slots, one.version) == (2, "1")  # what it need not repeat


def test_a_worker_is_forgotten_after_a_day(scheduler: Scheduler) -> None:
    hear(scheduler, asks("w1", "echo"))
    commit(scheduler)
    scheduler.clock.advance(86_400_000)
    hear(scheduler, asks("w2", "echo"))
    commit(scheduler)
    assert list(stored(scheduler)) == ["w2"]


def test_only_so_many_workers_are_kept(scheduler: Scheduler) -> None:
    for number in range(HEARD_MAX + 1):
        hear(scheduler, asks(f"w{number}", "echo"))
    commit(scheduler)
    assert len(stored(scheduler)) == table.KEPT_MAX


def test_a_roster_forgets_who_asked_longest_ago() -> None:
    roster = Roster("node_1")
    for number in range(HEARD_MAX + 1):
        roster.heard(asks(f"w{number}", "echo"), float(number))
    names = {one.name for one in roster.present(0.0, 0)}
    assert "w0" not in names
    assert {f"w{HEARD_MAX}", f"w{HEARD_MAX - 1}"} <= names


def test_a_new_node_on_a_private_store_replaces_the_one_before(scheduler: Scheduler) -> None:
    hear(scheduler, asks("node_old", "echo"), asks("w1", "echo"))
    commit(scheduler)
    scheduler.apply(Beat("node_new", "h", 1, "1", 0, alone=True))
    assert list(stored(scheduler)) == ["w1"]


# -------------------------------------------------------------------- reading


def read(
    scheduler: Scheduler, presence: Presence | None, *, shared: bool
) -> dict[str, KnownWorker]:
    found = rosters.read(scheduler.reader, scheduler.clock.now(), presence, shared=shared)
    return {one.name: one for one in found}


@pytest.fixture
def seen(scheduler: Scheduler) -> Scheduler:
    """A node and a worker that were there a minute ago."""
    scheduler.apply(Beat(NODE, "host", 7, "1.2", scheduler.clock.now()))
    hear(scheduler, asks(NODE, "echo"), asks("w1", "sum"))
    commit(scheduler)
    scheduler.clock.advance(60 * SECOND)
    return scheduler


def test_another_node_judges_by_the_present(seen: Scheduler) -> None:
    found = read(seen, Presence("node_other", (), frozenset()), shared=True)
    assert {found[NODE].state, found["w1"].state} == {SILENT}
    assert found[NODE].address == "host:7"


def test_a_reader_of_a_private_store_judges_by_the_newest_entry(seen: Scheduler) -> None:
    found = read(seen, None, shared=False)
    assert {found[NODE].state, found["w1"].state} == {ONLINE}


def test_without_a_server_on_a_private_store_no_worker_is_there(seen: Scheduler) -> None:
    seen.apply(Beat(NODE, "h", 1, "1", 0, leaves=True))
    found = read(seen, None, shared=False)
    assert {found[NODE].state, found["w1"].state} == {SILENT}


def test_the_server_itself_knows_who_waits_and_what_it_runs(seen: Scheduler) -> None:
    heard = seen.engine.roster.present(seen.clock.monotonic(), seen.clock.now())
    presence = Presence(NODE, heard, frozenset({"w1"}), frozenset({"handler/new"}), draining=True)
    found = read(seen, presence, shared=False)
    assert (found["w1"].state, found["w1"].seen_at) == (ONLINE, seen.clock.now())
    assert (found[NODE].state, found[NODE].handlers) == ("draining", ["new"])
    assert next(iter(found)) == "node_1"  # by name, those that are there first
