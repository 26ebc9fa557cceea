"""Commands and the options that several of them have, each said once.

What an option means is said where the tools of MCP have it from, unless it means something else
here. Whether a value is admitted is for the server to say; here it only has to have the right form.
Imports nothing but the standard library and constants, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from fairlane.cli.values import (
    count,
    json_object,
    milliseconds,
    number,
    pair,
    priority,
    seconds,
    whole,
)
from fairlane.core import lifecycle
from fairlane.mcp.parameters import ABOUT

# Each by the argument of MCP's tools that it is, and how its value is called and read.
_SHARED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "agent": ("agentId", {"metavar": "ID"}),
    "lane": ("lane", {"metavar": "NAME"}),
    "session": ("sessionKey", {"metavar": "KEY"}),
    "batch": ("batchId", {"metavar": "ID"}),
    "task": ("taskId", {"metavar": "ID"}),
    "kind": ("kind", {"metavar": "KIND"}),
    "name": ("name", {"metavar": "NAME"}),
    "text": ("text", {"metavar": "TEXT"}),
    "handler": ("handler", {"metavar": "NAME"}),
    "action": ("action", {"metavar": "NAME"}),
    "instruction": ("instruction", {"metavar": "TEXT"}),
    "params": ("params", {"metavar": "JSON", "type": json_object}),
    "tab": ("tabId", {"metavar": "ID"}),
    "ref": ("ref", {"metavar": "REF"}),
    "selector": ("selector", {"metavar": "CSS"}),
    "metadata": ("metadata", {"metavar": "JSON", "type": json_object}),
    "priority": ("priority", {"metavar": "N", "type": priority}),
    "parallelism": ("parallelism", {"metavar": "N", "type": count}),
    "callback-url": ("callbackUrl", {"metavar": "URL"}),
    "idempotency-key": ("idempotencyKey", {"metavar": "KEY"}),
    "timeout": ("timeoutMs", {"metavar": "MS", "type": milliseconds}),
    "run-at": ("runAt", {"metavar": "WHEN"}),
    "preemptible": ("preemptible", {"action": "store_true", "default": None}),
    "brief": ("brief", {"action": "store_true", "default": None}),
    "sender": ("sender", {"metavar": "NAME"}),
    "sent-at": ("sentAt", {"metavar": "WHEN"}),
    "no-merge": ("noMerge", {"action": "store_true", "default": None}),
    "mode": ("mode", {"metavar": "MODE"}),
    "cap": ("cap", {"metavar": "N", "type": whole}),
    "drop": ("drop", {"metavar": "WHICH"}),
    "debounce": ("debounceMs", {"metavar": "MS", "type": milliseconds}),
    "debounce-max": ("debounceMaxMs", {"metavar": "MS", "type": milliseconds}),
    "max-concurrent": ("maxConcurrent", {"metavar": "N", "type": count}),
    "now": ("now", {"metavar": "WHEN"}),
    "note": ("note", {"metavar": "TEXT"}),
}


class WrongLine(Exception):
    """What is wrong with the command line, in one sentence."""


class Parser(argparse.ArgumentParser):
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


Leaves = Mapping[str, Parser]
Fill = Callable[[Parser], None]
Group = argparse._ActionsContainer  # noqa: SLF001 - a parser, or a group of its options


def server_or_store(parser: Parser) -> None:
    where(parser)
    as_json(parser)


class Commands:
    """The commands, or the verbs of one, and in `leaves` the parser of each by its name.

    With `only`, no other command is made.
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
        self, word: str, summary: str, fill: Fill | None = None, side: Fill = server_or_store
    ) -> None:
        """`side` adds the options about who is asked."""
        if self._only in (None, word):
            leaf = self._leaf(word, summary)
            if fill is not None:
                fill(leaf)
            side(leaf)

    def noun(
        self, word: str, summary: str, verbs: Callable[[Commands], None], epilog: str | None = None
    ) -> None:
        """A command that has verbs."""
        if self._only in (None, word):
            leaf = self._leaf(word, summary)
            leaf.epilog = epilog
            verbs(Commands(leaf, self._leaves, self._called(word), dest="verb", metavar="VERB"))

    def _leaf(self, word: str, summary: str) -> Parser:
        leaf: Parser = self._parsers.add_parser(word, help=summary, description=f"{summary}.")
        self._leaves[self._called(word)] = leaf
        return leaf

    def _called(self, word: str) -> str:
        return f"{self._name} {word}".lstrip()


# -------------------------------------------------------------------- options


def offer(group: Group, *names: str, **meaning: str) -> None:
    """Options that other commands have too; `meaning` is for those that mean another thing here."""
    for name in names:
        word, how = _SHARED[name]
        about = meaning.get(name.replace("-", "_")) or ABOUT[word]
        if how.get("type") is milliseconds:
            about += "; in milliseconds, or like 30s"
        group.add_argument(f"--{name}", help=about, **how)


def which_tasks(parser: Parser) -> None:
    parser.add_argument(
        "--state",
        metavar="STATE",
        action="append",
        help=f"of {', '.join(lifecycle.STATES)} (repeatable, or with commas)",
    )
    offer(parser, "agent", "lane", "session", "batch", "kind")


def paging(parser: Parser) -> None:
    parser.add_argument("--limit", metavar="N", type=count, help="how many at a time (100)")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--cursor", metavar="CURSOR", help="go on where the last list ended")
    place.add_argument("--all", action="store_true", help="all of them, page after page")


def about_task(group: Group, **meaning: str) -> None:
    """What a task is about, besides what runs it."""
    offer(group, "params")
    named_values(group, "--param", "one of the params")
    offer(group, "tab", "ref", "selector", "metadata", "callback-url")
    offer(group, "priority", "lane", "timeout", **meaning)


def named_values(group: Group, option: str, about: str) -> None:
    group.add_argument(
        option,
        metavar="NAME=VALUE",
        type=pair,
        action="append",
        help=f"{about}; VALUE is JSON if it looks like it, else text (repeatable)",
    )


def retries(group: Group, default: str = "") -> None:
    about = f"after the first attempt{default}"
    group.add_argument("--retries", metavar="N", type=whole, help=about)
    group.add_argument(
        "--backoff", metavar="MS", type=milliseconds, help="before the first retry; or like 2s"
    )
    group.add_argument(
        "--multiplier", metavar="X", type=number, help="how much longer each further wait is (2)"
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


def one(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID")


def several(parser: Parser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+")


# -------------------------------------------------------------------- who is asked


def where(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--url", metavar="URL", help="the server (FAIRLANE_URL, or http://127.0.0.1:9867)"
    )
    which.add_argument(
        "--store", metavar="URL", help="work on the store itself, a server may run beside it"
    )
    token_file(parser)


def token_file(parser: Parser) -> None:
    parser.add_argument(
        "--token-file", metavar="FILE", help="holds the token for the server (FAIRLANE_TOKEN)"
    )


def store_only(parser: Parser) -> None:
    parser.add_argument("--store", metavar="URL", help="the store (the one that serve would use)")
    as_json(parser)


def as_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, one line each")


def nobody(_: Parser) -> None:
    """Nobody is asked."""
