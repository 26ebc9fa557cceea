"""Task streams: read lines, submit the lines that have arrived in one transaction, answer each.

While one piece is committed, the next is parsed and later ones arrive; reading pauses when enough
pieces wait. So the caller can send only as fast as the store commits.

Caution: a stream may be sent again. With an idempotency key, the id of a task follows from the key
and the line's number (or from the line's own key). The transaction that would admit it finds the
task under that id instead, so a repeated stream submits nothing twice, wherever it was cut off.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec

from fairlane.core.access import Caller
from fairlane.core.errors import (
    CallerError,
    Draining,
    FairlaneError,
    InvalidRequest,
    PayloadTooLarge,
    QuotaExceeded,
    RateLimited,
)
from fairlane.core.model import Submission, Task
from fairlane.core.submissions import invalid_task, submission
from fairlane.engine.commands import Submit
from fairlane.engine.node import Node
from fairlane.schema import decoding, json_limits, wire
from fairlane.schema import task_streams as schema
from fairlane.schema.task_streams import (
    LINES_MAX,
    LinesSubmitted,
    StreamEnd,
    StreamTask,
    SubmitLines,
    line_outcome,
)
from fairlane.services import offers
from fairlane.services.registry import implements
from fairlane.services.tasks import check_callback, submitter

# How much may wait while the store is busy before no more is read.
_AHEAD_BYTES: Final = 1 << 20
_LINE_BYTES: Final = 64  # that a line takes beside its text
_LOOK_SECONDS: Final = 1.0  # how soon a silent stream notices that the server stops

Prepared = list[tuple[int, Submission | FairlaneError]]  # by line number
Warnings = list[str] | None
Outcomes = list[tuple[int, Task | FairlaneError, Warnings]]

_lines = msgspec.json.Decoder(StreamTask)


@implements(schema.SUBMIT_LINES)
async def submit_lines(node: Node, caller: Caller, request: SubmitLines) -> LinesSubmitted:
    if not request.tasks:
        raise InvalidRequest("field 'tasks' must not be empty")
    if len(request.tasks) > LINES_MAX:
        raise InvalidRequest(f"field 'tasks' must not have more than {LINES_MAX} items")
    intake = Intake(node, caller, request.idempotency_key)
    node.tokens.owe(caller, len(request.tasks) - 1)
    numbered = list(enumerate(map(bytes, request.tasks), request.first_line))
    outcomes = await intake.submit(intake.prepare(numbered))
    shown = [line_outcome(*one) for one in outcomes]
    rejected = sum(one.code is not None for one in shown)
    return LinesSubmitted(shown, len(shown) - rejected, rejected)


async def stream(
    node: Node,
    caller: Caller,
    pieces: AsyncIterator[bytes],
    *,
    key: str | None = None,
    first_line: int = 1,
) -> AsyncIterator[bytes]:
    """Yield the outcomes of the lines of NDJSON, several lines at a time, then the end."""
    intake, lines = Intake(node, caller, key), LineBuffer(first_line)
    accepted = rejected = 0
    problem: FairlaneError | None = None
    try:
        async for outcomes in _outcomes(intake, lines, pieces):
            good = sum(isinstance(outcome, Task) for _, outcome, _ in outcomes)
            accepted += good
            rejected += len(outcomes) - good
            yield b"".join(map(_encoded, outcomes))
    except FairlaneError as error:
        problem = error
    end = StreamEnd(end=True, accepted=accepted, rejected=rejected)
    if problem is not None:
        end.code, end.error = problem.code, wire.one_line(problem.message)
    yield wire.encode(end) + b"\n"


async def _outcomes(
    intake: Intake, lines: LineBuffer, pieces: AsyncIterator[bytes]
) -> AsyncIterator[Outcomes]:
    reading: asyncio.Future[bytes] | None = None
    writing: asyncio.Future[Outcomes] | None = None
    prepared: Prepared = []
    try:
        while not lines.is_over or prepared or writing is not None:
            if not prepared and lines:
                prepared = intake.prepare(lines.take())
            if prepared and writing is None:
                writing = asyncio.ensure_future(intake.paced(prepared))
                prepared = []
                continue  # the next lines are parsed meanwhile
            if reading is None and not lines.ended and lines.size < _AHEAD_BYTES:
                reading = asyncio.ensure_future(anext(pieces))
            waited = [one for one in (reading, writing) if one is not None]
            await asyncio.wait(waited, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if reading is not None and reading.done():
                arrived, reading = reading, None
                lines.add(arrived)
            if writing is not None and writing.done():
                outcomes, writing = writing.result(), None
                yield outcomes
            elif writing is None and intake.node.draining:
                raise _stopping()
    finally:
        for one in (reading, writing):
            if one is not None:
                one.cancel()
                await asyncio.wait([one])


class LineBuffer:
    """The bytes that have arrived, as lines with their numbers."""

    def __init__(self, first_line: int) -> None:
        self.ended = False
        self.size = 0
        self._next = first_line
        self._lines: deque[tuple[int, bytes]] = deque()
        self._rest: list[bytes] = []  # the beginning of a line
        self._rest_size = 0
        self._skips = False  # that line is too long

    def __bool__(self) -> bool:
        return bool(self._lines)

    @property
    def is_over(self) -> bool:
        return self.ended and not self._lines

    def add(self, reading: asyncio.Future[bytes]) -> None:
        """Add what was read. Raise the error that ended it."""
        try:
            piece = reading.result()
        except StopAsyncIteration:
            self.ended = True
            piece = b"\n" if self._rest or self._skips else b""
        *whole, rest = piece.split(b"\n")
        if whole:
            whole[0] = _TOO_LONG if self._skips else b"".join([*self._rest, whole[0]])
            self._begin_line()
            for number, line in enumerate(whole, self._next):
                if line and not line.isspace():
                    self._lines.append((number, line))
                    self.size += len(line) + _LINE_BYTES
            self._next += len(whole)
        if rest and not self._skips:
            self._rest.append(rest)
            self._rest_size += len(rest)
            if self._rest_size > wire.BODY_BYTES_MAX:
                self._begin_line()
                self._skips = True

    def _begin_line(self) -> None:
        self._rest, self._rest_size, self._skips = [], 0, False

    def take(self) -> list[tuple[int, bytes]]:
        """Return the next lines that are not blank."""
        taken = [self._lines.popleft() for _ in range(min(LINES_MAX, len(self._lines)))]
        self.size -= sum(len(line) + _LINE_BYTES for _, line in taken)
        return taken


_TOO_LONG: Final = b"\0"  # stands for a line that is longer than a request may be


class Intake:
    """Turns lines into submissions for one caller, and submits them."""

    def __init__(self, node: Node, caller: Caller, key: str | None) -> None:
        self.node = node
        self._caller = caller
        self._submitter = submitter(caller)
        self._scope = caller.agent or ""
        self._prefix = None if key is None else _hash("stream", self._scope, key)[:20]

    def prepare(self, lines: Sequence[tuple[int, bytes]]) -> Prepared:
        """Return the submission or the error of each line."""
        tasks = _decoded([line for _, line in lines])
        return [
            (number, self._made(number, task))
            for (number, _), task in zip(lines, tasks, strict=True)
        ]

    def _made(self, number: int, task: StreamTask | FairlaneError) -> Submission | FairlaneError:
        if isinstance(task, FairlaneError):
            return task
        try:
            once = self._id(number, task)
            made = submission(
                task,
                task_id=once or self.node.new_id(),
                agent=self._caller.agent,
                submitter=self._caller.token,
                once=once is not None,
            )
        except InvalidRequest as error:
            return invalid_task(error)
        try:
            self._caller.agent_for(made.agent)
            if made.callback_url is not None:
                check_callback(self.node, made.callback_url)
        except FairlaneError as error:
            return error
        return made

    def _id(self, number: int, task: StreamTask) -> str | None:
        """Return the id that follows from a key; None without one."""
        if task.idempotency_key is not None:
            return f"tsk_{_hash('line', self._scope, task.idempotency_key)[:28]}"
        return None if self._prefix is None else f"tsk_{self._prefix}{number:08x}"

    async def paced(self, prepared: Prepared) -> Outcomes:
        """Submit when the caller's rate allows it, if its token is still valid then."""
        while True:
            try:
                await self.node.spend(self._caller)
                break
            except RateLimited as error:
                if self.node.draining:
                    raise _stopping() from None
                await asyncio.sleep(min(_LOOK_SECONDS, (error.retry_after_ms or 1000) / 1000))
        await self.node.tokens.require(self._caller)
        self.node.tokens.owe(self._caller, len(prepared) - 1)
        return await self.submit(prepared)

    async def submit(self, prepared: Prepared) -> Outcomes:
        """Return the outcome of each line once all of them are durable."""
        made = [one for _, one in prepared if isinstance(one, Submission)]
        checked = await offers.checked_each(self.node, made)
        good = [
            one
            for one, found in zip(made, checked, strict=True)
            if not isinstance(found, Exception)
        ]
        outcomes, warnings = iter(await self._admitted(good) if good else ()), iter(checked)
        found: Outcomes = []
        for number, one in prepared:
            about = None if isinstance(one, FairlaneError) else next(warnings)
            if isinstance(one, FairlaneError):
                found.append((number, one, None))
            elif isinstance(about, FairlaneError):
                found.append((number, about, None))
            else:
                found.append((number, next(outcomes), about))
        return found

    async def _admitted(self, good: list[Submission]) -> Sequence[Task | FairlaneError]:
        """Submit together. If one line keeps the others from being admitted, submit singly."""
        try:
            return await self.node.submit(Submit(good, caller=self._submitter))
        except (CallerError, QuotaExceeded) as error:
            if len(good) == 1:
                return [error]
        singly: list[Task | FairlaneError] = []
        for one in good:
            singly += await self._admitted([one])
        return singly


