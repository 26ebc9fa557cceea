"""Webhooks: signing (Standard Webhooks 1.0), the retry schedule, and the delivery loop.

The rule: at least once. A delivery is settled only after its response; one whose process dies is
claimed again when its claim expires, under the same id, so that a receiver can recognise the
repeat. Caution: the signature covers the exact bytes that are sent, so the body is never encoded
again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from fairlane import tracing
from fairlane.compat import pinchtab
from fairlane.core.errors import (
    FairlaneError,
    InvalidRequest,
    InvalidSettings,
    StoreUnavailable,
)
from fairlane.core.webhooks import AGENT_ROOMS, GONE, host_of, target
from fairlane.engine.verbs.webhooks import SECRET_PREFIX
from fairlane.outbound.guard import Guard
from fairlane.outbound.sending import OutboundResponse, Sender, asked_wait_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairlane.tracing import Tracer

TIMEOUT_SECONDS: Final = 10.0
CONCURRENCY: Final = 64
HOST_CONCURRENCY: Final = 16  # of these to one host, and only one to a host that did not respond
SLOW_HOSTS_MAX: Final = 1000
JITTER: Final = 0.1  # how much longer a long wait may be, so that not all retries come at once
ERROR_CHARS_MAX: Final = 500
# Only the status counts; reading a short body keeps the connection usable.
ANSWER_BYTES_MAX: Final = 64 * 1024
PAUSE_SECONDS: Final = 1.0
SETTLE_SECONDS: Final = 1.0

_SECOND_MS: Final = 1000
_HOUR_MS: Final = 3600 * _SECOND_MS
# Waits after the first attempt, the second, ...: three days in all, then the delivery is given up.
SCHEDULE_MS: Final = (
    5 * _SECOND_MS,
    300 * _SECOND_MS,
    1800 * _SECOND_MS,
    *(hours * _HOUR_MS for hours in (2, 5, 10, 14, 20, 24)),
)

_MESSAGE_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_STEADY_MS: Final = 5 * _SECOND_MS

_log = logging.getLogger(__name__)


class ClaimedDelivery(msgspec.Struct, frozen=True):
    """A delivery to send; `attempt` is 1 the first time, `body` the exact JSON to send."""

    id: str
    task_id: str
    url: str
    event: str
    attempt: int
    body: bytes
    agent: str = ""  # its owner
    traceparent: str | None = None  # its trace, if traces are recorded
    secret: str | None = None  # of its endpoint, if that has its own

    def __repr__(self) -> str:
        return f"ClaimedDelivery({self.id!r})"


class DeliverySource(Protocol):
    async def claim_deliveries(
        self, limit: int, *, room: int, rooms: Mapping[str, int]
    ) -> list[ClaimedDelivery]:
        """Return due deliveries, claimed for a while; none if nothing is due.

        They are limited per host and per agent: see `choose` in `core/webhooks.py`.
        """

    async def settle_delivery(
        self, delivery: ClaimedDelivery, outcome: DeliveryOutcome, took_ms: int
    ) -> None:
        """Record the outcome of an attempt. Give up if it failed and has no next wait."""

    async def wait_for_deliveries(self) -> None:
        """Wait until a delivery may be due."""


class DeliveryOutcome(msgspec.Struct, frozen=True):
    """The outcome of an attempt; `status` is the response's, None if there was none."""

    delivered: bool
    error: str | None = None
    retry_after_ms: int | None = None
    status: int | None = None


# --- requests and retries -------------------------------------------------------------------------


def sign(secret: str, message_id: str, at: int, body: bytes) -> dict[str, str]:
    """Return the three headers. Several secrets, separated by spaces, give as many signatures."""
    if not _MESSAGE_ID.fullmatch(message_id):
        raise InvalidRequest("webhook message id must be letters, digits, '_' or '-'")
    timestamp = str(at // _SECOND_MS)
    signed = f"{message_id}.{timestamp}.".encode("ascii") + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(_signature(key, signed) for key in signing_keys(secret)),
    }


def signing_keys(secret: str) -> list[bytes]:
    """Return the keys in `secret`; raise InvalidSettings, which never repeats the value."""
    keys = [_key(one) for one in secret.split()]
    if not keys:
        raise InvalidSettings(["webhook secret is empty: set one that starts with whsec_"])
    return keys


def retry_after_ms(attempts: int) -> int | None:
    """Return the wait after that many attempts; None to give up after the last."""
    return SCHEDULE_MS[max(attempts, 1) - 1] if attempts <= len(SCHEDULE_MS) else None


