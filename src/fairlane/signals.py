"""The signals that ask a server or a worker to stop."""

from __future__ import annotations

import signal


def stopping() -> list[signal.Signals]:
    """Return the signals that drain.

    SIGHUP is one of them, for the terminal that is closed, unless the process was started with it
    ignored: `nohup` asks for a process that outlives its terminal.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers
