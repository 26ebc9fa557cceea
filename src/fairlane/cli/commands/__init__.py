"""The table of commands, and the parser that selects one of them.

Each module of this package covers one noun: its options, what its commands do, what they print. A
module is imported when one of its commands is named, so `fairlane --help` needs argparse only.
Importing and building all of them would take another 180 ms.
"""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from importlib import import_module
from typing import Any, Final, NoReturn

from fairlane.version import __version__


class Exit(IntEnum):
    """The exit codes. Scripts rely on the numbers, so their meaning never changes."""

    OK = 0
    NOT_WELL = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNREACHABLE = 5
    SET_UP = 6
    DEFECT = 70
    TIME_IS_UP = 124
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS: Final[Mapping[Exit, str]] = {
    Exit.OK: "success",
    Exit.NOT_WELL: "a task you waited for did not end in state done, "
    "or doctor or attention --check found a problem",
    Exit.USAGE: "invalid command, option or value",
    Exit.NOT_FOUND: "the task, batch, template, cron job, session or lane does not exist",
    Exit.REFUSED: (
        "refused: a queue is full, access is denied, the server is stopping, "
        "or the state does not allow it"
    ),
    Exit.UNREACHABLE: "the server or the store did not respond",
    Exit.SET_UP: "configuration error: an operator must fix it",
    Exit.DEFECT: "a bug in fairlane, either in this program or in the server",
    Exit.TIME_IS_UP: "timeout while waiting",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
    Exit.PIPE_CLOSED: "the reader of the output closed the pipe",
}
ABOUT: Final = "A fair, durable task scheduler for fleets of AI agents."
# Each command with its module and its summary, in the order of `fairlane --help`.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "serve": ("serve", "Run the server until it receives a signal"),
    "submit": ("tasks", "Submit a task, or a file of tasks"),
    "tasks": ("task_lists", "List, count and search tasks"),
    "show": ("tasks", "Show a task"),
    "why": ("tasks", "Explain why a task is not running yet"),
    "wait": ("tasks", "Wait until tasks have finished"),
    "cancel": ("task_lists", "Cancel tasks, by ID or by filter"),
    "retry": ("task_lists", "Queue failed or cancelled tasks again, with a full set of attempts"),
    "reset": ("task_lists", "Queue parked tasks again, with a full set of attempts"),
    "failures": ("task_lists", "List failed and parked tasks by error, the most frequent first"),
    "signal": ("tasks", "Send a value to a run that waits for it"),
    "effect": ("tasks", "Record whether an effect with an unknown outcome happened"),
    "approvals": ("approvals", "List and show approvals; create one-time approval links"),
    "approve": ("approvals", "Approve a request; on a terminal, prompt for the fields of its form"),
    "reject": ("approvals", "Reject approval requests"),
    "batch": ("groups", "Submit, show, list and cancel batches of tasks"),
    "events": ("events", "Print the newest events, or new ones as they happen with --follow"),
    "output": ("tasks", "Print the text that a task has produced"),
    "prune": ("task_lists", "Delete finished tasks whose retention time has passed"),
    "message": ("groups", "Send a message to a session"),
    "stop": ("groups", "Stop the oldest run of a session; the others continue"),
    "stopall": ("groups", "Stop all runs of a session and cancel its waiting tasks"),
    "sessions": ("groups", "List, show, configure and reset sessions"),
    "lanes": ("groups", "List, pause, resume and clear lanes"),
    "resources": ("resources", "Show quotas, budgets, pools and locks; close, open and raise them"),
    "sched": ("queue", "Plan and acquire leases, report results, configure the queue"),
    "queue": ("queue", "Add, list, show, drain and import queue entries"),
    "worker": (
        "serve",
        "Run a worker: execute a server's tasks with handlers from a Python module",
    ),
    "attention": ("attention", "List what needs attention, each with the command that fixes it"),
    "workers": ("workers", "List workers: where they run, what they can run, which are silent"),
    "handlers": (
        "handlers",
        "Show runs, failures, waits and durations of the last hours, by handler or agent",
    ),
    "mcp": ("serve", "Serve the commands as MCP tools on stdin and stdout"),
    "stats": ("system", "Show task totals and the current load"),
    "audit": ("tokens", "Show the audit log: changes, denied requests, blocked targets"),
    "top": ("system", "Watch lanes, agents and nodes live"),
    "demo": ("serve", "Demonstrate fairness with a small fleet on a temporary server"),
    "doctor": ("system", "Check a store: its pages, schema and counters"),
    "backup": ("storage", "Write a consistent copy of a store to a file; servers may keep running"),
    "restore": ("storage", "Restore a backup into a store that no server is using"),
    "move": ("storage", "Move a whole store to another address; servers may keep running"),
    "import": (
        "imports",
        "Import files of PinchTab, BrowserOS, GoClaw or cool-workflow and keep their IDs",
    ),
    "help": ("system", "Show the commands, or the options of one command"),
    "version": ("system", "Print the version"),
    "completion": ("completion", "Print a completion script for your shell"),
    "templates": ("templates", "Manage instruction templates and create tasks from them"),
    "cron": ("cron", "Manage cron jobs, which submit tasks on a schedule"),
    "policy": ("policy", "Show and change the policy, compare and restore its versions"),
    "token": ("tokens", "Create, list and revoke access tokens"),
    "deliveries": ("webhooks", "List and resend webhook deliveries"),
    "webhooks": ("webhooks", "Manage the signing secrets of webhook receivers"),
}
# The commands in the order and under the headings of `fairlane --help`.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "run": ("serve", "worker", "demo", "mcp"),
    "tasks": (
        *("submit", "tasks", "show", "why", "wait", "output", "cancel", "retry", "reset"),
        *("failures", "batch", "templates", "signal", "effect", "prune"),
    ),
    "sessions and approvals": (
        *("message", "sessions", "stop", "stopall", "approvals", "approve", "reject"),
    ),
    "watch": (
        *("attention", "top", "stats", "workers", "handlers", "events", "deliveries", "audit"),
    ),
    "rules": ("lanes", "policy", "resources", "cron", "token", "webhooks"),
    "queue and leases": ("queue", "sched"),
    "store": ("doctor", "backup", "restore", "move", "import"),
    "this program": ("help", "version", "completion"),
}
# Commands that mean `list` when they have no verb, and whether a name may follow.
_LISTED: Final = {
    **dict.fromkeys(("approvals", "cron", "deliveries", "lanes", "webhooks"), False),
    "sessions": True,
    "resources": True,
}
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")
# What people type for a command that has another name here.
_SYNONYMS: Final = {
    **dict.fromkeys(("info", "status"), "stats"),
    "agents": "handlers",
    "count": "tasks",
    **dict.fromkeys(("enqueue", "exec", "run", "task"), "submit"),
    "nodes": "workers",
    **dict.fromkeys(("job", "jobs", "schedule"), "cron"),
    **dict.fromkeys(("list", "ls", "ps"), "tasks"),
    **dict.fromkeys(("log", "logs", "tail"), "output"),
    **dict.fromkeys(("server", "start", "up"), "serve"),
}
# Commands that change or remove much: a typing error must not lead to them.
_NEVER_SUGGESTED: Final = frozenset(
    {
        *("cancel", "clear", "close", "delete", "disable", "drain", "prune", "reclaim", "reject"),
        *("remove", "reset", "revoke", "rollback", "rotate", "stop", "stopall"),
    }
)


