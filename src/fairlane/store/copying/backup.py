"""Copy a whole store at one time, for backups and restores.

The source is read in one snapshot, so servers may use it. The target is written in one transaction:
a copy that is interrupted leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from fairlane.core.errors import OperatorError
from fairlane.store.copying.move import (
    Say,
    TableReport,
    check_empty,
    check_readable,
    create_tables,
)
from fairlane.store.copying.side import StoreSide
from fairlane.store.copying.tables import EMPTY, Sum, Table, all_tables


def copy_store(
    source: StoreSide, target: StoreSide, say: Say, *, clear: Callable[[], None] | None = None
) -> list[TableReport]:
    """Copy all tables and compare them. Return the number of rows and the checksum of each.

    `clear` empties the target first, in the same transaction; without it the target must be empty.
    """
    check_readable(source)
    if clear is None:
        check_empty(target)
    sums: dict[Table, Sum] = {}
    with target.transaction():
        if clear is not None:
            clear()
        indexes = create_tables(target)
        with source.snapshot():
            for table in all_tables():
                before = sum(one.rows for one in sums.values())
                sums[table] = _copy(source, target, table, say, before)
        for statement in indexes:
            target.create_index(statement)
        for table, expected in sums.items():
            _compare(target, table, expected)
    target.analyze()
    return [TableReport(table.name, one.rows, one.text) for table, one in sums.items()]


def _copy(source: StoreSide, target: StoreSide, table: Table, say: Say, before: int) -> Sum:
    total = EMPTY
    for rows in source.all_rows(table):
        target.insert(table, rows)
        total = total.add(rows)
        say(before + total.rows, f"copying {table.name}")
    return total


def _compare(target: StoreSide, table: Table, expected: Sum) -> None:
    found = EMPTY
    for rows in target.all_rows(table):
        found = found.add(rows)
    if found != expected:
        raise OperatorError(
            f"the copy of the table {table.name} differs from the original; "
            "nothing was kept. Repeat the command, and report a bug if it fails again"
        )
