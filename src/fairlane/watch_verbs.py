"""The verbs of what is watched, as calls of their routes (see `verbs.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

A = TypeVar("A")


class WatchVerbs(ABC, Generic[A]):
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

    def history(self, window: str | None = None) -> A:
        """How things went in the last `5m`, `1h` or `24h`, step by step, and agents' shares."""
        query = {} if window is None else {"window": window}
        return self.call("GET", "/stats/history", query=query)

    def nodes(self) -> A:
        """The processes that serve from the store, and how they are."""
        return self.call("GET", "/nodes")
