"""The command `fairlane`: reads the command line, runs the command, reports errors.

An error becomes one line on stderr and an exit code.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

from fairlane.cli import commands
from fairlane.cli.commands import Exit
from fairlane.core import errors
from fairlane.core.errors import FairlaneError

# The first match counts, so specific errors come before the classes they belong to.
_EXITS: Final[tuple[tuple[type[FairlaneError], Exit], ...]] = (
    (errors.NotFound, Exit.NOT_FOUND),
    (errors.Unauthenticated, Exit.REFUSED),
    (errors.Forbidden, Exit.REFUSED),
    (errors.Conflict, Exit.REFUSED),
    (errors.IdempotencyConflict, Exit.REFUSED),
    (errors.MessageStale, Exit.REFUSED),
    (errors.MessageTaken, Exit.REFUSED),
    (errors.SessionBusy, Exit.REFUSED),
    (errors.ApprovalChanged, Exit.REFUSED),
    (errors.StepChanged, Exit.REFUSED),
    (errors.EffectUnknown, Exit.REFUSED),
    (errors.ApprovalClosed, Exit.REFUSED),
    (errors.LeaseLost, Exit.REFUSED),
    (errors.CallerError, Exit.USAGE),
    (errors.StoreUnavailable, Exit.UNREACHABLE),
    (errors.Unreachable, Exit.UNREACHABLE),
    (errors.BusyError, Exit.REFUSED),
    (errors.InvalidSettings, Exit.USAGE),
    (errors.OperatorError, Exit.SET_UP),
    (errors.TargetRefused, Exit.REFUSED),
    (errors.TaskFailed, Exit.NOT_WELL),
)


def exit_code(error: FairlaneError) -> Exit:
    return next((code for kind, code in _EXITS if isinstance(error, kind)), Exit.DEFECT)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except SystemExit as end:  # argparse, after help
        return end.code if isinstance(end.code, int) else Exit.USAGE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return Exit.PIPE_CLOSED


def _run(arguments: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # print characters that the terminal lacks as ?
            stream.reconfigure(errors="replace")
    try:
        args = commands.parse(arguments)
    except commands.WrongLine as wrong:
        _report(errors.InvalidRequest(str(wrong)), as_json="--json" in arguments)
        return Exit.USAGE
    as_json: bool = getattr(args, "json", False)
    try:
        code: int = args.perform(args)
        sys.stdout.flush()
        return code
    except FairlaneError as error:
        _report(error, as_json=as_json)
        return exit_code(error)
    except BrokenPipeError:
        raise
    except OSError as error:  # the disk of the output is full, or the like
        if error.filename is None:
            _discard_output()
        problem = f"{error.filename or 'the output'}: {error.strerror or error}"
        _report(errors.OperatorError(problem), as_json=as_json)
        return Exit.SET_UP
    except Exception:  # noqa: BLE001 - a bug: its traceback helps to find it
        import traceback  # noqa: PLC0415 - rarely needed

        traceback.print_exc()
        return Exit.DEFECT


def _report(error: FairlaneError, *, as_json: bool) -> None:
    # Deferred because `fairlane --help` does not need msgspec and the schema (55 ms).
    from fairlane.cli.output import print_error  # noqa: PLC0415 - for the reason above

    print_error(error, as_json=as_json)


def _discard_output() -> None:
    """Point stdout at /dev/null, so that the interpreter can flush it when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
