"""Every operation by its name."""

from __future__ import annotations

from typing import Final

from fairlane.schema import (
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
    watch,
    webhooks,
)
from fairlane.schema.operation import AnyOperation, Operation

MODULES: Final = (
    *(access, audit, batches, cron, events, health, lanes, leases, policy, queue, sessions),
    *(tasks, templates, tokens, watch, webhooks),
)

OPERATIONS: Final[dict[str, AnyOperation]] = {
    operation.name: operation
    for module in MODULES
    for operation in vars(module).values()
    if isinstance(operation, Operation)
}
