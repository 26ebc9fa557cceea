"""Large families: the end of a parent reaches all of its children, a bounded part at a time."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, cast

import pytest

from fairlane.engine.commands import Prune, Submit
from fairlane.engine.verbs import dependencies, ticks
from tests.store.scheduler import submission

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.scheduler import Scheduler

CHAIN = 2000
CHILDREN = 5000
DAY_MS = 86_400_000


def chain(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


def submit_chain(scheduler: Scheduler, count: int) -> None:
    """In one request, the first with nobody before it."""
    names = chain(count)
    pairs = itertools.pairwise(names)
    others = [submission(name, depends_on=(parent,)) for parent, name in pairs]
    scheduler.ask(Submit([submission(names[0]), *others]))


def submit_children(scheduler: Scheduler, count: int, **fields: Any) -> list[str]:
    scheduler.submit("parent", priority=-1)
    names = [f"c{number}" for number in range(count)]
    items = [submission(name, depends_on=("parent",), **fields) for name in names]
    scheduler.ask(Submit(items))
    return names


def count(scheduler: Scheduler, state: str) -> int:
    rows = scheduler.reader.run("task_ids", limit=1_000_000, states=[state])
    return len(rows)


@pytest.fixture(autouse=True)
def roomy(scheduler: Scheduler) -> None:
    scheduler.set_lane(maxQueueSize=1_000_000)


# -------------------------------------------------------------------- in bounded steps


@pytest.mark.slow
def test_the_failure_at_the_head_of_a_long_chain_reaches_its_tail(scheduler: Scheduler) -> None:
    submit_chain(scheduler, CHAIN)
    scheduler.fail_next()
    assert count(scheduler, "cancelled") == dependencies.LEVELS_MAX
    steps = scheduler.settle()
    assert CHAIN // dependencies.LEVELS_MAX - 2 <= steps <= CHAIN // dependencies.LEVELS_MAX + 1
    assert count(scheduler, "cancelled") == CHAIN - 1
    assert scheduler.view(f"t{CHAIN - 1}").error == f"dependency t{CHAIN - 2} cancelled"
    assert scheduler.open_edges() == (0, 0)


@pytest.mark.slow
def test_the_failure_of_a_parent_of_thousands_reaches_all(scheduler: Scheduler) -> None:
    submit_children(scheduler, CHILDREN)
    scheduler.fail_next()
    assert count(scheduler, "cancelled") == dependencies.EDGES_MAX
    assert scheduler.settle() <= CHILDREN // dependencies.EDGES_MAX + 2
    assert count(scheduler, "cancelled") == CHILDREN
    assert scheduler.open_edges() == (0, 0)


@pytest.mark.slow
def test_a_parent_of_thousands_unblocks_all(scheduler: Scheduler) -> None:
    submit_children(scheduler, CHILDREN)
    scheduler.complete_next()
    assert scheduler.tally().ready == dependencies.EDGES_MAX
    scheduler.settle()
    assert (scheduler.tally().ready, count(scheduler, "waiting_dependency")) == (CHILDREN, 0)


class CountingConnection:
    """Counts the statements that an engine sends."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        if name in {"run", "run_rows", "change_rows"}:
            self.sent += 1
        return getattr(self._real, name)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "most"), [("chain", 600), ("children", 60)])
def test_a_step_sends_few_statements_however_large_the_family_is(
    scheduler: Scheduler, family: str, most: int
) -> None:
    """A level takes a handful, whether one child is on it or a thousand are."""
    if family == "chain":
        submit_chain(scheduler, 500)
    else:
        submit_children(scheduler, 3500)
    counting = CountingConnection(scheduler.engine._connect())
    scheduler.engine._connection = cast("Any", counting)
    scheduler.fail_next()
    for _ in range(3):
        counting.sent = 0
        scheduler.apply()
        assert 0 < counting.sent <= most
    scheduler.settle()


def test_children_are_taken_in_without_a_question_for_each(scheduler: Scheduler) -> None:
    submit_children(scheduler, 1)  # so that there are open edges
    counting = CountingConnection(scheduler.engine._connect())
    scheduler.engine._connection = cast("Any", counting)
    answers = scheduler.apply(
        *(Submit([submission(f"other {n}", depends_on=("parent",))]) for n in range(500))
    ).answers
    assert all(answer[0].state == "waiting_dependency" for answer in answers)
    assert counting.sent < 500 + 30  # the edges of each, and what the transaction needs


def test_the_engine_looks_again_at_once_while_something_is_left(scheduler: Scheduler) -> None:
    submit_chain(scheduler, 120)
    scheduler.fail_next()
    for _ in range(2):
        assert scheduler.unsettled() == 1
        assert scheduler.engine.due_at is not None
        assert scheduler.engine.due_at <= scheduler.clock.now()
        scheduler.apply()
    assert scheduler.unsettled() == 0


