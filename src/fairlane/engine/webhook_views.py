"""Reads about webhooks: the log of deliveries, and endpoints without their secrets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from fairlane.core.webhooks import Delivery, Endpoint
from fairlane.store.base import Row


class DeliveryFilter(msgspec.Struct, frozen=True):
    """Which webhooks to list; `before` and `before_id` continue below one of them."""

    agent: str | None = None
    state: str | None = None
    about: str | None = None
    before: int | None = None
    before_id: str | None = None


class WebhookViews(ABC):
    @abstractmethod
    def _run(self, name: str, /, **values: Any) -> list[Row]: ...

    def next_delivery_ms(self, now: int) -> int | None:
        """How long until a webhook is due, by the clock that judges; None when none is owed."""
        left: int | None = self._run("delivery_next", now=now)[0][0]
        return left

    def deliveries(self, wanted: DeliveryFilter, limit: int) -> list[Delivery]:
        """Newest first."""
        values = {**msgspec.structs.asdict(wanted), "limit": limit}
        if wanted.about is None:
            rows = self._run("delivery_list", **values)
        else:
            rows = self._run("delivery_list_of", **values)
        return [Delivery(*row) for row in rows]

    def delivery(self, delivery_id: str) -> Delivery | None:
        rows = self._run("delivery_view", id=delivery_id)
        return Delivery(*rows[0]) if rows else None

    def endpoints(self, agent: str | None, before: int | None, limit: int) -> list[Endpoint]:
        """Newest first, below `before`."""
        rows = self._run("endpoint_list", agent=agent, before=before, limit=limit)
        return [Endpoint(*row) for row in rows]

    def endpoint(self, endpoint_id: str) -> Endpoint | None:
        rows = self._run("endpoint_view", id=endpoint_id)
        return Endpoint(*rows[0]) if rows else None
