"""The options of `fairlane templates`, and how its short spellings are read."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from fairlane.cli.parser import (
    Parser,
    idempotency_key,
    paging,
    server_or_store,
    wait_option,
)
from fairlane.cli.values import NO_JSON, json_object, pair, parsed, priority, seconds


def fill(parser: Parser, leaves: dict[str, Parser]) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    leaves["templates"] = parser

    def add(name: str, summary: str, options: Callable[[Parser], None]) -> None:
        leaf = verbs.add_parser(name, help=summary, description=f"{summary}.")
        leaves[f"templates {name}"] = leaf
        options(leaf)
        server_or_store(leaf)

    add("list", "List templates, newest first", paging)
    add("show", "Show a template", _which)
    add("create", "Keep a template", _create)
    add("update", "Change what is named of a template", _update)
    add("delete", "Delete templates", _delete)
    add("use", "Fill in a template, and submit the task with --submit", _use)


def _which(parser: Parser) -> None:
    parser.add_argument("template", metavar="TEMPLATE", help="its id or its name")


def _delete(parser: Parser) -> None:
    parser.add_argument("templates", metavar="TEMPLATE", nargs="+", help="ids or names")


def _create(parser: Parser) -> None:
    parser.epilog = (
        "example:\n"
        "  fairlane templates create --name trip --instruction 'Go to {{city}} for {{n}} days' \\\n"
        "    --param city:string:required --param n:number=2"
    )
    _fields(parser)


def _update(parser: Parser) -> None:
    _which(parser)
    _fields(parser)


def _fields(parser: Parser) -> None:
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="JSON as in POST /templates; - reads stdin; other options win over it",
    )
    parser.add_argument("--name", metavar="NAME", help="no other template has it")
    parser.add_argument("--description", metavar="TEXT")
    parser.add_argument(
        "--instruction", metavar="TEXT", help="with {{name}} where a parameter is inserted"
    )
    parser.add_argument(
        "--priority", metavar="N", type=priority, help="or critical, high, normal, low"
    )
    parser.add_argument(
        "--param",
        metavar="NAME[:TYPE][:required][=DEFAULT]",
        type=parameter,
        action="append",
        help="TYPE is string, number or boolean (repeatable; all of them, when there is one)",
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds, help="of each attempt")
    parser.add_argument("--metadata", metavar="JSON", type=json_object, help="an object")


def _use(parser: Parser) -> None:
    parser.epilog = "example:\n  fairlane templates use trip --set city=Rome --submit --wait"
    _which(parser)
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        type=text_pair,
        action="append",
        help="what is inserted for a parameter (repeatable)",
    )
    parser.add_argument("--submit", action="store_true", help="submit the task it makes")
    wait_option(parser, "submit it and wait until it has ended, at most so long")
    parser.add_argument("--agent", metavar="ID", help="who asks")
    parser.add_argument("--priority", metavar="N", type=priority, help="instead of the template's")
    parser.add_argument("--lane", metavar="NAME")
    parser.add_argument("--session", metavar="KEY", help="tasks of one session run one at a time")
    parser.add_argument(
        "--override",
        metavar="NAME=VALUE",
        type=pair,
        action="append",
        help="another field of POST /tasks; VALUE is JSON if it looks like it (repeatable)",
    )
    idempotency_key(parser)


# -------------------------------------------------------------------- values


def text_pair(text: str) -> tuple[str, str]:
    """The value stays text: the type of the parameter says how it is to be read."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, not {text[:40]!r}")
    return name, value


def parameter(text: str) -> dict[str, Any]:
    """A parameter as `POST /templates` wants it. The first `=` begins the default."""
    head, equals, default = text.partition("=")
    name, *words = head.split(":")
    required = words[-1:] == ["required"]
    words = words[:-1] if required else words
    if not name or len(words) > 1:
        raise argparse.ArgumentTypeError(
            f"must be NAME[:TYPE][:required][=DEFAULT], not {text[:40]!r}"
        )
    found: dict[str, Any] = {"name": name, "type": words[0] if words else "string"}
    if required:
        found["required"] = True
    if equals:
        value = default if found["type"] == "string" else parsed(default)
        found["default"] = default if value is NO_JSON else value
    return found
