"""Logs as text or JSON: one line per fact, without secrets, and impossible to forge.

Error messages bring text from other programs into the log, so every line passes through here. Known
secrets are removed by value, others by the word before them (`token=…`). Characters that end a
line, move the cursor or change the writing direction are escaped, and long texts are cut.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, TextIO

from fairlane.core.secrets import MASK, Redactor

MESSAGE_CHARACTERS_MAX: Final = 4096
TRACE_CHARACTERS_MAX: Final = 16_384

# C0 and C1, line separators, invisible and bidirectional characters, lone surrogates, tags.
_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_NAMED: Final = re.compile(
    r"((?:authorization|api[-_]?key|access[-_]?key(?:[-_]?id)?|secret(?:[-_]?access[-_]?key)?|"
    r"(?:session[-_]?|access[-_]?|auth[-_]?)?token|password|passwd|cookie)"
    r"[\"']?\s*[:=]\s*(?:[bu](?=[\"']))?[\"']?(?:bearer\s+|basic\s+)?)([^\s\"',;&}\])]+)",
    re.IGNORECASE,
)
_KNOWN_FORMS: Final = re.compile(
    r"\b(?:whsec_|whsk_|fl_[A-Za-z0-9]+_|sk-|sealed:1:)[A-Za-z0-9_+/=:.-]{8,}"
    r"|(?<=://)[^\s/@:]*:[^\s/@]+(?=@)"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}"
)

_inuse: dict[int, Redactor] = {}
_lock = threading.Lock()


def hide(secrets: Iterable[str]) -> None:
    """Keep these secrets out of all logs from now on."""
    redactor = Redactor(secrets)
    with _lock:
        _inuse[id(redactor)] = redactor


@contextlib.contextmanager
def hiding(redactor: Redactor) -> Iterator[None]:
    """Keep these secrets out of all logs inside the block."""
    with _lock:
        _inuse[id(redactor)] = redactor
    try:
        yield
    finally:
        with _lock:
            _inuse.pop(id(redactor), None)


def clean(text: str, limit: int = MESSAGE_CHARACTERS_MAX) -> str:
    """Return the text on one line, without secrets and control characters."""
    return _escaped(_cut(without_secrets(text), limit))


def without_secrets(text: str) -> str:
    with _lock:
        redactors = tuple(_inuse.values())
    for redactor in redactors:
        text = redactor.hide(text)
    text = _NAMED.sub(rf"\1{MASK}", text)
    return _KNOWN_FORMS.sub(MASK, text)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def _escaped(text: str) -> str:
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(lambda found: _spelled(found[0]), text)


def _spelled(one: str) -> str:
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(one)
    return short or one.encode("unicode_escape", "surrogatepass").decode()


class TextFormatter(logging.Formatter):
    """Format `2026-01-02T03:04:05.678Z WARNING fairlane.node: …`; further lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_moment(record)} {record.levelname} {clean(record.name)}: {_message(record)}"
        trace = _trace(self, record)
        return "\n    ".join([line, *(_escaped(part) for part in trace.split("\n") if part)])


class JsonFormatter(logging.Formatter):
    """Format one JSON object per line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        shape = {
            "at": _moment(record),
            "level": record.levelname.lower(),
            "logger": clean(record.name),
            "message": _message(record),
            "trace": _trace(self, record),
        }
        return json.dumps({name: value for name, value in shape.items() if value})


def _moment(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return clean(record.getMessage())
    except Exception as error:  # noqa: BLE001 - a log line that cannot be made is no reason to stop
        return clean(f"{record.msg!r} cannot be filled in: {type(error).__name__}")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info else []
    parts += [formatter.formatStack(record.stack_info)] if record.stack_info else []
    # Remove secrets before cutting: half of one would not be found.
    return _cut(without_secrets("\n".join(parts)), TRACE_CHARACTERS_MAX)


def begin(level: str, form: str = "text", *, stream: TextIO | None = None) -> None:
    """Set up the log of this process."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    for other in root.handlers[:]:
        root.removeHandler(other)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    for library in ("asyncio", "mcp"):
        logging.getLogger(library).setLevel(max(logging.WARNING, root.level))
    # It warns of every connection that breaks off; we log that once.
    logging.getLogger("psycopg").setLevel(max(logging.ERROR, root.level))
