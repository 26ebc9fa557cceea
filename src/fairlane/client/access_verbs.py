"""The verbs of tokens, as calls of their routes (see `client/verbs.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fairlane.client.calling import A, Calling, given, moment, path_of


class AccessVerbs(Calling[A]):
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
        body = given(
            name=name,
            agent=agent,
            scopes=list(scopes) or None,
            expires_at=moment(expires_at),
            rate=rate,
            max_open=max_open,
        )
        return self.call("POST", "/tokens", body=body)

    def tokens(self) -> A:
        """All tokens, also those that are revoked; never the secrets of any."""
        return self.call("GET", "/tokens")

    def revoke_token(self, token: str) -> A:
        """By its id or its name; from the next request on it is worth nothing."""
        return self.call("DELETE", path_of("tokens", token))

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
        query = given(
            who=who, action=action, outcome=outcome, limit=limit, cursor=cursor, after=after
        )
        return self.call("GET", "/audit", query=query)
