"""Every error Fairlane raises on purpose, in one tree, split by whose move it is.

    FairlaneError
    |-- CallerError          the request is wrong: do not repeat it unchanged
    |   |-- InvalidRequest       invalid_request
    |   |-- BatchTooLarge        batch_too_large
    |   |-- PayloadTooLarge      payload_too_large
    |   |-- UnsupportedMediaType unsupported_media_type
    |   |-- Misdirected          misdirected
    |   |-- Unauthenticated      unauthenticated
    |   |-- Forbidden            forbidden
    |   |-- NotFound             not_found
    |   |-- Conflict             conflict
    |   |-- IdempotencyConflict  idempotency_conflict
    |   |-- MessageStale         message_stale
    |   `-- LeaseLost            lease_lost
    |-- BusyError            the request is fine: repeat it later
    |   |-- QueueFull            queue_full
    |   |-- SessionQueueFull     session_queue_full
    |   |-- RateLimited          rate_limited
    |   |-- QuotaExceeded        quota_exceeded
    |   |-- TooManyConnections   too_many_connections
    |   |-- Draining             draining
    |   |-- Disabled             disabled
    |   |-- StoreUnavailable     store_unavailable
    |   `-- Unreachable          unreachable
    |-- OperatorError        invalid_setup: the set-up is wrong, a person has to change something
    |   |-- InvalidPolicy        invalid_policy
    |   |-- InvalidSettings      invalid_settings
    |   |-- StoreMissing         store_missing
    |   |-- StoreInUse           store_in_use
    |   `-- StoreMismatch        store_mismatch
    |-- TargetRefused        target_refused: the outbound guard does not allow the address
    |-- ExecutionFailed      execution_failed: the work itself went wrong
    `-- TaskFailed           task_failed: a task that somebody waited for did not end done
        |-- QueueDropped         queue_dropped
        |-- Interrupted          interrupted
        |-- Stopped              stopped
        |-- SessionReset         session_reset
        `-- LaneCleared          lane_cleared

Codes are stable and part of the public surface; messages may improve at any time.
"""

from __future__ import annotations

from typing import Any


class FairlaneError(Exception):
    code: str = "error"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        details: dict[str, Any] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.retry_after_ms = retry_after_ms


class CallerError(FairlaneError):
    """The request is wrong; repeating it unchanged gives the same answer."""


class InvalidRequest(CallerError):
    code = "invalid_request"


class BatchTooLarge(CallerError):
    code = "batch_too_large"


class PayloadTooLarge(CallerError):
    code = "payload_too_large"


class UnsupportedMediaType(CallerError):
    """The body is not said to be JSON."""

    code = "unsupported_media_type"


class Misdirected(CallerError):
    """The request names a host that the server does not answer to."""

    code = "misdirected"


class Unauthenticated(CallerError):
    """A token is needed, and there was none or not a valid one."""

    code = "unauthenticated"


class Forbidden(CallerError):
    """Understood, and not allowed to who asks."""

    code = "forbidden"


class NotFound(CallerError):
    code = "not_found"


class Conflict(CallerError):
    code = "conflict"


class IdempotencyConflict(CallerError):
    code = "idempotency_conflict"


class MessageStale(CallerError):
    """The message was sent before its session was told to stop."""

    code = "message_stale"


class LeaseLost(CallerError):
    code = "lease_lost"


class BusyError(FairlaneError):
    """The request is fine; Fairlane cannot take it now."""

    retryable = True


class QueueFull(BusyError):
    code = "queue_full"


class SessionQueueFull(BusyError):
    """Too many messages of the session wait, and it drops new ones."""

    code = "session_queue_full"


class RateLimited(BusyError):
    """The token has made more requests than it may at this time."""

    code = "rate_limited"


class QuotaExceeded(BusyError):
    """As many tasks are open as the token may have."""

    code = "quota_exceeded"


class TooManyConnections(BusyError):
    """The token or the address has as many streams or long polls open as it may."""

    code = "too_many_connections"


class Draining(BusyError):
    code = "draining"


class Disabled(BusyError):
    code = "disabled"


class StoreUnavailable(BusyError):
    code = "store_unavailable"


class Unreachable(BusyError):
    """Raised by the client: no server answers. What was asked may or may not have been done."""

    code = "unreachable"


class OperatorError(FairlaneError):
    """The set-up is wrong; a person has to change something."""

    code = "invalid_setup"


class InvalidPolicy(OperatorError):
    code = "invalid_policy"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems), details={"problems": problems})
        self.problems = problems


class InvalidSettings(OperatorError):
    code = "invalid_settings"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class StoreMissing(OperatorError):
    """There is no store where a command was told to look."""

    code = "store_missing"


class StoreInUse(OperatorError):
    code = "store_in_use"


class StoreMismatch(OperatorError):
    code = "store_mismatch"


class TargetRefused(FairlaneError):
    code = "target_refused"


class ExecutionFailed(FairlaneError):
    """A run ended badly. `retryable` says whether another attempt could go better."""

    code = "execution_failed"

    def __init__(
        self, message: str, *, retryable: bool = True, retry_after_ms: int | None = None
    ) -> None:
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.retryable = retryable


class TaskFailed(FairlaneError):
    """Raised to who waited for the result of a task that ended otherwise than done."""

    code = "task_failed"

    def __init__(self, task_id: str, state: str, error: str | None) -> None:
        super().__init__(f"task {task_id} ended {state}" + (f": {error}" if error else ""))
        self.state = state
        self.error = error


class QueueDropped(TaskFailed):
    """A newer message took its place: the session's queue was full, and it drops old ones."""

    code = "queue_dropped"


class Interrupted(TaskFailed):
    """A newer message of its session was to run at once."""

    code = "interrupted"


class Stopped(TaskFailed):
    """Its session was told to stop."""

    code = "stopped"


class SessionReset(TaskFailed):
    code = "session_reset"


class LaneCleared(TaskFailed):
    """An operator has emptied its lane."""

    code = "lane_cleared"


def task_failed(task_id: str, state: str, error: str | None) -> TaskFailed:
    """What is raised to who waited. The first word of a cancelled task's error may be a code."""
    code = (error or "").partition(":")[0] if state == "cancelled" else ""
    kinds = {kind.code: kind for kind in TaskFailed.__subclasses__()}
    return kinds.get(code, TaskFailed)(task_id, state, error)
