"""Resources: the limits that tasks share, their use, and changes by operators.

Amounts are exact decimals, as JSON numbers or text. A response shows a whole amount as a number and
any other as text.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

from msgspec import Meta

from fairlane.core.access import Scope
from fairlane.core.types import YEAR_MS, Cursor, Moment, Note, PageLimit, Word
from fairlane.schema.operation import GET, POST, Operation, Request, Response, one_of
from fairlane.schema.watch import Window
from fairlane.schema.wire import Decimal

KEY_CHARACTERS_MAX: Final = 256

Amount = Annotated[
    int | float | str,
    Meta(description="Decimal number with at most six places, as a number or text"),
]
Amounts = Annotated[dict[str, Amount], Meta(description="Amount of each unit")]
ResourceName = Annotated[str, Meta(description="Name of the resource")]
ResourceKey = Annotated[
    Annotated[str, Meta(max_length=KEY_CHARACTERS_MAX)] | None,
    Meta(description="Key of the balance, if the resource has one per agent, session or key"),
]
Unit = Annotated[Word | None, Meta(description="Only this unit")]
EntryKind = Literal["reserve", "settle", "refund", "debt", "raise", "reset", "close", "open"]

# -------------------------------------------------------------------- requests


class ListResources(Request):
    name: Annotated[str | None, Meta(description="Only balances of this resource")] = None
    limit: PageLimit = 100
    cursor: Annotated[str | None, Meta(description="nextCursor of the previous page")] = None


class ResourceRequest(Request):
    """The name of one resource."""

    name: ResourceName
    key: ResourceKey = None


class ShowLedger(ResourceRequest):
    unit: Unit = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class ShowUsage(ResourceRequest):
    from_day: Annotated[str | None, Meta(description="First day, YYYY-MM-DD in UTC")] = None
    to_day: Annotated[str | None, Meta(description="Last day, YYYY-MM-DD in UTC")] = None
    unit: Unit = None


class ShowResourceHistory(ResourceRequest):
    window: Annotated[Window, Meta(description="How far to look back")] = "5m"


class OpenRequest(ResourceRequest):
    """The name of a closed resource."""


class CloseRequest(ResourceRequest):
    for_ms: Annotated[
        Annotated[int, Meta(ge=1, le=YEAR_MS)] | None,
        Meta(description="Open it again after this time; default: stay closed"),
    ] = None
    until: Annotated[Moment | None, Meta(description="Open it again at this time")] = None
    reason: Annotated[Note | None, Meta(description="Reason that waiting callers will see")] = None


class RaiseRequest(ResourceRequest, kw_only=True):
    unit: Annotated[Word, Meta(description="Unit of the budget")]
    amount: Annotated[Amount, Meta(description="How much to add until the reset")]
    reason: Annotated[Note | None, Meta(description="Reason to record in the ledger")] = None


# -------------------------------------------------------------------- responses


class LimitStatus(Response):
    """The use of one unit; `others` is the use of a rate by programs outside Fairlane."""

    unit: str
    amount: Decimal
    used: Decimal
    reserved: Decimal
    available: Decimal
    per_ms: int | None = None
    resets_at: Moment | None = None
    raised: Annotated[
        Decimal | None, Meta(description="Amount added by operators until the reset")
    ] = None
    others: Decimal | None = None
    overdrawn: Annotated[
        Decimal | None, Meta(description="Amount used beyond the reservations")
    ] = None


class HolderStatus(Response):
    """A task that holds a reservation."""

    task: str
    agent: str
    amounts: dict[str, Decimal]


class ResourceStatus(Response, kw_only=True):
    name: str
    key: str | None = None
    state: Annotated[str, one_of(("open", "closed"))]
    closed_until: Moment | None = None
    reason: str | None = None
    limits: list[LimitStatus]
    waiting: Annotated[int, Meta(description="Number of tasks and permits that wait for it")]
    holders: list[HolderStatus] | None = None


class ResourceList(Response):
    resources: list[ResourceStatus]
    count: int
    next_cursor: str | None = None


class LedgerLine(Response, kw_only=True):
    id: int
    at: Moment
    kind: Annotated[str, one_of(get_args(EntryKind))]
    unit: str | None = None
    amount: Annotated[Decimal, Meta(description="Change of the balance; negative for a refund")]
    balance: Annotated[
        Decimal | None, Meta(description="Used plus reserved amount after this entry")
    ] = None
    task: str | None = None
    agent: str | None = None
    reason: str | None = None


class LedgerPage(Response):
    entries: list[LedgerLine]
    count: int
    next_cursor: str | None = None


class UsageLine(Response):
    """An agent's use of one unit on one day."""

    day: str
    agent: str
    unit: str
    used: Decimal


class UsageReport(Response):
    name: str
    rows: list[UsageLine]
    count: int


class UnitUse(Response):
    unit: str
    taken: Annotated[Decimal, Meta(description="Used plus reserved amount")]
    amount: Decimal


class ResourcePoint(Response):
    at: Moment
    limits: list[UnitUse]


class ResourceHistoryShown(Response):
    window: Annotated[str, one_of(get_args(Window))]
    step_ms: int
    units: list[str]
    points: list[ResourcePoint]


# -------------------------------------------------------------------- operations

RESOURCES: Final = Operation(
    "resources",
    GET,
    "/resources",
    ListResources,
    ResourceList,
    Scope.READ,
    "List resources with their limits and use",
)
RESOURCE: Final = Operation(
    "resource",
    GET,
    "/resources/{name}",
    ResourceRequest,
    ResourceStatus,
    Scope.READ,
    "Show a resource: limits, use, holders, and when it becomes available",
)
RESOURCE_LEDGER: Final = Operation(
    "resource_ledger",
    GET,
    "/resources/{name}/ledger",
    ShowLedger,
    LedgerPage,
    Scope.READ,
    "List reservations, settlements and refunds, newest first",
)
RESOURCE_USAGE: Final = Operation(
    "resource_usage",
    GET,
    "/resources/{name}/usage",
    ShowUsage,
    UsageReport,
    Scope.READ,
    "Show how much each agent used on each day",
)
RESOURCE_HISTORY: Final = Operation(
    "resource_history",
    GET,
    "/resources/{name}/history",
    ShowResourceHistory,
    ResourceHistoryShown,
    Scope.READ,
    "Show the use against the limit over the last minutes or hours",
)
CLOSE_RESOURCE: Final = Operation(
    "close_resource",
    POST,
    "/resources/{name}/close",
    CloseRequest,
    ResourceStatus,
    Scope.OPERATE,
    "Close a resource: tasks that need it do not start until it opens again",
    agents=False,
)
OPEN_RESOURCE: Final = Operation(
    "open_resource",
    POST,
    "/resources/{name}/open",
    OpenRequest,
    ResourceStatus,
    Scope.OPERATE,
    "Open a closed resource",
    agents=False,
)
RAISE_RESOURCE: Final = Operation(
    "raise_resource",
    POST,
    "/resources/{name}/raise",
    RaiseRequest,
    ResourceStatus,
    Scope.OPERATE,
    "Raise a budget until it resets",
    agents=False,
)