def judge(delivery: ClaimedDelivery, answer: OutboundResponse, *, now: int) -> DeliveryOutcome:
    """Return what a response means: 2xx is success, 410 gives up, others are retried."""
    status = answer.status
    if 200 <= status < 300:
        return DeliveryOutcome(delivered=True, status=status)
    error = f"receiver responded with {status}"
    if status == GONE:
        return DeliveryOutcome(delivered=False, error=error, status=status)
    wait_ms = asked_wait_ms(answer.headers, now=now)
    return failed(delivery, error, wait_ms=wait_ms, status=status)


def failed(
    delivery: ClaimedDelivery, error: str, *, wait_ms: int | None = None, status: int | None = None
) -> DeliveryOutcome:
    """Return a failed attempt: given up if the schedule has ended, else retried, never earlier
    than the receiver asked for.
    """
    scheduled = retry_after_ms(delivery.attempt)
    wait = None if scheduled is None else max(scheduled, wait_ms or 0)
    return DeliveryOutcome(False, one_line(error), wait, status)


def spread(outcome: DeliveryOutcome, chance: float) -> DeliveryOutcome:
    """Return the outcome with a slightly longer wait, unless it is short."""
    wait = outcome.retry_after_ms
    if wait is None or wait <= _STEADY_MS:
        return outcome
    return msgspec.structs.replace(outcome, retry_after_ms=round(wait * (1 + JITTER * chance)))


def one_line(text: str) -> str:
    """Return `text` without control characters, cut to its limit."""
    return "".join(one if one.isprintable() else " " for one in text[:ERROR_CHARS_MAX])


