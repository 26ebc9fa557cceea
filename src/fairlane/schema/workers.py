"""Workers: those inside servers and external ones, with what they can run."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fairlane.core.access import Scope
from fairlane.core.types import Moment
from fairlane.core.workers import STATES, KnownWorker
from fairlane.schema.operation import GET, Operation, Request, Response, one_of
from fairlane.schema.wire import moment


class ListWorkers(Request):
    """No parameters."""


class WorkerStatus(Response):
    """A worker, as it described itself when it last asked for leases."""

    name: str
    state: Annotated[
        str,
        one_of(STATES),
        Meta(description="silent: it no longer requests tasks and holds no lease"),
    ]
    inside: Annotated[bool, Meta(description="Whether it is the worker inside a server")]
    server: Annotated[str, Meta(description="Node that it leases from")]
    handlers: list[str]
    kinds: Annotated[list[str], Meta(description="Kinds of tasks that it runs besides handlers")]
    any_handler: Annotated[bool, Meta(description="Whether it runs every handler")]
    running: Annotated[int, Meta(description="Leases that it holds")]
    slots: Annotated[
        int | None, Meta(description="Tasks that it runs at once; null if unlimited or unknown")
    ]
    lanes: Annotated[list[str] | None, Meta(description="Lanes that it leases from; null for all")]
    agent: Annotated[str | None, Meta(description="Agent whose tasks it runs; null for all agents")]
    address: str | None
    version: str | None
    first_seen_at: Moment
    last_seen_at: Moment


class WorkerList(Response):
    workers: list[WorkerStatus]
    count: int
    handlers: Annotated[
        list[str], Meta(description="Handlers that online workers offer, each once")
    ]


def worker_status(one: KnownWorker) -> WorkerStatus:
    return WorkerStatus(
        name=one.name,
        state=one.state,
        inside=one.is_node,
        server=one.server,
        handlers=one.handlers,
        kinds=one.kinds,
        any_handler=one.any_handler,
        running=one.running,
        slots=one.slots,
        lanes=None if one.lanes is None else list(one.lanes),
        agent=one.agent,
        address=one.address,
        version=one.version,
        first_seen_at=moment(one.first_seen_at),
        last_seen_at=moment(one.seen_at),
    )


WORKERS: Final = Operation(
    "workers",
    GET,
    "/workers",
    ListWorkers,
    WorkerList,
    Scope.READ,
    "List the workers that are known, with what they can run",
    agents=False,
)
