"""The commands of resources: reports, permits, and changes by operators.

Each docstring names the answer; any command may be answered with a `FairlaneError` instead.
"""

from __future__ import annotations

import msgspec

from fairlane.core.json_types import JsonObject
from fairlane.core.model import Task
from fairlane.core.resources import Blocked


class Closing(msgspec.Struct, frozen=True):
    """The provider of a resource refused: how long to wait, or None until an operator opens it."""

    retry_after_ms: int | None
    reason: str | None = None


class ResourceReport(msgspec.Struct, frozen=True):
    """A worker's report about resources: amounts used, providers that refused, and remaining
    amounts that providers reported. Amounts are as written, by resource and unit.
    """

    usage: dict[str, JsonObject] | None = None
    closed: dict[str, Closing] | None = None
    observed: dict[str, JsonObject] | None = None


class Permit(msgspec.Struct, frozen=True):
    """Answer: `PermitGranted` or `PermitRefused`. Reserve `needs` for one call of a running task.

    `needs` are as written. With `until`, a time of the monotonic clock, the request waits until it
    can be granted; then the answer is a list of one `PermitGranted`, or an empty list when the time
    has passed. `settles` names a permit of the same lease that is settled first.
    """

    seq: int
    fencing_token: int
    needs: dict[str, JsonObject]
    until: float | None = None
    settles: int | None = None
    report: ResourceReport | None = None


class PermitGranted(msgspec.Struct, frozen=True):
    id: int
    task: Task


class PermitRefused(msgspec.Struct, frozen=True):
    """`retry_after_ms` is when the need may fit, None if only a release or an operator helps."""

    why: Blocked
    retry_after_ms: int | None = None


class SettlePermit(msgspec.Struct, frozen=True):
    """Answer: the `Task`. Replace a permit by the amounts used. A second call has no effect.

    `unused` returns all of it, because its caller had gone when it was granted.
    """

    seq: int
    fencing_token: int
    permit: int
    report: ResourceReport | None = None
    unused: bool = False


class CloseResource(msgspec.Struct, frozen=True):
    """Answer: the list of `Account`. Without a key all accounts of the resource are closed.

    `retry_after_ms` None closes until an operator opens it.
    """

    name: str
    key: str | None = None
    retry_after_ms: int | None = None
    reason: str | None = None


class OpenResource(msgspec.Struct, frozen=True):
    """Answer: the list of `Account`, open now."""

    name: str
    key: str | None = None


class RaiseResource(msgspec.Struct, frozen=True):
    """Answer: the list of `Account`. Raise a budget by `amount` micro-units until it resets."""

    name: str
    unit: str
    amount: int
    key: str | None = None
    reason: str | None = None
