"""`fairlane import`: files of PinchTab, BrowserOS, GoClaw and cool-workflow."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

import msgspec

from fairlane import config
from fairlane.cli.commands import Commands, Exit, Parser, store_only
from fairlane.cli.options import dry_run
from fairlane.cli.output import Fields, Output, complain, remark

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

SOURCES: Final = ("pinchtab", "browseros", "goclaw", "coolworkflow")
_NOUNS: Final = {
    "waitingTasks": ("waiting task", "waiting tasks"),
    "finishedTasks": ("finished task", "finished tasks"),
    "templates": ("template", "templates"),
    "jobs": ("cron job", "cron jobs"),
    "entries": ("queue entry", "queue entries"),
    "policyChanges": ("policy change", "policy changes"),
}
_SHOWN_MAX: Final = 20


def register(commands: Commands) -> None:
    note = (
        "  pinchtab      config.json: its section scheduler becomes the policy\n"
        "  browseros     the SQLite file: tasks, results and templates\n"
        "  goclaw        JSON with cron jobs\n"
        "  coolworkflow  queue.json or scheduling-policy.json\n\n"
        "IDs stay the same. Objects that are already in the store are not changed, so you can "
        "repeat an\nimport. A server may use the store at the same time."
    )
    commands.add("import", import_, _options, epilog=note, side=store_only)


def _options(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="file to import")
    about = f"program that wrote the file: {', '.join(SOURCES)}"
    parser.add_argument(
        "--from", dest="source", metavar="PROGRAM", choices=SOURCES, required=True, help=about
    )
    dry_run(parser, "report what would be imported, and all problems, without importing anything")
    about = (
        "leave out tasks, templates and jobs that cannot be imported, instead of importing nothing"
    )
    parser.add_argument("--skip-invalid", action="store_true", help=about)


def import_(args: argparse.Namespace) -> int:
    # Deferred because help does not need the engine.
    from fairlane.cli.importing import Import  # noqa: PLC0415 - for that reason

    url = config.load({"store": args.store}).store
    importing = Import(url, args.file, dry_run=args.dry_run, skip_invalid=args.skip_invalid)
    report = importing.run(args.source)
    Output(args).show(msgspec.to_builtins(report), _draw)
    return Exit.USAGE if report.problems and not args.skip_invalid else Exit.OK


def _draw(terminal: Terminal, report: Fields) -> None:
    for note in _some(report["notes"]):
        remark(note)
    for problem in _some(report["problems"]):
        complain(problem)
    parts = [f"{number} {_NOUNS[name][number != 1]}" for name, number in report["imported"].items()]
    verb = "would import" if report["dryRun"] else "imported"
    line = f"{verb} {', '.join(parts)} from {report['file']}"
    if report["existing"]:
        line += f"; {report['existing']} already existed"
    terminal.line(line)


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - _SHOWN_MAX
    return [*lines[:_SHOWN_MAX], *([f"and {more} more"] if more > 0 else [])]
