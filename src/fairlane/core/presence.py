"""When a node or a worker counts as dead, although its leases have not expired.

A node on a shared store holds a lock that its database releases when the process dies; a worker may
keep a connection to a server open. A node or worker that only stalls keeps both, so it is judged by
its leases alone. One that lost only its lock or connection opens it again within a short grace
period. Whatever is decided, fencing tokens keep a process that returns from changing anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

LOOK_SECONDS: Final = 0.2
# A node is dead when its lock was missing this often in a row.
LOOKS: Final = 3
# An observer that has not looked for this long was stopped itself, and starts again.
STALLED_SECONDS: Final = 1.0
# After the observer's own connection was lost, the others may be about to return as well.
RETURN_SECONDS: Final = 3.0
# A worker has this long to open its connection again.
REOPEN_SECONDS: Final = 0.5


class Watch(msgspec.Struct, frozen=True):
    """What the looks so far have shown: how often in a row each node was missing. Before `from_at`
    nothing is judged. Times are of the monotonic clock.
    """

    from_at: float
    looked_at: float
    missing: Mapping[str, int] = {}


def watch(now: float, *, returned: bool) -> Watch:
    """Begin to watch; `returned` says that the connection of the observer was lost before."""
    return Watch(now + RETURN_SECONDS if returned else now, now)


def look(before: Watch, missing: Iterable[str], now: float) -> tuple[Watch, list[str]]:
    """Return what is known after a look at which these nodes were missing, and which are dead."""
    if now < before.from_at:
        return msgspec.structs.replace(before, looked_at=now), []
    counted = {} if now - before.looked_at > STALLED_SECONDS else before.missing
    found = {name: counted.get(name, 0) + 1 for name in missing}
    # If nothing has come of it, they are reported again after as many further looks.
    gone = [name for name, count in found.items() if count % LOOKS == 0]
    return Watch(before.from_at, now, found), gone
