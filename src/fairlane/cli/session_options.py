"""The options of the commands about sessions and lanes: sessions, message, stop, stopall, lanes."""

from __future__ import annotations

from typing import Final

from fairlane.cli.options import Commands, Parser, offer, paging, wait_option
from fairlane.cli.values import count, whole

# What a session, and a message for itself, may say.
_BEHAVIOUR: Final = ("mode", "cap", "drop", "debounce", "max-concurrent")


def fill(commands: Commands) -> None:
    add = commands.add
    add("message", "Say something in a session", _message)
    add("stop", "Stop the oldest run of a session; the rest goes on", _key)
    add("stopall", "Stop all runs of a session, and drop what waits", _key)
    commands.noun(
        "sessions",
        "Look at sessions, tune them, reset them",
        _sessions,
        "examples:\n"
        "  fairlane sessions                list them, as with sessions list\n"
        "  fairlane sessions chat:7         show one, as with sessions list chat:7\n"
        "  fairlane sessions set chat:7 --mode interrupt --max-concurrent 3",
    )
    commands.noun("lanes", "Look at lanes, pause them, resume them, empty them", _lanes)


def _sessions(sessions: Commands) -> None:
    sessions.add("list", "List sessions by key, or show the one with that key", _list)
    sessions.add("set", "Set how a session behaves, for good", _set)
    sessions.add("usage", "Tell how full the context window of a session is", _usage)
    sessions.add("reset", "Stop all runs, drop what waits, and begin a new generation", _key)


def _lanes(lanes: Commands) -> None:
    lanes.add("list", "List lanes: how full they are and who waits")
    lanes.add("pause", "Start nothing more in a lane; what runs goes on", _lane)
    lanes.add("resume", "Start work in a lane again", _lane)
    lanes.add("clear", "Cancel everything that is queued in a lane", _clear)


# -------------------------------------------------------------------- the commands


def _key(parser: Parser) -> None:
    parser.add_argument("key", metavar="KEY")


def _list(parser: Parser) -> None:
    parser.add_argument("key", metavar="KEY", nargs="?")
    paging(parser)


def _set(parser: Parser) -> None:
    _key(parser)
    offer(parser, *_BEHAVIOUR, "debounce-max")
    parser.add_argument(
        "--unset",
        metavar="NAME",
        action="append",
        default=[],
        help="leave it to the policy again: the name of one of these options; may be repeated",
    )


def _usage(parser: Parser) -> None:
    parser.epilog = "example:\n  fairlane sessions usage chat:7 120000 200000"
    _key(parser)
    parser.add_argument("tokens", metavar="TOKENS", type=whole)
    parser.add_argument(
        "window", metavar="WINDOW", type=count, help="the context window, in tokens"
    )


def _message(parser: Parser) -> None:
    parser.epilog = (
        "examples:\n"
        "  fairlane message chat:7 'What is new?' --sender ada --wait\n"
        "  fairlane message chat:7 /stopall"
    )
    _key(parser)
    parser.add_argument("text", metavar="TEXT", help="/stop and /stopall are commands")
    offer(parser, "sender", "agent")
    offer(parser, "handler", handler="runs it, instead of the agent for instructions")
    offer(parser, *_BEHAVIOUR, "no-merge", "sent-at", "lane", "priority", "timeout", "metadata")
    offer(parser, "callback-url", "idempotency-key")
    wait_option(parser)


def _lane(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME")


def _clear(parser: Parser) -> None:
    parser.epilog = "On a terminal it asks before it acts."
    _lane(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
