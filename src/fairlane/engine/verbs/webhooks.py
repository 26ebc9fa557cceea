"""The verbs of webhooks: what is owed is claimed, settled and sent again; endpoints and secrets.

A try ends in the same transaction in which its endpoint is disabled, if that is what it answered.
Endpoints are few and change by hand, so each request about them is carried out on its own.
"""

from __future__ import annotations

import base64
import contextlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from fairlane.core import moments, webhooks
from fairlane.core.errors import Conflict, FairlaneError, NotFound, StoreMismatch
from fairlane.core.webhooks import DELIVERED, DUE, EVERYBODY, GIVEN_UP, Delivery, Endpoint, Try
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
)
from fairlane.store.base import Row
from fairlane.store.transaction import Transaction

LOOK_MAX: Final = 256
DEFER_MS: Final = 1000  # how long those make room whose host has enough to do
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the prefix that marks a secret, not a secret
_ENDPOINT_WIDTH: Final = len(Endpoint.__struct_fields__)


def new_secret() -> str:
    return SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode("ascii")


# -------------------------------------------------------------------- webhooks owed


def claim_deliveries(
    tx: Transaction, requests: Sequence[ClaimDeliveries], now: int
) -> Iterator[Any]:
    tx.write()
    for request in requests:
        due = _due(tx, request, now)
        endpoints = _endpoints_of(tx, [(row[5], row[2]) for row in due])
        refused: list[tuple[Row, str]] = []
        held: list[OwedDelivery] = []
        for row in due:
            endpoint = _endpoint_for(endpoints, row[5], row[2])
            try:
                secret = _secrets(tx, endpoint, now)
            except StoreMismatch:  # of this one only: the others must not wait for it
                refused.append((row, webhooks.SECRET_LOST))
                continue
            if _is_off(endpoint):
                refused.append((row, webhooks.DISABLED))
            else:
                attempt = row[4] + 1
                held.append(OwedDelivery(row[0], row[1], row[2], row[3], attempt, row[5], secret))
        _give_up(tx, refused, now)
        claims = [(one.id, moments.later(now, request.hold_ms)) for one in held]
        tx.connection.change_rows("delivery_claim", claims)
        yield held


def _due(tx: Transaction, request: ClaimDeliveries, now: int) -> list[Row]:
    """What is to be sent now, not too much of it to one host or from one agent.

    When such a host or agent has all the places that are looked at, its deliveries make room for a
    moment: behind them there may be others.
    """
    if request.room is None:
        return tx.connection.run("delivery_due", now=now, limit=request.limit)
    rows = tx.connection.run("delivery_due", now=now, limit=LOOK_MAX)
    targets = [webhooks.target(row[2], row[5]) for row in rows]
    ready, crowded = webhooks.choose(targets, request.limit, request.rooms, request.room)
    if len(rows) == LOOK_MAX and len(ready) < request.limit:
        later = [(rows[number][0], moments.later(now, DEFER_MS)) for number in crowded]
        tx.connection.change_rows("delivery_defer", later)
    return [rows[number] for number in ready]


def _give_up(tx: Transaction, refused: Iterable[tuple[Row, str]], now: int) -> None:
    """Those for an endpoint that wants no more, or that cannot be signed for."""
    told = [
        (row[0], GIVEN_UP, now, why, now, None, webhooks.line(Try(now, row[4] + 1, error=why)))
        for row, why in refused
    ]
    if told:
        tx.connection.change_rows("delivery_settle", told)


def reclaim_deliveries(
    tx: Transaction, requests: Sequence[ReclaimDeliveries], now: int
) -> Iterator[Any]:
    tx.connection.run("delivery_reclaim", now=now)
    return iter([None] * len(requests))


def settle_delivery(tx: Transaction, requests: Sequence[SettleDelivery], now: int) -> Iterator[Any]:
    rows = [_settled(request, now) for request in requests]
    _disable(tx, [request.id for request in requests if request.status == webhooks.GONE], now)
    tx.connection.run_rows("delivery_settle", rows)
    return iter([None] * len(requests))


def _settled(request: SettleDelivery, now: int) -> Row:
    error = None if request.delivered else request.error
    told = Try(now, request.attempt, request.status, error, request.took_ms)
    wait_ms = request.retry_after_ms
    ending: Row = (DELIVERED if request.delivered else GIVEN_UP, now, error, now)
    if not request.delivered and wait_ms is not None:
        ending = (DUE, moments.later(now, wait_ms), error, None)
    return (request.id, *ending, request.status, webhooks.line(told))


def _disable(tx: Transaction, ids: Sequence[str], now: int) -> None:
    """The endpoints of these deliveries want no more."""
    if not ids:
        return
    gone = _deliveries(tx, ids)
    endpoints = _endpoints_of(tx, [(one.agent, one.url) for one in gone])
    found = {one.id for d in gone if (one := _endpoint_for(endpoints, d.agent, d.url))}
    tx.connection.run_rows("endpoint_able", [(id_, now) for id_ in sorted(found)])


