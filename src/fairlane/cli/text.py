"""Text for a terminal: what others wrote is shown without the power to move the cursor."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# Whole sequences first (colours, titles, links), so that no harmless-looking rest of them is left.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)"
    r"|\x1b[ -/]*[0-~]?"
)
# Control, format (also what turns the direction of writing), surrogate.
_UNSHOWN: Final = frozenset({"Cc", "Cf", "Cs"})


def shown(text: str, *, lines: bool = False) -> str:
    """`text` as it may be printed: one line, or several when `lines` says so."""
    text = _ESCAPES.sub("", text)
    if text.isascii() and text.isprintable():
        return text
    kept = (_character(one, lines=lines) for one in text)
    return "".join(kept)


def _character(one: str, *, lines: bool) -> str:
    if one == "\n" and lines:
        return one
    if one in "\n\r\t\v\f\u2028\u2029\x85":
        return " "
    return "" if unicodedata.category(one) in _UNSHOWN else one


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
