"""Fairlane: a fair, durable task scheduler for fleets of AI agents."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairlane.version import __version__

if TYPE_CHECKING:
    from fairlane.client.asynchronous import AsyncClient
    from fairlane.client.sync import Client
    from fairlane.config import InstanceSetting
    from fairlane.core.errors import ExecutionFailed, FairlaneError, TaskFailed
    from fairlane.embedded.app import ConfigWatcher, Fairlane, TaskHandle, tune
    from fairlane.worker.executors.base import Work
    from fairlane.worker.executors.reporting import report_output, report_progress
    from fairlane.worker.external import Worker

__all__ = [
    "AsyncClient",
    "Client",
    "ConfigWatcher",
    "ExecutionFailed",
    "Fairlane",
    "FairlaneError",
    "InstanceSetting",
    "TaskFailed",
    "TaskHandle",
    "Work",
    "Worker",
    "__version__",
    "report_output",
    "report_progress",
    "tune",
]

_PLACES = {
    "AsyncClient": "client.asynchronous",
    "Client": "client.sync",
    "ConfigWatcher": "embedded.app",
    "ExecutionFailed": "core.errors",
    "Fairlane": "embedded.app",
    "FairlaneError": "core.errors",
    "InstanceSetting": "config",
    "TaskFailed": "core.errors",
    "TaskHandle": "embedded.app",
    "Work": "worker.executors.base",
    "Worker": "worker.external",
    "report_output": "worker.executors.reporting",
    "report_progress": "worker.executors.reporting",
    "tune": "embedded.app",
}


def __getattr__(name: str) -> Any:
    """Import a part when it is first asked for, so that commands start fast."""
    if name in _PLACES:
        return getattr(import_module(f"fairlane.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'fairlane' has no attribute {name!r}")
