"""The text of a traceback as it is stored: readable in a terminal and of bounded length."""

from __future__ import annotations

import re
from typing import Final

TRACEBACK_CHARACTERS_MAX: Final = 16_000

# Control characters except tab and newline, and characters that change the text direction.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_CUT: Final = "[...]\n"


def traceback_text(text: str | None) -> str | None:
    """Return a traceback without control characters. A long one loses its beginning: the line that
    raised is at the end. None if nothing is left.
    """
    if text is None:
        return None
    text = text.replace("\r\n", "\n").encode("utf-8", "replace").decode()
    text = _UNPRINTABLE.sub(" ", text).strip()
    if len(text) > TRACEBACK_CHARACTERS_MAX:
        text = _CUT + text[len(_CUT) - TRACEBACK_CHARACTERS_MAX :]
    return text or None
