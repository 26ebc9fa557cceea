"""Many tasks at once: list, count, cancel, retry and reset them by filter; failures by error."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fairlane.cli.backends import Side, connected, declined, for_each, given
from fairlane.cli.commands import Commands, Parser
from fairlane.cli.commands.tasks import LAYOUTS, TASKS
from fairlane.cli.options import (
    confirmation,
    dry_run,
    filter_tasks,
    filters,
    paging,
    quiet,
    time_point,
)
from fairlane.cli.output import (
    Columns,
    Fields,
    Layouts,
    Output,
    ago,
    counted,
    remark,
)
from fairlane.cli.output.task import draw_queued
from fairlane.client.base import BaseClient
from fairlane.core.errors import FairlaneError, InvalidRequest
from fairlane.core.json_types import JsonObject
from fairlane.schema.tasks import TaskPage, TasksChanged

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

# Options by the argument of the client's method that each fills.
_WHICH: Final = {
    **{name: name for name in ("agent", "lane", "session", "batch", "kind", "handler")},
    **{name: name for name in ("depends_on", "since", "until", "error", "failure", "where")},
    **{name: name for name in ("finished_since", "finished_until", "text", "tag", "priority")},
    "state": "states",
}
_LISTED: Final = {**_WHICH, "sort": "sort", "brief": "brief", "offset": "offset"}
# Filters without an index: a page of them may be short although more tasks match.
_SEARCHES: Final = frozenset(
    {
        "since",
        "until",
        "finished_since",
        "finished_until",
        "error",
        "failure",
        "where",
        "text",
        "tag",
    }
)
_AT_A_TIME: Final = 2000  # tasks that one request changes
_AT_A_TIME_NAMED: Final = 100  # a response names as many


def register(commands: Commands) -> None:
    commands.add("tasks", connected(list_), _list_options, epilog=_LIST_EXAMPLES)
    for word in ("cancel", "retry", "reset"):
        options = _change_options if word == "cancel" else _again_options
        commands.add(word, connected(change), options, epilog=_CHANGE_NOTE)
    commands.add("failures", connected(failures), _failures_options, epilog=_FAILURES_NOTE)
    commands.add("prune", connected(prune), _prune_options)


# -------------------------------------------------------------------- list

_LIST_EXAMPLES: Final = (
    "examples:\n"
    "  fairlane tasks --state queued --sort oldest\n"
    "  fairlane tasks --state failed --handler scrape --since 10:00\n"
    "  fairlane tasks --where metadata.customer=42 --error timeout\n"
    "  fairlane tasks --state failed --count"
)


def _list_options(parser: Parser) -> None:
    filter_tasks(parser)
    parser.add_argument(
        "--sort", choices=("newest", "oldest"), help="which tasks come first (default: newest)"
    )
    parser.add_argument(
        "--brief",
        action="store_true",
        default=None,
        help="leave out results and other long fields",
    )
    parser.add_argument(
        "--offset", metavar="N", type=int, help="leave out the first ones; --cursor is faster"
    )
    parser.add_argument(
        "--count", action="store_true", help="only print how many tasks match, by state"
    )
    paging(parser)
    quiet(parser)


def list_(args: argparse.Namespace, side: Side, out: Output) -> None:
    if args.count:
        out.show(side.client.count_tasks(**_filters(args, _WHICH)), _draw_count)
        return
    which = _filters(args, _LISTED)
    ask: Callable[..., TaskPage] = partial(side.client.tasks, **which)
    ask = _filled(ask) if which.keys() & _SEARCHES else ask
    out.pages(args, ask, "tasks", TASKS, none="no tasks", layouts=LAYOUTS)


def _draw_count(terminal: Terminal, response: Fields) -> None:
    parts = ", ".join(f"{number} {name}" for name, number in sorted(response["byState"].items()))
    more = "" if response["complete"] else " at least: only the newest tasks were counted"
    terminal.line(counted(response["count"], "task"), more, f": {parts}" if parts else "")


def _filled(ask: Callable[..., TaskPage]) -> Callable[..., TaskPage]:
    """Return a function that reads on until the page is full: a search may find nothing in one
    part of the store and more in the next.
    """

    def read(*, limit: int | None, cursor: str | None) -> TaskPage:
        wanted = 100 if limit is None else limit
        page = ask(limit=limit, cursor=cursor)
        while page.next_cursor is not None and page.count < wanted:
            more = ask(limit=wanted - page.count, cursor=page.next_cursor)
            page = TaskPage(page.tasks + more.tasks, page.count + more.count, more.next_cursor)
        return page

    return read


def _filters(args: argparse.Namespace, options: Mapping[str, str]) -> JsonObject:
    """Return the filters that were given.

    Raise `InvalidRequest` for an empty one: it probably comes from an unset variable, and leaving
    it out would match more tasks than intended.
    """
    for option in options:
        if getattr(args, option) in ("", [""]):
            name = option.replace("_", "-")
            raise InvalidRequest(f"--{name} is empty; give it a value or remove it")
    return given(args, options)


# -------------------------------------------------------------------- cancel, retry, reset

_CHANGE_NOTE: Final = (
    "Give either IDs or a filter. With a filter, the command asks for confirmation on a terminal; "
    "--dry-run shows what would change.\n"
    "example:\n"
    "  fairlane retry --state failed --handler scrape --since 10:00 --dry-run"
)


def _change_options(parser: Parser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", help="task IDs")
    filter_tasks(parser)
    dry_run(parser, "only print how many tasks match the filter, and the first of them")
    parser.add_argument(
        "--cursor", metavar="CURSOR", help="continue a command that was interrupted"
    )
    confirmation(parser)
    quiet(parser)


def _again_options(parser: Parser) -> None:
    _change_options(parser)
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="forget the recorded steps and start from the beginning (only with IDs)",
    )


def change(args: argparse.Namespace, side: Side, out: Output) -> int | None:
    verb, which = args.command, _filters(args, _WHICH)
    if args.ids and (which or args.dry_run or args.cursor):
        raise InvalidRequest("give either IDs or a filter, not both")
    if which and getattr(args, "fresh", False):
        raise InvalidRequest("--fresh needs IDs: it does not apply to a filter")
    if which:
        act = _retry_group if verb == "retry" and args.failure else getattr
        _change_matching(args, out, act(side.client, f"{verb}_many"), which)
        return None
    if not args.ids:
        raise InvalidRequest(
            f"no tasks given: add IDs, or a filter such as --state; see fairlane {verb} --help"
        )
    act = getattr(side.client, verb)
    if getattr(args, "fresh", False):
        act = partial(act, fresh=True)
    draw = draw_queued if verb != "cancel" else _draw_cancelled
    return for_each(args, args.ids, lambda task_id: out.show(act(task_id), draw))


_OF_GROUPS: Final = frozenset({"agent", "lane", "handler", "since", "until", "failure"})


def _retry_group(client: BaseClient, _: str) -> Callable[..., TasksChanged]:
    """Return the function that queues the failed and the parked tasks of a group again."""

    def act(failure: str, **which: Any) -> TasksChanged:
        others = which.keys() - _OF_GROUPS - {"dry_run", "limit", "cursor"}
        if others:
            option = min(others).replace("_", "-")
            raise InvalidRequest(f"--{option} cannot be combined with --failure")
        return client.retry_failures(failure, **which)

    return act


def _draw_cancelled(terminal: Terminal, response: Fields) -> None:
    terminal.line(f"cancelled {response['taskId']}")


def _change_matching(
    args: argparse.Namespace, out: Output, act: Callable[..., TasksChanged], which: JsonObject
) -> None:
    verb = args.command

    def question() -> str | None:
        matched = act(dry_run=True, **which)["matched"]
        return f"{verb} {counted(matched, 'task')}?" if matched else None

    if args.dry_run:
        out.show(act(dry_run=True, **which), _draw_changed, verb)
    elif not declined(args, question):
        out.show(_change_all(args, out, act, which), _draw_changed, verb)


def _change_all(
    args: argparse.Namespace, out: Output, act: Callable[..., TasksChanged], which: JsonObject
) -> TasksChanged:
    """Change the tasks a few thousand at a time. After an interruption, say how to continue."""
    limit = _AT_A_TIME_NAMED if out.is_quiet else _AT_A_TIME
    total, cursor = TasksChanged(0, 0, dry_run=False, task_ids=[]), args.cursor

    def more() -> bool:
        nonlocal cursor
        try:
            done = act(limit=limit, cursor=cursor, **which)
        except (FairlaneError, KeyboardInterrupt):
            if cursor is not None:
                remark(f"{total.changed} tasks were changed; add --cursor {cursor} to continue")
            raise
        total.matched += done.matched
        total.changed += done.changed
        if out.is_quiet or len(total.task_ids) < _AT_A_TIME_NAMED:
            total.task_ids += done.task_ids
        cursor = done.next_cursor
        return cursor is not None

    if more():
        with out.progress(1) as say:
            while more():
                say(0, f"{counted(total.changed, 'task')} so far")
    return total


def _draw_changed(terminal: Terminal, response: Fields, verb: str) -> None:
    again = "" if verb == "cancel" else " again"
    if response["dryRun"]:
        would = "cancel" if verb == "cancel" else "queue"
        terminal.line(f"would {would} {counted(response['matched'], 'task')}{again}")
        for task_id in response["taskIds"]:
            terminal.line(task_id)
        return
    did = "cancelled" if verb == "cancel" else "queued"
    left = response["matched"] - response["changed"]
    rest = f"; {counted(left, 'task')} could not be changed" if left else ""
    terminal.line(f"{did} {counted(response['changed'], 'task')}{again}{rest}")


# -------------------------------------------------------------------- failures

_FAILURES_NOTE: Final = (
    "Errors that differ only in numbers, IDs and addresses are one group.\n"
    "examples:\n"
    "  fairlane failures --since 1h\n"
    "  fairlane retry --failure err_3f2a9c1b77de"
)
_FAILURES: Final[Columns] = {
    "FAILURE": "fingerprint",
    "COUNT": "count",
    "FIRST": lambda one: ago(one["firstSeen"]),
    "LAST": lambda one: ago(one["lastSeen"]),
    "HANDLERS": lambda one: ", ".join(one["handlers"]),
    "ERROR": "error",
}
_FAILURE_LAYOUTS: Final[Layouts] = ((120, {"HANDLERS": 24}), (0, {"HANDLERS": 12, "FIRST": 0}))


def _failures_options(parser: Parser) -> None:
    filters(parser, "failures", "agent", "lane", "handler")
    about = "only tasks that failed after this time: 1h ago, 10:00, a date or RFC 3339"
    parser.add_argument("--since", metavar="TIME", type=time_point, help=about)
    about = "only tasks that failed before this time"
    parser.add_argument("--until", metavar="TIME", type=time_point, help=about)
    parser.add_argument("--limit", metavar="N", type=int, help="number of groups (default 50)")
    quiet(parser)


def failures(args: argparse.Namespace, side: Side, out: Output) -> None:
    which = {name: name for name in ("agent", "lane", "handler", "since", "until", "limit")}
    response = side.client.failures(**_filters(args, which))
    out.page(response, "failures", _FAILURES, none="no failures", layouts=_FAILURE_LAYOUTS)
    if not (response.complete or out.is_json or out.is_quiet):
        out.terminal.note(f"only the newest {response.considered} failures were grouped")


# -------------------------------------------------------------------- prune


def _prune_options(parser: Parser) -> None:
    dry_run(parser, "only print how many tasks would be deleted")


def prune(args: argparse.Namespace, side: Side, out: Output) -> None:
    response = side.client.prune(dry_run=args.dry_run)
    did = "would delete" if response["dryRun"] else "deleted"
    out.line(response, f"{did} {counted(response['tasks'], 'task')}")
