"""Routes of leases: external workers take tasks, say how far they are, and report.

A lease's id holds its fencing token, so a report under an old one is answered `lease_lost` and
changes nothing. The trap: a caller may be gone before there is anything to give, and a response
may be impossible to write. Then what was granted goes back at once and costs no attempt, so that
nobody holds a lease that nobody has received.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from fairlane.core.access import Scope
from fairlane.core.errors import Draining, InvalidRequest, LeaseLost, NotFound
from fairlane.core.leases import UNREADABLE
from fairlane.core.model import HANDLER, Task, is_node, parse_lease_id, route_of
from fairlane.core.policy import nearest
from fairlane.engine.commands import Complete, Fail, Grant, Lease, Output, Release, Renew, Start
from fairlane.engine.node import Node
from fairlane.http.messages import Answer, Request, Route, Routes
from fairlane.schema import fields, wire
from fairlane.schema.bodies import KINDS

log = logging.getLogger("fairlane.http")

LIMIT_MAX: Final = 1000
WAIT_MS_MAX: Final = 60_000
NAMES_MAX: Final = 1000

_VERSION: Final = {"schemaVersion": 1}  # of what cool-workflow's clients know of these answers

_NO_TASK: Final = 0  # the number of none

Key = tuple[int, int]


class LeaseBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /leases`. No lanes means all, no handlers any; `start` begins the work at once."""

    worker: str
    lanes: list[str] | None = None
    handlers: list[str] | None = None
    kinds: list[str] | None = None
    limit: int = 1
    wait_ms: int = 0
    ttl_ms: int | None = None
    start: bool = False


class WithdrawBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    worker: str


class TokenBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """What every report may say. The id holds the token too; given twice, both have to agree."""

    token: int | None = None


class RenewBody(TokenBody, forbid_unknown_fields=True, rename="camel"):
    ttl_ms: int | None = None
    progress: Any = None
    output: str | None = None
    part: int | None = None


class OutputBody(TokenBody, forbid_unknown_fields=True, rename="camel", kw_only=True):
    output: str
    part: int | None = None


class CompleteBody(TokenBody, forbid_unknown_fields=True, rename="camel"):
    result: Any = None


class FailBody(TokenBody, forbid_unknown_fields=True, rename="camel", kw_only=True):
    error: str
    retryable: bool = True
    retry_after_ms: int | None = None


_lease_decoder = msgspec.json.Decoder(LeaseBody)
_withdraw_decoder = msgspec.json.Decoder(WithdrawBody)
_token_decoder = msgspec.json.Decoder(TokenBody)
_renew_decoder = msgspec.json.Decoder(RenewBody)
_output_decoder = msgspec.json.Decoder(OutputBody)
_complete_decoder = msgspec.json.Decoder(CompleteBody)
_fail_decoder = msgspec.json.Decoder(FailBody)


