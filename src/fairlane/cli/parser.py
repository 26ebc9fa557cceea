"""The command line: which commands there are, and what is said about wrong ones.

Imports nothing but the standard library and constants, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Final

from fairlane.cli import queue_options
from fairlane.cli.exits import MEANINGS, USAGE
from fairlane.cli.options import (
    Commands,
    Leaves,
    Parser,
    about_task,
    nobody,
    offer,
    one,
    paging,
    retries,
    store_only,
    wait_option,
    where,
    which_tasks,
)
from fairlane.cli.values import count, port, seconds
from fairlane.version import __version__

ABOUT: Final = "A fair, durable task scheduler for fleets of AI agents."
SERVE_SETTINGS: Final = (
    "host",
    "port",
    "allowed_hosts",
    "store",
    "policy",
    "instance",
    "agent",
    "allow_outbound",
    "deny_outbound",
    "drain_seconds",
    "mcp_writes",
    "max_streams",
    "max_waits",
    "log_level",
    "log_format",
    "secret_key",
    "secrets_folder",
    "allow_secrets",
)
SHELLS: Final = ("bash", "zsh", "fish")
# Commands whose verb may be left out, and whether what is listed may be named.
LISTED: Final = {
    **dict.fromkeys(("cron", "deliveries", "lanes", "webhooks"), False),
    "sessions": True,
}
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What was asked for. Exits, like argparse, after help; raises `WrongLine`."""
    parser, leaves = build(arguments[0] if arguments else None)
    if not arguments:
        parser.print_help()
        parser.exit(USAGE)
    for argument in arguments:
        if not argument.isascii() and not _is_text(argument):
            parser.error(f"{argument!a} is not valid UTF-8")
    arguments = _with_verb(leaves, arguments)
    _refuse_unknown(parser, leaves, arguments)
    return parser.parse_args(arguments)


def _with_verb(leaves: Leaves, arguments: Sequence[str]) -> Sequence[str]:
    """Who names no verb wants a list: `lanes` is `lanes list`, `sessions KEY` has a key besides."""
    if list(arguments[:2]) == ["sched", "policy"] and not _names_verb(arguments[2:]):
        return ["sched", "policy", "show", *arguments[2:]]
    command, following = arguments[0], arguments[1] if len(arguments) > 1 else ""
    wants_list = command in LISTED and following not in ("-h", "--help")
    if not wants_list or f"{command} {following}" in leaves:
        return arguments
    if LISTED[command] or not following or following.startswith("-"):
        return [command, "list", *arguments[1:]]
    return arguments


def _names_verb(rest: Sequence[str]) -> bool:
    return bool(rest) and (rest[0] in ("-h", "--help") or not rest[0].startswith("-"))


def build(only: str | None = None) -> tuple[Parser, Leaves]:
    """The parser, and the one of each command by its name (`webhooks secret`).

    If `only` is a command, there is no other: most of the time would go into those.
    """
    parser = Parser(prog="fairlane", description=ABOUT, epilog=_epilog())
    parser.add_argument("--version", action="version", version=f"fairlane {__version__}")
    leaves: dict[str, Parser] = {}
    words = {"title": "commands", "dest": "command", "metavar": "COMMAND"}
    _fill(Commands(parser, leaves, only=only, **words), only)
    return (parser, leaves) if leaves else build()


def _fill(commands: Commands, only: str | None) -> None:
    if only in ("sched", "queue"):  # called for every piece of work: not even loaded
        queue_options.fill(commands)
        return
    from fairlane.cli import (  # noqa: PLC0415 - sched and queue have no use for them
        cron_options,
        policy_options,
        session_options,
        template_options,
        token_options,
        webhook_options,
        work_options,
        worker_options,
    )

    add = commands.add
    add("serve", "Run the server until a signal", _serve, nobody)
    add("submit", "Hand in a task, or a file of tasks", _submit)
    add("tasks", "List tasks, newest first", _tasks)
    add("show", "Show a task", one)
    add("why", "Say why a task does not run yet", one)
    add("wait", "Wait until tasks have ended", _wait)
    work_options.fill(commands)
    session_options.fill(commands)
    queue_options.fill(commands)
    add("worker", "Run the handlers of a module for a server", worker_options.fill, nobody)
    add("mcp", "Offer the verbs to an agent as tools, by the Model Context Protocol", _mcp, where)
    add("stats", "Show what the scheduler has done and has to do")
    add("audit", "Show who did what, what was denied and what was blocked", _audit)
    add("top", "Watch lanes, shares and nodes as they change", _top)
    about = "Show fairness, with a small fleet on a server that leaves nothing behind"
    add("demo", about, _demo, nobody)
    add("doctor", "Check a store: its pages, its schema, its counters", side=store_only)
    add("completion", "Print a script that completes commands in a shell", _completion, nobody)
    template_options.fill(commands)
    cron_options.fill(commands)
    policy_options.fill(commands)
    token_options.fill(commands)
    webhook_options.fill(commands)


