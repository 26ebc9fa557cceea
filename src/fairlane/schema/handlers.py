"""What ran in the last hours, by handler and by agent: failures, waits and durations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, get_args

from msgspec import Meta

from fairlane.core.access import Scope
from fairlane.core.handler_totals import HOUR_MS, OTHERS, Key, Totals
from fairlane.core.histogram import percentile
from fairlane.core.json_types import JsonObject
from fairlane.core.model import HANDLER
from fairlane.core.types import Moment
from fairlane.schema.operation import GET, Operation, Request, Response, one_of
from fairlane.schema.wire import moment

HandlerWindow = Literal["1h", "24h", "7d"]
HOURS: Final[Mapping[str, int]] = {"1h": 1, "24h": 24, "7d": 168}
SHOWN_MAX: Final = 200

Measured = Annotated[int | None, Meta(description="null if nothing was measured")]


class ShowHandlers(Request):
    window: Annotated[
        HandlerWindow,
        Meta(description="How far to look back, in whole hours including the current one"),
    ] = "24h"
    agent: Annotated[str | None, Meta(description="Only tasks of this agent")] = None
    handler: Annotated[str | None, Meta(description="Only tasks of this handler")] = None


class TotalsShown(Response, kw_only=True):
    starts: Annotated[int, Meta(description="Runs that were started")]
    done: Annotated[int, Meta(description="Tasks that ended in state done")]
    failed: Annotated[int, Meta(description="Tasks that ended in state failed")]
    parked: int
    retried: Annotated[int, Meta(description="Failed attempts that were repeated")]
    cancelled: int
    failures: Annotated[int, Meta(description="Attempts that failed: failed, parked or retried")]
    failure_rate: Annotated[
        float | None, Meta(description="Share of the ended attempts that failed, from 0 to 1")
    ]
    waited_ms: Annotated[int, Meta(description="Time that tasks were ready and waited, in total")]
    ran_ms: Annotated[int, Meta(description="Time that runs held a slot, in total")]
    wait_p50_ms: Measured
    wait_p95_ms: Measured
    run_p50_ms: Measured
    run_p95_ms: Measured


class HandlerShown(TotalsShown, kw_only=True):
    """One handler, or one of the kinds of tasks without one."""

    name: Annotated[str, Meta(description="Name of the handler, or the kind")]
    kind: str
    ended_by_hour: Annotated[
        list[int], Meta(description="Attempts that succeeded or failed in each hour, oldest first")
    ]
    failures_by_hour: Annotated[
        list[int], Meta(description="Attempts that failed in each hour, oldest first")
    ]


class AgentTimeShown(TotalsShown, kw_only=True):
    """One agent; null is all agents that are not counted one by one."""

    agent: str | None


class HandlersShown(Response, kw_only=True):
    window: Annotated[str, one_of(get_args(HandlerWindow))]
    since: Annotated[Moment, Meta(description="Start of the first hour")]
    handlers: Annotated[
        list[HandlerShown],
        Meta(description="Sorted by the total time of their runs, longest first"),
    ]
    agents: Annotated[
        list[AgentTimeShown],
        Meta(description="Sorted by the total time of their runs, longest first"),
    ]
    count: Annotated[int, Meta(description="Number of handlers")]
    offered: Annotated[
        list[str], Meta(description="Handlers that workers which are online offer, each once")
    ]


def handlers_shown(
    window: str, first: int, last: int, totals: Mapping[Key, Totals], offered: list[str]
) -> HandlersShown:
    """Return totals by handler and by agent; `first` and `last` are hours since the epoch."""
    by_handler: dict[str, Totals] = {}
    by_agent: dict[str, Totals] = {}
    hours: dict[str, dict[int, Totals]] = {}
    for (hour, capability, agent), one in totals.items():
        by_handler.setdefault(capability, Totals()).add(one)
        by_agent.setdefault(agent, Totals()).add(one)
        hours.setdefault(capability, {}).setdefault(hour, Totals()).add(one)
    names = _longest(by_handler)
    return HandlersShown(
        window=window,
        since=moment(first * HOUR_MS),
        handlers=[
            _handler(name, by_handler[name], hours[name], range(first, last + 1)) for name in names
        ],
        agents=[
            AgentTimeShown(agent=None if name == OTHERS else name, **_facts(by_agent[name]))
            for name in _longest(by_agent)
        ],
        count=len(names),
        offered=offered,
    )


def _longest(totals: Mapping[str, Totals]) -> list[str]:
    order = sorted(totals, key=lambda name: (-totals[name].ran_ms, -totals[name].starts, name))
    return order[:SHOWN_MAX]


def _handler(
    capability: str, totals: Totals, hours: Mapping[int, Totals], span: Sequence[int]
) -> HandlerShown:
    kind, _, name = capability.partition("/")
    known = [hours.get(hour, Totals()) for hour in span]
    return HandlerShown(
        name=name if kind == HANDLER else kind,
        kind=kind,
        ended_by_hour=[one.ended for one in known],
        failures_by_hour=[one.failures for one in known],
        **_facts(totals),
    )


def _facts(one: Totals) -> JsonObject:
    return {
        "starts": one.starts,
        "done": one.done,
        "failed": one.failed,
        "parked": one.parked,
        "retried": one.retried,
        "cancelled": one.cancelled,
        "failures": one.failures,
        "failure_rate": round(one.failures / one.ended, 4) if one.ended else None,
        "waited_ms": one.waited_ms,
        "ran_ms": one.ran_ms,
        "wait_p50_ms": percentile(one.waits, 0.5),
        "wait_p95_ms": percentile(one.waits, 0.95),
        "run_p50_ms": percentile(one.durations, 0.5),
        "run_p95_ms": percentile(one.durations, 0.95),
    }


HANDLERS: Final = Operation(
    "handlers",
    GET,
    "/handlers",
    ShowHandlers,
    HandlersShown,
    Scope.READ,
    "Show runs, failures, waits and durations of the last hours, by handler and by agent",
    positional=("window",),
)
