"""A port for a server that restarts, reserved so that no other program gets it meanwhile.

Caution: a port that the system has chosen may also be given to a client that connects
to anything, even to one that tries that very port again and again and then talks to itself.
"""

from __future__ import annotations

import contextlib
import random
import socket

# The system gives away ports above these only.
FIRST, LAST = 20_000, 32_000
TRIES = 100


def lasting_port() -> int:
    for _ in range(TRIES):
        port = random.SystemRandom().randint(FIRST, LAST)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no port is free")
