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
from importlib import import_module
from typing import Final

from fairlane.cli import exits, parser
from fairlane.cli.options import WrongLine
from fairlane.core.errors import FairlaneError, InvalidRequest, OperatorError

# Where a command is that is not in `commands`, for few commands load the rest.
_PLACES: Final = {
    "audit": "audit",
    "completion": "completion",
    "cron": "cron",
    "deliveries": "webhooks",
    "demo": "demo",
    "mcp": "mcp",
    "policy": "policy",
    "queue": "queue",
    "sched": "queue",
    "templates": "templates",
    "token": "token",
    "top": "top",
    "webhooks": "webhooks",
    "worker": "worker",
}


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except SystemExit as end:  # argparse, after help
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
    try:
        args = parser.parse(arguments)
    except WrongLine as wrong:
        return _refused(wrong, as_json="--json" in arguments)
    _import_msgspec()
    from fairlane.cli.output import tell  # noqa: PLC0415 - as above

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
        if error.filename is None:
            _let_go()
        what = f"{error.filename or 'the output'}: {error.strerror or error}"
        tell(OperatorError(what), as_json=getattr(args, "json", False))
        return exits.SET_UP
    except Exception:  # noqa: BLE001 - a defect: its traceback is what helps to find it
        import traceback  # noqa: PLC0415 - help has no use for it

        traceback.print_exc()
        return exits.DEFECT


def _refused(wrong: WrongLine, *, as_json: bool) -> int:
    _import_msgspec()
    from fairlane.cli.output import tell  # noqa: PLC0415 - help has no use for it

    tell(InvalidRequest(str(wrong)), as_json=as_json)
    return exits.USAGE


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
    place = import_module(f"fairlane.cli.{_PLACES.get(name, 'commands')}")
    run: Callable[[Namespace], int] = place.run
    return run


def _let_go() -> None:
    """The output is gone: give the interpreter something else to flush into when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
