"""Read the named statements of `statements/*.sql` and adapt each to one database.

The two databases share a statement unless they truly differ; then both versions are next to each
other (@sqlite, @postgres).

    :name          a value
    rows           a table of values, one row per item; `-- rows:` lists its columns and types
    {task}         the columns of Task, in order; {tally}, {line}, {batch}, ... likewise
    --? name: ...  a line that is there only when the value `name` is given
    (:names...)    a list of values
    {part NAME}    the text of `-- part: NAME`, for statements with the same conditions

The table `rows` is how a verb handles any number of items in one statement. SQLite gets it as a
`VALUES` list and PostgreSQL as arrays. One statement per item would be simpler but slow: each
statement releases Python's lock, and a busy event loop takes milliseconds to return it, so a batch
must be few statements.
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Final

import msgspec

from fairlane.core.access import Token
from fairlane.core.approvals import Approval
from fairlane.core.batches import Batch
from fairlane.core.counts import Line, Tally
from fairlane.core.cron import Job, RunRecord
from fairlane.core.events import Event
from fairlane.core.model import Task
from fairlane.core.resources import Account, LedgerEntry, Reservation, WaitLine
from fairlane.core.sessions import Session
from fairlane.core.webhooks import Delivery, Endpoint

SQLITE: Final = "sqlite"
POSTGRES: Final = "postgres"

_COLUMNS: Final = {"capability": "route", "fencing_token": "token"}  # where the names differ

_LINK_COLUMNS: Final = (
    *("id", "approval", "digest", "hash", "approver", "created_by", "created_at", "expires_at"),
    "used_at",
)

_HEADER: Final = re.compile(r"-- (name|part): (\w+)(?: @(\w+))?\n")
_PART: Final = re.compile(r"{part (\w+)}")
_ROWS: Final = re.compile(r"-- rows: (.+)\n")
_OPTIONAL: Final = re.compile(r"--\? (\w+): (.+)")
_LIST: Final = re.compile(r"\(:(\w+)\.\.\.\)")
_VALUE: Final = re.compile(r"(?<!:):(\w+)")


def column(field: str) -> str:
    """Return the column of a struct's field."""
    return _COLUMNS.get(field, field)


def column_list(struct: type[msgspec.Struct], prefix: str = "") -> str:
    """Return the columns of a struct's fields, in their order."""
    return ", ".join(f"{prefix}{column(name)}" for name in struct.__struct_fields__)


def _stored_columns(struct: type[msgspec.Struct], prefix: str) -> str:
    """Return the columns of all but the last field, which follows from the others."""
    return ", ".join(f"{prefix}{name}" for name in struct.__struct_fields__[:-1])


class Statement(msgspec.Struct, frozen=True):
    """One named statement of one database, without values."""

    name: str
    text: str
    columns: tuple[tuple[str, str], ...] = ()

    @property
    def reads(self) -> bool:
        return self.text.startswith(("SELECT", "WITH RECURSIVE"))

    def with_optional(self, given: set[str]) -> str:
        """Return the text with only those optional lines whose value is given."""

        def keep(match: re.Match[str]) -> str:
            return match[2] if match[1] in given else ""

        return _OPTIONAL.sub(keep, self.text)


def files() -> list[tuple[str, str]]:
    """Return the names and texts of the statement files."""
    folder = resources.files("fairlane.store").joinpath("statements")
    return [(file.name, file.read_text("utf-8")) for file in folder.iterdir()]


@functools.cache
def load(dialect: str) -> dict[str, Statement]:
    """Return all statements of `dialect`, by name."""
    source = "".join(text for _, text in sorted(files()))
    pieces = _HEADER.split(source)[1:]
    bodies: dict[str, dict[str, str]] = {"name": {}, "part": {}}
    for kind, name, only, body in zip(*(pieces[start::4] for start in range(4)), strict=True):
        if only is None or only == dialect:
            assert name not in bodies[kind], f"{name} is defined twice"
            bodies[kind][name] = body
    parts = {name: _without_comments(body) for name, body in bodies["part"].items()}
    return {
        name: _statement(name, _PART.sub(lambda match: parts[match[1]], body).lstrip())
        for name, body in bodies["name"].items()
    }


def _statement(name: str, body: str) -> Statement:
    columns: tuple[tuple[str, str], ...] = ()
    found = _ROWS.match(body)
    if found:
        columns = tuple(_column(part) for part in found[1].split(", "))
        body = body[found.end() :]
    insert = body.startswith("INSERT")
    text = _without_comments(body)
    text = text.replace("{task}", column_list(Task, "" if insert else "task."))
    text = text.replace("{line}", column_list(Line, "" if insert else "line."))
    text = text.replace("{batch}", column_list(Batch, "" if insert else "batch."))
    text = text.replace("{job}", _stored_columns(Job, "job."))
    text = text.replace("{run}", column_list(RunRecord, "" if insert else "run."))
    text = text.replace("{token}", column_list(Token, "" if insert else "token."))
    text = text.replace("{delivery}", column_list(Delivery, "delivery."))
    text = text.replace("{endpoint}", column_list(Endpoint, "endpoint."))
    text = text.replace("{approval}", column_list(Approval, "" if insert else "approval."))
    text = text.replace("{approval_link}", ", ".join(_LINK_COLUMNS))
    text = text.replace("{event}", column_list(Event, "event."))
    text = text.replace("{account}", column_list(Account, "account."))
    text = text.replace("{wait_line}", column_list(WaitLine, "wait_line."))
    text = text.replace("{reservation}", column_list(Reservation, "reservation."))
    text = text.replace("{entry}", column_list(LedgerEntry, "ledger."))
    text = text.replace("{session}", _stored_columns(Session, "" if insert else "session."))
    return Statement(name, text.replace("{tally}", column_list(Tally)), columns)


def _column(part: str) -> tuple[str, str]:
    name, kind = part.split(" ")
    return name, kind


def _without_comments(body: str) -> str:
    lines = [line for line in body.splitlines() if not re.match(r"--(?!\?)", line)]
    return "\n".join(lines).strip()


def spell_list(text: str, sizes: dict[str, int]) -> str:
    """Expand `(:names...)` to one value per item."""

    def spell(match: re.Match[str]) -> str:
        name = match[1]
        return "(" + ", ".join(f":{name}_{i}" for i in range(sizes[name])) + ")"

    return _LIST.sub(spell, text)


def spell_values(text: str, spelling: str) -> str:
    """Write `:name` in a driver's syntax; `spelling` holds `{}` for the name."""
    return _VALUE.sub(lambda match: spelling.format(match[1]), text)


def value_names(text: str) -> list[str]:
    """Return the values that a text names, in order of first mention."""
    return list(dict.fromkeys(_VALUE.findall(text)))
