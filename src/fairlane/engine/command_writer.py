"""Where a node sends its commands: to the writer in this process, or to the process that writes."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from fairlane.core.policy import Policy
from fairlane.engine.commands import Grant, Release
from fairlane.engine.resource_commands import PermitGranted, SettlePermit


def releases(answer: object) -> list[Release | SettlePermit]:
    """Return the commands that release the leases and permits of a caller that disconnected."""
    found: list[Release | SettlePermit] = []
    for one in answer if isinstance(answer, list) else ():
        if isinstance(one, Grant):
            found.append(Release(one.task.seq, one.task.fencing_token))
        elif isinstance(one, PermitGranted):
            key = one.task.seq, one.task.fencing_token
            found.append(SettlePermit(*key, one.id, unused=True))
    return found


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
        """Release leases and permits that were granted to a caller that has disconnected."""
        ...

    def keep(self, leases: Sequence[tuple[int, int]]) -> None:
        """Note that the worker has received these leases."""
        ...
