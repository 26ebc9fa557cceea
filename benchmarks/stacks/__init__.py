"""Servers that users would pick instead: client process -> server -> worker process.

Each module named in `STACKS` starts its server, and runs as a client and as a worker in processes
of their own. All are durable, run a no-op, and get the same number of tasks from the same number of
callers. `harness` says how they are measured; `run` runs them in alternation.
"""

from __future__ import annotations

STACKS = (
    "fairlane_sqlite",
    "fairlane_postgres",
    "restate",
    "temporal_sqlite",
    "awa_postgres",
    "nats_jetstream",
)
