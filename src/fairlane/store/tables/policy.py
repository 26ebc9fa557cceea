"""Versions of the policy. They are only added."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from fairlane.store.base import Connection, Row
from fairlane.store.pages import Page, read_page


class PolicyDocument(NamedTuple):
    """`document` is JSON text."""

    version: int
    document: str


class PolicyView(msgspec.Struct, frozen=True):
    """A version of the policy; `document` is JSON text."""

    version: int
    document: str
    source: str
    created_at: int
    author: str | None
    note: str | None


def newest(connection: Connection) -> PolicyDocument | None:
    rows = connection.run("policy_newest")
    return PolicyDocument(*rows[0]) if rows else None


def adopt(connection: Connection, new: PolicyView) -> None:
    """Insert a version and use it."""
    connection.run(
        "policy_insert",
        version=new.version,
        document=new.document,
        source=new.source,
        author=new.author,
        note=new.note,
        now=new.created_at,
    )
    connection.run("policy_use", version=new.version)


def view(connection: Connection, version: int | None) -> PolicyView | None:
    """Return a version, or the newest one."""
    rows = connection.run("policy_list", version=version, before=None, limit=1)
    return PolicyView(*rows[0]) if rows else None


def page(connection: Connection, before: int | None, limit: int) -> Page[PolicyView]:
    """Return versions, newest first."""
    return read_page(connection, _view, "policy_list", limit, version=None, before=before)


def _view(row: Row) -> PolicyView:
    return PolicyView(*row)
