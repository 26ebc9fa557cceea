"""Query plans: frequent statements find their rows by index, however long the backlog is."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import apsw.ext
import pytest

from fairlane.clock import ManualClock
from fairlane.store import queries
from fairlane.store.opening import open_store
from tests.store.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fairlane.store.queries import Statement

# Tables that stay small whatever happens: one row per lane, node, worker, token, or change of the
# policy.
SMALL = {
    *("lane", "node", "policy", "scheduler", "presence", "token", "worker", "writer"),
    "found",
    "rows",
    "pragma_user_version",
}

# Statements that may read a whole table, and why.
MAY_SCAN = {
    "task_reline": "rewrites every task of a lane, when an operator changes its strategy",
    "session_waiting": "looks for all who wait, when an operator changes how many get the turn",
    "line_agents": "looks for agents over all lanes, when an operator changes their weight",
    "task_ids": "goes from the newest task downwards until it has a page; people ask for it",
    "task_ids_up": "goes from the oldest task upwards until it has a page; people ask for it",
    "task_count": "counts the tasks of a range for a person who asks how many there are",
    "template_list": "goes from the newest template downwards until it has a page",
    "job_list": "goes from the newest job downwards until it has a page",
    "run_list": "goes from the newest run downwards until it has a page",
    "batch_list": "goes from the newest batch downwards until it has a page",
    "audit_list": "goes from the newest entry downwards until it has a page",
    "delivery_list": "goes from the newest webhook downwards until it has a page",
    "endpoint_list": "goes from the newest endpoint downwards until it has a page",
    "audit_count": "counts at most as many as are kept, after every 256 entries",
    "audit_most": "goes through a log that is full, after every few thousand entries",
    "audit_trim": "goes through a log that is full, after every few thousand entries",
    "sealed_all": "looks for all that is sealed, when an operator changes the key",
    "unsettled_all": "takes up everything that is to be gone on with",
    "rejected_count": "goes through the refused ones until it has counted a thousand",
    "agent_view": "adds up every agent for a person who looks at them",
    "step_tasks": "rewrites every open task, when somebody sets the clock",
    "step_ranks": "rewrites every open task of a lane, when somebody sets the clock",
    "step_sessions": "looks at every session, when somebody sets the clock back",
    "step_endpoints": "looks at every endpoint, when somebody sets the clock",
    "recount": "is the doctor's, who trusts no index",
    "line_all": "is the doctor's, who trusts no index",
    "session_all": "is the doctor's, who trusts no index",
    "session_recount": "is the doctor's, who trusts no index",
    "batch_all": "is the doctor's, who trusts no index",
    "dependency_recount": "is the doctor's, who trusts no index",
    "unmet_recount": "is the doctor's, who trusts no index",
    "approval_recount": "is the doctor's, who trusts no index",
    "suspension_recount": "is the doctor's, who trusts no index",
    "checkpoint_recount": "is the doctor's, who trusts no index",
    "ledger_sums": "is the doctor's, who trusts no index",
    "account_all": "is the doctor's, and moves every account when somebody sets the clock",
    "account_oldest": "goes from the oldest account upwards until it has a few hundred",
    "reservation_all": "is the doctor's; a writer that is alone takes up all of them once",
    "reservation_of_account": "goes from the oldest reservation upwards until it has a few",
    "wait_line_all": "is the doctor's, who trusts no index",
    "wait_line_recount": "is the doctor's, who trusts no index",
    "approval_list": "goes from the newest approval downwards until it has a page",
    "step_approval_links": "looks at every link, when somebody sets the clock",
    "run_astray": "is the doctor's: looks at every run that goes on",
}

# Statements without a plan: they empty a table at once, without looking at its rows.
EMPTIES = {"unsettled_forget"}

# Lists whose pages come out in order, so that nobody sorts what is not shown.
LISTS = {
    *(
        "audit_list",
        "batch_list",
        "delivery_list",
        "event_list",
        "event_list_down",
        "ledger_newest",
        "account_page",
    ),
    *("run_list", "run_list_of", "task_failures", "task_ids", "task_ids_up", "template_list"),
}

SQLITE = queries.load(queries.SQLITE)
POSTGRES = queries.load(queries.POSTGRES)
POSTGRES_ONLY = {
    *("moment", "lock_moment", "lock_moment_limited", "task_changed"),
    *("writer_begin", "holder_end", "node_lock", "node_missing", "node_unlocked"),
}


def spellings(connection: Any, statement: Statement) -> Iterator[str]:
    """A statement as it is sent: with each optional line alone, with all and with none."""
    if statement.columns:
        for rows in (1, 4):
            yield connection._rows_text(statement.name, rows)[0]
        return
    lists = dict.fromkeys(re.findall(r"\(:(\w+)\.\.\.\)", statement.text), 2)
    optional = re.findall(r"--\? (\w+):", statement.text)
    for given in [[], *([name] for name in optional), optional]:
        yield connection._scalar_text(statement.name, dict.fromkeys(given, 1), lists)


def plan(connection: apsw.Connection, text: str) -> list[str]:
    info = apsw.ext.query_info(connection, text)
    values: Any = [None] * info.bindings_count
    if any(name and not name.isdigit() for name in info.bindings_names):
        values = dict.fromkeys(filter(None, info.bindings_names))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", values)]


def scanned(details: list[str]) -> set[str]:
    """The tables that a plan reads from one end to the other."""
    found = (re.match(r"SCAN (?!\d|CONSTANT)(\w+)", detail) for detail in details)
    return {match[1] for match in found if match}


@pytest.mark.parametrize("name", sorted(SQLITE.keys() - MAY_SCAN.keys() - POSTGRES_ONLY - EMPTIES))
def test_sqlite_never_scans_a_table_that_grows(sqlite_plans: Any, name: str) -> None:
    for text in spellings(sqlite_plans, SQLITE[name]):
        details = plan(sqlite_plans._connection, text)
        assert details or text.startswith("INSERT"), text
        assert scanned(details) <= SMALL, details


@pytest.mark.parametrize("name", sorted(MAY_SCAN))
def test_what_may_scan_does(sqlite_plans: Any, name: str) -> None:
    """An exception that is no longer needed has to go."""
    plans = [plan(sqlite_plans._connection, text) for text in spellings(sqlite_plans, SQLITE[name])]
    assert any(scanned(details) - SMALL for details in plans)


@pytest.mark.parametrize("name", sorted(EMPTIES))
def test_what_empties_a_table_does_nothing_else(sqlite_plans: Any, name: str) -> None:
    (text,) = set(spellings(sqlite_plans, SQLITE[name]))
    assert re.fullmatch(r"DELETE FROM \w+", text)
    assert plan(sqlite_plans._connection, text) == []


@pytest.mark.parametrize("name", sorted(LISTS))
def test_a_list_is_read_in_its_order(sqlite_plans: Any, name: str) -> None:
    """Neither all rows nor all that fit are sorted for the sake of one page."""
    for text in spellings(sqlite_plans, SQLITE[name]):
        details = plan(sqlite_plans._connection, text)
        assert not any("TEMP B-TREE" in detail for detail in details), (text, details)


@pytest.fixture(scope="module")
def sqlite_plans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('plans') / 'fairlane.db'}")
    store.migrate()
    connection = store.writer()
    yield connection
    connection.close()


# -------------------------------------------------------------------- PostgreSQL

BACKLOG = 3000
PREPARED_AFTER = 12  # commits; the driver prepares a statement, then the server tries some plans

# The index that each statement of the hot path is meant to use.
INTENDED = {
    "task_by_id": {"task_id_key"},
    "task_by_seq": {"task_pkey"},
    "task_update": {"task_pkey"},
    "task_renew": {"task_pkey"},
    "idempotency_find": {"idempotency_pkey"},
    "line_find": {"line_name"},
    "line_order": {"line_order"},
    "line_urgent": {"line_urgent"},
    "line_order_agents": {"line_order"},
    "line_urgent_agents": {"line_urgent"},
    "task_next": {"task_ready", "request_pkey"},
    "task_head": {"task_ready", "request_pkey"},
    "task_place": {"task_pkey"},
    "task_preemptible": {"task_preempt"},
    "inputs_find": {"dependency_pkey", "task_id_key", "result_pkey"},
    "results_find": {"result_pkey"},
    "session_find": {"session_pkey"},
    "session_next": {"task_session"},
    "session_ready": {"task_session"},
    "why_parents": {"dependency_pkey", "task_id_key"},
    "why_ahead": {"task_ready"},
    "why_session_ahead": {"task_session"},
    "why_holders": {"task_lease"},
    "why_batch_holders": {"task_batch"},
    "batch_find": {"batch_pkey"},
    "batch_next": {"task_batch"},
    "batch_tasks": {"task_batch"},
    "batch_states": {"task_batch"},
    "dependency_awaited": {"dependency_parent"},
    "dependency_children": {"dependency_parent"},
    "dependency_of": {"dependency_pkey"},
    "dependency_settle": {"dependency_pkey"},
    "event_tasks": {"event_task"},
    "event_whole": {"event_task"},
    "totals_find": {"handler_hour_pkey"},
    "totals_since": {"handler_hour_pkey"},
    "totals_forget": {"handler_hour_pkey"},
    "progress_newest": {"event_task"},
    "batch_oldest": {"task_batch"},
    "event_requeued": {"event_task"},
    "event_released": {"event_task"},
    "event_list": {"event_pkey"},
    "event_list_down": {"event_pkey"},
    "event_from": {"event_pkey"},
    "output_view": {"output_pkey"},
    "output_sizes": {"output_pkey"},
    "line_ready_routes": {"line_order"},
    "task_overdue": {"task_deadline"},
    "task_abandoned": {"task_lease"},
    "task_leased": {"task_lease"},
    "task_changed": {"task_pkey"},
    "task_stopped": {"task_stopped"},
    "task_due": {"task_delay"},
    "next_due": {"task_deadline", "task_lease", "task_delay"},
    "task_old": {"task_ended"},
    "task_rejected": {"task_rejected"},
    "delivery_due": {"delivery_due"},
    "delivery_owed": {"delivery_due"},
    "slots_by_agent": {"task_lease"},
    "slots_by_worker": {"task_lease"},
    "lines_ready": {"line_order"},
    "delivery_next": {"delivery_due"},
    "delivery_by_id": {"delivery_pkey"},
    "delivery_list_of": {"delivery_task", "task_id_key", "batch_pkey", "run_id_key"},
    "endpoint_by_url": {"endpoint_url"},
    "endpoint_by_id": {"endpoint_id_key"},
    "task_view": {"task_id_key"},
    "job_by_id": {"job_id_key"},
    "job_by_name": {"job_name"},
    "job_due": {"job_due"},
    "job_next": {"job_due"},
    "run_active": {"run_open"},
    "run_open": {"run_open"},
    "run_by_task": {"run_task"},
    "run_excess": {"run_number", "delivery_task"},
    "run_old": {"run_old", "delivery_task"},
    "task_held": {"task_held"},
    "task_held_count": {"task_held"},
    "task_parked": {"task_parked"},
    "task_ended_last": {"task_pkey"},
    "entry_page": {"task_entry"},
    "account_find": {"account_name"},
    "account_page": {"account_name"},
    "account_due": {"account_wake"},
    "account_next": {"account_wake"},
    "wait_line_find": {"wait_line_name"},
    "wait_line_first": {"wait_line_order"},
    "wait_line_of_agent": {"wait_line_account"},
    "task_waiting": {"task_wait"},
    "task_move": {"task_pkey"},
    "reservation_find": {"reservation_task"},
    "ledger_newest": {"ledger_account"},
    "approval_by_id": {"approval_id_key"},
    "approval_of_tasks": {"approval_task"},
    "approval_due": {"approval_due"},
    "approval_of_resource": {"approval_resource"},
    "approval_old": {"approval_old"},
    "endpoint_subscribed": {"endpoint_events"},
    "attention_ready": {"task_waiting"},
    "attention_lines": {"line_order"},
    "attention_parked": {"task_parked", "result_pkey"},
    "attention_edges": {"dependency_pkey", "task_id_key"},
    "attention_jobs": {"job_failing"},
    "attention_webhooks": {"delivery_state"},
    "attention_closed": {"account_closed"},
    "attention_approvals": {"approval_state"},
    "task_failures": {"task_failed", "result_pkey", "event_task"},
    "short_task": {"task_id_key"},
    "short_batch": {"batch_pkey"},
    "short_job": {"job_id_key"},
    "short_approval": {"approval_id_key"},
    "short_template": {"template_id_key"},
    "short_delivery": {"delivery_pkey"},
    "short_endpoint": {"endpoint_id_key"},
}
SAMPLES = {"int": 1, "text": "x", "real": 1.0}
INTEGERS = {
    "lock_key",
    *("now", "limit", "before", "commit_id", "version", "by_agent", "aging_ms", "enabled"),
    *("last_seq", "last_token", "last_line", "last_event", "open_edges", "unsettled"),
    *("seq", "after", "until", "token", "part", "look", "rank", "line", "priority"),
    *("pid", "started_at", "draining", "silent_ms", "old_ms", "by", "ahead", "critical", "since"),
    *("account", "first", "last", "last_number", "reservations", "failed_at", "upto"),
}

SHORT = [name for name in SQLITE if name.startswith("short_")]
TEXTS = {
    "session_list": {"after"},
    "account_page": {"after"},
    "node_save": {"version"},
    **{name: {"first", "last"} for name in SHORT},
}  # where such a name stands for a text


@pytest.fixture
def postgres_plans(fresh_postgres: str) -> Iterator[Any]:
    """A database that nobody has analysed: what an earlier test left would decide between plans."""
    store = open_store(fresh_postgres)
    store.migrate()
    connection: Any = store.writer()
    tables = connection._connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    ).fetchall()
    for (table,) in tables:
        connection._connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    yield connection
    connection.close()


def postgres_plan(connection: Any, statement: Statement) -> str:
    names = queries.value_names(statement.text)
    numbers = INTEGERS - TEXTS.get(statement.name, set())
    values: dict[str, Any] = {name: 1 if name in numbers else "x" for name in names}
    if statement.columns:
        text = connection._rows_text(statement.name)
        values |= {f"rows_{name}": [SAMPLES[kind]] for name, kind in statement.columns}
    else:
        text = connection._scalar_text(statement.name, {}, {})
    rows = connection._connection.execute(f"EXPLAIN {text}", values).fetchall()
    return "\n".join(line for (line,) in rows)


def test_postgres_uses_the_intended_indexes(postgres_plans: Any) -> None:
    for name, intended in INTENDED.items():
        found = postgres_plan(postgres_plans, POSTGRES[name])
        used = set(re.findall(r"Index (?:Only )?Scan (?:Backward )?(?:using|on) (\w+)", found))
        assert intended <= used, f"{name}:\n{found}"
        assert "Seq Scan on" not in found, f"{name}:\n{found}"


def test_plans_made_while_a_store_is_empty_never_read_the_backlog(fresh_postgres: str) -> None:
    """A node keeps the plans of its first commits, whatever the database learns later."""
    store, clock = open_store(fresh_postgres), ManualClock()
    store.migrate()
    nodes = [Scheduler(store, clock, name) for name in ("node_1", "node_2")]
    names = (f"task-{n}" for n in itertools.count())

    def work(node: Scheduler) -> None:
        node.submit(next(names))
        node.complete(node.start(node.lease_one()))

    for _ in range(PREPARED_AFTER):
        for node in nodes:
            work(node)
    for agent in range(BACKLOG // 500):
        nodes[0].submit(*(next(names) for _ in range(500)), agent=f"agent-{agent}")
    before = entries_read(nodes)
    for node in nodes:
        work(node)
    after = entries_read(nodes)
    for node in nodes:
        node.close()
    read = {name: after[name] - before.get(name, 0) for name in after}
    assert read["task_pkey"] > 0
    assert {name: n for name, n in read.items() if n > BACKLOG // 10} == {}


def entries_read(nodes: Sequence[Scheduler]) -> dict[str, int]:
    """How much the writers have read from each table in sequence, and from each index."""
    for node in nodes:
        writer: Any = node.engine._connection
        writer._connection.execute("SELECT pg_stat_force_next_flush()")
    with nodes[0].store.copier() as connection:
        return dict(
            connection.execute(
                "SELECT relname, seq_tup_read FROM pg_stat_user_tables "
                "UNION ALL SELECT indexrelname, idx_tup_read FROM pg_stat_user_indexes"
            ).fetchall()
        )


def test_every_statement_is_understood_by_its_database(
    sqlite_plans: Any, postgres_plans: Any
) -> None:
    for statement in POSTGRES.values():
        if "..." not in statement.text:
            postgres_plan(postgres_plans, statement)
    assert POSTGRES.keys() - SQLITE.keys() <= POSTGRES_ONLY
    assert SQLITE.keys() <= POSTGRES.keys()
