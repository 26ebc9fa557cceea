"""The verbs of webhooks, as calls of their routes (see `verbs.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote

A = TypeVar("A")


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class WebhookVerbs(ABC, Generic[A]):
    @abstractmethod
    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        idempotency_key: str | None = None,
        wait_ms: int = 0,
    ) -> A: ...

    def deliveries(
        self,
        *,
        state: str | None = None,
        task: str | None = None,
        agent: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> A:
        """One page of the webhooks that are or were owed, newest first; `task` is the id of a
        task, a batch or a cron run.
        """
        query = _given(state=state, taskId=task, agentId=agent, limit=limit, cursor=cursor)
        return self.call("GET", "/deliveries", query=query)

    def delivery(self, delivery_id: str) -> A:
        """One of them, with its `tries`."""
        return self.call("GET", _path("deliveries", delivery_id))

    def redeliver(self, delivery_id: str) -> A:
        """Send it again, now and under the same id, and by the schedule if that fails."""
        return self.call("POST", _path("deliveries", delivery_id, "/redeliver"), body={})

    def create_webhook(self, url: str, *, agent: str | None = None) -> A:
        """An endpoint with a secret of its own, which the answer shows this once."""
        return self.call("POST", "/webhooks", body=_given(url=url, agentId=agent))

    def webhooks(
        self, *, agent: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> A:
        """One page of the endpoints that have a secret of their own; never the secrets."""
        query = _given(agentId=agent, limit=limit, cursor=cursor)
        return self.call("GET", "/webhooks", query=query)

    def webhook(self, endpoint_id: str) -> A:
        return self.call("GET", _path("webhooks", endpoint_id))

    def rotate_webhook(self, endpoint_id: str, *, overlap_seconds: int | None = None) -> A:
        """A new secret, which the answer shows this once; for a while (a day) both sign."""
        body = _given(overlapSeconds=overlap_seconds)
        return self.call("POST", _path("webhooks", endpoint_id, "/rotate"), body=body)

    def enable_webhook(self, endpoint_id: str) -> A:
        """Send to it again, after it has answered 410."""
        return self.call("POST", _path("webhooks", endpoint_id, "/enable"), body={})

    def delete_webhook(self, endpoint_id: str) -> A:
        """What goes to its URL is signed with the common secret again."""
        return self.call("DELETE", _path("webhooks", endpoint_id))


def _path(noun: str, thing: str, rest: str = "") -> str:
    return f"/{noun}/{quote(thing, safe='')}{rest}"
