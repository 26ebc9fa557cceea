"""The verbs of tokens, as calls of their routes (see `verbs.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

A = TypeVar("A")


class AccessVerbs(ABC, Generic[A]):
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

    def whoami(self) -> A:
        """Whose token this is, what it may do, and whether one is needed."""
        return self.call("GET", "/whoami")

    def create_token(
        self,
        name: str,
        *,
        agent: str | None = None,
        scopes: Sequence[str] = (),
        expires_at: str | datetime | None = None,
        rate: str | None = None,
        max_open: int | None = None,
    ) -> A:
        """Make a token; `token` in the answer is shown this once. No scopes: submit, read, cancel.

        With `agent` it sees and touches only what is that agent's. `rate` is how many requests it
        may make, as in `50/s`, and `max_open` how many tasks may be open.
        """
        at = expires_at.isoformat() if isinstance(expires_at, datetime) else expires_at
        fields = {
            "name": name,
            "agentId": agent,
            "scopes": list(scopes) or None,
            "expiresAt": at,
            "rate": rate,
            "maxOpen": max_open,
        }
        body = {field: value for field, value in fields.items() if value is not None}
        return self.call("POST", "/tokens", body=body)

    def tokens(self) -> A:
        """All tokens, also those that are revoked; never the secrets of any."""
        return self.call("GET", "/tokens")

    def revoke_token(self, token: str) -> A:
        """By its id or its name; from the next request on it is worth nothing."""
        return self.call("DELETE", f"/tokens/{quote(token, safe='')}")

    def audit(
        self,
        *,
        who: str | None = None,
        action: str | None = None,
        outcome: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
        after: int | None = None,
    ) -> A:
        """Who did what, newest first: deeds of operators, denied calls, blocked targets.

        `after` is the number of an entry: only newer ones.
        """
        fields = {
            "who": who,
            "action": action,
            "outcome": outcome,
            "limit": limit,
            "cursor": cursor,
            "after": after,
        }
        query = {name: value for name, value in fields.items() if value is not None}
        return self.call("GET", "/audit", query=query)
