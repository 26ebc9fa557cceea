"""The tools about sessions: rows of the table."""

from __future__ import annotations

from typing import Final

from fairlane.mcp.calls import Calls
from fairlane.mcp.tool import Tool, read, write

_SESSION: Final = {"key": "sessionKey"}

SESSIONS: Final[tuple[Tool, ...]] = (
    read("sessions_list", Calls.sessions, "sessions list", "List sessions by key, one page."),
    read(
        "sessions_show",
        Calls.session,
        "sessions list",
        "Show a session: running and waiting tasks with their positions, and settings.",
        names=_SESSION,
        strangers=True,
    ),
    write(
        "sessions_message",
        Calls.message,
        "message",
        "submit",
        "Send a message to a session, for the agent or for a handler.",
        names={**_SESSION, "text": "message"},
        open_world=True,
    ),
    write(
        "sessions_withdraw",
        Calls.withdraw_message,
        "sessions withdraw",
        "cancel",
        "Withdraw a message that no run has taken yet.",
        names=_SESSION,
        destructive=True,
    ),
    write(
        "sessions_stop",
        Calls.stop_session,
        "stop",
        "cancel",
        "Cancel the oldest run of a session; its other tasks continue.",
        names=_SESSION,
        destructive=True,
    ),
    write(
        "sessions_stopall",
        Calls.stop_all,
        "stopall",
        "cancel",
        "Cancel all running and waiting tasks of a session.",
        names=_SESSION,
        destructive=True,
    ),
    write(
        "sessions_reset",
        Calls.reset_session,
        "sessions reset",
        "cancel",
        "Like sessions_stopall, and start a new generation of the session.",
        names=_SESSION,
        destructive=True,
    ),
    write(
        "sessions_set",
        Calls.set_session,
        "sessions set",
        "operate",
        "Change the settings of a session.",
        names=_SESSION,
        idempotent=True,
    ),
    write(
        "sessions_usage",
        Calls.set_usage,
        "sessions usage",
        "operate",
        "Report how full the context window of a session is.",
        names=_SESSION,
        idempotent=True,
    ),
)