class Leases:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {
            "/leases": {"POST": Route(self.lease, Scope.LEASE, waits=True)},
            "/leases/withdraw": {"POST": Route(self.withdraw, Scope.LEASE)},
            "/leases/{id}/start": {"POST": Route(self.start, Scope.LEASE)},
            "/leases/{id}/renew": {"POST": Route(self.renew, Scope.LEASE)},
            "/leases/{id}/output": {"POST": Route(self.output, Scope.LEASE)},
            "/leases/{id}/complete": {"POST": Route(self.complete, Scope.LEASE)},
            "/leases/{id}/fail": {"POST": Route(self.fail, Scope.LEASE)},
            "/leases/{id}/release": {"POST": Route(self.release, Scope.LEASE)},
        }

    async def lease(self, request: Request) -> Answer:
        body = await _decoded(request, _lease_decoder)
        await self._check_lanes(body.lanes or ())
        wanted = _wanted(body, self._node.clock.monotonic(), request.caller.agent)
        if self._node.draining:
            raise Draining(
                "the server is stopping; lease from another one or try again later",
                retry_after_ms=1000,
            )
        gone = asyncio.ensure_future(request.closed())
        try:
            grants = await self._granted(gone, wanted)
            undo = functools.partial(self._node.writer.give_back, grants)
            try:
                if body.wait_ms:  # the token may have been revoked during the wait
                    await self._node.tokens.require(request.caller)
                shapes = self._shapes(grants)
            except BaseException:
                undo()
                raise
            if gone.done():
                undo()
                shapes = []
        finally:
            gone.cancel()
        now = grants[0].at if grants else self._node.engine.moment()
        told = {"now": wire.moment(now), "granted": len(shapes)}
        shape = {**_VERSION, **told, "leases": shapes, "count": len(shapes)}
        return Answer(200, shape, undo=undo)

    async def withdraw(self, request: Request) -> Answer:
        body: WithdrawBody = await _decoded(request, _withdraw_decoder)
        _check_worker(body.worker)
        count = self._node.writer.withdraw(body.worker, request.caller.agent)
        return Answer(200, {"withdrawn": count})

    async def start(self, request: Request) -> Answer:
        key, _ = await self._report(request, _token_decoder)
        return Answer(200, wire.lease_state(await self._node.writer.ask(Start(*key))))

    async def renew(self, request: Request) -> Answer:
        key, body = await self._report(request, _renew_decoder)
        fields.within("ttlMs", body.ttl_ms, 1, fields.DAY_MS)
        if body.output is None and body.part is not None:
            raise InvalidRequest("field 'part' goes with 'output'")
        renewal = Renew(*key, body.ttl_ms, _progress(body.progress))
        asked = [self._node.writer.ask(renewal)]
        if body.output is not None:
            asked.append(self._node.writer.ask(_output(key, body.output, body.part)))
        task: Task = (await asyncio.gather(*asked))[0]
        stop = task.terminal or task.preempt == 1
        return Answer(200, {**wire.lease_state(task), "cancelRequested": stop})

    async def output(self, request: Request) -> Answer:
        key, body = await self._report(request, _output_decoder)
        await self._node.writer.ask(_output(key, body.output, body.part))
        return Answer(200, {"leaseId": request.path["id"]})

    async def complete(self, request: Request) -> Answer:
        key, body = await self._report(request, _complete_decoder)
        fields.shallow("result", body.result)
        text = None if body.result is None else wire.encode(body.result).decode()
        done = Complete(*key, text, begun=True)
        answer = wire.lease_state(await self._node.writer.ask(done))
        return Answer(200, {**_VERSION, "completed": request.path["id"], **answer})

    async def fail(self, request: Request) -> Answer:
        key, body = await self._report(request, _fail_decoder)
        fields.within("retryAfterMs", body.retry_after_ms, 0, fields.DAY_MS)
        error = wire.one_line(body.error).strip()
        if not error:
            raise InvalidRequest("field 'error' must not be empty")
        report = Fail(*key, error, body.retryable, body.retry_after_ms, begun=True)
        answer = wire.lease_state(await self._node.writer.ask(report))
        return Answer(200, {**_released(request, failed=True), **answer})

    async def release(self, request: Request) -> Answer:
        key, _ = await self._report(request, _token_decoder)
        answer = wire.lease_state(await self._node.writer.ask(Release(*key)))
        return Answer(200, {**_released(request, failed=False), **answer})

    # ---------------------------------------------------------------- parts

    async def _check_lanes(self, names: Sequence[str]) -> None:
        if all(name in self._node.policy.lanes for name in names):
            return
        # Another node may have made a lane a moment ago: the newest policy is in the store.
        view = await self._node.views.read(self._node.views.policy, None)
        lanes = self._node.policy.lanes if view is None else wire.decode(view.document)["lanes"]
        for name in names:
            if name not in lanes:
                hint = nearest(name, lanes)
                raise InvalidRequest(f"field 'lanes': '{name[:64]}' is no lane of the policy{hint}")

    async def _granted(self, gone: asyncio.Future[None], wanted: Lease) -> Sequence[Grant]:
        """What the writer grants; nothing, and nothing kept, when the caller goes before that."""
        asking = asyncio.ensure_future(self._node.writer.ask(wanted))
        taken: Sequence[Grant] = ()
        self._node.lease_waits += 1
        try:
            await asyncio.wait([asking, gone], return_when=asyncio.FIRST_COMPLETED)
            if not gone.done():
                taken = await asking
            return taken
        finally:
            self._node.lease_waits -= 1
            # One that is not over yet gives back itself what it may still be granted.
            if not asking.cancel() and not taken and not asking.exception():
                self._node.writer.give_back(asking.result())

    async def _report(
        self, request: Request, decoder: msgspec.json.Decoder[Any]
    ) -> tuple[Key, Any]:
        body: TokenBody = await _decoded(request, decoder)
        text = request.path["id"]
        key = parse_lease_id(text)
        if key is None:
            raise NotFound(f'"{text[:64]}" is no lease id; use the leaseId of POST /leases')
        if body.token is not None and body.token != key[1]:
            raise LeaseLost("field 'token' is not the token of this lease; lease again")
        return await self._mine(request, key), body

    async def _mine(self, request: Request, key: Key) -> Key:
        """A lease on another agent's task is one that there has never been."""
        if request.caller.agent is None:
            return key
        agent = await self._node.views.read(self._node.views.agent_of, key[0])
        return key if request.caller.owns(agent) else (_NO_TASK, key[1])

    def _shapes(self, grants: Sequence[Grant]) -> list[dict[str, Any]]:
        """Return the leases that can be shown. A task whose request is damaged fails, alone."""
        shapes = []
        for grant in grants:
            try:
                shapes.append(self._shape(grant))
            except Exception as error:  # noqa: BLE001 - whatever it is, the others are leased
                log.warning("task %s cannot be leased: %s", grant.task.id, error)
                key = grant.task.seq, grant.task.token
                self._node.writer.tell(Fail(*key, UNREADABLE, retryable=False, begun=True))
        return shapes

    def _shape(self, grant: Grant) -> dict[str, Any]:
        timeout_ms = self._node.policy.kinds[grant.task.kind].timeout_ms
        return wire.lease(grant.task, grant.body, grant.inputs, timeout_ms)


