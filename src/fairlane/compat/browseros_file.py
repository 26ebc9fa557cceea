"""The SQLite file of BrowserOS: its tasks, results and templates, with their ids.

Nothing is written to the file. A JSON column that is damaged counts as empty, as in BrowserOS.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from fairlane.core import lifecycle, moments, submissions, templates, validation
from fairlane.core.errors import InvalidRequest
from fairlane.core.finished import FinishedTask
from fairlane.core.json_types import JsonObject
from fairlane.core.model import Submission
from fairlane.core.policy import INSTRUCTION_TIMEOUT_MS_MAX
from fairlane.core.templates import TemplateDefinition
from fairlane.core.types import Identifier

RESULT_CHARACTERS_MAX: Final = 1_048_576
_ENDED: Final = {
    "completed": lifecycle.DONE,
    "failed": lifecycle.FAILED,
    "cancelled": lifecycle.CANCELLED,
}
_OPEN: Final = ("pending", "queued", "running", "waiting_dependency")
_TABLES: Final = ("tasks", "task_results", "task_templates")

Cells = JsonObject  # a row of the file, by column
Check = Callable[[str], None]


class _Named(msgspec.Struct):
    id: Identifier


class BrowserosImport(msgspec.Struct):
    """What the file holds, oldest first. `problems` are about rows that cannot be imported."""

    waiting: list[Submission] = []
    finished: list[FinishedTask] = []
    templates: list[tuple[str, TemplateDefinition]] = []
    problems: list[str] = []
    notes: list[str] = []


def read(file: Path, check_url: Check) -> BrowserosImport:
    """Read a file. `check_url` raises if a webhook must not go to an address."""
    rows = {name: _rows(file, name) for name in _TABLES}
    results = {str(row["task_id"]): row for row in rows["task_results"]}
    found = BrowserosImport()
    for row in sorted(rows["tasks"], key=lambda one: str(one.get("created_at"))):
        with _reported(found, "task", row):
            _add_task(found, row, results.get(str(row["id"]), {}), check_url)
    names: set[str] = set()
    for row in sorted(rows["task_templates"], key=lambda one: str(one.get("created_at"))):
        with _reported(found, "template", row):
            _add_template(found, row, names)
    if any(str(row.get("state")) == "running" for row in rows["tasks"]):
        found.notes.append("tasks that were running are queued again")
    return found


@contextlib.contextmanager
def _reported(found: BrowserosImport, what: str, row: Cells) -> Iterator[None]:
    try:
        yield
    except InvalidRequest as error:
        found.problems.append(f"{what} {str(row.get('id'))[:80]}: {error.message}")


def _rows(file: Path, table: str) -> list[Cells]:
    """Return all rows of a table; a file of an early version may lack templates."""
    try:
        with contextlib.closing(
            apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)
        ) as connection:
            columns = connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
            names = [str(name) for (name,) in columns.fetchall()]
            if not names and table != "task_templates":
                raise InvalidRequest(f"{file} is not a BrowserOS file: it has no table {table}")
            if not names:
                return []
            found = connection.execute(f"SELECT * FROM {table}")  # noqa: S608 - a fixed name
            return [dict(zip(names, row, strict=True)) for row in found]
    except apsw.Error as error:
        raise InvalidRequest(f"cannot read {file} as a SQLite file: {error}") from None


# -------------------------------------------------------------------- tasks


def _add_task(found: BrowserosImport, row: Cells, result: Cells, check_url: Check) -> None:
    state = str(row.get("state"))
    if state not in (*_ENDED, *_OPEN):
        raise InvalidRequest(f"the state {state[:40]!r} is unknown")
    id_ = validation.convert({"id": row.get("id")}, _Named).id
    document = _document(found, id_, row, is_open=state in _OPEN)
    request = submissions.task_request(**document)
    made = submissions.submission(request, task_id=id_, once=True)
    if state in _OPEN:
        if made.callback_url is not None:
            check_url(made.callback_url)
        found.waiting.append(made)
        return
    created_at = _moment(row.get("created_at"), None)
    started = result.get("started_at")
    found.finished.append(
        FinishedTask(
            submission=made,
            state=_ENDED[state],
            created_at=created_at,
            started_at=None if not started else _moment(started, created_at),
            completed_at=_moment(result.get("completed_at") or row.get("updated_at"), created_at),
            attempts=_count(row.get("retry_count")) + 1,
            result=_result(result.get("result")),
            error=_text(result.get("error")),
        )
    )


def _document(found: BrowserosImport, id_: str, row: Cells, *, is_open: bool) -> JsonObject:
    metadata = _json(row.get("metadata"), dict) or {}
    origin = {"createdAt": row.get("created_at"), "batchId": row.get("batch_id")}
    origin = {name: value for name, value in origin.items() if value is not None}
    fields: JsonObject = {
        "instruction": row.get("instruction"),
        "priority": row.get("priority") or None,
        "timeout_ms": _timeout(found, id_, row.get("timeout")),
        "retry_policy": _json(row.get("retry_policy"), dict),
        "llm_config": _json(row.get("llm_config"), dict),
        "metadata": {"browseros": origin, **metadata},
    }
    if is_open:
        parents = _json(row.get("depends_on"), list) or []
        fields["depends_on"] = list(dict.fromkeys(parents)) or None
        fields["webhook_url"] = row.get("webhook_url") or None
    return fields


def _timeout(found: BrowserosImport, id_: str, value: object) -> object:
    if isinstance(value, int) and value > INSTRUCTION_TIMEOUT_MS_MAX:
        found.notes.append(f"{id_}: the timeout is now {INSTRUCTION_TIMEOUT_MS_MAX} ms")
        return INSTRUCTION_TIMEOUT_MS_MAX
    return value


def _result(value: object) -> str | None:
    """Return a result as JSON text: as it is, or as a string if it is not JSON."""
    if value is None:
        return None
    text = str(value)
    if len(text) > RESULT_CHARACTERS_MAX:
        raise InvalidRequest(f"the result has more than {RESULT_CHARACTERS_MAX} characters")
    try:
        decoded: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        decoded = text
    return msgspec.json.encode(decoded).decode()


# -------------------------------------------------------------------- templates


def _add_template(found: BrowserosImport, row: Cells, names: set[str]) -> None:
    id_ = validation.convert({"id": row.get("id")}, _Named).id
    name = str(row.get("name"))
    if name in names:  # they are not unique there
        name = f"{name} {id_[:8]}"
        found.notes.append(f"template {id_} is now called {name!r}, because its name was taken")
    document = {
        "name": name,
        "description": row.get("description") or None,
        "instruction": row.get("instruction"),
        "priority": row.get("priority") or None,
        "parameters": _json(row.get("parameters"), list) or None,
        "timeoutMs": _timeout(found, id_, row.get("timeout")),
        "retryPolicy": _json(row.get("retry_policy"), dict),
        "llmConfig": _json(row.get("llm_config"), dict),
        "metadata": _json(row.get("metadata"), dict),
    }
    given = {key: value for key, value in document.items() if value is not None}
    found.templates.append((id_, templates.define(given)))
    names.add(name)


# -------------------------------------------------------------------- cells


def _json(value: object, kind: type) -> Any:
    if not isinstance(value, str):
        return None
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        decoded = msgspec.json.decode(value)
        return decoded if isinstance(decoded, kind) else None
    return None


def _moment(value: object, default: int | None) -> int:
    try:
        return moments.parse(str(value))
    except ValueError as error:
        if default is not None:
            return default
        raise InvalidRequest(f"invalid created_at: {error}") from None


def _count(value: object) -> int:
    return min(value, 1_000_000) if isinstance(value, int) and value > 0 else 0


def _text(value: object) -> str | None:
    return None if value is None else str(value)[:RESULT_CHARACTERS_MAX]
