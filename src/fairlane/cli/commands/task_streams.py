"""`fairlane submit --file FILE --stream`: a file of any length, one task per line.

The key of the stream follows from the content of the file, so that the same command continues after
an interruption: lines that were accepted before are not submitted again.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec

from fairlane.cli.commands import Exit
from fairlane.cli.output import remark, warn
from fairlane.core.errors import FairlaneError, InvalidRequest
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.schema import json_limits, wire
from fairlane.schema.task_streams import LineOutcome, SubmitLines

if TYPE_CHECKING:
    from fairlane.cli.backends import Side
    from fairlane.cli.output import Output
    from fairlane.cli.output.terminal import Terminal

_ERRORS_SHOWN: Final = 20
_READ_BYTES: Final = 1 << 20


def submit_stream(args: argparse.Namespace, side: Side, out: Output) -> int:
    """Submit each line of a file; return the exit code."""
    is_input = args.file == "-"
    key, total = (args.idempotency_key, 0) if is_input else _key_and_lines(args)
    tally = _Tally()
    with _opened(args.file) as file, out.progress(total or 1, plain=True) as say:
        try:
            for found in _outcomes(side, file, key):
                if isinstance(found, str):
                    key = found
                    continue
                tally.add(found)
                if tally.lines % 1000 == 0 or tally.lines == total:
                    say(tally.lines, f"{tally.accepted} submitted, {tally.rejected} rejected")
        except (FairlaneError, KeyboardInterrupt):
            again = "run the same command again to continue"
            if is_input:
                again = f"send the same lines again with --idempotency-key {key} to continue"
            remark(f"{tally.lines} lines were answered; {again}")
            raise
    warn(f"{count} of {tally.lines} tasks: {text}" for text, count in tally.warnings.items())
    out.show(tally.summary(key), _draw)
    return Exit.REFUSED if tally.rejected else Exit.OK


class _Tally:
    def __init__(self) -> None:
        self.accepted = self.rejected = 0
        self.errors: list[JsonObject] = []
        self.warnings: Counter[str] = Counter()

    @property
    def lines(self) -> int:
        return self.accepted + self.rejected

    def add(self, outcome: LineOutcome) -> None:
        if outcome.code is None:
            self.accepted += 1
            if outcome.warnings and len(self.warnings) < _ERRORS_SHOWN:
                self.warnings.update(outcome.warnings)
            return
        self.rejected += 1
        if len(self.errors) < _ERRORS_SHOWN:
            self.errors.append(outcome.to_dict())

    def summary(self, key: str | None) -> JsonObject:
        return {
            "accepted": self.accepted,
            "rejected": self.rejected,
            "errors": self.errors,
            "idempotencyKey": key,
        }


def _outcomes(side: Side, file: BinaryIO, key: str | None) -> Iterator[LineOutcome | str]:
    """Yield the key of the stream, then the outcome of each line. A line that is not JSON is not
    sent.
    """
    from fairlane.client.bulk import PieceBuilder  # noqa: PLC0415 - only this command needs it

    builder = PieceBuilder(key)
    yield builder.key

    def sent(piece: SubmitLines | None) -> Iterator[LineOutcome]:
        return iter(() if piece is None else side.client.submit_piece(piece))

    for number, line in enumerate(file, 1):
        text = line.strip()
        problem = _problem(text)
        if text and problem is None:
            yield from sent(builder.add(text))
            continue
        yield from sent(builder.take())
        builder.skip()
        if problem is not None:
            yield LineOutcome(number, code=problem.code, error=problem.message)
    yield from sent(builder.take())


def _problem(line: bytes) -> InvalidRequest | None:
    if len(line) > wire.BODY_BYTES_MAX // 2:
        return InvalidRequest(f"the line is larger than {wire.BODY_BYTES_MAX // 2} bytes")
    try:
        if line:
            msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return json_limits.malformed(line, error)
    return None


def _key_and_lines(args: argparse.Namespace) -> tuple[str, int]:
    """Return the key and the number of lines that are not blank, in one pass."""
    digest, lines = hashlib.sha256(), 0
    with _opened(args.file) as file:
        for line in file:
            digest.update(line)
            lines += not line.isspace()
    return args.idempotency_key or f"file-{digest.hexdigest()[:40]}", lines


def _opened(name: str) -> BinaryIO:
    if name == "-":
        return open(sys.stdin.fileno(), "rb", buffering=_READ_BYTES, closefd=False)
    try:
        return Path(name).open("rb", buffering=_READ_BYTES)
    except OSError as error:
        raise InvalidRequest(f"cannot read {name}: {error.strerror}") from None


def _draw(terminal: Terminal, summary: JsonMapping) -> None:
    terminal.line(f"submitted {summary['accepted']} tasks, {summary['rejected']} were rejected")
    for one in summary["errors"]:
        terminal.line(f"line {one['line']}: {one['error']}")
    more = summary["rejected"] - len(summary["errors"])
    if more > 0:
        terminal.line(f"and {more} more")
