"""The signals that ask a server or a worker to stop."""

from __future__ import annotations

import signal


def stopping() -> list[signal.Signals]:
    """Return the signals that drain a server or worker.

    SIGHUP, which a closed terminal sends, is one of them unless the process was started with it
    ignored, as `nohup` does.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return numbers
