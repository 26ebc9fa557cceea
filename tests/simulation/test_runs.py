"""Durable runs under faults: the rules hold for many histories, and planted bugs break them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlane.core import effects, leases
from fairlane.engine.verbs import leasing, steps, suspending
from fairlane.store.tables import suspensions as table
from tests.simulation.approvals_world import Violation
from tests.simulation.planting import Bed, always
from tests.simulation.runs_world import run, trace

pytestmark = pytest.mark.slow
BED = Bed()
plant = BED.plant


@pytest.mark.parametrize("seed", range(6))
def test_steps_are_recorded_once_and_waits_end_with_their_cause(seed: int) -> None:
    world = run(seed, 250)
    assert world.recorded, "a history in which nothing happens proves nothing"
    assert world.woken
    assert world.signals
    assert world.acted
    assert world.parked


def test_a_seed_gives_the_same_history() -> None:
    assert trace(3, 80) == trace(3, 80)


@plant("told")
def the_lease_has_no_steps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "of_tasks", lambda *_: {})


@plant("told", "once")
def the_steps_of_a_task_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leasing, "_has_inputs", always(False))


@plant("wakes", "recount")
def the_end_of_a_task_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(suspending, "arrive", always(False))


@plant("wakes")
def a_signal_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    real = suspending.wake

    def wake(tx: Any, task: Any, now: int, value: str | None = None) -> None:
        if value is None:
            real(tx, task, now)

    patch.setattr(suspending, "wake", wake)


@plant("recount")
def a_cancelled_task_keeps_its_wait(patch: pytest.MonkeyPatch) -> None:
    real = suspending.save

    def save(tx: Any) -> None:
        tx.left_waits = []
        real(tx)

    patch.setattr(suspending, "save", save)


@plant("slot", "recount", "slots")
def a_suspended_run_keeps_its_slot(patch: pytest.MonkeyPatch) -> None:
    real = leases.suspend

    def suspend(task: Any, token: int, now: int, **given: Any) -> Any:
        decision = real(task, token, now, **given)
        if decision.change is not None:
            decision.change.after.lease_expires_at = task.lease_expires_at
        return decision

    patch.setattr(leases, "suspend", suspend)


@plant("signal", "recount")
def a_later_signal_replaces_the_first(patch: pytest.MonkeyPatch) -> None:
    def save_signal(connection: Any, one: Any) -> None:
        connection.run_rows("signal_delete", [(one.seq,)])
        connection.run_rows("signal_insert", [(one.seq, one.name, one.value, one.at)])

    patch.setattr(table, "save_signal", save_signal)


@plant("acts")
def an_effect_of_an_earlier_run_counts_as_not_done(patch: pytest.MonkeyPatch) -> None:
    real = effects.state_of

    def state_of(intent: int | None, open_lease: int | None) -> str | None:
        found = real(intent, open_lease)
        return effects.NOT_DONE if found == effects.UNKNOWN else found

    patch.setattr(effects, "state_of", state_of)


@pytest.mark.parametrize(("bug", "rules", "seed"), BED.bugs)
def test_a_planted_bug_breaks_a_rule(
    bug: Callable[[pytest.MonkeyPatch], None],
    rules: tuple[str, ...],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bug(monkeypatch)
    caught = ""
    for number in range(seed, seed + 12):
        try:
            run(number, 200)
        except Violation as found:
            caught = str(found)
            break
        except AssertionError as found:  # the code noticed it itself
            caught = f"assertion {found}"
            break
    assert caught.partition(":")[0] in rules or caught.startswith("assertion "), caught
