"""The command `fairlane`.

Reads the command line, runs the command, and turns whatever goes wrong into one line and an exit
code. Imports as little as it can: `fairlane --help` has to be quick.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence

from fairlane.cli import exits, parser
from fairlane.core.errors import FairlaneError


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except SystemExit as end:  # argparse, after help and after a complaint
        return end.code if isinstance(end.code, int) else exits.USAGE
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        _let_go()
        return exits.PIPE_CLOSED


def _run(arguments: Sequence[str]) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a letter the terminal lacks is no reason to fail
            stream.reconfigure(errors="replace")
    args = parser.parse(arguments)
    _import_msgspec()
    from fairlane.cli.output import complain, tell  # noqa: PLC0415 - as above

    try:
        code = _command(args.command)(args)
        sys.stdout.flush()
        return code
    except FairlaneError as error:
        tell(error, as_json=getattr(args, "json", False))
        return exits.exit_code(error)
    except BrokenPipeError:
        raise
    except OSError as error:  # the output's disk is full, or the like
        _let_go()
        complain(f"{error.filename or 'the output'}: {error.strerror or error}")
        return exits.SET_UP
    except Exception:  # noqa: BLE001 - a defect: its traceback is what helps to find it
        import traceback  # noqa: PLC0415 - help has no use for it

        traceback.print_exc()
        return exits.DEFECT


def _import_msgspec() -> None:
    """Without `typing_extensions`, which it takes when it is there, has no use for on this Python,
    and which costs a tenth of a command's time. Whoever wants it later gets it.
    """
    if "msgspec" not in sys.modules and "typing_extensions" not in sys.modules:
        sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # how import is told no
        try:
            import msgspec  # noqa: F401, PLC0415 - only to have it loaded
        finally:
            del sys.modules["typing_extensions"]


def _command(name: str) -> Callable[[Namespace], int]:
    if name in ("sched", "queue"):  # called for every piece of work: nothing else is loaded
        from fairlane.cli.queue import COMMANDS  # noqa: PLC0415 - help has no use for it
    else:
        from fairlane.cli.commands import COMMANDS  # noqa: PLC0415 - as above
    return COMMANDS[name]


def _let_go() -> None:
    """The output is gone: give the interpreter something else to flush into when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
