"""Fairlane: a fair, durable task scheduler for fleets of AI agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fairlane.version import __version__

if TYPE_CHECKING:
    from fairlane.app import ConfigWatcher, Fairlane, TaskHandle, tune
    from fairlane.core.errors import TaskFailed

__all__ = ["ConfigWatcher", "Fairlane", "TaskFailed", "TaskHandle", "__version__", "tune"]


def __getattr__(name: str) -> Any:
    """Import the application when it is first asked for, so that commands start fast."""
    if name in __all__:
        from fairlane import app  # noqa: PLC0415 - see above
        from fairlane.core import errors  # noqa: PLC0415 - as above

        return getattr(app if hasattr(app, name) else errors, name)
    raise AttributeError(f"module 'fairlane' has no attribute {name!r}")
