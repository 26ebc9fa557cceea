"""Names for new things: never reused, made by whoever asks, so that asking twice is harmless.

The first twelve digits are the moment, so new rows land at the end of an index; the rest is random.
"""

from __future__ import annotations

import secrets


def new_id(prefix: str, now: int) -> str:
    return f"{prefix}_{now:012x}{secrets.token_hex(8)}"


def new_node_name() -> str:
    """A node is a process, not a machine: two starts are two nodes."""
    return f"node_{secrets.token_hex(6)}"


NODE_PREFIX = "node_"
