"""Every error that Fairlane raises on purpose, in one tree, grouped by the party that has to act.

    FairlaneError
    |-- CallerError          the request is wrong: do not repeat it unchanged
    |   |-- InvalidRequest       invalid_request
    |   |-- NeedsUnsatisfiable   needs_unsatisfiable
    |   |-- BatchTooLarge        batch_too_large
    |   |-- PayloadTooLarge      payload_too_large
    |   |-- UnsupportedMediaType unsupported_media_type
    |   |-- Misdirected          misdirected
    |   |-- Unauthenticated      unauthenticated
    |   |-- Forbidden            forbidden
    |   |   `-- OwnTask              own_task
    |   |-- NotFound             not_found
    |   |-- Conflict             conflict
    |   |-- IdempotencyConflict  idempotency_conflict
    |   |-- MessageStale         message_stale
    |   |-- MessageTaken         message_taken
    |   |-- SessionBusy          session_busy
    |   |-- ApprovalChanged      approval_changed
    |   |-- StepChanged          step_changed
    |   |-- EffectUnknown        effect_unknown
    |   |-- ApprovalClosed       approval_closed
    |   `-- LeaseLost            lease_lost
    |-- BusyError            the request is fine: repeat it later
    |   |-- QueueFull            queue_full
    |   |-- SessionQueueFull     session_queue_full
    |   |-- RateLimited          rate_limited
    |   |-- QuotaExceeded        quota_exceeded
    |   |-- TooManyConnections   too_many_connections
    |   |-- Draining             draining
    |   |-- Disabled             disabled
    |   |-- ResourceBusy         resource_busy
    |   |-- StoreUnavailable     store_unavailable
    |   `-- Unreachable          unreachable
    |-- OperatorError        invalid_setup: the setup is wrong, an operator must fix it
    |   |-- InvalidPolicy        invalid_policy
    |   |-- InvalidSettings      invalid_settings
    |   |-- StoreMissing         store_missing
    |   |-- StoreInUse           store_in_use
    |   |-- StoreMismatch        store_mismatch
    |   `-- StoreMoved           store_moved
    |-- TargetRefused        target_refused: the outbound guard does not allow the address
    |-- ExecutionFailed      execution_failed: the work itself went wrong
    |   |-- ApprovalDenied       approval_denied
    |   |-- EffectNotDone        effect_not_done
    |   `-- ChildFailed          child_failed
    `-- TaskFailed           task_failed: a task that the caller waited for did not end done
        |-- QueueDropped         queue_dropped
        |-- Interrupted          interrupted
        |-- RolledBack           rolled_back
        |-- Withdrawn            withdrawn
        |-- Stopped              stopped
        |-- SessionReset         session_reset
        |-- LaneCleared          lane_cleared
        |-- ApprovalRejected     approval_rejected
        `-- ApprovalExpired      approval_expired

Codes are stable and part of the public API; messages may improve at any time.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairlane.core.json_types import JsonObject


class FairlaneError(Exception):
    """The base of all errors. `code` is stable; `retryable` says whether to repeat the request
    later.

    `retry_after_ms` is the wait that the server asks for, if it names one.
    """

    code: str = "error"
    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        details: JsonObject | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.retry_after_ms = retry_after_ms


class CallerError(FairlaneError):
    """The request is wrong; repeating it unchanged gives the same error."""


class InvalidRequest(CallerError):
    """A field, parameter or header of the request is missing, unknown or out of bounds."""

    code = "invalid_request"


class NeedsUnsatisfiable(CallerError):
    """The task needs more of a resource than the policy can ever give."""

    code = "needs_unsatisfiable"


class BatchTooLarge(CallerError):
    """The batch has more tasks than one request may submit."""

    code = "batch_too_large"


class PayloadTooLarge(CallerError):
    """The body of the request is larger than the server accepts."""

    code = "payload_too_large"


class UnsupportedMediaType(CallerError):
    """The body is not declared as JSON."""

    code = "unsupported_media_type"


class Misdirected(CallerError):
    """The Host header names a host that the server does not serve."""

    code = "misdirected"


class Unauthenticated(CallerError):
    """The request has no token, or one that is not valid."""

    code = "unauthenticated"


class Forbidden(CallerError):
    """The token does not allow this request."""

    code = "forbidden"


class OwnTask(Forbidden):
    """The token's agent or the token itself asked for the approval, so it cannot decide."""

    code = "own_task"


class NotFound(CallerError):
    """Nothing has this id, or the token may not see it."""

    code = "not_found"


class Conflict(CallerError):
    """The state of the task or object does not allow the request."""

    code = "conflict"


class IdempotencyConflict(CallerError):
    """The idempotency key was used before for a different request."""

    code = "idempotency_conflict"


class MessageStale(CallerError):
    """The message was sent before its session was stopped."""

    code = "message_stale"


class MessageTaken(CallerError):
    """A run already has the message, or it has ended, so it cannot be withdrawn."""

    code = "message_taken"


class SessionBusy(CallerError):
    """The session is busy, and the mode of the message does not let it wait."""

    code = "session_busy"


class ApprovalChanged(CallerError):
    """The content of the approval has changed since the caller read it."""

    code = "approval_changed"


class ApprovalClosed(CallerError):
    """The approval has been decided, has expired, or its task has ended."""

    code = "approval_closed"


class StepChanged(CallerError):
    """A run calls different steps from the ones that earlier runs recorded."""

    code = "step_changed"


class EffectUnknown(CallerError):
    """It is unknown whether an effect of an earlier run happened; the task was parked."""

    code = "effect_unknown"


class LeaseLost(CallerError):
    """The lease has expired or was reclaimed; the worker must stop."""

    code = "lease_lost"


