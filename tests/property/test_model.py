"""Lease ids: what was made is read back, and nothing else is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.model import lease_id, parse_lease_id
from tests.property.histories import BOUNDED

numbers = st.integers(0, 10**18 - 1)
almost = st.from_regex(r"(lse|ls|tsk)?_?[0-9 +-]{0,20}_?[0-9٣]{0,20}_?", fullmatch=True)


@BOUNDED
@given(numbers, numbers)
def test_a_lease_id_is_read_back(seq: int, token: int) -> None:
    assert parse_lease_id(lease_id(seq, token)) == (seq, token)


@BOUNDED
@given(numbers, numbers, numbers, numbers)
def test_different_leases_have_different_ids(a: int, b: int, c: int, d: int) -> None:
    assert (lease_id(a, b) == lease_id(c, d)) == ((a, b) == (c, d))


@BOUNDED
@given(st.text() | almost)
def test_any_text_is_a_lease_id_of_small_numbers_or_nothing(text: str) -> None:
    parsed = parse_lease_id(text)
    if parsed is None:
        return
    words = text.split("_")
    assert words[0] == "lse"
    assert [int(word) for word in words[1:]] == list(parsed)
    assert all(0 <= number < 10**18 for number in parsed)
    assert text.isascii()
