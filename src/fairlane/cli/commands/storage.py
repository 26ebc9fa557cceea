"""Whole stores: backups, restores, and moves to another database."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from fairlane import config
from fairlane.cli.commands import Commands, Exit, Parser, as_json, store_only
from fairlane.cli.output import Fields, Output, counted, size, span

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal


def register(commands: Commands) -> None:
    note = (
        "A backup is one SQLite file, whichever database the store uses. It does not contain the "
        "key that\nencrypts the secrets: keep the key file in another place."
    )
    commands.add("backup", backup, _backup_options, epilog=note, side=store_only)
    note = "If the restore fails, the store keeps its previous contents."
    commands.add("restore", restore, _restore_options, epilog=note, side=store_only)
    note = (
        "TO must be an empty database or a new file. Servers on FROM keep working until the switch "
        "at the end;\nthen they exit with code 6, and you start them with TO. If the command is "
        "interrupted, run it again."
    )
    commands.add("move", move, _move_options, epilog=note, side=as_json)


# -------------------------------------------------------------------- backup, restore


def _backup_options(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="file to write, which must not exist yet")


def backup(args: argparse.Namespace) -> int:
    # Deferred, as below, because help does not need the databases.
    from fairlane.cli import copies  # noqa: PLC0415 - for that reason

    out = Output(args)
    with out.progress(1) as say:
        report = copies.back_up(_store(args), Path(args.file), say)
    out.show(msgspec.to_builtins(report), _draw_backup)
    return Exit.OK


def _draw_backup(terminal: Terminal, report: Fields) -> None:
    terminal.line(f"wrote {report['file']} ({size(report['sizeBytes'])}) from {report['store']}")
    terminal.line(_compared(report))
    if report["keyFile"]:
        terminal.line(
            f"also keep {report['keyFile']}, which decrypts the secrets, in another place"
        )


def _restore_options(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file that fairlane backup wrote")
    about = (
        "restore even if the store is not empty: a SQLite file is renamed first, "
        "the contents of a PostgreSQL database are deleted"
    )
    parser.add_argument("--replace", action="store_true", help=about)


def restore(args: argparse.Namespace) -> int:
    from fairlane.cli import copies  # noqa: PLC0415 - for the reason above

    out = Output(args)
    with out.progress(1) as say:
        report = copies.restore(Path(args.file), _store(args), say, replace=args.replace)
    out.show(msgspec.to_builtins(report), _draw_restore)
    return Exit.OK


def _draw_restore(terminal: Terminal, report: Fields) -> None:
    terminal.line(f"restored {report['file']} to {report['store']}")
    terminal.line(_compared(report))
    if report["replaced"]:
        terminal.line(f"the old store is now {report['replaced']}")


def _store(args: argparse.Namespace) -> str:
    return config.load({"store": args.store}).store


def _compared(report: Fields) -> str:
    return (
        f"{counted(report['rows'], 'row')} in {counted(len(report['tables']), 'table')}, "
        f"compared by count and checksum; {span(round(report['seconds'] * 1000))}"
    )


# -------------------------------------------------------------------- move


def _move_options(parser: Parser) -> None:
    parser.add_argument("source", metavar="FROM", help="address of the store to move")
    parser.add_argument(
        "target", metavar="TO", help="address of the new store, which must be empty"
    )
    about = "give up an unfinished move: FROM stays as it is, and TO is emptied"
    parser.add_argument("--cancel", action="store_true", help=about)


def move(args: argparse.Namespace) -> int:
    from fairlane.cli import copies  # noqa: PLC0415 - for the reason above

    out = Output(args)
    with copies.opened_move(args.source, args.target) as moving:
        if args.cancel:
            out.show({"moveId": moving.cancel().id, "cancelled": True}, _draw_cancelled)
            return Exit.OK
        keys = copies.Keys(args.source, args.target)
        with out.progress(moving.rows()) as say:
            moving.say, moving.on_begun = say, keys.bring
            report = moving.run()
    out.show({**msgspec.to_builtins(report), "keyFile": keys.file}, _draw_move)
    return Exit.OK


def _draw_move(terminal: Terminal, report: Fields) -> None:
    terminal.line(f"moved {report['source']} to {report['target']}")
    terminal.line(f"{_compared(report)}, writes refused for {report['blockedMs']} ms")
    if report["keyFile"]:
        terminal.line(f"added the key that encrypts the secrets to {report['keyFile']}")
    terminal.line(f"start the server with --store {report['target']}")


def _draw_cancelled(terminal: Terminal, report: Fields) -> None:
    terminal.line(f"cancelled {report['moveId']}; the old store is unchanged, the new one is empty")
