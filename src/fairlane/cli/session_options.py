"""The options of the commands about sessions and lanes: sessions, message, stop, stopall, lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fairlane.cli.parser import (
    Parser,
    idempotency_key,
    paging,
    server_or_store,
    wait_option,
)
from fairlane.cli.values import count, json_object, milliseconds, priority, whole

Add = Callable[[str, str, Callable[[Parser], None]], None]

_MODES: Final = "queue, followup, interrupt or collect"


def fill(add: Add, commands: Any, leaves: dict[str, Parser]) -> None:
    add("message", "Say something in a session", _message)
    add("stop", "Stop the oldest run of a session; the rest goes on", _key)
    add("stopall", "Stop all runs of a session, and drop what waits", _key)
    about = "Look at sessions, tune them, reset them"
    _sessions(_parser(commands, "sessions", about), leaves)
    about = "Look at lanes, pause them, resume them, empty them"
    _lanes(_parser(commands, "lanes", about), leaves)


def _parser(commands: Any, name: str, about: str) -> Parser:
    parser: Parser = commands.add_parser(name, help=about, description=f"{about}.")
    return parser


def _group(parser: Parser, name: str, leaves: dict[str, Parser]) -> Add:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    leaves[name] = parser

    def add(verb: str, summary: str, options: Callable[[Parser], None]) -> None:
        leaf = verbs.add_parser(verb, help=summary, description=f"{summary}.")
        leaves[f"{name} {verb}"] = leaf
        options(leaf)

    return add


def _sessions(parser: Parser, leaves: dict[str, Parser]) -> None:
    parser.epilog = (
        "examples:\n"
        "  fairlane sessions                list them, as with sessions list\n"
        "  fairlane sessions chat:7         show one, as with sessions list chat:7\n"
        "  fairlane sessions set chat:7 --mode interrupt --max-concurrent 3"
    )
    add = _group(parser, "sessions", leaves)
    add("list", "List sessions by key, or show the one with that key", _list)
    add("set", "Set how a session behaves, for good", _set)
    add("usage", "Tell how full the context window of a session is", _usage)
    add("reset", "Stop all runs, drop what waits, and begin a new generation", _key)


def _lanes(parser: Parser, leaves: dict[str, Parser]) -> None:
    add = _group(parser, "lanes", leaves)
    add("list", "List lanes: how full they are and who waits", server_or_store)
    add("pause", "Start nothing more in a lane; what runs goes on", _lane)
    add("resume", "Start work in a lane again", _lane)
    add("clear", "Cancel everything that is queued in a lane", _clear)


# -------------------------------------------------------------------- the commands


def _key(parser: Parser) -> None:
    parser.add_argument("key", metavar="KEY")
    server_or_store(parser)


def _list(parser: Parser) -> None:
    parser.add_argument("key", metavar="KEY", nargs="?")
    paging(parser)
    server_or_store(parser)


def _set(parser: Parser) -> None:
    _behaviour(parser)
    parser.add_argument(
        "--debounce-max",
        metavar="MS",
        type=milliseconds,
        help="the longest that messages may go on growing",
    )
    parser.add_argument(
        "--unset",
        metavar="NAME",
        action="append",
        default=[],
        help="leave it to the policy again: the name of one of these options; may be repeated",
    )
    _key(parser)


def _behaviour(parser: Parser) -> None:
    """What a session, and a message for itself, may say."""
    parser.add_argument("--mode", metavar="MODE", help=_MODES)
    parser.add_argument("--cap", metavar="N", type=whole, help="how many may wait")
    parser.add_argument(
        "--drop", metavar="WHICH", help="when too many wait, the old one goes or the new one"
    )
    parser.add_argument(
        "--debounce",
        metavar="MS",
        type=milliseconds,
        help="how long a message waits to grow; or like 2s; 0 for not at all",
    )
    parser.add_argument(
        "--max-concurrent", metavar="N", type=count, help="how many run at once; it stays so"
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
    parser.add_argument("--sender", metavar="NAME", help="only messages of one sender are joined")
    parser.add_argument("--agent", metavar="ID", help="who asks; tasks are shared out fairly by it")
    parser.add_argument(
        "--handler", metavar="NAME", help="runs it, instead of the agent for instructions"
    )
    _behaviour(parser)
    parser.add_argument(
        "--no-merge", action="store_true", default=None, help="never joined to other messages"
    )
    parser.add_argument("--sent-at", metavar="WHEN", help="RFC 3339; too old ones are refused")
    parser.add_argument("--lane", metavar="NAME")
    parser.add_argument(
        "--priority", metavar="N", type=priority, help="or critical, high, normal, low"
    )
    parser.add_argument(
        "--timeout", metavar="MS", type=milliseconds, help="of each attempt; or like 30s"
    )
    parser.add_argument("--metadata", metavar="JSON", type=json_object, help="an object, kept")
    parser.add_argument("--callback-url", metavar="URL", help="is told when the task has ended")
    idempotency_key(parser)
    wait_option(parser)


def _lane(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME")
    server_or_store(parser)


def _clear(parser: Parser) -> None:
    parser.epilog = "On a terminal it asks before it acts."
    _lane(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
