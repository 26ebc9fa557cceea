"""The text of tracebacks as it is stored."""

from __future__ import annotations

import pytest

from fairlane.core.traceback_text import TRACEBACK_CHARACTERS_MAX, traceback_text


@pytest.mark.parametrize("nothing", [None, "", " \n\t", "\x00\x1b"])
def test_an_empty_traceback_is_none(nothing: str | None) -> None:
    assert traceback_text(nothing) is None


def test_lines_and_tabs_stay_and_control_characters_go() -> None:
    text = traceback_text("one\r\n\ttwo\x1b[31m \u202ethree\ud800\n")
    assert text == "one\n\ttwo [31m  three?"


def test_a_long_traceback_keeps_its_end() -> None:
    text = traceback_text("a" * TRACEBACK_CHARACTERS_MAX + "\nValueError: the cause")
    assert text is not None
    assert len(text) == TRACEBACK_CHARACTERS_MAX
    assert text.startswith("[...]\naaa")
    assert text.endswith("\nValueError: the cause")
