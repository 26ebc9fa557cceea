"""The commands of the writer about the messages that wait in a session; see `commands.py`."""

from __future__ import annotations

import msgspec

from fairlane.core.inbox import InboxPage
from fairlane.core.model import Task


class TakeMessages(msgspec.Struct, frozen=True, gc=False):
    """Answer: `InboxOutcome`. Take messages from the inbox of a run, and return the next ones.

    The caller has the first `after` messages that the run has taken. `shown` are the numbers of the
    waiting tasks to take; None: all that reach the run.
    """

    seq: int
    fencing_token: int
    after: int = 0
    shown: tuple[int, ...] | None = None


class InboxOutcome(msgspec.Struct, frozen=True):
    task: Task
    page: InboxPage


class WithdrawMessage(msgspec.Struct, frozen=True):
    """Answer: `WithdrawOutcome`. Withdraw a waiting message. With `agent`, only that agent's."""

    key: str
    message_id: str
    agent: str | None = None


class WithdrawOutcome(msgspec.Struct, frozen=True):
    """The task that the message was part of. `left` is how many messages it still has."""

    task: Task
    left: int
