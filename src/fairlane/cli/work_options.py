"""The options of the commands about many tasks and about what happens: batch, cancel, events, …"""

from __future__ import annotations

from fairlane.cli.options import (
    Commands,
    Parser,
    offer,
    one,
    paging,
    several,
    wait_option,
    which_tasks,
)
from fairlane.cli.values import whole


def fill(commands: Commands) -> None:
    add = commands.add
    add("cancel", "Cancel tasks, by id or all that fit", _ids_or_filter)
    add("retry", "Queue failed or cancelled tasks again, with all their attempts", _ids_or_filter)
    add("reset", "Queue parked tasks again, with all their attempts", _ids_or_filter)
    commands.noun("batch", "Submit many tasks together, look at them, cancel them", _batch)
    add("events", "Tell what has happened, and with --follow what happens", _events)
    add("output", "Print the text that a task has produced", _output)
    add("prune", "Forget ended tasks that are kept no longer", _prune)


def _ids_or_filter(parser: Parser) -> None:
    parser.epilog = "Either ids, or a filter; on a terminal a filter asks before it acts."
    parser.add_argument("ids", metavar="ID", nargs="*")
    which_tasks(parser)
    parser.add_argument("--dry-run", action="store_true", help="only tell which tasks would fit")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _batch(batch: Commands) -> None:
    batch.add("submit", "Submit the tasks of a file as one batch", _batch_submit)
    batch.add("show", "Show a batch", one)
    batch.add("list", "List batches, newest first", _batch_list)
    batch.add("cancel", "Cancel what has not ended of batches", several)


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
    offer(parser, "parallelism", "agent", "callback-url", "idempotency-key")
    wait_option(parser, "wait until all have ended, at most so long")


def _batch_list(parser: Parser) -> None:
    offer(parser, "agent")
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
    offer(parser, "task", "batch", "agent", "lane")
    parser.add_argument(
        "--type",
        metavar="TYPE",
        action="append",
        help="task.completed and the like (repeatable, or with commas)",
    )


def _output(parser: Parser) -> None:
    one(parser)
    parser.add_argument(
        "--follow", action="store_true", help="all attempts, as it comes, until the task has ended"
    )


def _prune(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only tell how many would go")