def _decoded(lines: Sequence[bytes]) -> list[Any]:
    """Return the task or the error of each line: all at once if all are good, else one by one."""
    joined = b"\n".join(lines)
    try:
        tasks = _lines.decode_lines(joined)
        if len(tasks) == len(lines) and json_limits.are_within_limits(joined, lines):
            return tasks
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return [_decoded_one(line) for line in lines]


def _decoded_one(line: bytes) -> StreamTask | FairlaneError:
    if line == _TOO_LONG or len(line) > wire.BODY_BYTES_MAX:
        return PayloadTooLarge(f"the line is larger than {wire.BODY_BYTES_MAX} bytes")
    try:
        return decoding.decode(line, StreamTask)
    except FairlaneError as error:
        return error


def _encoded(outcome: tuple[int, Task | FairlaneError, Warnings]) -> bytes:
    line, found, warnings = outcome
    if isinstance(found, Task):  # both texts are plain words
        return b'{"line":%d,"taskId":"%b","state":"%b"%b}\n' % (
            line,
            found.id.encode(),
            found.state.encode(),
            b"" if warnings is None else _encoded_warnings(*warnings),
        )
    return wire.encode(line_outcome(line, found, warnings)) + b"\n"


@functools.lru_cache(maxsize=64)
def _encoded_warnings(*warnings: str) -> bytes:
    return b',"warnings":%b' % wire.encode(warnings)


def _stopping() -> Draining:
    return Draining("the server is stopping; send the rest to another one or later")


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
