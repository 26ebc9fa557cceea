"""Reads about webhooks: the log of deliveries, and endpoints without their secrets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from fairlane.core.webhooks import Delivery, Endpoint
from fairlane.engine.reads.pages import Page
from fairlane.store.base import Row

T = TypeVar("T")


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

    @abstractmethod
    def _page(
        self, make: Callable[[Row], T], name: str, limit: int, /, **values: Any
    ) -> Page[T]: ...

    def next_delivery_ms(self, now: int) -> int | None:
        """How long until a webhook is due, by the clock that judges; None when none is owed."""
        left: int | None = self._run("delivery_next", now=now)[0][0]
        return left

    def deliveries(self, wanted: DeliveryFilter, limit: int) -> Page[Delivery]:
        """Newest first."""
        name = "delivery_list" if wanted.about is None else "delivery_list_of"
        values = msgspec.structs.asdict(wanted)
        return self._page(lambda row: Delivery(*row), name, limit, **values)

    def delivery(self, delivery_id: str) -> Delivery | None:
        rows = self._run("delivery_view", id=delivery_id)
        return Delivery(*rows[0]) if rows else None

    def endpoints(self, agent: str | None, before: int | None, limit: int) -> Page[Endpoint]:
        """Newest first, below `before`."""
        wanted = {"agent": agent, "before": before}
        return self._page(lambda row: Endpoint(*row), "endpoint_list", limit, **wanted)

    def endpoint(self, endpoint_id: str) -> Endpoint | None:
        rows = self._run("endpoint_view", id=endpoint_id)
        return Endpoint(*rows[0]) if rows else None
