"""Approvals: questions to people with their decisions, and one-time links to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec.structs import astuple

from fairlane.core.approvals import Approval
from fairlane.store.base import Connection, Row
from fairlane.store.pages import Page, read_page
from fairlane.store.vault import Vault

_APPROVAL_WIDTH: Final = len(Approval.__struct_fields__)


class ApprovalLink(msgspec.Struct, frozen=True):
    """A one-time link; `approval` is the number of its approval, `hash` the hash that it showed."""

    id: str
    approval: int
    digest: str
    hash: str
    approver: str
    created_by: str
    created_at: int
    expires_at: int
    used_at: int | None = None


class ApprovalView(msgspec.Struct, frozen=True):
    """An approval with the stored request of its task, which has secrets."""

    approval: Approval
    body: str | None


class ApprovalFilter(msgspec.Struct, frozen=True):
    """Which approvals to list. With `agent`, the ones about its tasks, and the ones that name it
    or the token `caller` as an approver.
    """

    state: str | None = None
    task: str | None = None
    agent: str | None = None
    caller: str | None = None
    before: int | None = None


# -------------------------------------------------------------------- write


def insert(connection: Connection, approvals: Iterable[Approval]) -> None:
    connection.run_rows("approval_insert", [astuple(one) for one in approvals])


def update(
    connection: Connection, approvals: Mapping[int, Approval], guards: Mapping[int, str]
) -> None:
    """Save the columns that change. `guards` are the states that each approval had."""
    rows = [(seq, guards[seq], *_moving(one)) for seq, one in approvals.items()]
    connection.change_rows("approval_update", rows)


def _moving(one: Approval) -> Row:
    return (
        one.state,
        one.in_force,
        one.votes,
        one.answer,
        one.comment,
        one.decided_by,
        one.decided_at,
    )


def by_id(connection: Connection, ids: Iterable[str]) -> list[Approval]:
    rows = connection.run_rows("approval_by_id", [(id_,) for id_ in dict.fromkeys(ids)])
    return [Approval(*row) for row in rows]


def by_seq(connection: Connection, seqs: Iterable[int]) -> list[Approval]:
    rows = connection.run_rows("approval_by_seq", [(seq,) for seq in seqs])
    return [Approval(*row) for row in rows]


def of_tasks(connection: Connection, seqs: Iterable[int]) -> list[Approval]:
    """Return the approvals of tasks that are in force, oldest first."""
    rows = connection.run_rows("approval_of_tasks", [(seq,) for seq in dict.fromkeys(seqs)])
    return [Approval(*row) for row in sorted(rows, key=lambda row: row[0])]


def due(connection: Connection, now: int, limit: int) -> list[Approval]:
    """Return open approvals that have expired."""
    return [Approval(*row) for row in connection.run("approval_due", now=now, limit=limit)]


def of_resource(connection: Connection, resource: str) -> Approval | None:
    """Return the newest approval that a resource asked for."""
    rows = connection.run("approval_of_resource", resource=resource)
    return Approval(*rows[0]) if rows else None


def prune(connection: Connection, before: int, limit: int) -> int:
    """Forget decided approvals without a task that are older than `before`; return how many."""
    rows = [(row[0],) for row in connection.run("approval_old", before=before, limit=limit)]
    if rows:
        for statement in ("approval_link_forget", "delivery_delete", "approval_forget"):
            connection.run_rows(statement, rows)
    return len(rows)


# -------------------------------------------------------------------- links


def insert_link(connection: Connection, link: ApprovalLink) -> None:
    connection.run_rows("approval_link_insert", [astuple(link)])


def link(connection: Connection, link_id: str) -> ApprovalLink | None:
    rows = connection.run("approval_link_find", id=link_id)
    return ApprovalLink(*rows[0]) if rows else None


def use_link(connection: Connection, link_id: str, now: int) -> None:
    """Mark a link as used, which must not have been used before."""
    connection.change_rows("approval_link_use", [(link_id, now)])


# -------------------------------------------------------------------- reads


def view(connection: Connection, vault: Vault, approval_id: str) -> ApprovalView | None:
    rows = connection.run("approval_view", id=approval_id)
    return _view(rows[0], vault) if rows else None


def view_many(connection: Connection, vault: Vault, seqs: Iterable[int]) -> dict[int, ApprovalView]:
    rows = connection.run_rows("approval_view_many", [(seq,) for seq in seqs])
    return {row[0]: _view(row, vault) for row in rows}


def page(
    connection: Connection, vault: Vault, wanted: ApprovalFilter, limit: int
) -> Page[ApprovalView]:
    """Return approvals, newest first."""
    return read_page(
        connection,
        lambda row: _view(row, vault),
        "approval_list",
        limit,
        before=wanted.before,
        state=wanted.state,
        task=wanted.task,
        **_visible(wanted.agent, wanted.caller),
    )


def count_open(connection: Connection, agent: str | None, caller: str | None, limit: int) -> int:
    """Count the open approvals that a caller sees, up to `limit`."""
    name = "approval_count" if agent is None else "approval_count_of"
    visible = {} if agent is None else _visible(agent, caller)
    count: int = connection.run(name, limit=limit, **visible)[0][0]
    return count


def _visible(agent: str | None, caller: str | None) -> dict[str, str | None]:
    """Return the values that restrict a list to approvals that a caller of one agent sees."""
    if agent is None:
        return {"agent": None, "named": None, "also": None}
    return {"agent": agent, "named": _named(agent), "also": _named(caller or agent)}


def _named(name: str) -> str:
    """Return the pattern of a name in a JSON list; names contain no quotes."""
    for wild in "!%_":
        name = name.replace(wild, f"!{wild}")
    return f'%"{name}"%'


def recount(connection: Connection) -> list[tuple[str, int, int]]:
    """Return the tasks whose open approvals do not fit: id, whether it waits, how many are open."""
    return [(row[0], row[1], row[2]) for row in connection.run("approval_recount")]


def _view(row: Row, vault: Vault) -> ApprovalView:
    body = row[_APPROVAL_WIDTH]
    approval = Approval(*row[:_APPROVAL_WIDTH])
    return ApprovalView(approval, None if body is None else vault.open_body(body))
