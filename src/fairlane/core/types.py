"""The types of fields with their bounds, and their JSON names.

A name means the same in every request and document.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

DAY_MS: Final = 86_400_000
YEAR_MS: Final = 365 * DAY_MS
LIST_LIMIT_MAX: Final = 1000
URL_CHARACTERS_MAX: Final = 2048

# Python code says `agent`; the JSON name has always been `agentId`.
_LONGER: Final = {
    "agent": "agentId",
    "session": "sessionKey",
    "tab": "tabId",
    "batch": "batchId",
    "task": "taskId",
}

# `$` alone would accept a trailing line break; both regex dialects support a lookahead.
_END: Final = r"$(?!\n)"

IDENTIFIER: Final = r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,127}"
# May be the address of a chat: a phone number, a room, a path, a name with spaces.
SESSION_KEY: Final = r"[A-Za-z0-9_+!/]([A-Za-z0-9_.:@+!/ -]{0,126}[A-Za-z0-9_.:@+!/-])?"
WORD: Final = r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}"

Identifier = Annotated[str, Meta(pattern=rf"^{IDENTIFIER}{_END}")]
SessionKey = Annotated[
    str, Meta(pattern=rf"^{SESSION_KEY}{_END}", description="Key of the session")
]
Word = Annotated[str, Meta(pattern=rf"^{WORD}{_END}")]
# For fields whose empty text has always meant absent.
IdentifierOrEmpty = Annotated[str, Meta(pattern=rf"^({IDENTIFIER})?{_END}")]
WordOrEmpty = Annotated[str, Meta(pattern=rf"^({WORD})?{_END}")]
TabId = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_-]{{0,128}}{_END}")]
# A task id, or in a batch `#` and the key of another item.
Parent = Annotated[str, Meta(pattern=rf"^#?{IDENTIFIER}{_END}")]
# A resource of the policy, with its key after a slash if it has keys; a unit of one.
ResourceName = Annotated[
    str, Meta(pattern=rf"^[A-Za-z0-9_][A-Za-z0-9_.-]{{0,63}}(/{IDENTIFIER})?{_END}")
]
UnitName = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_][A-Za-z0-9_.-]{{0,31}}{_END}")]
Url = Annotated[str, Meta(max_length=URL_CHARACTERS_MAX)]
PageLimit = Annotated[int, Meta(ge=1, le=LIST_LIMIT_MAX, description="Maximum number of items")]
Cursor = Annotated[
    str,
    Meta(pattern=r"^[1-9][0-9]{0,17}" + _END, description="nextCursor of the previous page"),
]
Actor = Annotated[
    str,
    Meta(max_length=500, description="Author of the change, for human readers; one line of text"),
]
# The number of a row that only grows: an event, an audit entry, a version of the policy.
SequenceNumber = Annotated[int, Meta(ge=0, le=2**62)]
Note = Annotated[str, Meta(max_length=500)]
Moment = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


def json_name(name: str) -> str:
    """Return the JSON name of a Python name: `delay_ms` is `delayMs`, `agent` is `agentId`."""
    if name in _LONGER:
        return _LONGER[name]
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)
