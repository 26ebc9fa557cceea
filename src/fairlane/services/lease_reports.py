"""Reports of external workers: many in one request, with the request for the next leases.

The reports of a request are one command of the writer, so they are applied in one transaction. The
lease request goes to the writer first, so that the same transaction can grant the slots that the
reports free. A report that is refused has its own error; the others are applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from fairlane.core.access import Caller
from fairlane.core.errors import Draining, FairlaneError, InvalidRequest
from fairlane.core.model import Task
from fairlane.engine.commands import (
    AppendOutput,
    Grant,
    LeaseCommand,
    Release,
    Renew,
    Report,
    Start,
)
from fairlane.engine.node import Node
from fairlane.engine.step_commands import CheckpointOutcome
from fairlane.schema import decoding, wire
from fairlane.schema import leases as schema
from fairlane.schema.leases import (
    REPORTS_MAX,
    LeaseReport,
    LeasesReported,
    ReportLeases,
    ReportOutcome,
    lease_state,
)
from fairlane.services.leases import (
    completion,
    failure,
    give_back,
    granted,
    keep,
    lease_key,
    leases_of,
    must_stop,
    recorded_step,
    renewal,
    wanted_by,
)
from fairlane.services.registry import implements
from fairlane.services.settling import report_of

log = logging.getLogger("fairlane.leases")

# The fields of each verb in addition to lease, verb and token.
_SETTLED: Final = frozenset({"usage", "closed", "observed"})
_FIELDS: Final = {
    "start": frozenset[str](),
    "renew": frozenset({"ttl_ms", "progress", "output", "part", "permits", "closed", "observed"}),
    "output": frozenset({"output", "part"}),
    "checkpoint": frozenset({"name", "value", "number"}),
    "complete": frozenset({"result"}) | _SETTLED,
    "fail": frozenset({"error", "retryable", "retry_after_ms", "traceback"}) | _SETTLED,
    "release": _SETTLED,
}
_OPTIONAL: Final = [
    one
    for one in msgspec.structs.fields(LeaseReport)
    if one.name not in ("lease_id", "verb", "token")
]
_INTERNAL: Final = "internal_error"

# The lease, and its commands or an error.
Parsed = tuple[str | None, list[LeaseCommand] | FairlaneError]


@implements(schema.REPORT_LEASES, undo=give_back, sent=keep)
async def report(node: Node, caller: Caller, request: ReportLeases) -> LeasesReported:
    if len(request.reports) > REPORTS_MAX:
        raise InvalidRequest(f"field 'reports' must not have more than {REPORTS_MAX} items")
    wanted = None if request.limit == 0 else await wanted_by(node, caller, request)
    parsed = [_parsed(raw) for raw in request.reports]
    commands = [one for _, found in parsed if isinstance(found, list) for one in found]
    leasing: asyncio.Future[Sequence[Grant]] | None = None
    if wanted is not None and not node.draining:
        waits = request.wait_ms > 0
        leasing = asyncio.ensure_future(granted(node, caller, wanted, waits=waits))
        await asyncio.sleep(0)  # it asks the writer before the reports do
    elif wanted is not None and not commands:
        raise Draining(
            "the server is stopping; lease from another one or try again later",
            retry_after_ms=1000,
        )
    answers: list[object] = []
    try:
        if commands:
            answers = await _applied(node, commands, caller.agent)
        grants = () if leasing is None else await leasing
    except BaseException:
        if leasing is not None:
            await _abandon(node, leasing)
        raise
    now = grants[0].at if grants else node.writer.moment()
    return LeasesReported(
        wire.moment(now), _outcomes(parsed, iter(answers)), leases_of(node, grants)
    )


async def _abandon(node: Node, leasing: asyncio.Future[Sequence[Grant]]) -> None:
    """End a request for leases whose response will not be sent."""
    leasing.cancel()
    await asyncio.wait([leasing])
    if not leasing.cancelled() and leasing.exception() is None:
        node.writer.give_back(leasing.result())


async def _applied(node: Node, commands: list[LeaseCommand], agent: str | None) -> list[object]:
    """Return the answer to each command. If one of them breaks the transaction, apply them one by
    one: a damaged task must not keep a worker from reporting on others.
    """
    try:
        answers: list[object] = await node.writer.ask(Report(commands, agent))
    except FairlaneError:
        raise
    except Exception:
        log.exception("a request with %d reports failed; applying them one by one", len(commands))
        answers = []
        for one in commands:
            try:
                answers += await node.writer.ask(Report([one], agent))
            except FairlaneError:
                raise
            except Exception as error:  # noqa: BLE001 - the writer has logged it
                answers.append(error)
    return answers


def _parsed(raw: msgspec.Raw) -> Parsed:
    """Return a report's commands, or why it is refused."""
    name: str | None = None
    try:
        one = decoding.decode(bytes(raw), LeaseReport)
        name = one.lease_id
        return name, _commands(one)
    except FairlaneError as error:
        return name, error


def _commands(one: LeaseReport) -> list[LeaseCommand]:
    key = lease_key(one.lease_id, one.token)
    verb, fields = one.verb, _FIELDS[one.verb]
    for field in _OPTIONAL:
        if field.name not in fields and getattr(one, field.name) != field.default:
            raise InvalidRequest(f"field '{field.encode_name}' does not belong to {verb}")
    if verb == "complete":
        return [completion(key, one)]
    if verb == "renew":
        return [*renewal(key, one)]
    if verb == "output":
        return [AppendOutput(*key, one.part, _required("output", one.output), trusted=False)]
    if verb == "checkpoint":
        return [recorded_step(key, _required("name", one.name), one)]
    if verb == "fail":
        return [failure(key, _required("error", one.error), one)]
    return [Start(*key) if verb == "start" else Release(*key, report_of(one))]


def _required(field: str, value: str | None) -> str:
    if value is None:
        raise InvalidRequest(f"missing required field '{field}'")
    return value


def _outcomes(parsed: Sequence[Parsed], answers: Iterator[object]) -> list[ReportOutcome]:
    """Return the outcome of each report. That of a renewal with output is an error if either is."""
    found = []
    for name, commands in parsed:
        if isinstance(commands, FairlaneError):
            found.append(_outcome(name, commands))
            continue
        given = [next(answers) for _ in commands]
        problem = next((one for one in given if isinstance(one, Exception)), None)
        outcome = _outcome(name, given[0] if problem is None else problem)
        if type(commands[0]) is Renew and isinstance(given[0], Task):
            outcome.cancel_requested = must_stop(given[0])
        found.append(outcome)
    return found


def _outcome(name: str | None, answer: object) -> ReportOutcome:
    if isinstance(answer, CheckpointOutcome):
        answer = answer.task
    if isinstance(answer, Task):
        return ReportOutcome(**lease_state(answer))
    if answer is None:  # output has no other answer
        return ReportOutcome(name)
    if isinstance(answer, FairlaneError):
        return ReportOutcome(name, code=answer.code, error=answer.message, details=answer.details)
    return ReportOutcome(name, code=_INTERNAL, error="internal error; see the server's log")