def _released(request: Request, *, failed: bool) -> dict[str, Any]:
    return {**_VERSION, "released": request.path["id"], "failed": failed}


async def _decoded(request: Request, decoder: msgspec.json.Decoder[Any]) -> Any:
    names = frozenset(decoder.type.__struct_encode_fields__)
    return fields.decoded(decoder, await request.body() or b"{}", names)


def _wanted(body: LeaseBody, now: float, agent: str | None) -> Lease:
    _check_worker(body.worker)
    fields.within("limit", body.limit, 1, LIMIT_MAX)
    fields.within("waitMs", body.wait_ms, 0, WAIT_MS_MAX)
    fields.within("ttlMs", body.ttl_ms, 1, fields.DAY_MS)
    routes, any_handler = _routes(body)
    return Lease(
        worker=body.worker,
        lanes=tuple(dict.fromkeys(body.lanes or ())) or None,
        routes=routes,
        limit=body.limit,
        ttl_ms=body.ttl_ms,
        until=now + body.wait_ms / 1000,
        any_handler=any_handler,
        start=body.start,
        agent=agent,
    )


def _routes(body: LeaseBody) -> tuple[frozenset[str], bool]:
    """The routes that are named, and whether every handler is wanted besides."""
    kinds = [HANDLER] if body.kinds is None else body.kinds
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidRequest(f"field 'kinds' must hold only {', '.join(KINDS)}")
    if body.handlers is not None and HANDLER not in kinds:
        raise InvalidRequest("'handlers' goes with the kind 'handler': add it to 'kinds'")
    names = list(body.handlers or ())
    if len(names) > NAMES_MAX:
        raise InvalidRequest(f"field 'handlers' must not name more than {NAMES_MAX}")
    for name in names:
        fields.matches("handlers", name, fields.WORD)
    routes = {route_of(HANDLER, name) for name in names}
    routes |= {route_of(kind) for kind in kinds if kind != HANDLER}
    any_handler = HANDLER in kinds and body.handlers is None
    if not routes and not any_handler:
        raise InvalidRequest(
            "fields 'handlers' and 'kinds' leave nothing to lease: leave them out for any handler"
        )
    return frozenset(routes), any_handler


def _check_worker(name: str) -> None:
    fields.matches("worker", name, fields.IDENTIFIER)
    if is_node(name):
        raise InvalidRequest("field 'worker' must not begin with node_: so servers name themselves")


def _output(key: Key, text: str, part: int | None) -> Output:
    fields.within("part", part, 0, 2**31)
    return Output(*key, part, text, trusted=False)


def _progress(progress: Any) -> str | None:
    if progress is None:
        return None
    fields.shallow("progress", progress)
    text = wire.encode(progress)
    if len(text) > wire.PROGRESS_BYTES_MAX:
        raise InvalidRequest(
            f"field 'progress' must not be larger than {wire.PROGRESS_BYTES_MAX} bytes of JSON"
        )
    return text.decode()
