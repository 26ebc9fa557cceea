"""The signals that drain, and the children of tests that have to notice them."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.fakes.signals import heed_signals, ignore_like_nohup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Prepare = Callable[[], None]


@pytest.fixture
def ignoring() -> Iterator[None]:
    """As `nohup make test &` runs the tests."""
    kept = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)
    ignore_like_nohup()
    yield
    signal.signal(signal.SIGINT, kept[0])
    signal.signal(signal.SIGHUP, kept[1])


def _told_by_child(prepare: Prepare | None, question: str) -> str:
    program = f"import signal; from fairlane.worker import signals; print({question})"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        check=True,
        text=True,
        preexec_fn=prepare,
    )
    return ran.stdout.strip()


@pytest.mark.parametrize(("prepare", "ignored"), [(heed_signals, "False"), (None, "True")])
@pytest.mark.usefixtures("ignoring")
def test_a_child_of_tests_that_ignore_ctrl_c_notices_it_only_when_told_to(
    prepare: Prepare | None, ignored: str
) -> None:
    question = "signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    assert _told_by_child(prepare, question) == ignored


@pytest.mark.parametrize(
    ("prepare", "drain"),
    [(heed_signals, "SIGINT SIGTERM SIGHUP"), (ignore_like_nohup, "SIGINT SIGTERM")],
)
def test_a_closed_terminal_drains_unless_nohup_ignores_it(prepare: Prepare, drain: str) -> None:
    question = "*(number.name for number in signals.stopping())"
    assert _told_by_child(prepare, question) == drain
