"""Which function implements which operation. `catalog.py` imports them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fairlane.core.access import Caller
from fairlane.engine.node import Node
from fairlane.schema.operation import Operation, Request

Q = TypeVar("Q", bound=Request)
R = TypeVar("R")
Service = Callable[[Node, Caller, Q], Awaitable[R]]

Undo = Callable[[Node, R], None]

REGISTERED: dict[str, Service[Any, Any]] = {}
UNDO: dict[str, Undo[Any]] = {}


def implements(
    operation: Operation[Q, R], *, undo: Undo[R] | None = None
) -> Callable[[Service[Q, R]], Service[Q, R]]:
    """Register the function that implements an operation.

    `undo` reverts it if the response cannot be delivered.
    """
    if undo is not None:
        UNDO[operation.name] = undo

    def register(function: Service[Q, R]) -> Service[Q, R]:
        assert operation.name not in REGISTERED, f"{operation.name} is implemented twice"
        REGISTERED[operation.name] = function
        return function

    return register
