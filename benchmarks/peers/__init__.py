"""Other Python queues, doing the same no-op work as ours, each in a script of its own.

Every module named in `PEERS` runs as `python -m benchmarks.peers.<name>` and prints one JSON line;
`run.measure` runs them all. What is measured, and how, stands in `harness`.
"""

from __future__ import annotations

PEERS = (
    "huey_sqlite",
    "procrastinate_postgres",
    "pgqueuer_postgres",
    "celery_redis",
    "dramatiq_redis",
    "saq_redis",
    "arq_redis",
)
