"""The verbs of templates: create, update, use, delete.

Templates are few and change by hand, so requests run one after another, each on the result of the
one before. Only uses may be many: a use and its task are one transaction, and it counts if the task
is accepted and new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fairlane.core import templates
from fairlane.core.errors import Conflict, InvalidRequest, NotFound
from fairlane.core.model import Task
from fairlane.core.templates import Template
from fairlane.engine.commands import (
    CreateTemplate,
    DeleteTemplate,
    Submit,
    UpdateTemplate,
    UseTemplate,
)
from fairlane.engine.verbs import tasks as verbs
from fairlane.store.tables import templates as table
from fairlane.store.transaction import Transaction


def create_template(
    tx: Transaction, requests: Sequence[CreateTemplate], now: int
) -> Iterator[object]:
    for request in requests:
        template = Template(tx.next_seq(), request.id, request.definition, 0, now, now)
        conflict = _refused(tx, template)
        if conflict is None:
            table.insert(tx.connection, tx.vault, template)
        yield conflict or template


def update_template(
    tx: Transaction, requests: Sequence[UpdateTemplate], now: int
) -> Iterator[object]:
    for request in requests:
        before = table.by_id(tx.connection, tx.vault, [request.id]).get(request.id)
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
            table.update(tx.connection, tx.vault, after)
        yield conflict or after


def use_template(tx: Transaction, requests: Sequence[UseTemplate], now: int) -> Iterator[object]:
    tx.unwritten.write()  # the keys that other submissions of this batch have used
    found = table.by_id(tx.connection, tx.vault, [request.id for request in requests])
    submits = [r.submit for r in requests if r.submit is not None and r.id in found]
    submitted = verbs.submit(tx, submits, now) if submits else iter(())
    uses: Counter[str] = Counter()
    answers: list[object] = []
    for request in requests:
        if request.id not in found:
            answers.append(not_found())
        elif request.submit is None:
            uses[request.id] += 1
            answers.append([])
        else:
            answers.append(next(submitted))
            uses[request.id] += _is_new(request.submit, answers[-1])
    counted = {template_id: count for template_id, count in uses.items() if count}
    if counted:
        table.count_uses(tx.connection, counted)
    return iter(answers)


def delete_template(
    tx: Transaction, requests: Sequence[DeleteTemplate], _: int
) -> Iterator[object]:
    for request in requests:
        if request.id in table.by_id(tx.connection, tx.vault, [request.id]):
            table.delete(tx.connection, request.id)
            yield None
        else:
            yield not_found()


def not_found() -> NotFound:
    return NotFound("template not found")


def damaged() -> Conflict:
    return Conflict("the template in the store is damaged; delete it and create it again")


def _is_new(submit: Submit, answer: object) -> bool:
    """Return whether a task was created: not by a refusal, nor by a repeated idempotency key."""
    ids = {submission.id for submission in submit.submissions}
    tasks = answer if isinstance(answer, list) else []
    return any(isinstance(task, Task) and task.id in ids for task in tasks)


def _refused(tx: Transaction, template: Template) -> InvalidRequest | Conflict | None:
    config = {"llmConfig": template.definition.llm_config}
    return tx.vault.problem(config) or _conflict(tx, template)


def _conflict(tx: Transaction, template: Template) -> Conflict | None:
    """Return the error for a taken name. There is one writer, so a free name stays free until
    taken.
    """
    name = template.definition.name
    taken = table.id_by_name(tx.connection, name)
    if taken in (None, template.id):
        return None
    return Conflict(
        f"a template named '{name}' already exists; change it or choose another name",
        details={"id": taken},
    )
