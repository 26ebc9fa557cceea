from __future__ import annotations

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlane.cli.output import shortened, shown


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain", "plain"),
        ("grün", "grün"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[38;5;1mred", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\after", "after"),
        ("\x1b]0;never ended", ""),
        ("\x1bcreset", "reset"),
        ("\x1b\x1b[31m[31m", "[31m"),
        ("a\nb\r\nc\td", "a b  c d"),
        ("a\x00b\x07c\x7fd\x85e", "abcd e"),
        ("\u202egnp.exe", "gnp.exe"),
        ("\ud800", ""),
    ],
)
def test_only_what_can_be_seen_is_shown(text: str, seen: str) -> None:
    assert shown(text) == seen


def test_lines_stay_where_they_are_wanted() -> None:
    assert shown("a\r\nb\n", lines=True) == "a \nb\n"


@given(st.text())
@example("\x1b" * 3)
def test_nothing_that_moves_the_cursor_is_left(text: str) -> None:
    assert not [one for one in shown(text) if unicodedata.category(one) in {"Cc", "Cf", "Cs"}]


def test_a_long_text_ends_with_a_sign_that_there_is_more() -> None:
    assert [shortened("abcdef", n) for n in (6, 5)] == ["abcdef", "abcd…"]
