"""The client library: the same calls as a plain client and as one for event loops."""

from __future__ import annotations

from fairlane.client.sync import Client

__all__ = ["Client"]
