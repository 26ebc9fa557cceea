"""Logs: one line for one fact, whatever is in it, and no secret in any."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from fairlane import logs
from fairlane.core.secrets import Redactor

HOSTILE = "a\r\nb\x1b[31mc\u2028d\u202ee\u200bf\x00g\x9bh\ud800i\ufeff\U000e0041"
CANARY = "canary-4711-value"


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    logging.captureWarnings(capture=False)


def written(form: str, *message: Any, trace: BaseException | None = None) -> str:
    stream = io.StringIO()
    logs.begin("info", form, stream=stream)
    logging.getLogger("fairlane.test").warning(*message, exc_info=trace)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_hostile_text_is_one_harmless_line(form: str) -> None:
    line = written(form, "it said: %s", HOSTILE)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    assert line[:-1].isprintable()
    assert "it said: a" in line


def test_a_line_of_json_says_what_when_where_and_how_bad() -> None:
    shape = json.loads(written("json", "%d of %s", 3, "ten"))
    assert shape.pop("at").endswith("Z")
    assert shape == {"level": "warning", "logger": "fairlane.test", "message": "3 of ten"}


def test_a_line_of_text_begins_with_the_moment() -> None:
    assert written("text", "hello").split(" ", 1)[1] == "WARNING fairlane.test: hello\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_trace_belongs_to_its_line(form: str) -> None:
    try:
        raise RuntimeError(f"2026-01-01T00:00:00Z ERROR forged: {CANARY}\nforged")
    except RuntimeError as error:
        logs.hide([CANARY])
        text = written(form, "it broke", trace=error)
    assert "RuntimeError" in text
    assert CANARY not in text
    assert all(line.startswith("    ") for line in text.splitlines()[1:])
    if form == "json":
        assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Authorization: Bearer abcdefgh1234", "Authorization: Bearer ***"),
        ('{"apiKey": "abc", "n": 1}', '{"apiKey": "***", "n": 1}'),
        ("GET /x?token=abc&n=1", "GET /x?token=***&n=1"),
        ("password=hunter2; user=a", "password=***; user=a"),
        ("secret whsec_MfKQ9r8GKYqrTwjU", "secret ***"),
        ("postgresql://me:pass@host/db", "postgresql://***@host/db"),
        ("the key sk-abcdefgh1234 is wrong", "the key *** is wrong"),
        ("took back 3 leases of a node", "took back 3 leases of a node"),
    ],
)
def test_what_stands_behind_the_name_of_a_secret_is_hidden(text: str, told: str) -> None:
    assert logs.clean(text) == told


def test_secrets_in_use_are_hidden_as_long_as_they_are() -> None:
    with logs.hiding(Redactor([CANARY])):
        assert logs.clean(f"saw {CANARY}") == "saw ***"


def test_long_texts_are_cut_behind_the_secrets() -> None:
    with logs.hiding(Redactor([CANARY])):
        text = logs.clean("x" * (logs.MESSAGE_CHARACTERS_MAX - 3) + CANARY)
    assert len(text) < logs.MESSAGE_CHARACTERS_MAX + 40
    assert "can" not in text


def test_a_line_that_cannot_be_made_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    line = written("text", "%d apples", "no")
    assert "'%d apples' cannot be filled in: TypeError" in line
    assert not capsys.readouterr().err


def test_warnings_of_python_go_to_the_log() -> None:
    stream = io.StringIO()
    logs.begin("info", "json", stream=stream)
    logging.getLogger("py.warnings").warning("%s", f"{sys.version_info[0]}\n")
    assert json.loads(stream.getvalue())["message"] == "3\\n"
