"""Cancel, retry and reset: tasks by their ids, or all that fit a filter.

A filter may fit more than one thinks, so on a terminal the number is named before anything changes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairlane.cli import exits
from fairlane.cli.asking import for_each, which_tasks
from fairlane.cli.backends import Backend, opened
from fairlane.cli.output import for_people
from fairlane.core.errors import InvalidRequest

if TYPE_CHECKING:
    from fairlane.cli.human import HumanOutput


def run(args: argparse.Namespace) -> int:
    which = which_tasks(args)
    if args.ids and (which or args.dry_run):
        raise InvalidRequest("give either ids or a filter, not both")
    if not args.ids and not which:
        verb = args.command
        hint = f"say which tasks: give ids, or a filter such as --state; see fairlane {verb} --help"
        raise InvalidRequest(hint)
    with opened(args, for_people) as (side, out):
        return _many(args, side, out, which) if which else _each(args, side, out)


def prune(args: argparse.Namespace) -> int:
    with opened(args, for_people) as (side, out):
        out.pruned(side.client.prune(dry_run=args.dry_run))
    return exits.OK


def _each(args: argparse.Namespace, side: Backend, out: HumanOutput) -> int:
    client = side.client
    verb = {"cancel": client.cancel, "retry": client.retry, "reset": client.reset}[args.command]
    told = out.cancelled if args.command == "cancel" else out.again
    return for_each(args, args.ids, lambda task_id: told(verb(task_id)))


def _many(args: argparse.Namespace, side: Backend, out: HumanOutput, which: dict[str, Any]) -> int:
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
