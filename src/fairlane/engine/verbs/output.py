"""The output of runs, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fairlane.core import leases
from fairlane.engine.commands import AppendOutput
from fairlane.engine.verbs import redaction
from fairlane.schema.wire import OUTPUT_CHARACTERS_MAX
from fairlane.store.tables import outputs
from fairlane.store.tables.outputs import Piece
from fairlane.store.transaction import Transaction


def output(tx: Transaction, requests: Sequence[AppendOutput], _: int) -> Iterator[object]:
    """Store output. Discard the output of a run that has ended; external workers get an error."""
    tasks = tx.tasks_by_seq(request.seq for request in requests)
    requests = redaction.reports(tx, tasks, requests, "text")
    answers = [
        None if r.trusted else leases.lost(tasks.get(r.seq), r.fencing_token) for r in requests
    ]
    kept = [r for r, answer in zip(requests, answers, strict=True) if answer is None]
    pieces = [
        (request.seq, Piece(request.fencing_token, part, task.attempts, text))
        for request, part, text in _within_limits(tx, kept)
        if (task := tasks.get(request.seq)) and task.fencing_token == request.fencing_token > 0
    ]
    outputs.insert(tx.connection, pieces)
    tx.wrote_output = tx.wrote_output or bool(pieces)
    return iter(answers)


def _within_limits(
    tx: Transaction, requests: Sequence[AppendOutput]
) -> Iterator[tuple[AppendOutput, int, str]]:
    """Yield each piece with its part number and text, cut at the limit for external workers."""
    leased = [(r.seq, r.fencing_token) for r in requests if r.part is None or not r.trusted]
    sizes = outputs.sizes(tx.connection, leased)
    for request in requests:
        if request.part is not None and request.trusted:
            yield request, request.part, request.text
            continue
        parts, size = sizes.get((request.seq, request.fencing_token), (0, 0))
        text = request.text[: max(0, OUTPUT_CHARACTERS_MAX - size)]
        part = parts if request.part is None else request.part
        sizes[request.seq, request.fencing_token] = (max(parts, part + 1), size + len(text))
        if text:
            yield request, part, text
