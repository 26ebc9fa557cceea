"""Redaction: remove secrets from what external workers report about instructions.

Fairlane's own executors redact before anything is cut into pieces. External workers may repeat a
secret that they received, so it is removed where the report is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from fairlane.core.json_types import JsonObject
from fairlane.core.model import INSTRUCTION, Task, is_node
from fairlane.core.secrets import Redactor, texts
from fairlane.store.transaction import Transaction

R = TypeVar("R", bound=msgspec.Struct)


def reports(
    tx: Transaction, tasks: Mapping[int, Task], requests: Sequence[R], field: str
) -> Sequence[R]:
    """Return the requests with secrets removed from `field`, which is text or JSON text from a
    worker.
    """
    secretive = [_seq(one) for one in requests if _knows_secrets(tasks.get(_seq(one)))]
    if not secretive:
        return requests  # nearly always
    redactors = {seq: _redactor(body) for seq, body in tx.lookup.requests(secretive).items()}
    return [
        _hidden(one, field, redactors[_seq(one)]) if _seq(one) in redactors else one
        for one in requests
    ]


def _seq(request: Any) -> int:
    seq: int = request.seq
    return seq


def _knows_secrets(task: Task | None) -> bool:
    if task is None or task.kind != INSTRUCTION or task.worker is None:
        return False
    return not is_node(task.worker)


def _redactor(body: str) -> Redactor:
    """Return the redactor of a request's secrets; a damaged request has none."""
    try:
        config = msgspec.json.decode(body, type=JsonObject).get("llmConfig")
    except msgspec.DecodeError:
        config = None
    return Redactor(texts(config))


def _hidden(request: R, field: str, redactor: Redactor) -> R:
    said = getattr(request, field)
    if said is None or redactor.hide(said) == said:
        return request
    return msgspec.structs.replace(request, **{field: _without(said, redactor)})


def _without(said: str, redactor: Redactor) -> str:
    try:
        document = msgspec.json.decode(said)
    except msgspec.DecodeError:
        return redactor.hide(said)
    return msgspec.json.encode(redactor.hide_in(document)).decode()