@pytest.mark.slow
def test_a_new_engine_goes_on_where_the_old_one_stopped(
    scheduler: Scheduler, new_scheduler: Callable[..., Scheduler]
) -> None:
    submit_chain(scheduler, 400)
    submit_children(scheduler, 1500)
    first, second = (grant.task for grant in scheduler.lease(2))
    scheduler.fail(first, retryable=False)
    scheduler.fail(second, retryable=False)
    assert scheduler.unsettled() > 0
    scheduler.close()
    heir = new_scheduler("heir", scheduler.clock)
    assert heir.settle() > 0
    assert count(heir, "cancelled") == 399 + 1500
    assert heir.open_edges() == (0, 0)


@pytest.mark.slow
def test_work_goes_on_while_a_family_is_settled(scheduler: Scheduler) -> None:
    submit_children(scheduler, 2500)
    scheduler.fail_next()
    scheduler.submit("meanwhile")
    assert scheduler.run_to_end() == ["meanwhile"]
    scheduler.settle()
    assert count(scheduler, "cancelled") == 2500


# -------------------------------------------------------------------- revived before all was told


@pytest.mark.slow
def test_a_parent_that_is_revived_before_all_were_cancelled_has_all_again(
    scheduler: Scheduler,
) -> None:
    names = submit_children(scheduler, 2500)
    scheduler.fail_next()
    assert count(scheduler, "cancelled") == dependencies.EDGES_MAX
    scheduler.retry("parent")
    scheduler.settle()
    assert count(scheduler, "waiting_dependency") == 2500
    assert scheduler.open_edges() == (2500, 2500)
    scheduler.complete_next()
    scheduler.settle()
    assert scheduler.tally().ready == len(names)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["done", "failed"])
def test_a_revived_parent_that_ends_before_all_were_mended(scheduler: Scheduler, end: str) -> None:
    submit_children(scheduler, 3500)
    scheduler.fail_next()
    scheduler.settle()
    scheduler.retry("parent")
    assert count(scheduler, "waiting_dependency") == dependencies.EDGES_MAX
    parent = scheduler.lease_one()
    assert count(scheduler, "cancelled") > 0
    if end == "done":
        scheduler.complete(parent)
    else:
        scheduler.fail(parent, retryable=False)
    scheduler.settle()
    assert count(scheduler, "waiting_dependency") == 0
    wanted = {"done": (3500, 0), "failed": (0, 3500)}[end]
    assert (scheduler.tally().ready, count(scheduler, "cancelled")) == wanted
    assert scheduler.open_edges() == (0, 0)


# -------------------------------------------------------------------- what is forgotten


def test_open_edges_are_forgotten_with_the_child(scheduler: Scheduler) -> None:
    scheduler.submit("child", depends_on=("nobody", "somebody"))
    scheduler.submit("other", depends_on=("nobody",))
    scheduler.cancel("child")
    assert scheduler.open_edges() == (3, 3)
    scheduler.pass_time(31 * DAY_MS)
    assert scheduler.find("child") is None
    assert scheduler.open_edges() == (1, 1)


@pytest.mark.parametrize("dry_run", [True, False])
def test_pruning_when_asked_keeps_the_edges_right(scheduler: Scheduler, *, dry_run: bool) -> None:
    scheduler.set_policy(retention={"resultTTLSec": 1})
    scheduler.submit("parent")
    scheduler.submit("child", "cousin", depends_on=("parent", "nobody"))
    scheduler.cancel("child")
    scheduler.complete_next()
    scheduler.clock.advance(900)
    assert scheduler.ask(Prune(dry_run)) == 0
    assert scheduler.open_edges() == (2, 2)
    scheduler.clock.advance(100)
    assert scheduler.ask(Prune(dry_run)) == 2
    assert scheduler.states("cousin") == ["waiting_dependency"]
    if not dry_run:
        assert scheduler.find("parent") is None
    assert scheduler.open_edges()[0] == scheduler.open_edges()[1]


def test_a_forgotten_parent_that_was_done_stays_met(scheduler: Scheduler) -> None:
    scheduler.submit("done", "other")
    scheduler.submit("child", depends_on=("done", "other"))
    scheduler.complete_next('"kept"')
    scheduler.pass_time(31 * DAY_MS)
    assert scheduler.find("done") is None
    scheduler.complete_next('"left"')
    (grant,) = scheduler.lease()
    assert (grant.task.id, grant.inputs) == ("child", (("other", "done", '"left"'),))


@pytest.mark.slow
def test_a_whole_family_is_forgotten_in_steps(scheduler: Scheduler) -> None:
    submit_children(scheduler, ticks.STEP + 200)
    scheduler.cancel("parent")
    scheduler.settle()
    scheduler.pass_time(31 * DAY_MS)
    assert count(scheduler, "cancelled") == 201
    scheduler.apply()
    assert count(scheduler, "cancelled") == 0
    assert scheduler.reader.run("event_list", after=0, until=2**60, limit=5) == []
    assert scheduler.open_edges() == (0, 0)
