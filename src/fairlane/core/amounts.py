"""Amounts of a resource: exact decimals with at most six places, kept as integer micro-units.

A caller writes a JSON number or a string; nothing is ever computed in floating point. `text` writes
the shortest decimal, which is what was given unless it had trailing zeros.
"""

from __future__ import annotations

import re
from typing import Final

MICRO: Final = 1_000_000
AMOUNT_MAX: Final = 10**12 * MICRO
BALANCE_MAX: Final = 4 * AMOUNT_MAX  # of an account; fits 64 bits together with any amount
_DECIMAL: Final = re.compile(r"(\d{1,13})(?:\.(\d{1,6}))?")
# How Python writes a small JSON number such as 0.00001.
_SMALL: Final = re.compile(r"(\d)(?:\.(\d+))?e-0?(\d{1,2})")

Written = int | float | str

WRONG: Final = "must be a decimal from 0 to 1000000000000 with at most 6 places"


def parse(value: object) -> int:
    """Return an amount in micro-units. Raise `ValueError` if it is not one."""
    text = value if isinstance(value, str) else _number_text(value)
    found = _DECIMAL.fullmatch(text)
    if found is None or not text.isascii():
        raise ValueError(WRONG)
    micro = int(found[1]) * MICRO + int((found[2] or "").ljust(6, "0"))
    if micro > AMOUNT_MAX:
        raise ValueError(WRONG)
    return micro


def _number_text(value: object) -> str:
    """Return a JSON number as a plain decimal: the shortest text that reads as the same number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    text = repr(value)
    if text.endswith(".0"):
        return text[:-2]
    small = _SMALL.fullmatch(text)
    if small is None:
        return text
    return "0." + "0" * (int(small[3]) - 1) + small[1] + (small[2] or "")


def text(micro: int) -> str:
    """Return an amount as a decimal, without trailing zeros."""
    sign, micro = ("-", -micro) if micro < 0 else ("", micro)
    whole, rest = divmod(micro, MICRO)
    places = f"{rest:06d}".rstrip("0")
    return f"{sign}{whole}.{places}" if places else f"{sign}{whole}"


def shown(micro: int) -> int | str:
    """Return an amount for JSON: a whole number, or a decimal as text."""
    return micro // MICRO if micro % MICRO == 0 else text(micro)
