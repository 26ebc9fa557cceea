"""The wording of a failed run, and whether another attempt could succeed.

The rule: agents and people read a task's error, so it is one line of at most 2 KiB without control
characters, and reveals nothing about our network (no ports, no addresses).
"""

from __future__ import annotations

import os
import re
import ssl
import traceback
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from fairlane.core.errors import ExecutionFailed
from fairlane.core.traceback_text import traceback_text
from fairlane.http1.messages import ConnectionClosed, NameNotFound, ResponseCutShort

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

_PACKAGE: Final = str(Path(__file__).parents[2]) + os.sep
TEXT_BYTES_MAX: Final = 2048
RETRY_AFTER_MS_MAX: Final = 24 * 3_600_000

# Control characters, line separators and characters that change the text direction.
_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_TRANSIENT: Final = frozenset({408, 425, 429})


def one_line(text: str | bytes) -> str:
    """Return `text` on one line, cut at 2 KiB on a character boundary."""
    if isinstance(text, bytes):
        # A character is four bytes at most, so one cut in half here lies beyond the final cut.
        text = text[: TEXT_BYTES_MAX + 4].decode("utf-8", "replace")
    printable = _UNPRINTABLE.sub(" ", text[:TEXT_BYTES_MAX])
    return printable.encode("utf-8", "replace")[:TEXT_BYTES_MAX].decode("utf-8", "ignore").strip()


def from_exception(error: BaseException) -> ExecutionFailed:
    """Return a handler's exception as the failure of its task, with the traceback."""
    name, text = type(error).__name__, str(error)
    return ExecutionFailed(
        one_line(f"{name}: {text}" if text else name), traceback=_traceback(error)
    )


def _traceback(error: BaseException) -> str | None:
    """Return the traceback from the first frame outside of this package."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.tb_next
    try:
        lines = traceback.format_exception(type(error), error, frame or error.__traceback__)
    except Exception:  # noqa: BLE001 - the exception's own code may fail while it is formatted
        return None
    return traceback_text("".join(lines))


def transport_cause(error: BaseException, server: str = "instance") -> str:
    """Return why an exchange broke, in our own words: a library's message may name hosts."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, NameNotFound):
        return f"the {server}'s name could not be resolved"
    if isinstance(error, ssl.SSLError):
        return "no trusted TLS connection"
    if isinstance(error, ConnectionClosed):
        return "the connection was closed before a response arrived"
    if isinstance(error, ResponseCutShort):
        return "the response was cut off"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return "no connection"


def is_transient(status: int) -> bool:
    """Return whether the same request may succeed later."""
    return status >= 500 or status in _TRANSIENT


def retry_after_ms(headers: Mapping[str, str]) -> int | None:
    """Return the wait that a response asks for, at most a day; None if it names none."""
    value = header(headers, "Retry-After")
    if value is None:
        return None
    seconds = float(value) if re.fullmatch(r"[0-9]{1,12}", value) else _until(value, headers)
    return None if seconds is None else min(max(round(seconds * 1000), 0), RETRY_AFTER_MS_MAX)


def _until(value: str, headers: Mapping[str, str]) -> float | None:
    """Return the seconds until a date, by the clock of its author: the Date header."""
    then, now = _date(value), _date(header(headers, "Date"))
    return None if then is None or now is None else (then - now).total_seconds()


def _date(value: str | None) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value or "")
    except (ValueError, OverflowError):  # the second one is for a year with very many digits
        return None
    # "-0000" gives a time without a zone, which cannot be compared with one that has it.
    return moment if moment.tzinfo else None


def header(headers: Mapping[str, str], name: str) -> str | None:
    """Return a header, ignoring case; a sender may return a plain dict."""
    wanted = name.lower()
    return next((value.strip() for key, value in headers.items() if key.lower() == wanted), None)