def redeliver(tx: Transaction, requests: Sequence[Redeliver], now: int) -> Iterator[Any]:
    """Under the same id, from the beginning of the schedule; one that is being sent goes on."""
    for request in requests:
        found = next(iter(_deliveries(tx, [request.id])), None)
        if found is None or request.agent not in (None, found.agent):
            yield NotFound("delivery not found; GET /deliveries lists them")
            continue
        if not found.being_sent:
            tx.connection.change_rows("delivery_again", [(found.id, now)])
            tx.owes = True
            found = _deliveries(tx, [request.id])[0]
        yield found


def _deliveries(tx: Transaction, ids: Iterable[str]) -> list[Delivery]:
    tx.write()
    rows = tx.connection.run_rows("delivery_by_id", [(id_,) for id_ in dict.fromkeys(ids)])
    return [Delivery(*row) for row in rows]


# -------------------------------------------------------------------- endpoints


def create_endpoint(tx: Transaction, requests: Sequence[CreateEndpoint], now: int) -> Iterator[Any]:
    for request in requests:
        url = webhooks.endpoint_url(request.url)
        if tx.connection.run_rows("endpoint_by_url", [(request.agent, url)]):
            yield Conflict("there is an endpoint for this URL already; rotate its secret instead")
            continue
        made = Endpoint(tx.next_seq(), request.id, request.agent, url, now)
        row = (*msgspec.structs.astuple(made), tx.vault.seal(request.secret))
        tx.connection.run_rows("endpoint_insert", [row])
        yield made


def rotate_endpoint(tx: Transaction, requests: Sequence[RotateEndpoint], now: int) -> Iterator[Any]:
    for request in requests:
        found = _endpoint(tx, request.id, request.agent)
        if isinstance(found, FairlaneError):
            yield found
            continue
        until = moments.later(now, request.overlap_ms) if request.overlap_ms else None
        before = found.secret if request.overlap_ms else None
        row = (request.id, now, until, tx.vault.seal(request.secret), before)
        tx.connection.change_rows("endpoint_rotate", [row])
        yield msgspec.structs.replace(found.endpoint, rotated_at=now, previous_until=until)


def enable_endpoint(tx: Transaction, requests: Sequence[EnableEndpoint], _: int) -> Iterator[Any]:
    for request in requests:
        found = _endpoint(tx, request.id, request.agent)
        if isinstance(found, FairlaneError):
            yield found
            continue
        tx.connection.change_rows("endpoint_able", [(request.id, None)])
        yield msgspec.structs.replace(found.endpoint, disabled_at=None)


def delete_endpoint(tx: Transaction, requests: Sequence[DeleteEndpoint], _: int) -> Iterator[Any]:
    for request in requests:
        found = _endpoint(tx, request.id, request.agent)
        if isinstance(found, FairlaneError):
            yield found
            continue
        tx.connection.run_rows("endpoint_delete", [(request.id,)])
        yield found.endpoint


class _Kept(msgspec.Struct, frozen=True):
    """An endpoint with its secrets, sealed as they are in the store."""

    endpoint: Endpoint
    secret: str
    previous: str | None

    @property
    def id(self) -> str:
        return self.endpoint.id


def _endpoint(tx: Transaction, endpoint_id: str, agent: str | None) -> _Kept | NotFound:
    rows = tx.connection.run_rows("endpoint_by_id", [(endpoint_id,)])
    found = _kept(rows[0]) if rows else None
    if found is None or agent not in (None, found.endpoint.agent):
        return not_found()
    return found


def not_found() -> NotFound:
    return NotFound("endpoint not found; GET /webhooks lists them")


def _kept(row: Row) -> _Kept:
    return _Kept(Endpoint(*row[:_ENDPOINT_WIDTH]), *row[_ENDPOINT_WIDTH:])


Endpoints = Mapping[tuple[str, str], _Kept]


def _endpoints_of(tx: Transaction, targets: Iterable[tuple[str, str]]) -> Endpoints:
    """By agent and URL; those for everybody among them."""
    wanted = {
        (whose, webhooks.endpoint_url(url))
        for agent, url in targets
        for whose in (agent, EVERYBODY)
    }
    rows = tx.connection.run_rows("endpoint_by_url", sorted(wanted)) if wanted else ()
    return {(one.endpoint.agent, one.endpoint.url): one for one in map(_kept, rows)}


def _endpoint_for(endpoints: Endpoints, agent: str, url: str) -> _Kept | None:
    if not endpoints:
        return None
    spelled = webhooks.endpoint_url(url)
    return endpoints.get((agent, spelled)) or endpoints.get((EVERYBODY, spelled))


def _is_off(found: _Kept | None) -> bool:
    return found is not None and found.endpoint.disabled_at is not None


def _secrets(tx: Transaction, found: _Kept | None, now: int) -> str | None:
    if found is None:
        return None
    signing: list[str] = [tx.vault.open(found.secret)]
    if found.previous is not None and now < (found.endpoint.previous_until or 0):
        with contextlib.suppress(StoreMismatch):  # it was rotated because it was lost
            signing.append(tx.vault.open(found.previous))
    return " ".join(signing)
