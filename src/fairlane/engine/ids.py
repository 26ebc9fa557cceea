"""Ids for new objects: never reused, and created by the caller, so that a request can safely be
repeated.

The first twelve digits are the time, so new rows land at the end of an index; the rest is random.
"""

from __future__ import annotations

import os
import random

from fairlane.core.model import NODE_PREFIX

# Seeded by the system, and again in a forked process. Asking the system each time would release
# Python's lock each time; these are names, not secrets.
_chance = random.Random()  # noqa: S311 - see above
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_chance.seed)


def new_id(prefix: str, now: int) -> str:
    return f"{prefix}_{now:012x}{_chance.getrandbits(64):016x}"


def new_node_name() -> str:
    """Return a new node name. A node is a process, not a machine: two starts are two nodes."""
    return f"{NODE_PREFIX}{os.urandom(6).hex()}"