# -------------------------------------------------------------------- the commands


def _completion(parser: Parser) -> None:
    parser.epilog = 'For bash, in ~/.bashrc: eval "$(fairlane completion bash)"'
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _serve(parser: Parser) -> None:
    parser.epilog = (
        "Each option may also stand in fairlane.toml (drain-seconds = 20) or in the environment\n"
        "(FAIRLANE_DRAIN_SECONDS=20). An option wins over the environment, that over the file."
    )
    parser.add_argument("--host", metavar="ADDRESS", help="where to listen (127.0.0.1)")
    parser.add_argument("--port", metavar="N", help="0 for any free one (9867)")
    parser.add_argument(
        "--allowed-hosts",
        metavar="NAME[:PORT]",
        action="append",
        help="another name that requests may call this server by (repeatable)",
    )
    parser.add_argument(
        "--store", metavar="URL", help="sqlite:///PATH or postgresql://… (a file of the user's)"
    )
    parser.add_argument("--policy", metavar="FILE", help="JSON, read again when it changes")
    parser.add_argument(
        "--instance",
        metavar="URL",
        action="append",
        help="a browser instance; URL#token=env:NAME for one with a token (repeatable)",
    )
    parser.add_argument(
        "--agent", metavar="URL", help="the agent that runs instructions; a token as with instances"
    )
    parser.add_argument(
        "--allow-outbound",
        metavar="HOST|CIDR[:PORT]",
        action="append",
        help="may be reached although it is not public (repeatable)",
    )
    parser.add_argument(
        "--deny-outbound",
        metavar="HOST|CIDR[:PORT]",
        action="append",
        help="may not be reached although it is public (repeatable)",
    )
    parser.add_argument(
        "--drain-seconds", metavar="N", help="how long running tasks may take to finish (10)"
    )
    parser.add_argument(
        "--max-streams", metavar="N", help="streams that a token or an address may have open (500)"
    )
    parser.add_argument(
        "--max-waits", metavar="N", help="long polls that a token or an address may hold (4000)"
    )
    parser.add_argument(
        "--mcp-writes",
        action="store_true",
        default=None,
        help="agents may change things over /mcp, not only look",
    )
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error (info)")
    parser.add_argument("--log-format", metavar="FORMAT", help="text, or json (text)")
    parser.add_argument(
        "--secret-key",
        metavar="REFERENCE",
        help="env:NAME or file:PATH of the key that seals secrets in the store",
    )
    parser.add_argument(
        "--secrets-folder", metavar="PATH", help="where the files are that tasks may refer to"
    )
    parser.add_argument(
        "--allow-secrets",
        metavar="REFERENCE",
        action="append",
        help="env:NAME or file:NAME that tasks may refer to, with @URL if you like (repeatable)",
    )


def _mcp(parser: Parser) -> None:
    parser.epilog = (
        "Speaks JSON-RPC on standard input and output, for a program that starts it; so does\n"
        "fairlane serve over HTTP, at /mcp. Needs the extra: pip install 'fairlane[mcp]'."
    )
    parser.add_argument(
        "--allow-writes",
        action="store_true",
        help="offer the tools that change something too, not only those that look",
    )


def _audit(parser: Parser) -> None:
    parser.epilog = "The newest are at the end. With --follow it goes on until Ctrl-C."
    parser.add_argument("--who", metavar="NAME", help="only what this token's owner did")
    parser.add_argument("--action", metavar="ACTION", help="only this, as in 'PATCH /policy'")
    parser.add_argument(
        "--outcome", metavar="WORD", help="only done, refused, denied or blocked (all)"
    )
    parser.add_argument("--limit", metavar="N", type=count, default=100, help="how many (100)")
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what comes")


