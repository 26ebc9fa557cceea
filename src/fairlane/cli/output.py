"""Where answers go: as JSON here, or for people in `human.py` and its like.

JSON is exactly what the route answers, one line for each answer.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from fairlane import config
from fairlane.cli.text import shown
from fairlane.core.errors import FairlaneError, Unauthenticated, Unreachable
from fairlane.schema import wire
from fairlane.schema.operation import Response

if TYPE_CHECKING:
    from fairlane.cli.human import HumanOutput

Told = TypeVar("Told", bound="HumanOutput")
Shape = Mapping[str, Any] | Response
Deliveries = Sequence[Shape]
Say = Callable[[int, str], None]

# What the server tells everybody means this to who sits at a command line.
_HERE: Final = {
    Unauthenticated.code: "; commands take it from FAIRLANE_TOKEN or --token-file",
}


class JsonOutput:
    """In place of any output for people: prints what a method is told first, which is the answer
    of the route. What else a method is told is of use to people only.
    """

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _print_first

    def ended(self, tasks: Sequence[Shape]) -> None:
        for task in tasks:
            print_json(task)

    @contextlib.contextmanager
    def progress(self, total: int, *, plain: bool = False) -> Iterator[Say]:  # noqa: ARG002 - nothing is said
        yield lambda *_: None


def _print_first(answer: Any, *_: Any, **__: Any) -> None:
    print_json(answer)


def output_of(args: argparse.Namespace, for_people: Callable[[], Told]) -> Told:
    return cast("Told", JsonOutput()) if args.json else for_people()


def for_people() -> HumanOutput:
    from fairlane.cli.human import HumanOutput  # noqa: PLC0415 - slow to import

    return HumanOutput()


def tell(error: FairlaneError, *, as_json: bool) -> None:
    """One line for people; for programs besides the JSON that the route answers."""
    if as_json:
        print_json(wire.error(error))
    complain(error.message + _HERE.get(error.code, "") + _way_without_server(error))


def _way_without_server(error: FairlaneError) -> str:
    """Most commands ask a server, also where the environment names a store."""
    if isinstance(error, Unreachable) and config.variable("FAIRLANE_STORE"):
        return '; --store "$FAIRLANE_STORE" asks the store itself'
    return ""


def print_json(shape: Any) -> None:
    """Bytes, because JSON is UTF-8 whatever the terminal speaks."""
    sys.stdout.flush()
    sys.stdout.buffer.write(wire.encode(shape) + b"\n")
    sys.stdout.buffer.flush()


def complain(message: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"error: {shown(message)}\n")


def remark(message: str) -> None:
    """What a person should know of something that worked."""
    sys.stdout.flush()
    sys.stderr.write(f"note: {shown(message)}\n")
