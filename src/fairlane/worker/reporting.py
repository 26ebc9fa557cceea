"""Reports of a worker to a server: all pending reports are sent in one request.

Reports that arrive while a request is in progress form the next request, so there is no artificial
delay. A lease request that arrives in the meantime is sent with them.

Caution: a report whose response was lost may have been applied. Sending it again is safe, because
for a lease that has ended, the server accepts the same report again or responds that the lease is
lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from fairlane.client import transport
from fairlane.client.asynchronous import AsyncClient
from fairlane.client.sync import Client
from fairlane.core.errors import FairlaneError, NotFound, StoreUnavailable
from fairlane.core.json_types import JsonObject
from fairlane.schema import wire
from fairlane.schema.leases import (
    REPORT_LEASES,
    REPORTS_MAX,
    LeaseGrant,
    LeasesReported,
    ReportLeases,
    ReportOutcome,
)

# Room for the other fields of a request.
ENVELOPE_BYTES: Final = 4096
REPORT_BYTES_MAX: Final = wire.BODY_BYTES_MAX - ENVELOPE_BYTES
# How long to use the routes for single reports with a server that has no others.
_SINGLY_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 2.0
_METHOD_NOT_ALLOWED: Final = "method_not_allowed"


class PendingReport(msgspec.Struct, eq=False):
    """A report without a response yet."""

    lease_id: str
    verb: str
    fields: JsonObject
    raw: msgspec.Raw
    done: asyncio.Future[ReportOutcome]


class LeaseAsk(msgspec.Struct, eq=False):
    """A request for leases that waits for the next reports."""

    request: ReportLeases
    done: asyncio.Future[Sequence[LeaseGrant]]


class Reporter:
    """Sends reports and answers each. Belongs to one event loop."""

    def __init__(self, client: AsyncClient, worker: str) -> None:
        self._client = client
        self._worker = worker
        self._pending: list[PendingReport] = []
        self._asks: list[LeaseAsk] = []
        self._sending: asyncio.Task[None] | None = None
        self._singly_until = 0.0

    @property
    def is_pending(self) -> bool:
        """Return whether a request with reports is about to be sent."""
        return bool(self._pending)

    async def report(self, lease_id: str, verb: str, **fields: object) -> ReportOutcome:
        """Send a report. Raise the error that the server answers it with, or `StoreUnavailable` if
        it is unknown whether it was applied.
        """
        pending = self._add(lease_id, verb, fields)
        return await pending.done

    def release_later(self, lease_id: str) -> None:
        """Release a lease that is not used, without waiting for the answer."""
        pending = self._add(lease_id, "release", {})
        pending.done.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def ask(self, request: ReportLeases) -> Sequence[LeaseGrant]:
        """Send a request for leases along with the pending reports."""
        asked = LeaseAsk(request, asyncio.get_running_loop().create_future())
        self._asks.append(asked)
        return await asked.done

    async def close(self) -> None:
        """Send the pending reports, within a time limit."""
        if self._sending is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._sending

    def _add(self, lease_id: str, verb: str, fields: JsonObject) -> PendingReport:
        raw = wire.encode({"leaseId": lease_id, "verb": verb, **fields})
        done = asyncio.get_running_loop().create_future()
        pending = PendingReport(lease_id, verb, fields, msgspec.Raw(raw), done)
        self._pending.append(pending)
        if self._sending is None:
            # It starts in the next turn of the loop, with everything that this turn adds.
            self._sending = asyncio.create_task(self._send())
        return pending

    async def _send(self) -> None:
        try:
            while self._pending:
                taken = self._taken()
                asks, self._asks = self._asks[:1], self._asks[1:]
                if asyncio.get_running_loop().time() < self._singly_until:
                    await self._report_singly(taken, asks)
                else:
                    await self._report_together(taken, asks)
        finally:
            self._sending = None
            for ask in self._asks:  # no reports are left to send them along with
                _settle(ask.done, ())
            self._asks = []

    def _taken(self) -> list[PendingReport]:
        """Take as many reports as fit into one request."""
        count, size = 0, 0
        for one in self._pending[:REPORTS_MAX]:
            size += len(memoryview(one.raw)) + 1
            if count and size > REPORT_BYTES_MAX:
                break
            count += 1
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken

    async def _report_together(
        self, taken: Sequence[PendingReport], asks: Sequence[LeaseAsk]
    ) -> None:
        request = asks[0].request if asks else ReportLeases(worker=self._worker)
        request.reports = [one.raw for one in taken]
        try:
            self._share(taken, asks, await self._client.perform(REPORT_LEASES, request))
        except FairlaneError as error:
            if is_older_server(error):
                self._singly_until = asyncio.get_running_loop().time() + _SINGLY_SECONDS
                await self._report_singly(taken, asks)
            else:
                _fail([*(one.done for one in taken), *(ask.done for ask in asks)], error)
        except BaseException:  # cancelled, or a defect: the waiting runs must continue
            unknown = StoreUnavailable("it is unknown whether the report was applied")
            _fail([*(one.done for one in taken), *(ask.done for ask in asks)], unknown)
            raise

    def _share(
        self,
        taken: Sequence[PendingReport],
        asks: Sequence[LeaseAsk],
        answer: LeasesReported,
    ) -> None:
        for one, outcome in zip(taken, answer.reports, strict=True):
            if outcome.code is None:
                _settle(one.done, outcome)
            else:
                _fail([one.done], error_of(outcome))
        if not asks or not _settle(asks[0].done, answer.leases):
            for lease in answer.leases:  # the loop has stopped meanwhile
                self.release_later(lease.lease_id)

    async def _report_singly(
        self, taken: Sequence[PendingReport], asks: Sequence[LeaseAsk]
    ) -> None:
        """Report to a server of an older version, which does not know all fields."""
        for ask in asks:
            _settle(ask.done, ())
        await asyncio.gather(*(self._report_one(one) for one in taken))

    async def _report_one(self, one: PendingReport) -> None:
        try:
            fields = {name: one.fields[name] for name in one.fields if name != "traceback"}
            target = f"/leases/{one.lease_id}/{one.verb}"
            shape = await self._client.call("POST", target, body=fields)
        except FairlaneError as error:
            _fail([one.done], error)
        else:
            _settle(one.done, msgspec.convert(shape, ReportOutcome))


def renew_all(client: Client, worker: str, lease_ids: Sequence[str], ttl_ms: int) -> list[bool]:
    """Renew leases from a plain thread. Return for each whether its work must stop."""
    found: list[bool] = []
    for start in range(0, len(lease_ids), REPORTS_MAX):
        part = lease_ids[start : start + REPORTS_MAX]
        reports = [{"leaseId": one, "verb": "renew", "ttlMs": ttl_ms} for one in part]
        try:
            outcomes = client.report_leases(worker, reports).reports
        except FairlaneError as error:
            if not is_older_server(error):
                raise
            found += [_is_over(client, one, ttl_ms) for one in part]
        else:
            found += [one.cancel_requested or one.code == LOST for one in outcomes]
    return found


LOST: Final = "lease_lost"


def _is_over(client: Client, lease_id: str, ttl_ms: int) -> bool:
    try:
        return client.renew_lease(lease_id, ttl_ms=ttl_ms).cancel_requested
    except FairlaneError as error:
        if error.code != LOST:
            raise
        return True


def is_older_server(error: FairlaneError) -> bool:
    """Return whether a server does not have the route for many reports."""
    return isinstance(error, NotFound) or error.code == _METHOD_NOT_ALLOWED


def error_of(outcome: ReportOutcome) -> FairlaneError:
    return transport.error_of(outcome.code or "", outcome.error or "", outcome.details)


def _settle(future: asyncio.Future[Any], value: object) -> bool:
    """Return whether the future was still open."""
    if future.done():
        return False
    future.set_result(value)
    return True


def _fail(futures: Sequence[asyncio.Future[Any]], error: FairlaneError) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
