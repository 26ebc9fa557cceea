"""Name the author of a change, for logs that operators read."""

from __future__ import annotations

from typing import Final

from fairlane.core.access import Caller
from fairlane.core.errors import InvalidRequest

LINE_CHARACTERS_MAX: Final = 500


def actor(caller: Caller, named: str | None) -> str | None:
    """Return the name of the caller's token; without a token, the name that the caller gave."""
    if caller.token is not None:
        return caller.name
    return one_line("the header X-Fairlane-Actor", named)


def one_line(what: str, text: str | None) -> str | None:
    """Return a line of text, or None if it is empty. Raise `InvalidRequest` if it is not one line.

    `what` names the text in the error.
    """
    if not text or not text.strip():
        return None
    if len(text) > LINE_CHARACTERS_MAX or not text.isprintable():
        raise InvalidRequest(f"{what} must be one line of at most {LINE_CHARACTERS_MAX} characters")
    return text.strip()
