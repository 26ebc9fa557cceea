"""What needs the attention of an operator, each with the command that fixes it."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from fairlane.core.access import Scope
from fairlane.core.attention import KINDS
from fairlane.core.attention import AttentionItem as Item
from fairlane.core.types import Moment
from fairlane.schema.operation import GET, Operation, Request, Response, one_of
from fairlane.schema.wire import moment_or_none

WELL: Final = "nothing needs attention: nothing is stuck, parked, failing or waiting for a decision"


class ShowAttention(Request):
    """No parameters."""


class AttentionStatus(Response):
    """One thing that needs attention."""

    kind: Annotated[str, one_of(KINDS)]
    text: Annotated[str, Meta(description="The problem, in one sentence")]
    command: Annotated[str, Meta(description="Command that fixes it")]
    count: Annotated[
        int, Meta(description="Minimum number of tasks, runs or webhooks that it concerns")
    ]
    since: Moment | None = None
    lane: str | None = None
    task_ids: Annotated[list[str] | None, Meta(description="Ids of the first tasks")] = None


class AttentionShown(Response):
    summary: Annotated[str, Meta(description="Summary in one sentence")]
    entries: list[AttentionStatus] = field(name="items")
    count: int


def attention_shown(items: list[Item]) -> AttentionShown:
    shown = [
        AttentionStatus(
            kind=one.kind,
            text=one.text,
            command=one.command,
            count=one.count,
            since=moment_or_none(one.since_at),
            lane=one.lane,
            task_ids=list(one.tasks) or None,
        )
        for one in items
    ]
    summary = WELL
    if shown:
        summary = "1 thing needs" if len(shown) == 1 else f"{len(shown)} things need"
        summary += " attention"
    return AttentionShown(summary, shown, len(shown))


ATTENTION: Final = Operation(
    "attention",
    GET,
    "/attention",
    ShowAttention,
    AttentionShown,
    Scope.READ,
    "List what needs attention, each with the command that fixes it",
    agents=False,
)
