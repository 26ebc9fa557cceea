"""Events: every verb leaves the right one, in the order of the commits, and none without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fairlane.core import events
from fairlane.core.events import Attempt
from fairlane.engine.commands import (
    Ask,
    Cancel,
    Complete,
    CreateJobs,
    Fail,
    Release,
    Renew,
    RunJob,
    SetPolicy,
    Submit,
)
from fairlane.engine.reads.views import EventFilter, Views
from fairlane.engine.resource_commands import CloseResource, OpenResource, RaiseResource
from fairlane.engine.step_commands import Checkpoint, SendSignal
from tests.store.crontab import job_document
from tests.store.histories import play
from tests.store.scheduler import NODE, TTL_MS, WORK, Scheduler, lease_request, submission

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fairlane.core.events import Event
    from fairlane.store.base import Store

AT_ONCE = frozenset({WORK})


def ids(scheduler: Scheduler) -> list[int]:
    return [event.id for event in scheduler.events()]


@pytest.fixture
def views(store: Store) -> Iterator[Views]:
    found = Views(store)
    yield found
    found.close()


# -------------------------------------------------------------------- every verb


def test_a_life_from_its_submission_to_its_end(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    scheduler.clock.advance(5)
    task = scheduler.start(scheduler.lease_one())
    scheduler.clock.advance(5)
    scheduler.complete(task, '"result"')
    created, started, completed = scheduler.events("t")
    now = scheduler.clock.now()
    assert [event.type for event in (created, started, completed)] == [
        *("task.created", "task.started", "task.completed"),
    ]
    assert [event.at for event in (created, started, completed)] == [now - 10, now - 5, now]
    assert (created.attempt, started.attempt, completed.attempt) == (0, 1, 1)
    assert (created.state, started.state, completed.state) == ("queued", "running", "done")
    assert (started.worker, started.error, completed.error) == (NODE, None, None)
    assert {event.seq for event in (created, started, completed)} == {task.seq}


def test_a_worker_that_begins_at_once_leaves_the_same(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    scheduler.complete(scheduler.lease_one(started=AT_ONCE))
    assert scheduler.types("t") == ["created", "started", "completed"]


def test_a_lease_that_is_never_used_is_no_start(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    scheduler.release(scheduler.lease_one())
    scheduler.lease_one()
    scheduler.pass_time(15_000)
    assert scheduler.types("t") == ["created", "released", "released"]


def test_failures_are_reported_with_their_error(scheduler: Scheduler) -> None:
    scheduler.submit("t", max_attempts=2)
    scheduler.fail(scheduler.lease_one(started=AT_ONCE), "first")
    scheduler.pass_time(1000)
    scheduler.fail(scheduler.lease_one(started=AT_ONCE), "second")
    scheduler.reset("t")
    scheduler.fail(scheduler.lease_one(started=AT_ONCE), "third", retryable=False)
    scheduler.retry("t")
    scheduler.cancel("t")
    told = [(event.type.partition(".")[2], event.error) for event in scheduler.events("t")]
    assert told == [
        ("created", None),
        ("started", None),
        ("retrying", "first"),
        ("started", None),
        ("parked", "second"),
        ("requeued", None),
        ("started", None),
        ("failed", "third"),
        ("requeued", None),
        ("cancelled", None),
    ]


def test_changes_by_time_are_events(scheduler: Scheduler) -> None:
    now = scheduler.clock.now()
    scheduler.submit("late", deadline_at=now + 100)
    scheduler.submit("lost")
    scheduler.lease(2, started=AT_ONCE, ttl_ms=500)
    scheduler.pass_time(100)
    scheduler.pass_time(400)
    assert scheduler.types("late") == ["created", "started", "failed"]
    assert scheduler.events("late")[-1].error == "deadline exceeded while running"
    assert scheduler.types("lost") == ["created", "started", "retrying"]
    assert scheduler.events("lost")[-1].error == "worker stopped reporting: its lease expired"


def test_a_refused_submission_is_an_event(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=1)
    scheduler.try_submit("first", "second")
    (rejected,) = scheduler.events("second")
    assert (rejected.type, rejected.error) == ("task.rejected", "rejected: global queue full")


def test_dependencies_are_events(scheduler: Scheduler) -> None:
    scheduler.submit("a", "b")
    scheduler.submit("child", depends_on=("a", "b"))
    scheduler.submit("other", depends_on=("b",))
    scheduler.complete_next()
    assert scheduler.types("child") == ["created"]
    assert scheduler.events("child")[0].state == "waiting_dependency"
    scheduler.cancel("b")
    assert scheduler.types("child") == ["created", "cancelled"]
    assert scheduler.events("child")[-1].error == "dependency b cancelled"
    scheduler.retry("b")
    requeued = scheduler.events("child")[-1]
    assert (requeued.type, requeued.state) == ("task.requeued", "waiting_dependency")
    scheduler.complete_next()
    assert scheduler.types("other")[-1] == "unblocked"
    assert scheduler.events("other")[-1].state == "queued"


def test_gates_renewals_and_repeated_reports_leave_nothing(scheduler: Scheduler) -> None:
    scheduler.submit("a", session="s")
    scheduler.submit("b", session="s", delay_ms=10)
    task = scheduler.start(scheduler.lease_one())
    before = ids(scheduler)
    scheduler.pass_time(10)
    scheduler.renew(task)
    scheduler.start(task)
    assert ids(scheduler) == before
    scheduler.complete(task)
    scheduler.apply(
        Complete(task.seq, task.fencing_token), Fail(task.seq, task.fencing_token, "late")
    )
    assert len(ids(scheduler)) == len(before) + 1


def test_the_report_of_a_cancelled_run_leaves_nothing(scheduler: Scheduler) -> None:
    scheduler.submit("t")
    task = scheduler.lease_one(started=AT_ONCE)
    scheduler.cancel("t")
    scheduler.apply(Release(task.seq, task.fencing_token))
    assert scheduler.types("t") == ["created", "started", "cancelled"]


# -------------------------------------------------------------------- numbers


def test_numbers_have_no_gaps_and_follow_the_commits(scheduler: Scheduler) -> None:
    last = [outcome.last_event for outcome in play(scheduler)]
    assert last == sorted(last)
    found = ids(scheduler)
    assert found == list(range(1, last[-1] + 1))
    moments = [event.at for event in scheduler.events()]
    assert moments == sorted(moments)


def test_the_events_of_one_transaction_are_in_the_order_of_what_happened(
    scheduler: Scheduler,
) -> None:
    scheduler.submit("a", "b")
    held = scheduler.lease_one(started=AT_ONCE)
    scheduler.apply(
        Submit([submission("c")]),
        Cancel("b"),
        Complete(held.seq, held.fencing_token),
        waiting=[lease_request(started=AT_ONCE)],
    )
    told = [(event.seq, event.type.partition(".")[2]) for event in scheduler.events()][3:]
    assert [kind for _, kind in told] == ["completed", "cancelled", "created", "started"]


def test_two_engines_count_on_from_each_other(
    new_scheduler: Callable[..., Scheduler], store: Store
) -> None:
    one = new_scheduler("one")
    other = new_scheduler("other", one.clock)
    for number in range(4):
        (one if number % 2 else other).submit(f"t{number}")
    assert ids(one) == [1, 2, 3, 4]


def test_a_transaction_that_is_rolled_back_leaves_none(scheduler: Scheduler) -> None:
    scheduler.submit("taken")
    before = ids(scheduler)
    with pytest.raises(Exception, match=r"(?i)unique"):
        scheduler.apply(Submit([submission("new")]), Submit([submission("taken")]))
    assert ids(scheduler) == before
    scheduler.submit("after")
    assert ids(scheduler) == [*before, before[-1] + 1]


def test_a_batch_of_requests_that_changes_nothing_leaves_none(scheduler: Scheduler) -> None:
    outcome = scheduler.apply(SetPolicy({}, "test"), Cancel("nobody"))
    assert (outcome.last_event, ids(scheduler)) == (0, [])


def test_forgotten_tasks_take_their_events_with_them(scheduler: Scheduler) -> None:
    scheduler.submit("old")
    scheduler.complete_next()
    scheduler.submit("new")
    scheduler.pass_time(31 * 86_400_000)
    assert scheduler.types() == ["created"]
    scheduler.cancel("new")
    assert ids(scheduler) == [3, 4]


# -------------------------------------------------------------------- reading


def read(views: Views, after: int = 0, limit: int = 100, **wanted: Any) -> list[Event]:
    found = views.events(EventFilter(**wanted), after, 2**60, limit)
    return [one.event for one in found]


def test_events_can_be_read_page_by_page_and_by_what_they_are_about(
    scheduler: Scheduler, views: Views
) -> None:
    scheduler.batch(submission("a", "ada"), submission("b", "bob"), name="one")
    scheduler.submit("c", agent="ada", kind="action")
    scheduler.complete(scheduler.lease_one(started=AT_ONCE, lanes=("main",)), '"kept"')
    everything = read(views)
    assert [event.id for event in everything] == [1, 2, 3, 4, 5]
    assert views.last_event() == 5
    assert read(views, after=2, limit=2) == everything[2:4]
    assert read(views, task="a") + read(views, task="b") != []
    assert {event.type for event in read(views, types=["task.completed"])} == {"task.completed"}
    assert len(read(views, agent="ada")) + len(read(views, agent="bob")) == 5
    assert len(read(views, lane="browser")) == 1
    assert len(read(views, batch="one")) == 4
    assert read(views, agent="ada", lane="browser", types=["task.created"]) == [everything[2]]
    assert read(views, agent="bob", lane="browser") == []


def test_a_view_of_an_event_brings_what_its_task_says(scheduler: Scheduler, views: Views) -> None:
    scheduler.batch(submission("a", "ada"), name="one")
    scheduler.complete_next('"kept"')
    created, completed, over = views.events(EventFilter(), 0, 2**60, 10)
    assert (created.task_id, created.agent, created.lane, created.batch, created.result) == (
        *("a", "ada", "main", "one"),
        None,
    )
    assert completed.result == '"kept"'
    assert (over.task_id, over.agent, over.event.batch, over.event.state) == (
        *(None, None),
        *("one", "completed"),
    )


# -------------------------------------------------------------------- attempts


def log_of(views: Views, name: str) -> list[Attempt]:
    found = views.task(name)
    assert found is not None
    return list(found.log)


def test_the_attempts_of_a_task_are_read_from_its_events(
    scheduler: Scheduler, views: Views
) -> None:
    start = scheduler.clock.now()
    scheduler.submit("t")
    assert log_of(views, "t") == []
    scheduler.fail(scheduler.lease_one(started=AT_ONCE, worker="w1"), "no luck")
    scheduler.pass_time(1000)
    scheduler.release(scheduler.lease_one(started=AT_ONCE, worker="w2"))
    last = scheduler.lease_one(started=AT_ONCE, worker="w3")
    assert log_of(views, "t") == [
        Attempt(1, start, "w1", start, "retrying", "no luck"),
        Attempt(2, start + 1000, "w2", start + 1000, "released", None),
        Attempt(2, start + 1000, "w3"),
    ]
    scheduler.clock.advance(50)
    scheduler.complete(last)
    assert log_of(views, "t")[-1] == Attempt(2, start + 1000, "w3", start + 1050, "completed", None)


def test_the_log_goes_on_when_a_task_begins_again(scheduler: Scheduler, views: Views) -> None:
    scheduler.submit("t", max_attempts=1)
    scheduler.fail(scheduler.lease_one(started=AT_ONCE))
    scheduler.reset("t")
    scheduler.complete(scheduler.lease_one(started=AT_ONCE))
    assert [(one.attempt, one.outcome) for one in log_of(views, "t")] == [
        (1, "parked"),
        (1, "completed"),
    ]


def test_every_type_that_exists_has_been_seen_here(scheduler: Scheduler) -> None:
    """A type that no history leaves behind would be a promise that nobody keeps."""
    scheduler.set_lane(maxQueueSize=3)
    scheduler.batch(submission("a", max_attempts=1))
    scheduler.fail(scheduler.lease_one(started=AT_ONCE))
    scheduler.reset("a")
    scheduler.submit("child", depends_on=("a",))
    leased = scheduler.lease_one()
    scheduler.ask(Renew(leased.seq, leased.fencing_token, TTL_MS, "50"))
    scheduler.ask(Checkpoint(leased.seq, leased.fencing_token, "fetch", "1"))
    scheduler.ask(SendSignal(leased.id, "go", "1"))
    scheduler.release(leased)
    scheduler.complete_next()
    scheduler.fail(scheduler.lease_one())
    scheduler.submit("b", "c")
    scheduler.try_submit("too much")
    scheduler.cancel("b")
    scheduler.fail_next()
    scheduler.ask(CreateJobs(["job_report"], [job_document("report")]))
    scheduler.ask(RunJob("job_report"))
    _use_resources(scheduler)
    # Approvals have histories of their own in test_approvals.
    apart = {name for name in events.TYPES if name.startswith("approval.")}
    assert {event.type for event in scheduler.events()} - apart == set(events.TYPES) - apart


def _use_resources(scheduler: Scheduler) -> None:
    """Warn, raise, close and open; then ask in the middle of the run."""
    limits = [{"unit": "usd", "amount": 1, "resetEvery": "day"}]
    change = {"resources": {"spend": {"limits": limits, "warnAt": 0.5}}}
    scheduler.ask(SetPolicy(change, "patch", how="patch"))
    scheduler.submit("costly", needs={"spend": {"usd": 1}})
    task = scheduler.lease_one(started=AT_ONCE)
    scheduler.ask(RaiseResource("spend", "usd", 1_000_000))
    scheduler.ask(CloseResource("spend"))
    scheduler.ask(OpenResource("spend"))
    scheduler.ask(Ask(task.seq, task.fencing_token, "q", '{"title": "Go on?"}'))
