"""The workers that ask this process for leases, and when each was last heard.

Everything is in memory; `due` returns what has to be stored, and the engine writes it in a commit
that happens anyway. So a lease costs no write, and other processes learn of a worker within a few
seconds of activity, or with the next heartbeat.

The write thread changes a roster; other threads may read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from fairlane.core.workers import POLLER_PATIENCE_MS, WAITER_PATIENCE_MS, KnownWorker
from fairlane.engine.commands import Lease

REFRESH_SECONDS: Final = 5.0  # a worker that has not changed is stored at most this often
CHANGE_SECONDS: Final = 1.0  # anything at all is stored at most this often
FORGET_SECONDS: Final = 3600.0
HEARD_MAX: Final = 2000
WAITS_SECONDS: Final = 5.0  # a request that may wait this long is that of a waiting worker


class HeardWorker(msgspec.Struct):
    """`request` is the last one; the times are of the monotonic clock. `saved_at` is None while the
    store does not have what the worker said last.
    """

    request: Lease
    first_at: float
    at: float
    patience_ms: int
    saved_at: float | None = None


class Roster:
    def __init__(self, server: str) -> None:
        self._server = server
        self._heard: dict[str, HeardWorker] = {}
        self._saved_at: float | None = None
        self._has_new = False
        self.changes = 0  # how often what this process has heard has changed

    def heard(self, request: Lease, now: float) -> None:
        """Note that a worker has asked for leases."""
        found = self._heard.get(request.worker)
        waits = request.until is None or request.until - now >= WAITS_SECONDS
        patience_ms = WAITER_PATIENCE_MS if waits else POLLER_PATIENCE_MS
        if found is None:
            self._make_room(now)
            self._heard[request.worker] = HeardWorker(request, now, now, patience_ms)
            self._has_new = True
            self.changes += 1
            return
        found.at = now
        request = _with_earlier(request, found.request)
        if patience_ms != found.patience_ms or _said(request) != _said(found.request):
            found.request, found.patience_ms, found.saved_at = request, patience_ms, None
            self.changes += 1

    def due(
        self, waiting: Iterable[object], now: float, moment: int
    ) -> tuple[list[KnownWorker], bool]:
        """Return the workers to store, and whether one of them is new. `waiting` are requests that
        wait now, `moment` is the time `now` by the clock that judges.
        """
        if self._saved_at is not None and now - self._saved_at < CHANGE_SECONDS:
            return [], False
        for request in waiting:
            if isinstance(request, Lease) and request.worker in self._heard:
                self._heard[request.worker].at = now
        found = [one for one in self._heard.values() if _is_due(one)]
        return [self._known(one, now, moment) for one in found], self._has_new

    def saved(self, workers: Iterable[KnownWorker], now: float) -> None:
        """Note that the store has these workers. Call it only after the commit."""
        self._saved_at, self._has_new = now, False
        for one in workers:
            if one.name in self._heard:
                self._heard[one.name].saved_at = now

    def present(self, now: float, moment: int) -> list[KnownWorker]:
        """Return all workers that this process has heard of lately. Safe in any thread."""
        return [self._known(one, now, moment) for one in list(self._heard.values())]

    def _known(self, one: HeardWorker, now: float, moment: int) -> KnownWorker:
        request = one.request
        return KnownWorker(
            name=request.worker,
            server=self._server,
            capabilities=request.capabilities,
            any_handler=request.any_handler,
            lanes=request.lanes,
            agent=request.agent,
            address=request.address,
            version=request.version,
            slots=request.slots,
            patience_ms=one.patience_ms,
            first_seen_at=moment - round((now - one.first_at) * 1000),
            seen_at=moment - round((now - one.at) * 1000),
        )

    def _make_room(self, now: float) -> None:
        """Forget workers that have not asked for an hour, and the most silent of too many."""
        if len(self._heard) < HEARD_MAX:
            return
        oldest = sorted(self._heard.items(), key=lambda item: item[1].at)
        for number, (name, one) in enumerate(oldest):
            if number < HEARD_MAX // 10 or now - one.at > FORGET_SECONDS:
                del self._heard[name]


def _is_due(one: HeardWorker) -> bool:
    return one.saved_at is None or one.at - one.saved_at >= REFRESH_SECONDS


def _with_earlier(request: Lease, earlier: Lease) -> Lease:
    """Return the request with what the worker need not repeat: its slots and its version."""
    slots, version = request.slots or earlier.slots, request.version or earlier.version
    if (slots, version) == (request.slots, request.version):
        return request
    return msgspec.structs.replace(request, slots=slots, version=version)


def _said(request: Lease) -> tuple[object, ...]:
    return (
        request.capabilities,
        request.any_handler,
        request.lanes,
        request.agent,
        request.slots,
        request.version,
        request.address,
    )