def _top(parser: Parser) -> None:
    parser.epilog = "Ctrl-C ends it. In a pipe it prints once; with --json, a line for each look."
    parser.add_argument("--once", action="store_true", help="look one time, and end")
    parser.add_argument(
        "--interval", metavar="SECONDS", type=seconds, default=1.0, help="between looks (1)"
    )


def _demo(parser: Parser) -> None:
    parser.epilog = "It keeps everything in memory and opens nothing by itself. Ctrl-C ends it."
    parser.add_argument(
        "--seconds", metavar="N", type=seconds, help="end after so long (it goes on until Ctrl-C)"
    )
    parser.add_argument(
        "--port", metavar="N", type=port, default=0, help="where to listen (any free one)"
    )


def _submit(parser: Parser) -> None:
    parser.epilog = (
        "examples:\n"
        "  fairlane submit --handler echo --param text=hello --wait\n"
        "  fairlane submit --instruction 'Sum it up' --depends-on tsk_1 --depends-on tsk_2\n"
        "  fairlane submit --agent a1 --action click --tab t7 --ref e3 --deadline 30s\n"
        "  fairlane submit --agent a1 --file tasks.json"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    offer(what, "handler", "action", "instruction")
    what.add_argument(
        "--file",
        metavar="FILE",
        help="JSON with a task, a list of tasks, or a batch, as in POST /tasks; - reads stdin",
    )
    offer(parser, "agent")
    about_task(parser)
    _when(parser)
    offer(parser, "idempotency-key")
    wait_option(parser)


def _when(parser: Parser) -> None:
    """What decides when a task runs, and how often."""
    offer(parser, "session")
    parser.add_argument(
        "--depends-on",
        metavar="ID",
        action="append",
        help="runs when that task is done (repeatable)",
    )
    later = parser.add_mutually_exclusive_group()
    later.add_argument("--delay", metavar="SPAN", type=seconds, help="not before: 5s, 10m, 2h")
    offer(later, "run-at")
    parser.add_argument(
        "--deadline", metavar="WHEN", help="RFC 3339, or a span from now: 30s, 5m, 2h, 1d"
    )
    retries(parser)
    offer(parser, "preemptible")


def _tasks(parser: Parser) -> None:
    which_tasks(parser)
    parser.add_argument("--depends-on", metavar="ID", help="only tasks that depend on this one")
    offer(parser, "text", "brief")
    paging(parser)


def _wait(parser: Parser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, help="wait at most so long (for ever)"
    )


# -------------------------------------------------------------------- complaints


def _refuse_unknown(parser: Parser, leaves: Leaves, arguments: Sequence[str]) -> None:
    """Commands and options that do not exist, before argparse complains about what is missing."""
    leaf, name, rest = parser, "", list(arguments)
    while rest and f"{name} {rest[0]}".lstrip() in leaves:
        name = f"{name} {rest.pop(0)}".lstrip()
        leaf = leaves[name]
    inside = f"{name} " if name else ""
    below = [other.removeprefix(inside) for other in leaves if other.startswith(inside)]
    below = [word for word in below if word and " " not in word]
    if below and rest and not rest[0].startswith("-"):
        leaf.error(f"unknown command {f'{name} {rest[0]}'.lstrip()!r}{_nearest(rest[0], below)}")
    for argument in rest[: rest.index("--")] if "--" in rest else rest:
        option = argument.partition("=")[0]
        if _is_option(argument) and not leaf.knows(option):
            leaf.error(f"unknown option {option}{_option_hint(option, leaf, leaves)}")


def _option_hint(option: str, leaf: Parser, leaves: Leaves) -> str:
    if leaf not in leaves.values() and any(other.knows(option) for other in leaves.values()):
        return " here: options stand behind the command"
    return _nearest(option, leaf.option_names())


def _is_option(argument: str) -> bool:
    return argument.startswith("-") and argument != "-" and not _NUMBER.fullmatch(argument)


def _nearest(word: str, known: Sequence[str]) -> str:
    from fairlane.core.policy import nearest  # noqa: PLC0415 - help has no use for it

    return nearest(word, known)


def _is_text(argument: str) -> bool:
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _epilog() -> str:
    lines = [f"  {code:>3}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\n".join(["fairlane COMMAND --help tells more.", "", "exit codes:", *lines])
