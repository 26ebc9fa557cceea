"""`fairlane worker MODULE:NAME`: run the handlers of a module until a signal.

The module is imported as Python would from the current folder. What is wrong with it is told in one
line that says what to change; only a module that breaks while it is imported shows where.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final

from fairlane import config, logs
from fairlane.cli import exits
from fairlane.client import transport
from fairlane.core.errors import InvalidSettings
from fairlane.core.policy import nearest
from fairlane.worker.external import Worker

_FORM: Final = "MODULE:NAME, for example tasks:worker"


def run(args: argparse.Namespace) -> int:
    logs.begin(args.log_level, args.log_format)
    worker = _found(args.app)
    worker.url = args.url or config.variable("FAIRLANE_URL") or worker.url
    worker.token = config.token(args.token_file) or worker.token
    worker.lanes = args.lanes or worker.lanes
    worker.concurrency = args.concurrency or worker.concurrency
    worker.name = args.name or worker.name
    if args.drain_seconds is not None:
        worker.drain_seconds = args.drain_seconds
    where = transport.parsed(worker.url)[0]

    def announce() -> None:
        print(f"fairlane worker {worker.name} leases from {where}", flush=True)  # noqa: T201 - for people and scripts

    worker.serve(announce)
    return exits.OK


def _found(app: str) -> Worker:
    module_name, colon, name = app.partition(":")
    if not colon or not module_name or not name:
        raise InvalidSettings([f"the worker must be given as {_FORM}, not {app[:100]!r}"])
    module = _imported(module_name)
    found = getattr(module, name, None)
    if isinstance(found, Worker):
        return found
    others = [other for other, value in vars(module).items() if isinstance(value, Worker)]
    there = f"; {module_name} has {', '.join(others)}" if others else ""
    if found is None:
        hint = there or nearest(name, vars(module))
        raise InvalidSettings([f"module {module_name} has no {name}{hint}"])
    kind = type(found).__name__
    raise InvalidSettings([f"{app} is of type {kind}, not a fairlane.Worker{there}"])


def _imported(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            problem = f"there is no module {missing} in {folder} or where Python looks for modules"
            raise InvalidSettings([problem]) from None
        raise InvalidSettings([f"module {name} needs {missing}, which is not installed"]) from None
    except Exception as error:
        traceback.print_exception(error.with_traceback(_own_frames(error.__traceback__)))
        problem = f"module {name} cannot be imported: {type(error).__name__}: {error}"
        raise InvalidSettings([problem]) from error


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """What happened in the module, without how it came to be imported."""
    while frames is not None and _is_import(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _is_import(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")
