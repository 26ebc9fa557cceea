"""Permits: a running task reserves resources for one call at a time.

Caution: a caller may disconnect before its permit is granted, or the response may fail to send.
Then all of the permit is refunded.
"""

from __future__ import annotations

from typing import Final

from fairlane.core import amounts, resources
from fairlane.core.access import Caller
from fairlane.core.resources import Blocked
from fairlane.engine.node import Node
from fairlane.engine.resource_commands import (
    Permit,
    PermitGranted,
    PermitRefused,
    SettlePermit,
)
from fairlane.schema import leases as schema
from fairlane.schema.leases import PermitSettled, PermitStatus
from fairlane.services.leases import Key, lease_key, owned_key
from fairlane.services.registry import implements
from fairlane.services.settling import PREFIX, permit_number, report_of

_WORDS: Final = {
    resources.CLOSED: "is closed",
    resources.SPENT: "is spent until it resets",
    resources.BUSY: "has no room",
    resources.KEPT: "is reserved for earlier requests",
    resources.MISSING: "is not in the policy",
}


def give_back(node: Node, response: PermitStatus) -> None:
    """Refund a permit whose response could not be delivered."""
    if response.permit_id is not None:
        key = lease_key(response.lease_id)
        node.writer.tell(SettlePermit(*key, permit_number(response.permit_id), unused=True))


@implements(schema.REQUEST_PERMIT, undo=give_back)
async def request_permit(node: Node, caller: Caller, request: schema.PermitRequest) -> PermitStatus:
    key = await owned_key(node, caller, request)
    settles, report = None, None
    if request.settle is not None:
        settles, report = permit_number(request.settle.permit_id), report_of(request.settle)
    found = await node.writer.ask(Permit(*key, request.needs, None, settles, report))
    if isinstance(found, PermitRefused) and request.wait_ms:
        until = node.clock.monotonic() + request.wait_ms / 1000
        granted = await node.writer.ask(Permit(*key, request.needs, until))
        found = granted[0] if granted else found
        if isinstance(found, PermitGranted):
            await _still_allowed(node, caller, key, found)
    if isinstance(found, PermitGranted):
        return PermitStatus(
            lease_id=request.lease_id, granted=True, permit_id=f"{PREFIX}{found.id}"
        )
    return PermitStatus(
        lease_id=request.lease_id,
        granted=False,
        reason=sentence(found.why),
        resource=found.why.account,
        retry_after_ms=found.retry_after_ms,
    )


async def _still_allowed(node: Node, caller: Caller, key: Key, found: PermitGranted) -> None:
    try:
        await node.tokens.require(caller)  # the token may have been revoked during the wait
    except BaseException:
        node.writer.tell(SettlePermit(*key, found.id, unused=True))
        raise


def sentence(why: Blocked) -> str:
    """Return why an account cannot meet the need."""
    text = f"{why.account} {_WORDS[why.why]}"
    if why.unit is None:
        return text
    needed, available = amounts.text(why.needed), amounts.text(why.available)
    return f"{text}: {needed} {why.unit} needed, {available} available"


@implements(schema.SETTLE_PERMIT)
async def settle_permit(node: Node, caller: Caller, request: schema.SettleRequest) -> PermitSettled:
    key = await owned_key(node, caller, request)
    await node.writer.ask(SettlePermit(*key, permit_number(request.permit_id), report_of(request)))
    return PermitSettled(request.lease_id, request.permit_id)