class WrongLine(Exception):
    """An invalid command line; the message is one sentence."""


class Parser(argparse.ArgumentParser):
    grouped = False

    def format_help(self) -> str:
        text = super().format_help()
        return _in_groups(text) if self.grouped else text

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        help_hint = "" if message.endswith("?") else f"; see {self.prog} --help"
        raise WrongLine(f"{message.removeprefix('argument ')}{help_hint}")

    def knows(self, option: str) -> bool:
        return option in self._option_string_actions

    def option_names(self) -> list[str]:
        return list(self._option_string_actions)

    def valued_options(self) -> dict[str, list[str]]:
        """Return the long options that take a value, each with its choices."""
        return {
            name: list(map(str, action.choices or ()))
            for name, action in self._option_string_actions.items()
            if name.startswith("--") and action.nargs != 0
        }

    def argument_names(self) -> list[str]:
        """Return how help names the arguments that are not options."""
        return [str(one.metavar) for one in self._get_positional_actions()]


Leaves = Mapping[str, Parser]
Fill = Callable[[Parser], None]
Run = Callable[[argparse.Namespace], int]


def server_or_store(parser: Parser) -> None:
    where(parser)
    as_json(parser)


class Commands:
    """The commands, or the verbs of one; `leaves` gets the parser of each by its full name.

    With `only`, no other command is built.
    """

    def __init__(
        self,
        parser: Parser,
        leaves: dict[str, Parser],
        name: str = "",
        *,
        only: str | None = None,
        **words: str,
    ) -> None:
        self._parsers = parser.add_subparsers(required=True, **words)
        self._leaves = leaves
        self._name = name
        self._only = only

    def add(
        self,
        word: str,
        run: Run,
        fill: Fill | None = None,
        summary: str = "",
        *,
        epilog: str | None = None,
        side: Fill = server_or_store,
    ) -> None:
        """Add a command. `fill` adds its options, and `side` the options that say where it runs."""
        if self._only in (None, word):
            leaf = self.leaf(word, summary, epilog)
            if fill is not None:
                fill(leaf)
            side(leaf)
            leaf.set_defaults(perform=run)

    def noun(
        self,
        word: str,
        verbs: Callable[[Commands], None],
        summary: str = "",
        *,
        epilog: str | None = None,
    ) -> None:
        """Add a command that has verbs."""
        if self._only in (None, word):
            leaf = self.leaf(word, summary, epilog)
            verbs(Commands(leaf, self._leaves, self._full(word), dest="verb", metavar="VERB"))

    def leaf(self, word: str, summary: str = "", epilog: str | None = None) -> Parser:
        summary = summary or COMMANDS[word][1]
        leaf: Parser = self._parsers.add_parser(
            word, help=summary, description=f"{summary}.", epilog=epilog
        )
        self._leaves[self._full(word)] = leaf
        return leaf

    def _full(self, word: str) -> str:
        return f"{self._name} {word}".lstrip()


