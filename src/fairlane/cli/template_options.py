"""The options of `fairlane templates`, and how its short spellings are read."""

from __future__ import annotations

import argparse
from typing import Any

from fairlane.cli.options import Commands, Parser, named_values, offer, paging, wait_option
from fairlane.cli.values import NO_JSON, parsed, seconds


def fill(commands: Commands) -> None:
    about = "Keep instructions with parameters, and make tasks of them"
    commands.noun("templates", about, _verbs)


def _verbs(templates: Commands) -> None:
    templates.add("list", "List templates, newest first", _list)
    templates.add("show", "Show a template", _which)
    templates.add("create", "Keep a template", _create)
    templates.add("update", "Change what is named of a template", _update)
    templates.add("delete", "Delete templates", _delete)
    templates.add("use", "Fill in a template, and submit the task with --submit", _use)


def _list(parser: Parser) -> None:
    offer(parser, "name")
    paging(parser)


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
    offer(parser, "name", name="no other template has it")
    parser.add_argument("--description", metavar="TEXT")
    offer(parser, "instruction", instruction="with {{name}} where a parameter is inserted")
    offer(parser, "priority", "metadata")
    parser.add_argument(
        "--param",
        metavar="NAME[:TYPE][:required][=DEFAULT]",
        type=parameter,
        action="append",
        help="TYPE is string, number or boolean (repeatable; all of them, when there is one)",
    )
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds, help="of each attempt")


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
    offer(parser, "priority", priority="instead of the template's")
    offer(parser, "agent", "lane", "session")
    named_values(parser, "--override", "another field of POST /tasks")
    offer(parser, "idempotency-key")


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
