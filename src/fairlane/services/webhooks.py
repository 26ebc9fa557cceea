"""Webhooks: list and resend deliveries; create, rotate, enable and delete endpoints."""

from __future__ import annotations

import msgspec

from fairlane.core import webhooks
from fairlane.core.access import Caller
from fairlane.core.errors import FairlaneError, InvalidRequest, NotFound
from fairlane.core.webhooks import Endpoint
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
from fairlane.schema import webhooks as schema
from fairlane.schema.webhooks import (
    DeliveryDetail,
    DeliveryPage,
    DeliveryStatus,
    WebhookDeleted,
    WebhookEndpoint,
    WebhookPage,
    WebhookSecret,
    delivery_attempt,
    delivery_status,
    webhook_endpoint,
)
from fairlane.services.pages import number
from fairlane.services.registry import implements


@implements(schema.DELIVERIES)
async def list_deliveries(
    node: Node, caller: Caller, request: schema.ListDeliveries
) -> DeliveryPage:
    before, _, before_id = (request.cursor or "").partition(".")
    wanted = DeliveryFilter(
        caller.agent_for(request.agent) or None,
        request.state,
        request.task,
        number(before or None),
        before_id or None,
    )
    page = await node.views.read(node.views.deliveries, wanted, request.limit)
    return DeliveryPage(
        deliveries=[delivery_status(one) for one in page],
        count=len(page),
        next_cursor=f"{page[-1].created_at}.{page[-1].id}" if page.more else None,
    )


@implements(schema.DELIVERY)
async def show_delivery(
    node: Node, caller: Caller, request: schema.DeliveryRequest
) -> DeliveryDetail:
    found = await node.views.read(node.views.delivery, request.delivery_id)
    if found is None or not caller.owns(found.agent):
        raise NotFound("delivery not found; GET /deliveries lists them")
    tries = [delivery_attempt(one) for one in webhooks.tries(found.log)]
    return DeliveryDetail(tries=tries, **msgspec.structs.asdict(delivery_status(found)))


@implements(schema.REDELIVER)
async def redeliver(node: Node, caller: Caller, request: schema.DeliveryRequest) -> DeliveryStatus:
    command = Redeliver(request.delivery_id, caller.agent)
    return delivery_status(await node.writer.ask(command))


@implements(schema.CREATE_WEBHOOK)
async def create_webhook(
    node: Node, caller: Caller, request: schema.CreateWebhook
) -> WebhookSecret:
    agent = caller.agent_for(request.agent) or webhooks.ANY_AGENT
    _check(node, request.url)
    secret = new_secret()
    wanted = " ".join(dict.fromkeys(request.events or ())) or None
    command = CreateEndpoint(node.new_id("whk"), agent, request.url, secret, wanted)
    return _with_secret(await node.writer.ask(command), secret)


@implements(schema.WEBHOOKS)
async def list_webhooks(node: Node, caller: Caller, request: schema.ListWebhooks) -> WebhookPage:
    agent = caller.agent_for(request.agent) or None
    before = number(request.cursor)
    page = await node.views.read(node.views.endpoints, agent, before, request.limit)
    return WebhookPage(
        endpoints=[webhook_endpoint(one) for one in page],
        count=len(page),
        next_cursor=str(page[-1].seq) if page.more else None,
    )


@implements(schema.WEBHOOK)
async def show_webhook(
    node: Node, caller: Caller, request: schema.WebhookRequest
) -> WebhookEndpoint:
    found = await node.views.read(node.views.endpoint, request.endpoint_id)
    if found is None or not caller.owns(found.agent):
        raise not_found()
    return webhook_endpoint(found)


@implements(schema.ROTATE_WEBHOOK)
async def rotate_webhook(
    node: Node, caller: Caller, request: schema.RotateWebhook
) -> WebhookSecret:
    overlap = request.overlap_seconds
    seconds = webhooks.OVERLAP_SECONDS_DEFAULT if overlap is None else overlap
    secret = new_secret()
    command = RotateEndpoint(request.endpoint_id, secret, seconds * 1000, caller.agent)
    return _with_secret(await node.writer.ask(command), secret)


@implements(schema.ENABLE_WEBHOOK)
async def enable_webhook(
    node: Node, caller: Caller, request: schema.WebhookRequest
) -> WebhookEndpoint:
    command = EnableEndpoint(request.endpoint_id, caller.agent)
    return webhook_endpoint(await node.writer.ask(command))


@implements(schema.DELETE_WEBHOOK)
async def delete_webhook(
    node: Node, caller: Caller, request: schema.WebhookRequest
) -> WebhookDeleted:
    command = DeleteEndpoint(request.endpoint_id, caller.agent)
    endpoint: Endpoint = await node.writer.ask(command)
    return WebhookDeleted(id=endpoint.id, deleted=True)


def _with_secret(endpoint: Endpoint, secret: str) -> WebhookSecret:
    return WebhookSecret(secret=secret, **msgspec.structs.asdict(webhook_endpoint(endpoint)))


def _check(node: Node, url: str) -> None:
    """Raise `InvalidRequest` if an endpoint may not have this URL."""
    if "?" in url or "#" in url:
        raise InvalidRequest("field 'url' must not have a query")
    try:
        node.check_url(url)
    except FairlaneError as error:
        raise InvalidRequest(f"field 'url' is not valid: {error.message}") from None
