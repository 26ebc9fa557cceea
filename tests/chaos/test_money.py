"""The ledger checks find planted errors; the short form of the scenario runs on real nodes."""

from __future__ import annotations

from decimal import Decimal

from tests.chaos.money import Account, Entry, chain_problems, overshoot, wrong_tasks

ONE = Decimal(1)


def entry(kind: str, amount: str, balance: str, task: str = "t") -> Entry:
    return Entry(kind, Decimal(amount), Decimal(balance), task)


GOOD = [
    entry("reserve", "1.5", "1.5"),
    entry("refund", "-0.499999", "1.000001"),
    entry("reserve", "0.999999", "2", "u"),
    entry("debt", "0.1", "2.1", "u"),
]


def test_a_ledger_that_sums_has_no_problems() -> None:
    assert chain_problems(GOOD) == []
    assert overshoot(GOOD, Decimal(2)) == 0


def test_a_lost_micro_unit_is_found() -> None:
    (problem,) = chain_problems([*GOOD[:2], entry("reserve", "0.999999", "1.999999", "u")])
    assert "the balance is 1.999999, not 2.000000" in problem


def test_a_reservation_beyond_the_limit_is_found_and_debt_is_not() -> None:
    assert overshoot(GOOD, Decimal("1.9")) == Decimal("0.1")
    assert overshoot([*GOOD, entry("reserve", "0.000001", "2.100001")], Decimal(2)) == Decimal(
        "0.000001"
    )


def test_a_raise_makes_room() -> None:
    raised = [entry("raise", "1", "0"), entry("reserve", "3", "3")]
    assert overshoot(raised, Decimal(2)) == 0


def test_a_task_charged_otherwise_than_acknowledged_is_found() -> None:
    account = Account()
    account.charged = {"t": Decimal("1.000001"), "u": ONE, "v": ONE}
    account.maybe = {"v"}
    assert wrong_tasks(GOOD, account) == ["task u is charged 1.099999, acknowledged was 1"]
