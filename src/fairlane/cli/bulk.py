"""Cancel, retry and reset: tasks by their ids, or all that fit a filter.

A filter may fit more than one thinks, so on a terminal the number is named before anything changes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, Final

from fairlane.cli import exits
from fairlane.cli.backends import Backend, opened
from fairlane.cli.output import Output, tell
from fairlane.core.errors import CallerError, InvalidRequest

_FILTERS: Final = ("agent", "lane", "session", "batch", "kind")


def run(args: argparse.Namespace) -> int:
    which = _which(args)
    if args.ids and (which or args.dry_run):
        raise InvalidRequest("give either ids or a filter, not both")
    if not args.ids and not which:
        verb = args.command
        hint = f"say which tasks: give ids, or a filter such as --state; see fairlane {verb} --help"
        raise InvalidRequest(hint)
    with opened(args) as (side, out):
        return _many(args, side, out, which) if which else _each(args, side, out)


def prune(args: argparse.Namespace) -> int:
    with opened(args) as (side, out):
        out.pruned(side.client.prune(dry_run=args.dry_run))
    return exits.OK


def _which(args: argparse.Namespace) -> dict[str, Any]:
    named = {name: getattr(args, name) for name in _FILTERS} | {"states": args.state}
    return {name: value for name, value in named.items() if value is not None}


def _each(args: argparse.Namespace, side: Backend, out: Output) -> int:
    code, client = exits.OK, side.client
    verb = {"cancel": client.cancel, "retry": client.retry, "reset": client.reset}[args.command]
    for task_id in dict.fromkeys(args.ids):
        try:
            answer = verb(task_id)
        except CallerError as error:  # it may still be done for the others
            tell(error, as_json=args.json)
            code = code or exits.exit_code(error)
            continue
        (out.cancelled if args.command == "cancel" else out.again)(answer)
    return code


def _many(args: argparse.Namespace, side: Backend, out: Output, which: dict[str, Any]) -> int:
    verb, client = args.command, side.client
    act = {"cancel": client.cancel_many, "retry": client.retry_many, "reset": client.reset_many}

    def question() -> str | None:
        matched = act[verb](dry_run=True, **which)["matched"]
        return f"{verb} {matched} task{'s' * (matched > 1)}? [y/N] " if matched else None

    if args.dry_run or not declined(args, question):
        out.many(act[verb](dry_run=args.dry_run, **which), verb)
    return exits.OK


def declined(args: argparse.Namespace, question: Callable[[], str | None]) -> bool:
    """Ask a person, if there is one and something to ask; whether they said no."""
    if args.yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    asked = question()
    if asked is None or _confirmed(asked):
        return False
    sys.stderr.write("nothing was changed\n")
    return True


def _confirmed(question: str) -> bool:
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
