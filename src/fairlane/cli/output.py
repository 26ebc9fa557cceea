"""Where answers go: `Output` is what commands print to, as JSON here or for people in `human.py`.

JSON is exactly what the route answers, one line for each answer.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from fairlane import wire
from fairlane.cli.text import shown

Shape = Mapping[str, Any]
Deliveries = Sequence[Sequence[Any]]


class Output(Protocol):
    def submitted(self, answer: Shape) -> None: ...

    def tasks(self, page: Shape, *, more: bool) -> None:
        """`more`: the next page will follow."""
        ...

    def task(self, task: Shape, deliveries: Deliveries) -> None: ...

    def ended(self, tasks: Sequence[Shape]) -> None: ...

    def cancelled(self, answer: Shape) -> None: ...

    def stats(self, stats: Shape) -> None: ...

    def doctor(self, report: Shape) -> None: ...

    def secret(self, answer: Shape) -> None: ...

    def progress(self) -> AbstractContextManager[Callable[[str], None]]:
        """Something to say now and then what is being waited for."""
        ...


class JsonOutput:
    def submitted(self, answer: Shape) -> None:
        print_json(answer)

    def tasks(self, page: Shape, *, more: bool) -> None:  # noqa: ARG002 - of use to people only
        print_json(page)

    def task(self, task: Shape, deliveries: Deliveries) -> None:  # noqa: ARG002 - not in the route
        print_json(task)

    def ended(self, tasks: Sequence[Shape]) -> None:
        for task in tasks:
            print_json(task)

    def cancelled(self, answer: Shape) -> None:
        print_json(answer)

    def stats(self, stats: Shape) -> None:
        print_json(stats)

    def doctor(self, report: Shape) -> None:
        print_json(report)

    def secret(self, answer: Shape) -> None:
        print_json(answer)

    @contextlib.contextmanager
    def progress(self) -> Iterator[Callable[[str], None]]:
        yield lambda _: None


def print_json(shape: Any) -> None:
    """Bytes, because JSON is UTF-8 whatever the terminal speaks."""
    sys.stdout.flush()
    sys.stdout.buffer.write(wire.encode(shape) + b"\n")
    sys.stdout.buffer.flush()


def complain(message: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"error: {shown(message)}\n")
