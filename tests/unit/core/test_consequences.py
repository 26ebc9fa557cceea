"""What follows from a change of a task."""

from __future__ import annotations

import pytest

from fairlane.core import consequences, dependencies, lifecycle
from fairlane.core.batches import Batch
from fairlane.core.consequences import Consequences, EdgeChange, Webhook
from fairlane.core.model import Change, Task

URL = "https://example.org/hook"


def task(
    state: str,
    *,
    id_: str = "tsk_1",
    attempts: int = 1,
    callback_url: str | None = None,
    lease_expires_at: int | None = None,
) -> Task:
    return Task(
        seq=7,
        id=id_,
        kind="handler",
        lane="main",
        agent="ada",
        capability="handler/x",
        line=1,
        priority=0,
        rank=0,
        state=state,
        gate=None,
        session=None,
        batch=None,
        attempts=attempts,
        max_attempts=3,
        position=1,
        created_at=0,
        callback_url=callback_url,
        lease_expires_at=lease_expires_at,
    )


def end(
    state: str = lifecycle.DONE, verb: str = lifecycle.COMPLETE, **fields: str | int | None
) -> Change:
    return Change(task(lifecycle.RUNNING), task(state, **fields), verb)  # type: ignore[arg-type]  # each field has its own type


def test_a_lease_has_no_consequences() -> None:
    change = Change(task(lifecycle.QUEUED), task(lifecycle.ASSIGNED), lifecycle.LEASE)
    assert consequences.of(change, awaited=True) is None


def test_an_end_wakes_waiters_and_nobody_else() -> None:
    assert consequences.of(end(), awaited=False) == Consequences(wakes_waiters=True)


def test_a_result_or_an_error_is_saved() -> None:
    done, failed = end(), end(lifecycle.FAILED, lifecycle.FAIL)
    done.result, failed.error = "1", "no"
    for change, outcome in ((done, ("1", None)), (failed, (None, "no"))):
        following = consequences.of(change, awaited=False)
        assert following is not None
        assert following.outcome == outcome


@pytest.mark.parametrize(
    ("attempts", "state", "outcome"),
    [
        (1, lifecycle.DONE, None),  # there was none before
        (2, lifecycle.DONE, (None, None)),
        (1, lifecycle.QUEUED, (None, None)),
    ],
)
def test_the_outcome_of_an_earlier_attempt_is_cleared(
    attempts: int, state: str, outcome: tuple[None, None] | None
) -> None:
    verb = lifecycle.COMPLETE if state == lifecycle.DONE else lifecycle.RESET
    following = consequences.of(end(state, verb, attempts=attempts), awaited=False)
    assert following is not None
    assert following.outcome == outcome


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (lifecycle.DONE, "task.completed"),
        (lifecycle.FAILED, "task.failed"),
        (lifecycle.CANCELLED, "task.cancelled"),
        (lifecycle.PARKED, "task.parked"),
    ],
)
def test_a_webhook_is_owed_for_an_end_and_for_a_park(state: str, event: str) -> None:
    following = consequences.of(end(state, "any", callback_url=URL), awaited=False)
    assert following is not None
    assert following.wakes_waiters
    assert following.webhook == Webhook("tsk_1", 7, URL, event, "ada")


def test_what_has_ended_ends_once() -> None:
    change = Change(task(lifecycle.CANCELLED), task(lifecycle.CANCELLED), lifecycle.CLOSE)
    assert consequences.of(change, awaited=True) == Consequences()


def test_edges_follow_an_end_if_any_task_waits_for_another() -> None:
    following = consequences.of(end(lifecycle.FAILED, lifecycle.FAIL), awaited=True)
    assert following is not None
    assert following.edges == EdgeChange(dependencies.OPEN, dependencies.BROKEN, lifecycle.FAILED)
    assert following.run_changes is False


def test_a_run_of_cron_follows_its_task() -> None:
    ended = consequences.of(end(id_="cron_1"), awaited=False)
    again = Change(
        task(lifecycle.FAILED, id_="cron_1"),
        task(lifecycle.QUEUED, id_="cron_1"),
        lifecycle.RETRY,
    )
    reopened = consequences.of(again, awaited=False)
    assert ended is not None
    assert reopened is not None
    assert (ended.run_changes, reopened.run_changes) == (True, True)
    assert reopened.edges == EdgeChange(dependencies.BROKEN, dependencies.OPEN, lifecycle.QUEUED)


def test_the_worker_stops_a_run_whose_task_has_ended_without_it() -> None:
    cancelled = end(lifecycle.CANCELLED, lifecycle.CANCEL, lease_expires_at=9)
    running = task(lifecycle.RUNNING, lease_expires_at=9)
    for change in (cancelled, Change(running, running, lifecycle.PREEMPT)):
        following = consequences.of(change, awaited=False)
        assert following is not None
        assert following.stops_run


@pytest.mark.parametrize("url", [None, URL])
def test_a_webhook_is_owed_for_the_end_of_a_batch(url: str | None) -> None:
    batch = Batch("bat_1", 3, "ada", None, 2, 0, url)
    owed = None if url is None else Webhook("bat_1", 3, URL, "batch.completed", "ada")
    assert consequences.of_batch_end(batch) == owed
