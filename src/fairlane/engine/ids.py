"""Names for new things: never reused, made by whoever asks, so that asking twice is harmless.

The first twelve digits are the moment, so new rows land at the end of an index; the rest is random.
"""

from __future__ import annotations

import os


def new_id(prefix: str, now: int) -> str:
    return f"{prefix}_{now:012x}{os.urandom(8).hex()}"


def new_node_name() -> str:
    """A node is a process, not a machine: two starts are two nodes."""
    return f"node_{os.urandom(6).hex()}"


NODE_PREFIX = "node_"
