"""Who changes something, for the record that people read."""

from __future__ import annotations

from fairlane.core.access import Caller


def actor(caller: Caller, named: str | None) -> str | None:
    """Return the name of the caller's token; without a token, the name that the caller gives."""
    if caller.token is not None:
        return caller.name
    return (named or "").strip() or None
