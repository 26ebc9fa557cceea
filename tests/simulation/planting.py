"""Bugs to plant on purpose: a check that cannot fail is no check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Bug = Callable[[pytest.MonkeyPatch], None]


class Bed:
    """Bugs of one kind, each with the rules of which one has to catch it."""

    def __init__(self) -> None:
        self.bugs: list[Any] = []

    def plant(self, *rules: str, seed: int = 1) -> Callable[[Bug], Bug]:
        """`seed` is where to look first: a history in which it has been caught soon."""

        def add(bug: Bug) -> Bug:
            self.bugs.append(pytest.param(bug, rules, seed, id=bug.__name__))
            return bug

        return add


def always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer
