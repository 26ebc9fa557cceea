"""Webhooks: the log of deliveries, and endpoints with their own secret.

Responses show only scheme, host and port of a delivery's URL, because the rest may contain secrets.
An endpoint's secret is shown once, in the response that creates or rotates it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from msgspec import Meta, field

from fairlane.core import events, webhooks
from fairlane.core.access import Scope
from fairlane.core.types import Cursor, IdentifierOrEmpty, Moment, PageLimit
from fairlane.core.webhooks import OVERLAP_SECONDS_MAX, Delivery, DeliveryState, Endpoint, Try
from fairlane.schema.operation import DELETE, GET, POST, IdOf, Operation, Request, Response, one_of
from fairlane.schema.wire import moment, moment_or_none

# The time and id of the last delivery of a page.
DeliveryCursor = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{1,15}\.[A-Za-z0-9_.:@-]{1,300}$(?!\n)",
        description="nextCursor of the previous page",
    ),
]


SUBSCRIBED: Final = events.APPROVALS
SubscribedEvent = Literal[
    "approval.opened", "approval.decided", "approval.expired", "approval.cancelled"
]


class ListDeliveries(Request):
    state: Annotated[DeliveryState | None, Meta(description="Only deliveries in this state")] = None
    task: Annotated[
        str | None,
        IdOf("task"),
        Meta(description="Only deliveries about this task, batch or cron run"),
    ] = None
    agent: Annotated[str | None, Meta(description="Only deliveries of this agent")] = None
    limit: PageLimit = 100
    cursor: DeliveryCursor | None = None


class DeliveryRequest(Request):
    """The id of one delivery."""

    delivery_id: Annotated[str, IdOf("delivery"), Meta(description="Id of the delivery")] = field(
        name="id"
    )


class CreateWebhook(Request):
    url: Annotated[str, Meta(description="URL that receives the webhooks, without a query")]
    agent: Annotated[
        IdentifierOrEmpty | None,
        Meta(
            description="Agent whose webhooks the secret signs; default: agents without their own"
        ),
    ] = None
    events: Annotated[
        Annotated[list[SubscribedEvent], Meta(min_length=1, max_length=len(SUBSCRIBED))] | None,
        Meta(description="Types of events to send to the URL besides the callbacks of tasks"),
    ] = None


class ListWebhooks(Request):
    agent: Annotated[str | None, Meta(description="Only endpoints of this agent")] = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class WebhookRequest(Request):
    """The id of one endpoint."""

    endpoint_id: Annotated[str, IdOf("endpoint"), Meta(description="Id of the endpoint")] = field(
        name="id"
    )


class RotateWebhook(WebhookRequest):
    overlap_seconds: Annotated[
        Annotated[int, Meta(ge=0, le=OVERLAP_SECONDS_MAX)] | None,
        Meta(description="How long webhooks are signed with both secrets; default: one day"),
    ] = None


class DeliveryStatus(Response, kw_only=True):
    id: str
    task: Annotated[str, Meta(description="Id of the task, batch, cron run or approval")]
    agent: str | None = None
    event: str
    url: Annotated[str, Meta(description="Scheme, host and port of the receiver")]
    state: Annotated[str, one_of(get_args(DeliveryState))]
    attempts: int
    next_at: Annotated[Moment | None, Meta(description="When the next attempt is due")] = None
    last_status: Annotated[int | None, Meta(description="HTTP status of the last attempt")] = None
    last_error: str | None = None
    created_at: Moment
    settled_at: Moment | None = None


class DeliveryAttempt(Response, kw_only=True):
    at: Moment
    attempt: int
    status: Annotated[int | None, Meta(description="HTTP status of the response")] = None
    error: str | None = None
    took_ms: int | None = None


class DeliveryDetail(DeliveryStatus, kw_only=True):
    tries: list[DeliveryAttempt]


class DeliveryPage(Response):
    deliveries: list[DeliveryStatus]
    count: int
    next_cursor: str | None = None


class WebhookEndpoint(Response, kw_only=True):
    id: str
    agent: str | None = None
    url: str
    state: Annotated[
        str,
        one_of(("enabled", "disabled")),
        Meta(description="disabled after the receiver responded with 410"),
    ]
    events: Annotated[list[str] | None, Meta(description="Events that it subscribes to")] = None
    created_at: Moment
    rotated_at: Moment | None = None
    previous_until: Annotated[
        Moment | None, Meta(description="When the server stops signing with the previous secret")
    ] = None
    disabled_at: Moment | None = None


class WebhookSecret(WebhookEndpoint, kw_only=True):
    secret: Annotated[str, Meta(description="The secret; it is never shown again")]


class WebhookPage(Response):
    endpoints: list[WebhookEndpoint]
    count: int
    next_cursor: str | None = None


class WebhookDeleted(Response):
    id: str
    deleted: bool


def delivery_status(one: Delivery) -> DeliveryStatus:
    return DeliveryStatus(
        id=one.id,
        task=webhooks.about(one.id),
        agent=one.agent or None,
        event=one.event,
        url=webhooks.origin(one.url),
        state=one.state,
        attempts=one.attempts,
        next_at=moment_or_none(one.due_at if one.state == webhooks.DUE else None),
        last_status=one.status,
        last_error=one.error,
        created_at=moment(one.created_at),
        settled_at=moment_or_none(one.settled_at),
    )


def delivery_attempt(one: Try) -> DeliveryAttempt:
    return DeliveryAttempt(
        at=moment(one.at),
        attempt=one.attempt,
        status=one.status,
        error=one.error,
        took_ms=one.took_ms,
    )


def webhook_endpoint(one: Endpoint) -> WebhookEndpoint:
    return WebhookEndpoint(
        id=one.id,
        agent=one.agent or None,
        url=one.url,
        state="enabled" if one.disabled_at is None else "disabled",
        events=(one.events or "").split() or None,
        created_at=moment(one.created_at),
        rotated_at=moment_or_none(one.rotated_at),
        previous_until=moment_or_none(one.previous_until),
        disabled_at=moment_or_none(one.disabled_at),
    )


DELIVERIES: Final = Operation(
    "deliveries",
    GET,
    "/deliveries",
    ListDeliveries,
    DeliveryPage,
    Scope.READ,
    "List webhook deliveries, newest first",
)
DELIVERY: Final = Operation(
    "delivery",
    GET,
    "/deliveries/{id}",
    DeliveryRequest,
    DeliveryDetail,
    Scope.READ,
    "Show a webhook delivery with all its attempts",
)
REDELIVER: Final = Operation(
    "redeliver",
    POST,
    "/deliveries/{id}/redeliver",
    DeliveryRequest,
    DeliveryStatus,
    Scope.OPERATE,
    "Send a webhook again now, with the same id",
    status=202,
)
CREATE_WEBHOOK: Final = Operation(
    "create_webhook",
    POST,
    "/webhooks",
    CreateWebhook,
    WebhookSecret,
    Scope.OPERATE,
    "Create a webhook endpoint with its own secret, which only this response shows",
    status=201,
)
WEBHOOKS: Final = Operation(
    "webhooks",
    GET,
    "/webhooks",
    ListWebhooks,
    WebhookPage,
    Scope.READ,
    "List webhook endpoints, newest first, without their secrets",
)
WEBHOOK: Final = Operation(
    "webhook",
    GET,
    "/webhooks/{id}",
    WebhookRequest,
    WebhookEndpoint,
    Scope.READ,
    "Show a webhook endpoint without its secret",
)
ROTATE_WEBHOOK: Final = Operation(
    "rotate_webhook",
    POST,
    "/webhooks/{id}/rotate",
    RotateWebhook,
    WebhookSecret,
    Scope.OPERATE,
    "Rotate the secret of a webhook endpoint; only this response shows the new one",
)
ENABLE_WEBHOOK: Final = Operation(
    "enable_webhook",
    POST,
    "/webhooks/{id}/enable",
    WebhookRequest,
    WebhookEndpoint,
    Scope.OPERATE,
    "Enable an endpoint that was disabled because its receiver responded with 410",
)
DELETE_WEBHOOK: Final = Operation(
    "delete_webhook",
    DELETE,
    "/webhooks/{id}",
    WebhookRequest,
    WebhookDeleted,
    Scope.OPERATE,
    "Delete a webhook endpoint; its webhooks are signed with the shared secret again",
)
