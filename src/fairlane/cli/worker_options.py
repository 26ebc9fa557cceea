"""The options of `fairlane worker`."""

from __future__ import annotations

from fairlane.cli.options import Parser, token_file
from fairlane.cli.values import count, seconds


def fill(parser: Parser) -> None:
    parser.epilog = (
        "example: tasks.py has worker = fairlane.Worker() and functions with @worker.handler(…)\n"
        "  fairlane worker tasks:worker --lanes main,team --concurrency 20\n"
        "An option wins over what the module says. The first signal drains, a second ends at once."
    )
    parser.add_argument("app", metavar="MODULE:NAME", help="where the worker is")
    parser.add_argument(
        "--lanes",
        metavar="NAMES",
        type=lambda text: [name for name in text.split(",") if name],
        action="extend",
        help="the lanes to take tasks from (repeatable, or with commas; all)",
    )
    parser.add_argument(
        "--url", metavar="URL", help="the server (FAIRLANE_URL, or what the worker says)"
    )
    token_file(parser)
    parser.add_argument("--concurrency", metavar="N", type=count, help="how many at once (10)")
    parser.add_argument("--name", metavar="NAME", help="the worker's name in events and tasks")
    parser.add_argument(
        "--drain-seconds",
        metavar="N",
        type=seconds,
        help="how long running tasks may take to finish (10)",
    )
    parser.add_argument(
        "--log-level",
        metavar="LEVEL",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="debug, info, warning or error (info)",
    )
    parser.add_argument(
        "--log-format",
        metavar="FORMAT",
        default="text",
        choices=("text", "json"),
        help="text, or json for one object a line (text)",
    )
