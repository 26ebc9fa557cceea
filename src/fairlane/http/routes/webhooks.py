"""Routes of webhooks: the log of deliveries, sending one again, and endpoints with their secrets.

Of a delivery's URL only scheme, host and port are shown: people put secrets into the rest of it. An
endpoint's secret is shown once, to who makes or changes it, and by nothing else ever after.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from fairlane.core import webhooks
from fairlane.core.access import Scope
from fairlane.core.errors import FairlaneError, InvalidRequest, NotFound
from fairlane.core.webhooks import Delivery, Endpoint, Try
from fairlane.engine.commands import (
    CreateEndpoint,
    DeleteEndpoint,
    EnableEndpoint,
    Redeliver,
    RotateEndpoint,
)
from fairlane.engine.node import Node
from fairlane.engine.reads.views import DeliveryFilter
from fairlane.engine.verbs.webhooks import new_secret, not_found
from fairlane.http.messages import Answer, Request, Route, Routes, page_cursor, page_limit
from fairlane.schema import fields, wire

_CURSOR: Final = re.compile(r"([0-9]{1,15})\.([A-Za-z0-9_.:@-]{1,300})")


class EndpointBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /webhooks`."""

    url: str
    agent_id: str | None = None


class RotateBody(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """`POST /webhooks/{id}/rotate`."""

    overlap_seconds: int | None = None


_endpoint_decoder = msgspec.json.Decoder(EndpointBody)
_rotate_decoder = msgspec.json.Decoder(RotateBody)
_ENDPOINT_FIELDS: Final = frozenset(EndpointBody.__struct_encode_fields__)
_ROTATE_FIELDS: Final = frozenset(RotateBody.__struct_encode_fields__)


class Webhooks:
    def __init__(self, node: Node, check_url: Callable[[str], object]) -> None:
        """`check_url` raises when nothing may be sent to an address."""
        self._node = node
        self._check_url = check_url

    def routes(self) -> Routes:
        return {
            "/deliveries": {"GET": Route(self.deliveries, Scope.READ)},
            "/deliveries/{id}": {"GET": Route(self.delivery, Scope.READ)},
            "/deliveries/{id}/redeliver": {"POST": Route(self.redeliver, Scope.OPERATE)},
            "/webhooks": {
                "POST": Route(self.create, Scope.OPERATE),
                "GET": Route(self.list, Scope.READ),
            },
            "/webhooks/{id}": {
                "GET": Route(self.show, Scope.READ),
                "DELETE": Route(self.delete, Scope.OPERATE),
            },
            "/webhooks/{id}/rotate": {"POST": Route(self.rotate, Scope.OPERATE)},
            "/webhooks/{id}/enable": {"POST": Route(self.enable, Scope.OPERATE)},
        }

    # ---------------------------------------------------------------- deliveries

    async def deliveries(self, request: Request) -> Answer:
        query = request.query("state", "taskId", "agentId", "limit", "cursor")
        state = query.get("state") or None
        if state is not None and state not in webhooks.STATES:
            known = ", ".join(webhooks.STATES)
            raise InvalidRequest(f"query parameter 'state' must be one of {known}")
        limit = page_limit(query)
        before, before_id = _cursor(query.get("cursor"))
        agent = request.caller.agent_for(query.get("agentId") or None)
        wanted = DeliveryFilter(agent, state, query.get("taskId") or None, before, before_id)
        page = await self._node.views.read(self._node.views.deliveries, wanted, limit)
        shape: dict[str, Any] = {"deliveries": [_delivery(one) for one in page], "count": len(page)}
        if page.more:
            shape["nextCursor"] = f"{page[-1].created_at}.{page[-1].id}"
        return Answer(200, shape)

    async def delivery(self, request: Request) -> Answer:
        views = self._node.views
        found = await views.read(views.delivery, request.path["id"])
        if found is None or not request.caller.owns(found.agent):
            raise NotFound("delivery not found; GET /deliveries lists them")
        tries = [_try(one) for one in webhooks.tries(found.log)]
        return Answer(200, {**_delivery(found), "tries": tries})

    async def redeliver(self, request: Request) -> Answer:
        wanted = Redeliver(request.path["id"], request.caller.agent)
        return Answer(202, _delivery(await self._node.writer.ask(wanted)))

    # ---------------------------------------------------------------- endpoints

    async def create(self, request: Request) -> Answer:
        body: EndpointBody = fields.decoded(
            _endpoint_decoder, await request.body(), _ENDPOINT_FIELDS
        )
        agent = request.caller.agent_for(body.agent_id) or webhooks.EVERYBODY
        if agent != webhooks.EVERYBODY:
            fields.matches("agentId", agent, fields.IDENTIFIER)
        self._check(body.url)
        secret = new_secret()
        made = CreateEndpoint(self._node.new_id("whk"), agent, body.url, secret)
        return Answer(201, {**_endpoint(await self._node.writer.ask(made)), "secret": secret})

    def _check(self, url: str) -> None:
        if "?" in url or "#" in url:
            raise InvalidRequest("field 'url' must have no query: an endpoint is a URL without it")
        try:
            self._check_url(url)
        except FairlaneError as error:
            raise InvalidRequest(f"field 'url' is not valid: {error.message}") from None

    async def list(self, request: Request) -> Answer:
        query = request.query("agentId", "limit", "cursor")
        limit = page_limit(query)
        before = page_cursor(query)
        agent = request.caller.agent_for(query.get("agentId") or None)
        views = self._node.views
        page = await views.read(views.endpoints, agent, before, limit)
        shape: dict[str, Any] = {"endpoints": [_endpoint(one) for one in page], "count": len(page)}
        if page.more:
            shape["nextCursor"] = str(page[-1].seq)
        return Answer(200, shape)

    async def show(self, request: Request) -> Answer:
        views = self._node.views
        found = await views.read(views.endpoint, request.path["id"])
        if found is None or not request.caller.owns(found.agent):
            raise not_found()
        return Answer(200, _endpoint(found))

    async def rotate(self, request: Request) -> Answer:
        raw = await request.body()
        body: RotateBody = fields.decoded(_rotate_decoder, raw or b"{}", _ROTATE_FIELDS)
        fields.within("overlapSeconds", body.overlap_seconds, 0, webhooks.OVERLAP_SECONDS_MAX)
        overlap = body.overlap_seconds
        seconds = webhooks.OVERLAP_SECONDS_DEFAULT if overlap is None else overlap
        secret = new_secret()
        change = RotateEndpoint(request.path["id"], secret, seconds * 1000, request.caller.agent)
        return Answer(200, {**_endpoint(await self._node.writer.ask(change)), "secret": secret})

    async def enable(self, request: Request) -> Answer:
        change = EnableEndpoint(request.path["id"], request.caller.agent)
        return Answer(200, _endpoint(await self._node.writer.ask(change)))

    async def delete(self, request: Request) -> Answer:
        gone = DeleteEndpoint(request.path["id"], request.caller.agent)
        endpoint: Endpoint = await self._node.writer.ask(gone)
        return Answer(200, {"id": endpoint.id, "deleted": True})


# -------------------------------------------------------------------- shapes


def _delivery(one: Delivery) -> dict[str, Any]:
    return _present(
        id=one.id,
        taskId=webhooks.about(one.id),
        agentId=one.agent or None,
        event=one.event,
        url=webhooks.origin(one.url),
        state=one.state,
        attempts=one.attempts,
        nextAt=_moment(one.due_at if one.state == webhooks.DUE else None),
        lastStatus=one.status,
        lastError=one.error,
        createdAt=wire.moment(one.created_at),
        settledAt=_moment(one.settled_at),
    )


def _try(one: Try) -> dict[str, Any]:
    return _present(
        at=wire.moment(one.at),
        attempt=one.attempt,
        status=one.status,
        error=one.error,
        tookMs=one.took_ms,
    )


def _endpoint(one: Endpoint) -> dict[str, Any]:
    return _present(
        id=one.id,
        agentId=one.agent or None,
        url=one.url,
        state="enabled" if one.disabled_at is None else "disabled",
        createdAt=wire.moment(one.created_at),
        rotatedAt=_moment(one.rotated_at),
        previousUntil=_moment(one.previous_until),
        disabledAt=_moment(one.disabled_at),
    )


def _present(**shape: Any) -> dict[str, Any]:
    return {name: value for name, value in shape.items() if value is not None}


def _moment(at: int | None) -> str | None:
    return None if at is None else wire.moment(at)


def _cursor(text: str | None) -> tuple[int | None, str | None]:
    """A place in the log: the moment and the id of a delivery."""
    if not text:
        return None, None
    found = _CURSOR.fullmatch(text)
    if found is None:
        raise InvalidRequest("query parameter 'cursor' must be the nextCursor of a page")
    return int(found[1]), found[2]
