"""Where answers go: `Output` is what commands print to, as JSON here or for people in `human.py`.

JSON is exactly what the route answers, one line for each answer.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from fairlane import wire
from fairlane.cli.text import shown
from fairlane.core.errors import FairlaneError

Shape = Mapping[str, Any]
Deliveries = Sequence[Shape]
Say = Callable[[int, str], None]


class Output(Protocol):
    def submitted(self, answer: Shape) -> None: ...

    def tasks(self, page: Shape, *, more: bool) -> None:
        """`more`: the next page will follow."""
        ...

    def task(self, task: Shape, deliveries: Deliveries) -> None: ...

    def why(self, answer: Shape) -> None: ...

    def ended(self, tasks: Sequence[Shape]) -> None: ...

    def cancelled(self, answer: Shape) -> None: ...

    def again(self, answer: Shape) -> None: ...

    def many(self, answer: Shape, verb: str) -> None: ...

    def pruned(self, answer: Shape) -> None: ...

    def batches(self, page: Shape, *, more: bool) -> None: ...

    def batch(self, batch: Shape) -> None: ...

    def batch_ended(self, batch: Shape, members: Sequence[Shape]) -> None: ...

    def batch_cancelled(self, answer: Shape) -> None: ...

    def event(self, event: Shape) -> None: ...

    def piece(self, piece: Shape) -> None: ...

    def output(self, output: Shape) -> None: ...

    def stats(self, stats: Shape) -> None: ...

    def doctor(self, report: Shape) -> None: ...

    def secret(self, answer: Shape) -> None: ...

    def progress(self, total: int, *, plain: bool = False) -> AbstractContextManager[Say]:
        """Something to say now and then how many are done and what is being waited for.

        `plain`: in lines, where there is no terminal.
        """
        ...


class JsonOutput:
    def submitted(self, answer: Shape) -> None:
        print_json(answer)

    def tasks(self, page: Shape, *, more: bool) -> None:  # noqa: ARG002 - of use to people only
        print_json(page)

    def task(self, task: Shape, deliveries: Deliveries) -> None:  # noqa: ARG002 - not in the route
        print_json(task)

    def why(self, answer: Shape) -> None:
        print_json(answer)

    def ended(self, tasks: Sequence[Shape]) -> None:
        for task in tasks:
            print_json(task)

    def cancelled(self, answer: Shape) -> None:
        print_json(answer)

    def again(self, answer: Shape) -> None:
        print_json(answer)

    def many(self, answer: Shape, verb: str) -> None:  # noqa: ARG002 - of use to people only
        print_json(answer)

    def pruned(self, answer: Shape) -> None:
        print_json(answer)

    def batches(self, page: Shape, *, more: bool) -> None:  # noqa: ARG002 - of use to people only
        print_json(page)

    def batch(self, batch: Shape) -> None:
        print_json(batch)

    def batch_ended(self, batch: Shape, members: Sequence[Shape]) -> None:  # noqa: ARG002 - as above
        print_json(batch)

    def batch_cancelled(self, answer: Shape) -> None:
        print_json(answer)

    def event(self, event: Shape) -> None:
        print_json(event)

    def piece(self, piece: Shape) -> None:
        print_json(piece)

    def output(self, output: Shape) -> None:
        print_json(output)

    def stats(self, stats: Shape) -> None:
        print_json(stats)

    def doctor(self, report: Shape) -> None:
        print_json(report)

    def secret(self, answer: Shape) -> None:
        print_json(answer)

    @contextlib.contextmanager
    def progress(self, total: int, *, plain: bool = False) -> Iterator[Say]:  # noqa: ARG002 - nothing is said
        yield lambda *_: None


def output_of(args: argparse.Namespace) -> Output:
    if args.json:
        return JsonOutput()
    from fairlane.cli.human import HumanOutput  # noqa: PLC0415 - slow to import

    return HumanOutput()


def tell(error: FairlaneError, *, as_json: bool) -> None:
    """One line for people; for programs besides the JSON that the route answers."""
    if as_json:
        print_json(wire.error(error))
    complain(error.message)


def print_json(shape: Any) -> None:
    """Bytes, because JSON is UTF-8 whatever the terminal speaks."""
    sys.stdout.flush()
    sys.stdout.buffer.write(wire.encode(shape) + b"\n")
    sys.stdout.buffer.flush()


def complain(message: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"error: {shown(message)}\n")
