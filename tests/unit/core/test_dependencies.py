"""Dependencies: waiting tasks, the effect of a parent's end, and the order of names."""

from __future__ import annotations

import pytest

from fairlane.core import dependencies, lifecycle
from fairlane.core.dependencies import BROKEN, MET
from fairlane.core.errors import InvalidRequest
from tests.unit.core import rows
from tests.unit.core.rows import NOW


def test_a_task_with_open_dependencies_waits_for_them() -> None:
    task = rows.queued()
    dependencies.block(task, 2)
    assert (task.state, task.gate, task.unmet) == ("waiting_dependency", "dependency", 2)


def test_a_task_whose_dependencies_are_all_done_does_not_wait() -> None:
    task = rows.queued()
    dependencies.block(task, 0)
    assert (task.state, task.gate, task.unmet, task.ready) == ("queued", None, 0, True)


def test_each_parent_that_is_done_is_one_less_to_wait_for() -> None:
    task = rows.waiting(unmet=2)
    after = dependencies.met(task)
    assert (after.unmet, after.state, task.unmet) == (1, "waiting_dependency", 2)


def test_a_task_that_never_waited_has_nothing_to_be_met() -> None:
    with pytest.raises(AssertionError):
        dependencies.met(rows.queued())


def test_the_child_of_a_parent_that_failed_is_cancelled_with_the_reason() -> None:
    task = rows.waiting(eligible_at=NOW + 9)
    change = dependencies.orphan(task, "tsk_0", "failed", NOW)
    after = change.after
    assert (change.before, change.verb, change.error) == (
        task,
        "cancel",
        "dependency tsk_0 failed",
    )
    assert (after.state, after.completed_at, after.unmet) == ("cancelled", NOW, -1)
    assert (after.gate, after.eligible_at, after.started_at) == (None, None, None)
    assert task.state == "waiting_dependency"


def test_only_done_meets_an_edge_and_every_end_does_something_to_it() -> None:
    assert dependencies.EDGE_AFTER.keys() == lifecycle.TERMINAL
    met = [state for state, edge in dependencies.EDGE_AFTER.items() if edge == MET]
    assert met == ["done"]
    assert set(dependencies.EDGE_AFTER.values()) == {MET, BROKEN}


def test_what_is_in_order_stays_as_it_is() -> None:
    assert dependencies.in_order({"c": [], "a": ["c"], "b": ["c", "a"]}) == ["c", "a", "b"]
    assert dependencies.in_order({}) == []


def test_parents_come_before_their_children() -> None:
    assert dependencies.in_order({"a": ["b"], "b": ["c"], "c": []}) == ["c", "b", "a"]


def test_parents_from_elsewhere_do_not_matter() -> None:
    assert dependencies.in_order({"a": ["x", "y"], "b": ["a", "x"]}) == ["a", "b"]
    assert dependencies.in_order({"a": ["b", "x"], "b": ["y"]}) == ["b", "a"]


@pytest.mark.parametrize(
    ("parents", "cycles"),
    [
        ({"a": ["a"]}, ["a -> a"]),
        ({"a": ["b"], "b": ["a"]}, ["a -> b -> a", "b -> a -> b"]),
        ({"a": [], "b": ["a", "b"]}, ["b -> b"]),
    ],
)
def test_a_cycle_is_refused_and_shown(parents: dict[str, list[str]], cycles: list[str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        dependencies.in_order(parents)
    assert refused.value.message in [f"field 'dependsOn' forms a cycle: {one}" for one in cycles]


def test_of_a_long_cycle_the_beginning_is_shown() -> None:
    names = [f"t{number}" for number in range(50)]
    message = dependencies.cycle_error([*names, "t0"]).message
    assert message.endswith("t18 -> t19 -> ...")
    assert message.count(" -> ") == dependencies.CYCLE_SHOWN_MAX
    short = dependencies.cycle_error([*names[:19], "t0"]).message
    assert short.endswith("t18 -> t0")
