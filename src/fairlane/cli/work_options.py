"""The options of the commands about many tasks and about what happens: batch, cancel, events, …"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairlane.cli.parser import (
    Parser,
    idempotency_key,
    paging,
    server_or_store,
    wait_option,
    which_tasks,
)
from fairlane.cli.values import count, whole

Add = Callable[[str, str, Callable[[Parser], None]], None]


def fill(add: Add, commands: Any, leaves: dict[str, Parser]) -> None:
    add("cancel", "Cancel tasks, by id or all that fit", _ids_or_filter)
    add("retry", "Queue failed or cancelled tasks again, with all their attempts", _ids_or_filter)
    add("reset", "Queue parked tasks again, with all their attempts", _ids_or_filter)
    about = "Submit many tasks together, look at them, cancel them"
    _batch(commands.add_parser("batch", help=about, description=f"{about}."), leaves)
    add("events", "Tell what has happened, and with --follow what happens", _events)
    add("output", "Print the text that a task has produced", _output)
    add("prune", "Forget ended tasks that are kept no longer", _prune)


def _ids_or_filter(parser: Parser) -> None:
    parser.epilog = "Either ids, or a filter; on a terminal a filter asks before it acts."
    parser.add_argument("ids", metavar="ID", nargs="*")
    which_tasks(parser)
    parser.add_argument("--dry-run", action="store_true", help="only tell which tasks would fit")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    server_or_store(parser)


def _batch(parser: Parser, leaves: dict[str, Parser]) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    leaves["batch"] = parser

    def add(name: str, summary: str, options: Callable[[Parser], None]) -> None:
        leaf = verbs.add_parser(name, help=summary, description=f"{summary}.")
        leaves[f"batch {name}"] = leaf
        options(leaf)
        server_or_store(leaf)

    add("submit", "Submit the tasks of a file as one batch", _batch_submit)
    add("show", "Show a batch", lambda leaf: _batch_id(leaf, None))
    add("list", "List batches, newest first", _batch_list)
    add("cancel", "Cancel what has not ended of batches", lambda leaf: _batch_id(leaf, "+"))


def _batch_submit(parser: Parser) -> None:
    parser.epilog = (
        "example: the second waits for the first\n"
        """  echo '[{"key": "a", "handler": "echo"},\n"""
        """         {"handler": "echo", "dependsOn": ["#a"]}]' \\\n"""
        "    | fairlane batch submit - --parallelism 2 --wait"
    )
    parser.add_argument(
        "file", metavar="FILE", help="JSON with a list of tasks, or a batch; - reads stdin"
    )
    parser.add_argument(
        "--parallelism", metavar="N", type=count, help="how many of them run at once (1 to 10)"
    )
    parser.add_argument("--agent", metavar="ID", help="who asks")
    parser.add_argument("--callback-url", metavar="URL", help="is told when the batch has ended")
    idempotency_key(parser)
    wait_option(parser, "wait until all have ended, at most so long")


def _batch_id(parser: Parser, number: str | None) -> None:
    parser.add_argument("ids" if number else "id", metavar="ID", nargs=number)


def _batch_list(parser: Parser) -> None:
    parser.add_argument("--agent", metavar="ID")
    paging(parser)


def _events(parser: Parser) -> None:
    parser.add_argument(
        "--follow", action="store_true", help="go on with what happens, until Ctrl-C"
    )
    parser.add_argument(
        "--after",
        metavar="N",
        type=whole,
        help="begin behind the event with that id (the beginning; with --follow, now)",
    )
    parser.add_argument("--task", metavar="ID")
    parser.add_argument("--batch", metavar="ID")
    parser.add_argument("--agent", metavar="ID")
    parser.add_argument("--lane", metavar="NAME")
    parser.add_argument(
        "--type",
        metavar="TYPE",
        action="append",
        help="task.completed and the like (repeatable, or with commas)",
    )
    server_or_store(parser)


def _output(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID")
    parser.add_argument(
        "--follow", action="store_true", help="all attempts, as it comes, until the task has ended"
    )
    server_or_store(parser)


def _prune(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only tell how many would go")
    server_or_store(parser)
