"""The command line: which commands and options there are, and what is said about wrong ones.

Imports nothing but the standard library and constants, so that `--help` is quick. Whether a value
is admitted is for the server to say; here it only has to have the right form.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from fairlane.cli.exits import MEANINGS, USAGE
from fairlane.cli.text import shown
from fairlane.cli.values import (
    count,
    json_object,
    milliseconds,
    number,
    pair,
    port,
    priority,
    seconds,
    whole,
)
from fairlane.core import lifecycle
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


class Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        help_hint = "" if message.endswith("?") else f"; see {self.prog} --help"
        self.exit(USAGE, f"error: {shown(message.removeprefix('argument '))}{help_hint}\n")

    def knows(self, option: str) -> bool:
        return option in self._option_string_actions

    def option_names(self) -> list[str]:
        return list(self._option_string_actions)


Leaves = Mapping[str, Parser]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """What was asked for. Exits, like argparse, after help and after a complaint."""
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

    A host calls `sched` and `queue` for every piece of work: for those, nothing else is built.
    """
    parser = Parser(prog="fairlane", description=ABOUT, epilog=_epilog())
    parser.add_argument("--version", action="version", version=f"fairlane {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    leaves: dict[str, Parser] = {}

    if only in ("sched", "queue"):
        from fairlane.cli import queue_options  # noqa: PLC0415 - built on this module

        queue_options.fill(commands, leaves)
        return parser, leaves

    def add(name: str, summary: str, fill: Callable[[Parser], None]) -> None:
        leaves[name] = commands.add_parser(name, help=summary, description=f"{summary}.")
        fill(leaves[name])

    add("serve", "Run the server until a signal", _serve)
    add("submit", "Hand in a task, or a file of tasks", _submit)
    add("tasks", "List tasks, newest first", _tasks)
    add("show", "Show a task", _show)
    add("why", "Say why a task does not run yet", _show)
    add("wait", "Wait until tasks have ended", _wait)
    from fairlane.cli import (  # noqa: PLC0415 - built on this module
        cron_options,
        policy_options,
        queue_options,
        session_options,
        template_options,
        token_options,
        webhook_options,
        work_options,
        worker_options,
    )

    work_options.fill(add, commands, leaves)
    session_options.fill(add, commands, leaves)
    queue_options.fill(commands, leaves)
    add("worker", "Run the handlers of a module for a server", worker_options.fill)
    add("mcp", "Offer the verbs to an agent as tools, by the Model Context Protocol", _mcp)
    add("stats", "Show what the scheduler has done and has to do", server_or_store)
    add("audit", "Show who did what, what was denied and what was blocked", _audit)
    add("top", "Watch lanes, shares and nodes as they change", _top)
    add("demo", "Show fairness, with a small fleet on a server that leaves nothing behind", _demo)
    add("doctor", "Check a store: its pages, its schema, its counters", store_only)
    add("completion", "Print a script that completes commands in a shell", _completion)
    about = "Keep instructions with parameters, and make tasks of them"
    template_options.fill(commands.add_parser("templates", help=about, description=about), leaves)
    about = "Submit tasks at moments: once, every so often, or by the rules of cron"
    cron_options.fill(commands.add_parser("cron", help=about, description=f"{about}."), leaves)
    about = "Look at the policy, change it, compare its versions, go back to one"
    policy_options.fill(commands.add_parser("policy", help=about, description=f"{about}."), leaves)
    about = "Make, list and revoke the tokens that callers of a server need"
    token_options.fill(commands.add_parser("token", help=about, description=f"{about}."), leaves)
    about = "Look at the webhooks that are or were owed, and send one again"
    webhook_options.deliveries(
        commands.add_parser("deliveries", help=about, description=f"{about}."), leaves
    )
    about = "Give receivers of webhooks a secret of their own, and change it"
    webhook_options.webhooks(
        commands.add_parser("webhooks", help=about, description=f"{about}."), leaves
    )
    return parser, leaves


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
    _where(parser)


def _audit(parser: Parser) -> None:
    parser.epilog = "The newest are at the end. With --follow it goes on until Ctrl-C."
    parser.add_argument("--who", metavar="NAME", help="only what this token's owner did")
    parser.add_argument("--action", metavar="ACTION", help="only this, as in 'PATCH /policy'")
    parser.add_argument(
        "--outcome", metavar="WORD", help="only done, refused, denied or blocked (all)"
    )
    parser.add_argument("--limit", metavar="N", type=count, default=100, help="how many (100)")
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what comes")
    server_or_store(parser)


def _top(parser: Parser) -> None:
    parser.epilog = "Ctrl-C ends it. In a pipe it prints once; with --json, a line for each look."
    parser.add_argument("--once", action="store_true", help="look one time, and end")
    parser.add_argument(
        "--interval", metavar="SECONDS", type=seconds, default=1.0, help="between looks (1)"
    )
    server_or_store(parser)


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
    what.add_argument("--handler", metavar="NAME", help="the function or worker that is to run it")
    what.add_argument("--action", metavar="NAME", help="what to do in a browser's tab")
    what.add_argument("--instruction", metavar="TEXT", help="what an agent is to do, in words")
    what.add_argument(
        "--file",
        metavar="FILE",
        help="JSON with a task, a list of tasks, or a batch, as in POST /tasks; - reads stdin",
    )
    _about(parser)
    _when(parser)
    parser.add_argument("--callback-url", metavar="URL", help="is told when the task has ended")
    idempotency_key(parser)
    wait_option(parser)
    server_or_store(parser)


def _about(parser: Parser) -> None:
    parser.add_argument("--agent", metavar="ID", help="who asks; tasks are shared out fairly by it")
    parser.add_argument("--params", metavar="JSON", type=json_object, help="an object")
    parser.add_argument(
        "--param",
        metavar="NAME=VALUE",
        type=pair,
        action="append",
        help="one of the params; VALUE is JSON if it looks like it, else text (repeatable)",
    )
    parser.add_argument("--tab", metavar="ID", help="the tab an action is for")
    parser.add_argument("--ref", metavar="REF", help="the element an action is for")
    parser.add_argument("--selector", metavar="CSS", help="the same, by a selector")
    parser.add_argument("--metadata", metavar="JSON", type=json_object, help="an object, kept")


def _when(parser: Parser) -> None:
    """What decides when a task runs, and how often."""
    parser.add_argument(
        "--priority",
        metavar="N",
        type=priority,
        help="lower goes first; or critical, high, normal, low",
    )
    parser.add_argument("--lane", metavar="NAME")
    parser.add_argument("--session", metavar="KEY", help="tasks of one session run one at a time")
    parser.add_argument(
        "--depends-on",
        metavar="ID",
        action="append",
        help="runs when that task is done (repeatable)",
    )
    later = parser.add_mutually_exclusive_group()
    later.add_argument("--delay", metavar="SPAN", type=seconds, help="not before: 5s, 10m, 2h")
    later.add_argument("--run-at", metavar="WHEN", help="not before: RFC 3339")
    parser.add_argument(
        "--deadline", metavar="WHEN", help="RFC 3339, or a span from now: 30s, 5m, 2h, 1d"
    )
    parser.add_argument(
        "--timeout", metavar="MS", type=milliseconds, help="of each attempt; or like 30s"
    )
    parser.add_argument("--retries", metavar="N", type=whole, help="after the first attempt")
    parser.add_argument(
        "--backoff", metavar="MS", type=milliseconds, help="before the first retry; or like 2s"
    )
    parser.add_argument(
        "--multiplier", metavar="X", type=number, help="how much longer each further wait is"
    )
    parser.add_argument(
        "--preemptible", action="store_true", default=None, help="makes room for critical work"
    )


def _tasks(parser: Parser) -> None:
    which_tasks(parser)
    paging(parser)
    server_or_store(parser)


def which_tasks(parser: Parser) -> None:
    parser.add_argument("--agent", metavar="ID")
    parser.add_argument(
        "--state",
        metavar="STATE",
        action="append",
        help=f"of {', '.join(lifecycle.STATES)} (repeatable, or with commas)",
    )
    parser.add_argument("--lane", metavar="NAME")
    parser.add_argument("--session", metavar="KEY")
    parser.add_argument("--batch", metavar="ID")
    parser.add_argument("--kind", metavar="KIND", help="action, handler or instruction")


def paging(parser: Parser) -> None:
    parser.add_argument("--limit", metavar="N", type=count, help="how many at a time (100)")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--cursor", metavar="CURSOR", help="go on where the last list ended")
    place.add_argument("--all", action="store_true", help="all of them, page after page")


def _show(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID")
    server_or_store(parser)


def _wait(parser: Parser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, help="wait at most so long (for ever)"
    )
    server_or_store(parser)


def idempotency_key(parser: Parser) -> None:
    parser.add_argument(
        "--idempotency-key", metavar="KEY", help="handing it in again changes nothing"
    )


def wait_option(parser: Parser, summary: str = "wait until it has ended, at most so long") -> None:
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        nargs="?",
        type=seconds,
        const=float("inf"),
        help=summary,
    )


def server_or_store(parser: Parser) -> None:
    _where(parser)
    _as_json(parser)


def _where(parser: Parser) -> None:
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--url", metavar="URL", help="the server (FAIRLANE_URL, or http://127.0.0.1:9867)"
    )
    where.add_argument(
        "--store", metavar="URL", help="work on the store itself, a server may run beside it"
    )
    token_file(parser)


def token_file(parser: Parser) -> None:
    parser.add_argument(
        "--token-file", metavar="FILE", help="holds the token for the server (FAIRLANE_TOKEN)"
    )


def store_only(parser: Parser) -> None:
    parser.add_argument("--store", metavar="URL", help="the store (the one that serve would use)")
    _as_json(parser)


def _as_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, one line each")


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
        parser.error(f"unknown command {f'{name} {rest[0]}'.lstrip()!r}{_nearest(rest[0], below)}")
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
