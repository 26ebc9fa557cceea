"""Approvals under faults: the rules hold for many histories, and planted bugs break them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fairlane.core import approvals, gates, leases
from fairlane.engine.verbs import approvals as verbs
from fairlane.store.transaction import Transaction
from tests.simulation.approvals_world import Violation, run
from tests.simulation.planting import Bed, always

pytestmark = pytest.mark.slow
BED = Bed()
plant = BED.plant


@pytest.mark.parametrize("seed", range(6))
def test_nothing_starts_without_a_decision_about_exactly_it(seed: int) -> None:
    world = run(seed, 200)
    states = {state for state, _ in world.decided.values()}
    assert "approved" in states, "a history in which nothing happens proves nothing"
    assert states & {"rejected", "expired"}


@plant("unapproved", "open", "recount")
def the_gate_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("fairlane.engine.verbs.dependencies.let_in", always(None))


@plant("covers")
def an_edited_request_is_approved(patch: pytest.MonkeyPatch) -> None:
    real = approvals.decide

    def decide(approval: Any, voter: Any, word: str, **given: Any) -> Any:
        given["given_hash"] = approvals.hash_of(approval, given["body"])
        return real(approval, voter, word, **given)

    patch.setattr(approvals, "decide", decide)


@plant("own")
def an_agent_approves_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(approvals, "may_decide", always(None))


@plant("final", "decision")
def a_decision_is_made_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(approvals, "_closed", always(None))


@plant("votes", "count", "final")
def one_person_counts_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(approvals, "_is_mine", always(False))
    patch.setattr(approvals, "_closed", always(None))


@plant("revoked")
def a_revoked_token_decides(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verbs, "_revoked", always(None))


@plant("recount")
def a_cancelled_task_keeps_its_question(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verbs, "close", lambda tx, _: tx.closing.clear())


@plant("expiry")
def nothing_expires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verbs, "expire", always(False))


@plant("unapproved", "recount", "decision")
def a_retry_does_not_ask_again(patch: pytest.MonkeyPatch) -> None:
    def ask_again(_tx: Transaction, task: Any, _now: int) -> None:
        task.unapproved = 0

    patch.setattr(verbs, "ask_again", ask_again)


@plant("slot", "recount")
def a_run_that_asks_keeps_its_slot(patch: pytest.MonkeyPatch) -> None:
    real = leases.suspend

    def suspend(task: Any, token: int, now: int) -> Any:
        decision = real(task, token, now)
        if decision.change is not None and decision.change.after.unapproved:
            decision.change.after.lease_expires_at = task.lease_expires_at
        return decision

    patch.setattr(leases, "suspend", suspend)


@plant("answers")
def answers_are_not_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verbs, "answers", lambda *_: {})


@plant("recount")
def the_turn_is_lost_by_asking(patch: pytest.MonkeyPatch) -> None:
    real = gates.holds_turn
    patch.setattr(gates, "holds_turn", lambda task: task.gate != "approval" and real(task))


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
            run(number, 150)
        except Violation as found:
            caught = str(found)
            break
        except AssertionError as found:  # the code noticed it itself
            caught = f"assertion {found}"
            break
    assert caught.partition(":")[0] in rules or caught.startswith("assertion "), caught