# -------------------------------------------------------------------- where a command runs


def where(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--url",
        metavar="URL",
        help="address of the server (default: FAIRLANE_URL, or http://127.0.0.1:9867)",
    )
    which.add_argument(
        "--store",
        metavar="URL",
        help="open this store directly instead of going through a server; "
        "safe while a server is using it",
    )
    token_file(parser)


def token_file(parser: Parser) -> None:
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help="file that contains the access token (default: use the token in FAIRLANE_TOKEN)",
    )


def store_only(parser: Parser) -> None:
    parser.add_argument(
        "--store", metavar="URL", help="store to use (default: the same as for fairlane serve)"
    )
    as_json(parser)


def as_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, one document per line")


def nowhere(_: Parser) -> None:
    """Add nothing, for commands that use neither a server nor a store."""


# -------------------------------------------------------------------- reading a command line


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the parsed arguments; their `perform` runs the command.

    Exit after printing help, as argparse does. Raise `WrongLine`.
    """
    word = arguments[0] if arguments else ""
    parser, leaves = build(word) if word in COMMANDS else outline()
    if not arguments:
        parser.print_help()
        parser.exit(Exit.USAGE)
    for argument in arguments:
        if not argument.isascii() and not _is_text(argument):
            parser.error(f"{argument!a} is not valid UTF-8")
    arguments = _with_verb(leaves, arguments)
    _refuse_unknown(parser, leaves, arguments)
    return parser.parse_args(arguments)


def build(only: str | None = None) -> tuple[Parser, Leaves]:
    """Return the parser, and the parser of each command by its name (`webhooks secret`).

    If `only` is a command, only that one is imported and built.
    """
    only = only if only in COMMANDS else None
    parser, commands, leaves = _empty(only)
    for module in [COMMANDS[only][0]] if only else _modules():
        import_module(f"fairlane.cli.commands.{module}").register(commands)
    return parser, leaves


def _modules() -> list[str]:
    return list(dict.fromkeys(module for module, _ in COMMANDS.values()))


def outline() -> tuple[Parser, Leaves]:
    """Return a parser that knows the names and summaries of commands, for help and errors."""
    parser, commands, leaves = _empty()
    parser.grouped = True
    for word in COMMANDS:
        commands.leaf(word)
    return parser, leaves


def _in_groups(text: str) -> str:
    """Return the help of all commands with the commands under headings."""
    before, _, rest = text.partition("\ncommands:\n")
    _, _, after = rest.partition("\n\n")
    width = max(map(len, COMMANDS)) + 2
    room = max(40, shutil.get_terminal_size().columns - width - 4)
    parts = [before]
    for heading, words in GROUPS.items():
        parts.append(f"{heading}:")
        for word in words:
            first, *more = textwrap.wrap(COMMANDS[word][1], room, break_on_hyphens=False)
            parts.append(f"  {word:<{width}}{first}")
            parts += [f"  {'':<{width}}{line}" for line in more]
        parts.append("")
    return "\n".join([*parts, after])


def _empty(only: str | None = None) -> tuple[Parser, Commands, dict[str, Parser]]:
    lines = [f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items()]
    more = "Run fairlane COMMAND --help to see a command's options."
    epilog = "\n".join([more, "", "exit codes:", *lines])
    parser = Parser(prog="fairlane", description=ABOUT, epilog=epilog)
    parser.add_argument("--version", action="version", version=f"fairlane {__version__}")
    leaves: dict[str, Parser] = {}
    words = {"title": "commands", "dest": "command", "metavar": "COMMAND"}
    return parser, Commands(parser, leaves, only=only, **words), leaves


def _with_verb(leaves: Leaves, arguments: Sequence[str]) -> Sequence[str]:
    """Add the verb that was left out: `lanes` is `lanes list`, `sessions KEY` is `sessions list
    KEY`.
    """
    if list(arguments[:2]) == ["sched", "policy"] and not _names_verb(arguments[2:]):
        return ["sched", "policy", "show", *arguments[2:]]
    command, following = arguments[0], arguments[1] if len(arguments) > 1 else ""
    wants_list = command in _LISTED and following not in ("-h", "--help")
    if not wants_list or f"{command} {following}" in leaves:
        return arguments
    if _LISTED[command] or not following or following.startswith("-"):
        return [command, "list", *arguments[1:]]
    return arguments


def _names_verb(rest: Sequence[str]) -> bool:
    return bool(rest) and (rest[0] in ("-h", "--help") or not rest[0].startswith("-"))


def _refuse_unknown(parser: Parser, leaves: Leaves, arguments: Sequence[str]) -> None:
    """Report unknown commands and options before argparse reports missing ones."""
    leaf, name, rest = parser, "", list(arguments)
    while rest and f"{name} {rest[0]}".lstrip() in leaves:
        name = f"{name} {rest.pop(0)}".lstrip()
        leaf = leaves[name]
    inside = f"{name} " if name else ""
    below = [other.removeprefix(inside) for other in leaves if other.startswith(inside)]
    below = [word for word in below if word and " " not in word]
    if below and rest and not rest[0].startswith("-"):
        hint = _command_hint(rest[0], below, is_top=not name)
        leaf.error(f"unknown command {f'{name} {rest[0]}'.lstrip()!r}{hint}")
    for argument in rest[: rest.index("--")] if "--" in rest else rest:
        option = argument.partition("=")[0]
        if _is_option(argument) and not leaf.knows(option):
            leaf.error(f"unknown option {option}{_option_hint(option, leaf, is_top=not name)}")


def _command_hint(word: str, known: Sequence[str], *, is_top: bool) -> str:
    """Return the command that was probably meant, never one that changes or removes much."""
    if is_top and word in _SYNONYMS:
        return f"; did you mean {_SYNONYMS[word]}?"
    return _nearest(word, [one for one in known if one not in _NEVER_SUGGESTED])


def _option_hint(option: str, leaf: Parser, *, is_top: bool) -> str:
    if is_top and any(other.knows(option) for other in build()[1].values()):
        return " before the command; put options after the command"
    return _nearest(option, leaf.option_names())


def _is_option(argument: str) -> bool:
    return argument.startswith("-") and argument != "-" and not _NUMBER.fullmatch(argument)


def _nearest(word: str, known: Sequence[str]) -> str:
    from fairlane.core.policy import nearest  # noqa: PLC0415 - imports msgspec; for complaints only

    return nearest(word, known)


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True
