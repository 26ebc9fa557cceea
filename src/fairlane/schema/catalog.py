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
    events,
    health,
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
    tokens,
    watch,
    webhooks,
    workers,
)
from fairlane.schema.operation import AnyOperation, Operation

MODULES: Final = (
    *(access, approvals, attention, audit, batches, cron, events, health, lanes, leases, policy),
    *(queue, resources, sessions, suspensions, tasks, task_streams, templates, tokens, watch),
    *(webhooks, workers),
)

OPERATIONS: Final[dict[str, AnyOperation]] = {
    operation.name: operation
    for module in MODULES
    for operation in vars(module).values()
    if isinstance(operation, Operation)
}
