"""The verbs of tokens, as calls of their routes (see `client/verbs.py`)."""

from __future__ import annotations

from fairlane.client.calling import A, Calling


class AccessVerbs(Calling[A]):
    def whoami(self) -> A:
        """Whose token this is, what it may do, and whether one is needed."""
        return self.call("GET", "/whoami")
