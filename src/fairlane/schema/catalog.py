"""Every operation by its name."""

from __future__ import annotations

from typing import Final

from fairlane.schema import (
    access,
    approvals,
    attention,
    audit,
    batches,
    cron,
    effects,
    events,
    failures,
    handlers,
    health,
    inbox,
    lanes,
    leases,
    policy,
    queue,
    resources,
    sessions,
    suspensions,
    task_streams,
    tasks,
    templates,
    timelines,
    tokens,
    watch,
    webhooks,
    workers,
)
from fairlane.schema.operation import AnyOperation, Operation

MODULES: Final = (
    *(access, approvals, attention, audit, batches, cron, effects, events, failures, handlers),
    *(health, inbox, lanes, leases, policy, queue, resources, sessions, suspensions, tasks),
    *(task_streams, templates, timelines, tokens, watch, webhooks, workers),
)

OPERATIONS: Final[dict[str, AnyOperation]] = {
    operation.name: operation
    for module in MODULES
    for operation in vars(module).values()
    if isinstance(operation, Operation)
}
