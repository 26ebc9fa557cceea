"""Amounts: exact decimals, however they are written."""

from __future__ import annotations

import pytest

from fairlane.core import amounts


@pytest.mark.parametrize(
    ("written", "micro", "shown"),
    [
        (1, 1_000_000, 1),
        ("0.12", 120_000, "0.12"),
        (0.12, 120_000, "0.12"),
        (0.00001, 10, "0.00001"),
        (1.5e-06, None, None),
        (2e-06, 2, "0.000002"),
        (3000.0, 3_000_000_000, 3000),
        ("7.500000", 7_500_000, "7.5"),
        (10**12, 10**18, 10**12),
    ],
)
def test_an_amount_is_kept_to_the_micro_unit(
    written: object, micro: int | None, shown: object
) -> None:
    if micro is None:
        with pytest.raises(ValueError, match="decimal"):
            amounts.parse(written)
    else:
        assert amounts.parse(written) == micro
        assert amounts.shown(micro) == shown


@pytest.mark.parametrize(
    "written",
    [
        *(None, True, -1, -0.5, "-1", "", " 1", "1.", ".5", "1e3", "0.1234567", "\u0661", [1]),
        *(float("nan"), float("inf"), 10**12 + 1, "1000000000000.000001", 1e300),
    ],
)
def test_what_is_not_an_amount_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="must be a decimal from 0"):
        amounts.parse(written)


def test_a_negative_balance_is_written_with_its_sign() -> None:
    assert amounts.text(-1_500_000) == "-1.5"
    assert amounts.text(0) == "0"
