"""Where a node sends its commands: to the writer in this process, or to the process that writes."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from fairlane.core.policy import Policy


class CommandWriter(Protocol):
    @property
    def policy(self) -> Policy:
        """The policy in force."""
        ...

    def moment(self) -> int:
        """Return the time by the clock that decides about leases and deadlines."""
        ...

    def ask(self, request: object) -> Coroutine[Any, Any, Any]:
        """Return the answer to `request` once it is durable; raise it if it is an error."""
        ...

    def tell(self, request: object) -> None:
        """Send a request without waiting for the answer."""
        ...

    def give_back(self, answer: object) -> None:
        """Release leases that were granted to a caller that has disconnected."""
        ...

    def keep(self, leases: Sequence[tuple[int, int]]) -> None:
        """Note that the worker has received these leases."""
        ...
