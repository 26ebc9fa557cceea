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

REGISTERED: dict[str, Service[Any, Any]] = {}


def implements(operation: Operation[Q, R]) -> Callable[[Service[Q, R]], Service[Q, R]]:
    """Register the function that answers an operation."""

    def register(function: Service[Q, R]) -> Service[Q, R]:
        assert operation.name not in REGISTERED, f"{operation.name} is implemented twice"
        REGISTERED[operation.name] = function
        return function

    return register
