"""The verbs of tokens, as calls of their routes (see `client/verbs.py`)."""

from __future__ import annotations

from fairlane.client.calling import A, Calling, given


class AccessVerbs(Calling[A]):
    def whoami(self) -> A:
        """Whose token this is, what it may do, and whether one is needed."""
        return self.call("GET", "/whoami")

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