class BusyError(FairlaneError):
    """The request is valid, but Fairlane cannot accept it now; repeat it later."""

    retryable = True


class QueueFull(BusyError):
    """The queue or the agent has as many waiting tasks as the policy allows."""

    code = "queue_full"


class SessionQueueFull(BusyError):
    """The session has as many waiting messages as it may, and it rejects new ones."""

    code = "session_queue_full"


class RateLimited(BusyError):
    """The token has made more requests than its rate allows."""

    code = "rate_limited"


class QuotaExceeded(BusyError):
    """The token has as many open tasks as its quota allows."""

    code = "quota_exceeded"


class TooManyConnections(BusyError):
    """The token or address has as many open streams and long polls as it may."""

    code = "too_many_connections"


class Draining(BusyError):
    """The node is stopping and accepts nothing new."""

    code = "draining"


class Disabled(BusyError):
    """The policy has turned the scheduler off."""

    code = "disabled"


class ResourceBusy(BusyError):
    """A resource has no room for a permit within the time that the caller wanted to wait."""

    code = "resource_busy"


class StoreUnavailable(BusyError):
    """The database does not respond."""

    code = "store_unavailable"


class Unreachable(BusyError):
    """No server responded. The request may or may not have taken effect. Raised by the client."""

    code = "unreachable"


class OperatorError(FairlaneError):
    """The setup is wrong; an operator must fix it."""

    code = "invalid_setup"


class InvalidPolicy(OperatorError):
    """The policy document has problems; `problems` lists them."""

    code = "invalid_policy"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems), details={"problems": problems})
        self.problems = problems


class InvalidSettings(OperatorError):
    """The settings have problems; `problems` lists them."""

    code = "invalid_settings"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class StoreMissing(OperatorError):
    """There is no store at the address that a command names."""

    code = "store_missing"


class StoreInUse(OperatorError):
    """Another process has the store open."""

    code = "store_in_use"


class StoreMismatch(OperatorError):
    """The store was written by a newer version, or with another key."""

    code = "store_mismatch"


class StoreMoved(OperatorError):
    """The store was moved to another address, or is an unfinished copy of another one."""

    code = "store_moved"


class TargetRefused(FairlaneError):
    """The outbound guard does not allow the address."""

    code = "target_refused"


class ExecutionFailed(FairlaneError):
    """A run failed. A handler raises it to fail its task; `retryable=False` prevents another
    attempt. `traceback` is stored with the attempt.
    """

    code = "execution_failed"

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = True,
        retry_after_ms: int | None = None,
        traceback: str | None = None,
        closed: Mapping[str, float] | None = None,
    ) -> None:
        """`closed` maps each resource whose provider refuses requests to the seconds for which it
        does; such a failure costs no attempt.
        """
        super().__init__(message, retry_after_ms=retry_after_ms)
        self.retryable = retryable
        self.traceback = traceback
        self.closed = closed or {}


class ApprovalDenied(ExecutionFailed):
    """The answer to `work.ask` was no, or there was none in time. Unless the handler catches it,
    the task fails and is not retried. `state` is `rejected` or `expired`.
    """

    code = "approval_denied"

    def __init__(self, message: str, state: str = "rejected", comment: str | None = None) -> None:
        super().__init__(message, retryable=False)
        self.state = state
        self.comment = comment


class EffectNotDone(ExecutionFailed):
    """An effect did not happen. The function of `work.effect` raises it, so that the effect may be
    tried again; its `check` raises or returns it if no earlier run has acted.
    """

    code = "effect_not_done"

    def __init__(
        self, message: str = "the effect did not happen", *, retryable: bool = True
    ) -> None:
        super().__init__(message, retryable=retryable)


class ChildFailed(ExecutionFailed):
    """A task whose result `work.results` wanted did not end done. Unless the handler catches it,
    the task fails and is not retried.
    """

    code = "child_failed"

    def __init__(self, task_id: str, state: str = "failed", error: str | None = None) -> None:
        because = f": {error}" if error else ""
        super().__init__(f"child_failed: task {task_id} ended {state}{because}", retryable=False)
        self.task_id = task_id
        self.state = state
        self.error = error


class TaskFailed(FairlaneError):
    """A task that the caller waited for did not end in state done; see `state` and `error`."""

    code = "task_failed"

    def __init__(self, task_id: str, state: str, error: str | None) -> None:
        super().__init__(f"task {task_id} ended {state}" + (f": {error}" if error else ""))
        self.state = state
        self.error = error


class QueueDropped(TaskFailed):
    """A newer message replaced this one because the session's queue was full."""

    code = "queue_dropped"


class Interrupted(TaskFailed):
    """A newer message of the session had to run at once."""

    code = "interrupted"


class RolledBack(TaskFailed):
    """A newer message of the session took the place of this one."""

    code = "rolled_back"


class Withdrawn(TaskFailed):
    """The message was withdrawn before it ran."""

    code = "withdrawn"


class Stopped(TaskFailed):
    """The session was stopped."""

    code = "stopped"


class SessionReset(TaskFailed):
    """The session was reset."""

    code = "session_reset"


class LaneCleared(TaskFailed):
    """An operator cleared the task's lane."""

    code = "lane_cleared"


class ApprovalRejected(TaskFailed):
    """A person rejected the approval that the task needed."""

    code = "approval_rejected"


class ApprovalExpired(TaskFailed):
    """The task was not approved in time."""

    code = "approval_expired"


def task_failed(task_id: str, state: str, error: str | None) -> TaskFailed:
    """Return the error for a task that did not end in state done. The error of a cancelled task may
    start with a code.
    """
    code = (error or "").partition(":")[0] if state == "cancelled" else ""
    kinds = {kind.code: kind for kind in TaskFailed.__subclasses__()}
    return kinds.get(code, TaskFailed)(task_id, state, error)
