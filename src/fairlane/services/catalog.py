"""Every service by the name of its operation, and calls of services from this process."""

from __future__ import annotations

import functools
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import inspect

from fairlane.client.arguments import encoded
from fairlane.core.access import Caller, Scope
from fairlane.core.errors import FairlaneError, Forbidden, InvalidRequest
from fairlane.core.json_types import JsonObject
from fairlane.engine.node import Node
from fairlane.schema.operation import Operation, Request, query_text
from fairlane.services import (  # noqa: F401 - each module registers its services
    access,
    approvals,
    attention,
    audit,
    batches,
    cron,
    effects,
    events,
    failures,
    following,
    handlers,
    health,
    inbox,
    lanes,
    lease_reports,
    leases,
    permits,
    policy,
    queue,
    resources,
    sessions,
    short_ids,
    suspensions,
    task_streams,
    tasks,
    templates,
    timelines,
    tokens,
    trail,
    watch,
    webhooks,
    workers,
)
from fairlane.services.registry import REGISTERED, SENT, Service

Q = TypeVar("Q", bound=Request)
R = TypeVar("R")

_SCALARS: Final = (
    inspect.NoneType,
    inspect.BoolType,
    inspect.IntType,
    inspect.FloatType,
    inspect.StrType,
    inspect.LiteralType,
)

SERVICES: Final = REGISTERED


async def perform(node: Node, caller: Caller, operation: Operation[Q, R], request: Q) -> R:
    """Perform an operation for a caller in this process, with the same checks as over HTTP.

    A response that may hold encoded JSON is read back, so that it is the value that a client gets.
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
    if operation.name in SENT:
        SENT[operation.name](node, response)
    kind: object = type(response)
    if _is_flat(kind):
        return response
    found: R = msgspec.json.decode(msgspec.json.encode(response), type=kind)
    return found


@functools.cache
def _is_flat(kind: type) -> bool:
    """Return whether a response has only numbers, texts and lists of them. Other fields may hold
    encoded JSON.
    """
    info = inspect.type_info(kind)
    return isinstance(info, inspect.StructType) and all(_is_scalar(one.type) for one in info.fields)


def _is_scalar(info: inspect.Type) -> bool:
    if isinstance(info, inspect.Metadata):
        return _is_scalar(info.type)
    if isinstance(info, inspect.UnionType):
        return all(map(_is_scalar, info.types))
    if isinstance(info, inspect.ListType):
        return _is_scalar(info.item_type)
    return isinstance(info, _SCALARS)


def checked(operation: Operation[Q, R], request: Q) -> Q:
    """Return the request as a server would read it. Raise `InvalidRequest` as the server would."""
    reading, given = operation.reading, operation.given(request)
    for value in (*given["path"].values(), *given["query"].values()):
        if isinstance(value, str) and "\0" in value:
            raise InvalidRequest("a parameter must not contain the character U+0000")
    values: JsonObject = reading.path(given["path"]) if given["path"] else {}
    if reading.headers:
        values |= reading.header(given["header"])
    query = {name: value for name, value in given["query"].items() if value is not None}
    if query or reading.needs_query:
        values |= reading.query({name: str(query_text(value)) for name, value in query.items()})
    if reading.body is not None:
        document = given["body"]
        if operation.document is not None:
            (document,) = given["document"].values()
        raw = encoded(document)
        values |= reading.body(raw)
        if operation.raw_body is not None:
            values[operation.raw_body] = raw
    return operation.request(**values)


def service_of(operation: Operation[Q, R]) -> Service[Q, R]:
    """Return the service of an operation, with whole ids for short ones, and with the audit log
    for changes by operators.
    """
    service: Service[Q, R] = SERVICES[operation.name]
    if operation.is_audited:
        service = _audited(operation, service)
    if not operation.ids:
        return service

    async def expanded(node: Node, caller: Caller, request: Q) -> R:
        return await service(
            node, caller, await short_ids.expanded(node, caller, operation, request)
        )

    return expanded


def _audited(operation: Operation[Q, R], service: Service[Q, R]) -> Service[Q, R]:
    async def audited(node: Node, caller: Caller, request: Q) -> R:
        action, target = trail.action_of(operation), trail.target_of(operation, request)
        return await trail.recorded(
            node.audit, caller, action, target, lambda: service(node, caller, request)
        )

    return audited


class Guarded(Protocol):
    """The access rule of an operation or a route."""

    @property
    def scope(self) -> Scope | None: ...

    @property
    def agents(self) -> bool: ...


def refused(caller: Caller, wanted: Guarded) -> Forbidden | None:
    """Return why a caller may not make this request, or None."""
    try:
        if wanted.scope is not None:
            caller.require(wanted.scope)
    except Forbidden as problem:
        return problem
    if caller.agent is not None and not wanted.agents:
        return Forbidden(
            "this request affects all agents; a token bound to one agent cannot make it"
        )
    return None
