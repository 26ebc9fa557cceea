"""The verbs of what is watched, as calls of their routes (see `client/verbs.py`)."""

from __future__ import annotations

from fairlane.client.calling import A, Calling, given


class WatchVerbs(Calling[A]):
    def history(self, window: str | None = None) -> A:
        """How things went in the last `5m`, `1h` or `24h`, step by step, and agents' shares."""
        return self.call("GET", "/stats/history", query=given(window=window))

    def nodes(self) -> A:
        """The processes that serve from the store, and how they are."""
        return self.call("GET", "/nodes")