def _signature(key: bytes, signed: bytes) -> str:
    digest = hmac.new(key, signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode("ascii")


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not 24 <= len(key) <= 64:
        raise InvalidSettings(
            ["webhook secret is not valid: use whsec_ and the base64 of 24 to 64 random bytes"]
        )
    return key


# --- the loop -------------------------------------------------------------------------------------


class Deliverer:
    """Sends due deliveries until cancelled, then finishes those in progress.

    `secret_for` returns the signing secrets of a delivery whose endpoint has none of its own. It is
    called each time, so that a new secret needs no restart.
    """

    def __init__(
        self,
        source: DeliverySource,
        guard: Guard,
        secret_for: Callable[[ClaimedDelivery], str],
        now: Callable[[], int],
        *,
        concurrency: int = CONCURRENCY,
        host_concurrency: int = HOST_CONCURRENCY,
        timeout_seconds: float = TIMEOUT_SECONDS,
        pause_seconds: float = PAUSE_SECONDS,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._source = source
        self._guard = guard
        self._secret_for = secret_for
        self._now = now
        self._concurrency = concurrency
        self._host_concurrency = host_concurrency
        self._timeout_seconds = timeout_seconds
        self._pause_seconds = pause_seconds
        self._sending: dict[asyncio.Task[None], tuple[str, str]] = {}  # its host and its owner
        self._slow: dict[str, None] = {}  # hosts that did not respond, the latest last

    async def run(self) -> None:
        """Run until cancelled; a second cancel does not wait for deliveries in progress."""
        async with Sender(self._guard) as sender:
            try:
                while True:
                    await self._take_turn(sender)
            finally:
                await self._finish()

    async def _take_turn(self, sender: Sender) -> None:
        try:
            free = self._concurrency - len(self._sending)
            if free <= 0:
                await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
                return
            deliveries = await self._source.claim_deliveries(
                free, room=self._host_concurrency, rooms=self._rooms()
            )
            for delivery in deliveries:
                self._begin(sender, delivery)
            if not deliveries:
                await self._wait()
        except FairlaneError as error:
            # An unavailable store is logged once, where it is noticed.
            level = logging.DEBUG if isinstance(error, StoreUnavailable) else logging.WARNING
            _log.log(level, "webhook deliveries could not be claimed: %s", error)
            await asyncio.sleep(self._pause_seconds)
        except Exception:  # noqa: BLE001 - whatever it is, deliveries are due: continue in a while
            _log.exception("webhook deliveries could not be claimed")
            await asyncio.sleep(self._pause_seconds)

    def _begin(self, sender: Sender, delivery: ClaimedDelivery) -> None:
        task = asyncio.create_task(self._deliver(sender, delivery), name=f"webhook-{delivery.id}")
        self._sending[task] = target(delivery.url, delivery.agent)
        task.add_done_callback(self._sending.pop)

    def _rooms(self) -> dict[str, int]:
        """Return how many more deliveries may be sent to each host and agent that has some in
        progress, and to each host that did not respond.
        """
        hosts = Counter(host for host, _ in self._sending.values())
        agents = Counter(agent for _, agent in self._sending.values())
        busy = hosts + agents
        most = dict.fromkeys(hosts, self._host_concurrency) | dict.fromkeys(self._slow, 1)
        most |= dict.fromkeys(agents, self._host_concurrency * AGENT_ROOMS)
        return {name: max(0, number - busy[name]) for name, number in most.items()}

    async def _wait(self) -> None:
        """Wait until something may be due, or the end of an attempt makes room for it."""
        waiting = asyncio.create_task(self._source.wait_for_deliveries())
        try:
            await asyncio.wait({waiting, *self._sending}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        finally:
            waiting.cancel()

    def _note(self, host: str, *, answered: bool) -> None:
        self._slow.pop(host, None)
        if not answered:
            self._slow[host] = None
            if len(self._slow) > SLOW_HOSTS_MAX:
                del self._slow[next(iter(self._slow))]

    async def _deliver(self, sender: Sender, delivery: ClaimedDelivery) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        outcome = await self._traced_try(sender, delivery)
        took_ms = round((clock() - began) * 1000)
        self._note(host_of(delivery.url), answered=outcome.status is not None)
        if not outcome.delivered:
            _log.info("webhook %s of task %s: %s", delivery.id, delivery.task_id, outcome.error)
        outcome = spread(outcome, random.random())  # noqa: S311 - no secret is made of it
        try:
            await self._settle(delivery, outcome, took_ms)
        except FairlaneError as error:
            _log.warning("webhook %s could not be settled: %s", delivery.id, error)
        except Exception:  # noqa: BLE001 - its claim expires, and it is sent once more
            _log.exception("webhook %s could not be settled", delivery.id)

    async def _settle(
        self, delivery: ClaimedDelivery, outcome: DeliveryOutcome, took_ms: int
    ) -> None:
        """Record the outcome of an attempt; repeat while the store is unavailable."""
        while True:
            try:
                return await self._source.settle_delivery(delivery, outcome, took_ms)
            except StoreUnavailable:
                await asyncio.sleep(self._pause_seconds)

    async def _traced_try(self, sender: Sender, delivery: ClaimedDelivery) -> DeliveryOutcome:
        if self._tracer is None:
            return await self._try(sender, delivery)
        with self._tracer.step(
            tracing.WEBHOOK,
            delivery.traceparent,
            task_id=delivery.task_id,
            event=delivery.event,
            attempt=delivery.attempt,
        ) as span:
            traced = msgspec.structs.replace(delivery, traceparent=span.traceparent)
            outcome = await self._try(sender, traced)
            if not outcome.delivered:
                span.fail(outcome.error or "not delivered")
            return outcome

    async def _try(self, sender: Sender, delivery: ClaimedDelivery) -> DeliveryOutcome:
        try:
            answer = await sender.post(
                delivery.url,
                body=delivery.body,
                headers=self._headers(delivery),
                timeout_seconds=self._timeout_seconds,
                max_response_bytes=ANSWER_BYTES_MAX,
            )
        except FairlaneError as error:
            cause = error.__cause__ or error
            _log.debug("webhook %s got no response: %s", delivery.id, type(cause).__name__)
            return failed(delivery, error.message)
        except Exception:  # noqa: BLE001 - a defect of ours is a failed attempt, too
            _log.exception("webhook %s could not be sent", delivery.id)
            return failed(delivery, "webhook could not be sent")
        return judge(delivery, answer, now=self._now())

    def _headers(self, delivery: ClaimedDelivery) -> Mapping[str, str]:
        trace = {} if delivery.traceparent is None else {tracing.HEADER: delivery.traceparent}
        return {
            "Content-Type": "application/json",
            **pinchtab.webhook_headers(delivery.event, delivery.task_id),
            **trace,
            **sign(self._secret(delivery), delivery.id, self._now(), delivery.body),
        }

    def _secret(self, delivery: ClaimedDelivery) -> str:
        return delivery.secret or self._secret_for(delivery)

    async def _finish(self) -> None:
        try:
            if self._sending:
                limit = self._timeout_seconds + SETTLE_SECONDS
                await asyncio.wait(self._sending, timeout=limit)
        finally:
            for task in self._sending:
                task.cancel()
            await asyncio.gather(*self._sending, return_exceptions=True)
