"""Which function implements which operation. `catalog.py` imports them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from fairlane.core.access import Caller
from fairlane.engine import codec
from fairlane.engine.node import Node
from fairlane.engine.writing_node import WritingNode
from fairlane.schema.operation import Operation, Request

Q = TypeVar("Q", bound=Request)
R = TypeVar("R")
Service = Callable[[Node, Caller, Q], Awaitable[R]]
CentralService = Callable[[WritingNode, Caller, Q], Awaitable[R]]

Then = Callable[[Node, R], None]

REGISTERED: dict[str, Service[Any, Any]] = {}
CENTRAL: dict[str, CentralService[Any, Any]] = {}
UNDO: dict[str, Then[Any]] = {}
SENT: dict[str, Then[Any]] = {}


class PerformOperation(msgspec.Struct, frozen=True):
    """Answer: the response. Perform an operation in the process that writes."""

    operation: str
    caller: Caller
    request: bytes


def implements(
    operation: Operation[Q, R], *, undo: Then[R] | None = None, sent: Then[R] | None = None
) -> Callable[[Service[Q, R]], Service[Q, R]]:
    """Register the function that implements an operation.

    `undo` reverts it if the response cannot be delivered; `sent` is called when it has been sent.
    """
    if undo is not None:
        UNDO[operation.name] = undo
    if sent is not None:
        SENT[operation.name] = sent

    def register(function: Service[Q, R]) -> Service[Q, R]:
        assert operation.name not in REGISTERED, f"{operation.name} is implemented twice"
        REGISTERED[operation.name] = function
        return function

    return register


def implements_at_writer(
    operation: Operation[Q, R],
) -> Callable[[CentralService[Q, R]], CentralService[Q, R]]:
    """Register a function that needs the node that writes: its history, its writer's health.

    Other processes of the server send the request there.
    """

    def register(function: CentralService[Q, R]) -> CentralService[Q, R]:
        async def serve(node: Node, caller: Caller, request: Q) -> R:
            if isinstance(node, WritingNode):
                return await function(node, caller, request)
            asked = PerformOperation(operation.name, caller, codec.dumps(request))
            response: R = await node.writer.ask(asked)
            return response

        implements(operation)(serve)
        CENTRAL[operation.name] = function
        return function

    return register


async def perform_here(node: WritingNode, asked: PerformOperation) -> object:
    """Return the response to a request that another process of the server has passed on."""
    request = codec.loads(asked.request)
    response: object = await CENTRAL[asked.operation](node, asked.caller, request)
    return response
