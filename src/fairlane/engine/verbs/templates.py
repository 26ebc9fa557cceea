"""The verbs of templates: create, update, use, delete.

Templates are few and change by hand, so each request is carried out on its own, on what the one
before has left. Only uses may come in numbers: a use and the task it makes are one transaction, and
it counts when the task is accepted and new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from fairlane.core import templates
from fairlane.core.errors import Conflict, InvalidRequest, NotFound
from fairlane.core.model import Task
from fairlane.core.templates import Definition, Template
from fairlane.engine.commands import (
    CreateTemplate,
    DeleteTemplate,
    Submit,
    UpdateTemplate,
    UseTemplate,
)
from fairlane.engine.verbs import tasks as verbs
from fairlane.store.base import Row
from fairlane.store.transaction import Transaction
from fairlane.store.vault import Vault

_definition = msgspec.json.Decoder(Definition)
_STAND_IN = Definition(name="(damaged)", description="", instruction="", priority=0, parameters=[])


def from_row(row: Row, vault: Vault) -> Template:
    """Return the template of a row; one whose definition cannot be read is `damaged`."""
    seq, template_id, definition, usage_count, created_at, updated_at = row
    try:
        kept, is_damaged = _definition.decode(vault.open_body(definition)), False
    except msgspec.DecodeError:
        kept, is_damaged = _STAND_IN, True
    return Template(seq, template_id, kept, usage_count, created_at, updated_at, is_damaged)


def create_template(tx: Transaction, requests: Sequence[CreateTemplate], now: int) -> Iterator[Any]:
    for request in requests:
        try:
            template = templates.create(
                request.document, template_id=request.id, seq=tx.next_seq(), now=now
            )
        except InvalidRequest as error:
            yield error
            continue
        conflict = _refused(tx, template)
        if conflict is None:
            tx.connection.run_rows("template_insert", [_row(template, tx.vault)])
        yield conflict or template


def update_template(tx: Transaction, requests: Sequence[UpdateTemplate], now: int) -> Iterator[Any]:
    for request in requests:
        before = _found(tx, [request.id]).get(request.id)
        if before is None:
            yield not_found()
            continue
        if before.damaged:
            yield damaged()
            continue
        try:
            after = templates.update(before, request.document, now)
        except InvalidRequest as error:
            yield error
            continue
        conflict = _refused(tx, after)
        if conflict is None and after is not before:
            tx.connection.change_rows("template_update", [_changed(after, tx.vault)])
        yield conflict or after


def use_template(tx: Transaction, requests: Sequence[UseTemplate], now: int) -> Iterator[Any]:
    tx.write()  # the keys that other submissions of this batch have used
    found = _found(tx, [request.id for request in requests])
    submits = [r.submit for r in requests if r.submit is not None and r.id in found]
    submitted = verbs.submit(tx, submits, now) if submits else iter(())
    uses: Counter[str] = Counter()
    answers: list[Any] = []
    for request in requests:
        if request.id not in found:
            answers.append(not_found())
        elif request.submit is None:
            uses[request.id] += 1
            answers.append([])
        else:
            answers.append(next(submitted))
            uses[request.id] += _is_new(request.submit, answers[-1])
    rows = [(template_id, count) for template_id, count in uses.items() if count]
    if rows:
        tx.connection.change_rows("template_use", rows)
    return iter(answers)


def delete_template(tx: Transaction, requests: Sequence[DeleteTemplate], _: int) -> Iterator[Any]:
    for request in requests:
        if request.id in _found(tx, [request.id]):
            tx.connection.change_rows("template_delete", [(request.id,)])
            yield None
        else:
            yield not_found()


def not_found() -> NotFound:
    return NotFound("template not found")


def damaged() -> Conflict:
    return Conflict("the template in the store is damaged: delete it and create it again")


def _is_new(submit: Submit, answer: Any) -> bool:
    """Whether a task has come of it: not of a refusal, nor of an idempotency key used again."""
    ids = {submission.id for submission in submit.submissions}
    tasks = answer if isinstance(answer, list) else []
    return any(isinstance(task, Task) and task.id in ids for task in tasks)


def _found(tx: Transaction, ids: Iterable[str]) -> dict[str, Template]:
    rows = [(template_id,) for template_id in dict.fromkeys(ids)]
    found = [from_row(row, tx.vault) for row in tx.connection.run_rows("template_by_id", rows)]
    return {template.id: template for template in found}


def _refused(tx: Transaction, template: Template) -> InvalidRequest | Conflict | None:
    config = {"llmConfig": template.definition.llm_config}
    return tx.vault.problem(config) or _conflict(tx, template)


def _conflict(tx: Transaction, template: Template) -> Conflict | None:
    """There is one writer at a time, so what is free now stays free until it is taken."""
    name = template.definition.name
    found = tx.connection.run("template_list", name=name, before=None, limit=1)
    taken = [from_row(row, tx.vault).id for row in found]
    if taken in ([], [template.id]):
        return None
    return Conflict(
        f"there is a template named '{name}' already; change it or choose another name",
        details={"id": taken[0]},
    )


def _row(template: Template, vault: Vault) -> Row:
    return (
        template.seq,
        template.id,
        template.definition.name,
        _text(template, vault),
        template.usage_count,
        template.created_at,
        template.updated_at,
    )


def _changed(template: Template, vault: Vault) -> Row:
    """The columns of `template_update`."""
    text = _text(template, vault)
    return (template.id, template.definition.name, text, template.updated_at)


def _text(template: Template, vault: Vault) -> str:
    return vault.seal_body(msgspec.json.encode(template.definition).decode())
