"""Every service by the name of its operation, and how a caller in this process has one called."""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

import msgspec

from fairlane.client.binding import bound
from fairlane.core import validation
from fairlane.core.access import Caller, Scope
from fairlane.core.errors import FairlaneError, Forbidden
from fairlane.engine.node import Node
from fairlane.schema import decoding
from fairlane.schema.operation import Operation, Request
from fairlane.services import (  # noqa: F401 - each module registers its services
    access,
    audit,
    batches,
    cron,
    events,
    health,
    lanes,
    leases,
    policy,
    queue,
    sessions,
    tasks,
    templates,
    tokens,
    trail,
    watch,
    webhooks,
)
from fairlane.services.registry import REGISTERED, Service

Q = TypeVar("Q", bound=Request)
R = TypeVar("R")

SERVICES: Final[dict[str, Service[Any, Any]]] = REGISTERED


async def perform(node: Node, caller: Caller, operation: Operation[Q, R], request: Q) -> R:
    """Carry out an operation for a caller in this process, checked as a request over HTTP is.

    The response is read back from its JSON, so that it is the same value that a client gets.
    """
    try:
        problem = refused(caller, operation)
        if problem is not None:
            raise problem
        response = await service_of(operation)(node, caller, checked(operation, request))
    except FairlaneError as error:
        action, target = trail.action_of(operation), trail.target_of(operation, request)
        trail.note_denied(node.audit, caller, action, target, error)
        raise
    return msgspec.json.decode(msgspec.json.encode(response), type=type(response))


def checked(operation: Operation[Q, R], request: Q) -> Q:
    """Return the request that a server would read. Raise `InvalidRequest` as it would."""
    if operation.document_type is None:
        raw = msgspec.json.encode(request)
        found = decoding.decode(raw, operation.request, items_max=operation.items_max)
    else:
        found = operation.request(**_parts(operation, request))
    if operation.raw_body is not None:
        body = bound(operation, request)[1]["body"]
        setattr(found, operation.raw_body, msgspec.json.encode(body))
    if operation.nulls is not None:
        names = operation.body_names(getattr(found, operation.nulls))
        setattr(found, operation.nulls, list(names))
    return found


def _parts(operation: Operation[Any, Any], request: Any) -> dict[str, Any]:
    """Check the body by its own type, so that a problem has the path that it has over HTTP."""
    name, kind = operation.document, operation.document_type
    assert name is not None
    assert kind is not None
    values: dict[str, Any] = {
        name: decoding.decode(msgspec.json.encode(getattr(request, name)), kind)
    }
    for part in map(operation.part, ("path", "query", "header")):
        given = {
            one.encode_name: getattr(request, one.name) for one in msgspec.structs.fields(part)
        }
        found = validation.convert(msgspec.to_builtins(given), part)
        values |= msgspec.structs.asdict(found)
    return values


def service_of(operation: Operation[Q, R]) -> Service[Q, R]:
    """Return the service of an operation; what operators change goes to the audit log."""
    service: Service[Q, R] = SERVICES[operation.name]
    if not operation.is_audited:
        return service

    async def audited(node: Node, caller: Caller, request: Q) -> R:
        action, target = trail.action_of(operation), trail.target_of(operation, request)
        return await trail.recorded(
            node.audit, caller, action, target, lambda: service(node, caller, request)
        )

    return audited


class Guarded(Protocol):
    """What says who may ask: an operation, or a route."""

    @property
    def scope(self) -> Scope | None: ...

    @property
    def agents(self) -> bool: ...


def refused(caller: Caller, wanted: Guarded) -> Forbidden | None:
    """Return why a caller may not ask this, or None."""
    try:
        if wanted.scope is not None:
            caller.require(wanted.scope)
    except Forbidden as problem:
        return problem
    if caller.agent is not None and not wanted.agents:
        return Forbidden("this is about all agents; a token that is one agent's cannot do it")
    return None
