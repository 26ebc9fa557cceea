"""Fairlane: a fair, durable task scheduler for fleets of AI agents.

Import everything you need from here: `from fairlane import Fairlane, Client, Worker, QueueFull`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from fairlane.core.errors import (
    ApprovalChanged,
    ApprovalClosed,
    ApprovalDenied,
    ApprovalExpired,
    ApprovalRejected,
    BatchTooLarge,
    BusyError,
    CallerError,
    ChildFailed,
    Conflict,
    Disabled,
    Draining,
    EffectNotDone,
    EffectUnknown,
    ExecutionFailed,
    FairlaneError,
    Forbidden,
    IdempotencyConflict,
    Interrupted,
    InvalidPolicy,
    InvalidRequest,
    InvalidSettings,
    LaneCleared,
    LeaseLost,
    MessageStale,
    MessageTaken,
    Misdirected,
    NeedsUnsatisfiable,
    NotFound,
    OperatorError,
    OwnTask,
    PayloadTooLarge,
    QueueDropped,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ResourceBusy,
    RolledBack,
    SessionBusy,
    SessionQueueFull,
    SessionReset,
    StepChanged,
    Stopped,
    StoreInUse,
    StoreMismatch,
    StoreMissing,
    StoreMoved,
    StoreUnavailable,
    TargetRefused,
    TaskFailed,
    TooManyConnections,
    Unauthenticated,
    Unreachable,
    UnsupportedMediaType,
    Withdrawn,
)
from fairlane.version import __version__

if TYPE_CHECKING:
    from fairlane.client.asynchronous import AsyncClient
    from fairlane.client.sync import Client
    from fairlane.config import InstanceSetting
    from fairlane.embedded.app import ConfigWatcher, Fairlane, tune
    from fairlane.embedded.blocking import SyncFairlane
    from fairlane.embedded.handles import BatchHandle, TaskHandle
    from fairlane.worker.executors.base import Work
    from fairlane.worker.executors.reporting import report_output, report_progress
    from fairlane.worker.external import Worker

__all__ = [
    "ApprovalChanged",
    "ApprovalClosed",
    "ApprovalDenied",
    "ApprovalExpired",
    "ApprovalRejected",
    "AsyncClient",
    "BatchHandle",
    "BatchTooLarge",
    "BusyError",
    "CallerError",
    "ChildFailed",
    "Client",
    "ConfigWatcher",
    "Conflict",
    "Disabled",
    "Draining",
    "EffectNotDone",
    "EffectUnknown",
    "ExecutionFailed",
    "Fairlane",
    "FairlaneError",
    "Forbidden",
    "IdempotencyConflict",
    "InstanceSetting",
    "Interrupted",
    "InvalidPolicy",
    "InvalidRequest",
    "InvalidSettings",
    "LaneCleared",
    "LeaseLost",
    "MessageStale",
    "MessageTaken",
    "Misdirected",
    "NeedsUnsatisfiable",
    "NotFound",
    "OperatorError",
    "OwnTask",
    "PayloadTooLarge",
    "QueueDropped",
    "QueueFull",
    "QuotaExceeded",
    "RateLimited",
    "ResourceBusy",
    "RolledBack",
    "SessionBusy",
    "SessionQueueFull",
    "SessionReset",
    "StepChanged",
    "Stopped",
    "StoreInUse",
    "StoreMismatch",
    "StoreMissing",
    "StoreMoved",
    "StoreUnavailable",
    "SyncFairlane",
    "TargetRefused",
    "TaskFailed",
    "TaskHandle",
    "TooManyConnections",
    "Unauthenticated",
    "Unreachable",
    "UnsupportedMediaType",
    "Withdrawn",
    "Work",
    "Worker",
    "__version__",
    "report_output",
    "report_progress",
    "tune",
]

# Errors are imported at once (2 ms). The rest pulls in HTTP and the store (100 to 500 ms), so a
# name is imported when it is first used.
_MODULES: Final = {
    "AsyncClient": "fairlane.client.asynchronous",
    "BatchHandle": "fairlane.embedded.handles",
    "Client": "fairlane.client.sync",
    "ConfigWatcher": "fairlane.embedded.app",
    "Fairlane": "fairlane.embedded.app",
    "InstanceSetting": "fairlane.config",
    "SyncFairlane": "fairlane.embedded.blocking",
    "TaskHandle": "fairlane.embedded.handles",
    "Work": "fairlane.worker.executors.base",
    "Worker": "fairlane.worker.external",
    "report_output": "fairlane.worker.executors.reporting",
    "report_progress": "fairlane.worker.executors.reporting",
    "tune": "fairlane.embedded.app",
}


if not TYPE_CHECKING:  # a type checker that saw it would accept every name

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used."""
        if name not in _MODULES:
            raise AttributeError(f"module 'fairlane' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value


def __dir__() -> list[str]:
    """Return the public names, imported or not."""
    return sorted({*globals(), *__all__})
