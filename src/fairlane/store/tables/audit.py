"""The audit log. Entries are only added; the oldest are deleted."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import astuple

from fairlane.core.audit import AuditRecord
from fairlane.core.json_types import JsonMapping
from fairlane.store.base import Connection, Row
from fairlane.store.pages import Page, read_page


def insert(connection: Connection, entries: Iterable[AuditRecord]) -> None:
    connection.run_rows("audit_insert", [astuple(entry) for entry in entries])


def forget(connection: Connection, before: int) -> None:
    connection.run("audit_forget", before=before)


def count(connection: Connection) -> int:
    number: int = connection.run("audit_count")[0][0]
    return number


def most(connection: Connection) -> tuple[str, int]:
    """Return the author with the most entries ('' for outside callers), and the number."""
    whose, number = connection.run("audit_most")[0]
    return whose, number


def trim(connection: Connection, whose: str, limit: int) -> None:
    """Delete the oldest `limit` entries of one author."""
    connection.run("audit_trim", whose=whose, limit=limit)


def page(connection: Connection, wanted: JsonMapping, limit: int) -> Page[AuditRecord]:
    """Return entries, newest first."""
    return read_page(connection, _record, "audit_list", limit, **wanted)


def _record(row: Row) -> AuditRecord:
    return AuditRecord(*row)
