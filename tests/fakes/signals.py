"""Signals of the processes that tests start: `preexec_fn`s that set what a new process ignores.

Caution: a process passes the signals that it ignores on to its children. `nohup make test &` in a
script ignores SIGINT and SIGHUP, so without `heed_signals` a command would never notice the Ctrl-C
that a test sends.
"""

from __future__ import annotations

import signal


def heed_signals() -> None:
    """Make the new process notice Ctrl-C and a closed terminal, whatever the tests ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def ignore_like_nohup() -> None:
    """Make it ignore what a command ignores that a script starts with `nohup … &`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
