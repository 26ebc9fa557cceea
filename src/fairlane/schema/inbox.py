"""The inbox of a run: messages that reach it while it works, and messages that are withdrawn."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

from fairlane.core.access import Scope
from fairlane.core.inbox import CURSOR_CHARACTERS_MAX, InboxPage
from fairlane.core.json_types import JsonObject
from fairlane.core.types import SessionKey
from fairlane.schema.leases import WAIT_MS_MAX, InboxEntry, NamedLease, RunInbox
from fairlane.schema.operation import DELETE, GET, POST, Operation, Request, Response
from fairlane.schema.task_status import TaskState

After = Annotated[
    Annotated[str, Meta(max_length=CURSOR_CHARACTERS_MAX)] | None,
    Meta(description="The cursor of the last response; default: from the first message"),
]
WaitMs = Annotated[
    int, Meta(ge=0, le=WAIT_MS_MAX, description="Maximum wait if there is no message")
]


class ReadInbox(NamedLease):
    after: Annotated[
        After, Meta(description="The cursor of the last response; this request takes its messages")
    ] = None
    wait_ms: WaitMs = 0


class TakeInbox(NamedLease):
    after: After = None
    wait_ms: WaitMs = 0


class WithdrawOf(Request):
    key: SessionKey
    message_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256)],
        Meta(description="Id of the message, or of its task"),
    ]


class LeaseInbox(RunInbox, kw_only=True):
    lease_id: str
    task_id: str


class MessageWithdrawn(Response):
    message_id: str
    task_id: str
    state: TaskState
    left: Annotated[
        int, Meta(description="Messages that the task still has, if others were merged into it")
    ]


def run_inbox(page: InboxPage) -> RunInbox:
    return RunInbox(**_fields(page))


def lease_inbox(lease_id: str, task_id: str, page: InboxPage) -> LeaseInbox:
    return LeaseInbox(lease_id=lease_id, task_id=task_id, **_fields(page))


def _fields(page: InboxPage) -> JsonObject:
    names = InboxEntry.__struct_fields__
    entries = [InboxEntry(**{name: getattr(one, name) for name in names}) for one in page.messages]
    return {"messages": entries, "cursor": page.cursor, "more": page.more}


LEASE_INBOX: Final = Operation(
    "lease_inbox",
    GET,
    "/leases/{id}/inbox",
    ReadInbox,
    LeaseInbox,
    Scope.LEASE,
    "Read the messages for a run; the next read takes those of this one",
    waits="wait_ms",
)
TAKE_INBOX: Final = Operation(
    "take_inbox",
    POST,
    "/leases/{id}/inbox",
    TakeInbox,
    LeaseInbox,
    Scope.LEASE,
    "Take the messages for a run; safe to repeat with the same cursor",
    waits="wait_ms",
)
WITHDRAW_MESSAGE: Final = Operation(
    "withdraw_message",
    DELETE,
    "/sessions/{key}/messages/{messageId}",
    WithdrawOf,
    MessageWithdrawn,
    Scope.CANCEL,
    "Withdraw a message that no run has taken yet",
)
