"""The verbs of webhooks: claim, settle and repeat deliveries; endpoints and secrets.

If a response disables its endpoint, that happens in the transaction that settles the attempt.
Endpoints are few and change by hand, so requests about them run one after another.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from fairlane.core import moments, webhooks
from fairlane.core.consequences import Webhook
from fairlane.core.errors import Conflict, FairlaneError, NotFound, StoreMismatch
from fairlane.core.webhooks import ANY_AGENT, DELIVERED, DUE, GIVEN_UP, Delivery, Endpoint, Try
from fairlane.engine.commands import (
    ClaimDeliveries,
    CreateEndpoint,
    DeleteEndpoint,
    EnableEndpoint,
    OwedDelivery,
    ReclaimDeliveries,
    Redeliver,
    RotateEndpoint,
    SettleDelivery,
    UseSecret,
)
from fairlane.store.tables import deliveries as delivery_table
from fairlane.store.tables import endpoints as endpoint_table
from fairlane.store.tables import secrets as secret_table
from fairlane.store.tables.deliveries import DueDelivery, Settlement
from fairlane.store.tables.endpoints import SealedEndpoint
from fairlane.store.transaction import Transaction

LOOK_MAX: Final = 256
DEFER_MS: Final = 1000  # how long deliveries to a busy host make room for others
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the prefix that marks a secret, not a secret


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode("ascii")


# -------------------------------------------------------------------- deliveries


def claim_deliveries(
    tx: Transaction, requests: Sequence[ClaimDeliveries], now: int
) -> Iterator[object]:
    tx.unwritten.write()
    for request in requests:
        due = _due(tx, request, now)
        endpoints = _endpoints_of(tx, [(one.agent, one.url) for one in due])
        refused: list[tuple[DueDelivery, str]] = []
        claimed: list[OwedDelivery] = []
        for one in due:
            endpoint = _endpoint_for(endpoints, one.agent, one.url)
            try:
                secret = _secrets(tx, endpoint, now)
            except StoreMismatch:  # for this one only: the others must not wait for it
                refused.append((one, webhooks.SECRET_LOST))
                continue
            if _is_off(endpoint):
                refused.append((one, webhooks.DISABLED))
            else:
                claimed.append(
                    OwedDelivery(
                        one.id, one.seq, one.url, one.event, one.attempts + 1, one.agent, secret
                    )
                )
        _give_up(tx, refused, now)
        claims = [(one.id, moments.later(now, request.hold_ms)) for one in claimed]
        delivery_table.claim(tx.connection, claims)
        yield claimed


def _due(tx: Transaction, request: ClaimDeliveries, now: int) -> list[DueDelivery]:
    """Return the deliveries to send now, limited per host and per agent.

    If the deliveries of a busy host or agent fill all the rows that are read, they are postponed
    for a moment: others may be behind them.
    """
    if request.room is None:
        return delivery_table.due(tx.connection, now, request.limit)
    due = delivery_table.due(tx.connection, now, LOOK_MAX)
    targets = [webhooks.target(one.url, one.agent) for one in due]
    ready, crowded = webhooks.choose(targets, request.limit, request.rooms, request.room)
    if len(due) == LOOK_MAX and len(ready) < request.limit:
        later = [(due[number].id, moments.later(now, DEFER_MS)) for number in crowded]
        delivery_table.defer(tx.connection, later)
    return [due[number] for number in ready]


def _give_up(tx: Transaction, refused: Iterable[tuple[DueDelivery, str]], now: int) -> None:
    """Give up deliveries whose endpoint is disabled or has a secret that cannot be opened."""
    ends = []
    for one, why in refused:
        line = webhooks.line(Try(now, one.attempts + 1, error=why))
        ends.append(Settlement(one.id, GIVEN_UP, now, why, now, None, line))
    if ends:
        delivery_table.give_up(tx.connection, ends)


def reclaim_deliveries(
    tx: Transaction, requests: Sequence[ReclaimDeliveries], now: int
) -> Iterator[object]:
    delivery_table.reclaim(tx.connection, now)
    return iter([None] * len(requests))


def settle_delivery(
    tx: Transaction, requests: Sequence[SettleDelivery], now: int
) -> Iterator[object]:
    ends = [_settlement(request, now) for request in requests]
    _disable(tx, [request.id for request in requests if request.status == webhooks.GONE], now)
    delivery_table.settle(tx.connection, ends)
    return iter([None] * len(requests))


def _settlement(request: SettleDelivery, now: int) -> Settlement:
    error = None if request.delivered else request.error
    attempt = Try(now, request.attempt, request.status, error, request.took_ms)
    line, wait_ms = webhooks.line(attempt), request.retry_after_ms
    if not request.delivered and wait_ms is not None:
        due_at = moments.later(now, wait_ms)
        return Settlement(request.id, DUE, due_at, error, None, request.status, line)
    state = DELIVERED if request.delivered else GIVEN_UP
    return Settlement(request.id, state, now, error, now, request.status, line)


def _disable(tx: Transaction, ids: Sequence[str], now: int) -> None:
    """Disable the endpoints of these deliveries: the receiver asked for it."""
    if not ids:
        return
    gone = _deliveries(tx, ids)
    endpoints = _endpoints_of(tx, [(one.agent, one.url) for one in gone])
    found = {one.id for d in gone if (one := _endpoint_for(endpoints, d.agent, d.url))}
    endpoint_table.disable(tx.connection, sorted(found), now)


def redeliver(tx: Transaction, requests: Sequence[Redeliver], now: int) -> Iterator[object]:
    """Restart the schedule of a delivery under the same id; one that is being sent continues."""
    for request in requests:
        found = next(iter(_deliveries(tx, [request.id])), None)
        if found is None or request.agent not in (None, found.agent):
            yield NotFound("delivery not found; GET /deliveries lists them")
            continue
        if not found.being_sent:
            delivery_table.send_again(tx.connection, found.id, now)
            tx.webhooks_due = True
            found = _deliveries(tx, [request.id])[0]
        yield found


def _deliveries(tx: Transaction, ids: Iterable[str]) -> list[Delivery]:
    tx.unwritten.write()
    return delivery_table.by_id(tx.connection, ids)


def tell_subscribers(tx: Transaction) -> None:
    """Create webhooks about opened or closed approvals for the endpoints that subscribe."""
    facts, tx.approval_facts = tx.approval_facts, []
    endpoints = endpoint_table.subscribed(tx.connection)
    for event, approval in facts if endpoints else ():
        for one in endpoints:
            if one.wants(event, approval.agent):
                webhook = Webhook(approval.id, approval.seq, one.url, event, approval.agent)
                tx.owe(webhook, number=tx.next_seq())


# -------------------------------------------------------------------- endpoints


def create_endpoint(
    tx: Transaction, requests: Sequence[CreateEndpoint], now: int
) -> Iterator[object]:
    for request in requests:
        url = webhooks.endpoint_url(request.url)
        if endpoint_table.by_url(tx.connection, [(request.agent, url)]):
            yield Conflict("an endpoint for this URL already exists; rotate its secret instead")
            continue
        made = Endpoint(tx.next_seq(), request.id, request.agent, url, now, events=request.events)
        endpoint_table.insert(tx.connection, made, tx.vault.seal(request.secret))
        yield made


def rotate_endpoint(
    tx: Transaction, requests: Sequence[RotateEndpoint], now: int
) -> Iterator[object]:
    for request in requests:
        found = _endpoint(tx, request.id, request.agent)
        if isinstance(found, FairlaneError):
            yield found
            continue
        until = moments.later(now, request.overlap_ms) if request.overlap_ms else None
        before = found.secret if request.overlap_ms else None
        after = msgspec.structs.replace(found.endpoint, rotated_at=now, previous_until=until)
        rotated = SealedEndpoint(after, tx.vault.seal(request.secret), before)
        endpoint_table.rotate(tx.connection, rotated)
        yield after


def enable_endpoint(
    tx: Transaction, requests: Sequence[EnableEndpoint], _: int
) -> Iterator[object]:
    for request in requests:
        found = _endpoint(tx, request.id, request.agent)
        if isinstance(found, FairlaneError):
            yield found
            continue
        endpoint_table.enable(tx.connection, request.id)
        yield msgspec.structs.replace(found.endpoint, disabled_at=None)


def delete_endpoint(
    tx: Transaction, requests: Sequence[DeleteEndpoint], _: int
) -> Iterator[object]:
    for request in requests:
        found = _endpoint(tx, request.id, request.agent)
        if isinstance(found, FairlaneError):
            yield found
            continue
        endpoint_table.delete(tx.connection, request.id)
        yield found.endpoint


def _endpoint(tx: Transaction, endpoint_id: str, agent: str | None) -> SealedEndpoint | NotFound:
    found = endpoint_table.by_id(tx.connection, endpoint_id)
    if found is None or agent not in (None, found.endpoint.agent):
        return not_found()
    return found


def not_found() -> NotFound:
    return NotFound("endpoint not found; GET /webhooks lists them")


Endpoints = Mapping[tuple[str, str], SealedEndpoint]


def _endpoints_of(tx: Transaction, targets: Iterable[tuple[str, str]]) -> Endpoints:
    """Return endpoints by agent and URL, including those for all agents."""
    wanted = {
        (whose, webhooks.endpoint_url(url))
        for agent, url in targets
        for whose in (agent, ANY_AGENT)
    }
    found = endpoint_table.by_url(tx.connection, sorted(wanted)) if wanted else ()
    return {(one.endpoint.agent, one.endpoint.url): one for one in found}


def _endpoint_for(endpoints: Endpoints, agent: str, url: str) -> SealedEndpoint | None:
    if not endpoints:
        return None
    spelled = webhooks.endpoint_url(url)
    return endpoints.get((agent, spelled)) or endpoints.get((ANY_AGENT, spelled))


def _is_off(found: SealedEndpoint | None) -> bool:
    return found is not None and found.endpoint.disabled_at is not None


def _secrets(tx: Transaction, found: SealedEndpoint | None, now: int) -> str | None:
    if found is None:
        return None
    signing: list[str] = [tx.vault.open(found.secret)]
    if found.previous is not None and now < (found.endpoint.previous_until or 0):
        with contextlib.suppress(StoreMismatch):  # it may be rotated because it cannot be decrypted
            signing.append(tx.vault.open(found.previous))
    return " ".join(signing)


# -------------------------------------------------------------------- the common secret


def use_secret(tx: Transaction, requests: Sequence[UseSecret], _: int) -> Iterator[object]:
    for request in requests:
        sealed = secret_table.webhook_secret(tx.connection)
        try:
            secret = request.candidate if sealed is None else tx.vault.open(sealed)
        except StoreMismatch as error:
            yield error
            continue
        if secret is sealed or sealed is None:  # there was none, or it is older than keys
            secret_table.save_webhook_secret(tx.connection, tx.vault.seal(secret))
        yield secret
