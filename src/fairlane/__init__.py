"""Fairlane: a fair, durable task scheduler for fleets of AI agents."""

from __future__ import annotations

from fairlane.version import __version__

__all__ = ["__version__"]
