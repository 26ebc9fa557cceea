"""The clients: `Client` for plain programs, `AsyncClient` for programs with an event loop."""

from __future__ import annotations

from fairlane.client.sync import Client

__all__ = ["Client"]
