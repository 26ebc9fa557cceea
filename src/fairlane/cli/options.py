"""Options that several commands have, and how their values are read.

An option of a declared operation takes its type, bounds and help from the field of the request
(`declared`). The server decides whether other values are allowed; here they only need the right
form.
"""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from fairlane.cli.commands import Parser
from fairlane.clock import SystemClock
from fairlane.core import lifecycle, time_points
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.types import PageLimit
from fairlane.schema import wire
from fairlane.schema.operation import Request

NO_JSON: Final = object()
_UNIT_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)")

Group = argparse._ActionsContainer  # noqa: SLF001 - a parser, or a group of its options

# -------------------------------------------------------------------- values


def _checked(
    pattern: str, expected: str, convert: Callable[[str], Any], least: float = 0
) -> Callable[[str], object]:
    """Return a type of options: the text must match the pattern and be at least `least`."""

    def read(text: str) -> Any:
        if not re.fullmatch(pattern, text) or convert(text) < least:
            raise argparse.ArgumentTypeError(f"must be {expected}, not {text[:40]!r}")
        return convert(text)

    return read


count = _checked(r"\d{1,9}", "a whole number above 0", int, 1)
whole = _checked(r"\d{1,18}", "a whole number", int)
number = _checked(r"\d{1,9}(\.\d+)?", "a number", float)


def span_ms(text: str) -> int | None:
    """Return the milliseconds of a duration such as `30s`; None if the text is not a duration."""
    found = _SPAN.fullmatch(text)
    return int(found[1]) * _UNIT_MS[found[2]] if found else None


def seconds(text: str) -> float:
    span = span_ms(text)
    if span is not None:
        return span / 1000
    if not re.fullmatch(r"\d{1,9}(\.\d+)?", text):
        raise argparse.ArgumentTypeError(
            f"must be a duration like 30s or 5m, or a number of seconds, not {text[:40]!r}"
        )
    return float(text)


def duration(text: str) -> int:
    """Return the milliseconds of a duration; a bare number is seconds."""
    return round(seconds(text) * 1000)


def time_point(text: str) -> str:
    """Return the time that a text means, by the clocks of this machine, as RFC 3339."""
    try:
        return wire.moment(time_points.parse(text, SystemClock().now(), None))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def priority(text: str) -> int | str:
    return int(text) if re.fullmatch(r"-?\d{1,18}", text) else text


def port(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text) or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, not {text[:40]!r}")
    return int(text)


def parsed(text: str) -> object:
    """Return the JSON in a text, or `NO_JSON`."""
    try:
        return wire.decode(text.encode())
    except (wire.DecodeError, RecursionError):
        return NO_JSON


def json_object(text: str) -> JsonObject:
    value = parsed(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text[:40]!r}")
    return value


def json_value(text: str) -> object:
    value = parsed(text)
    if value is NO_JSON:
        raise argparse.ArgumentTypeError(f"must be JSON, not {text[:40]!r}")
    return value


def text_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, not {text[:40]!r}")
    return name, value


def pair(text: str) -> tuple[str, object]:
    """Return a name and a value, which is JSON if it can be read as JSON, and text otherwise."""
    name, value = text_pair(text)
    found = parsed(value)
    return name, value if found is NO_JSON else found


def need(text: str) -> tuple[str, dict[str, int | str]]:
    """Return a resource and the amounts of its units: `gpt:requests=1,tokens=3000`, or `gpu`."""
    name, colon, rest = text.partition(":")
    pairs = [text_pair(one) for one in rest.split(",")] if colon else []
    units = {unit: int(amount) if amount.isdecimal() else amount for unit, amount in pairs}
    if not name:
        raise argparse.ArgumentTypeError(f"must be NAME or NAME:UNIT=AMOUNT, not {text[:40]!r}")
    return name, units


# -------------------------------------------------------------------- from declared operations


def declared(
    group: Group, request: type[Request], field: str, option: str = "", **how: object
) -> None:
    """Add an option for a field of a request, with the field's type, bounds and description.

    `option` is its name if it differs from the field's. `how` has further arguments for argparse,
    which override the derived ones.
    """
    hint = get_type_hints(request, include_extras=True)[field]
    about, found = _described(hint)
    flag = option or f"--{field.replace('_', '-')}"
    group.add_argument(flag, **{"help": about, **found, **how})


def _described(hint: object) -> tuple[str, JsonObject]:
    """Return what a type says about an option: its help and its arguments for argparse."""
    about, bounds = "", msgspec.Meta()
    while True:
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            for note in notes:
                if isinstance(note, msgspec.Meta):
                    about = about or note.description or ""
                    bounds = note if note.ge is not None else bounds
        elif get_origin(hint) in (Union, types.UnionType):
            hint = next(one for one in get_args(hint) if one is not type(None))
        elif get_origin(hint) is list:
            inner = _described(get_args(hint)[0])[1]
            return _as_help(about), {**inner, "action": "append"}
        else:
            return _as_help(about), _read_as(hint, bounds)


def _as_help(description: str) -> str:
    """Return a description as options spell it: lower case, and percent signs for argparse."""
    keep = description[1:2].isupper()
    return (description if keep else description[:1].lower() + description[1:]).replace("%", "%%")


def _read_as(hint: object, bounds: msgspec.Meta) -> JsonObject:
    if get_origin(hint) is Literal:
        return {"choices": get_args(hint)}
    if hint is bool:
        return {"action": "store_true", "default": None}
    if hint is int:
        return {"metavar": "N", "type": whole if bounds.ge is None else _bounded(bounds)}
    return {"type": number} if hint is float else {}


def _bounded(bounds: msgspec.Meta) -> Callable[[str], int]:
    low, high = int(bounds.ge or 0), bounds.le
    expected = f"from {low} to {high}" if high is not None else f"of at least {low}"

    def read(text: str) -> int:
        fits = re.fullmatch(r"\d{1,18}", text) and low <= int(text)
        if not fits or (high is not None and int(text) > high):
            raise argparse.ArgumentTypeError(
                f"must be a whole number {expected}, not {text[:40]!r}"
            )
        return int(text)

    return read


# -------------------------------------------------------------------- shared options

# The metavar, type and help of each option of a submitted task.
_SHARED: Final[Mapping[str, tuple[str, JsonMapping]]] = {
    "agent": (
        "agent that the task belongs to; slots are shared fairly between agents",
        {"metavar": "ID"},
    ),
    "lane": ("lane that the task runs in", {"metavar": "NAME"}),
    "session": ("session that the task belongs to; its tasks run in order", {"metavar": "KEY"}),
    "name": ("unique name", {"metavar": "NAME"}),
    "handler": ("name of the handler that runs the task", {"metavar": "NAME"}),
    "action": ("browser action to perform, such as click", {"metavar": "NAME"}),
    "instruction": ("prompt for an agent", {"metavar": "TEXT"}),
    "params": (
        "parameters of the task, as a JSON object",
        {"metavar": "JSON", "type": json_object},
    ),
    "tab": ("browser tab for an action", {"metavar": "ID"}),
    "ref": ("page element for an action", {"metavar": "REF"}),
    "selector": ("page element for an action, as a CSS selector", {"metavar": "CSS"}),
    "metadata": (
        "JSON object to store with the task",
        {"metavar": "JSON", "type": json_object},
    ),
    "priority": (
        "integer, lower runs first; or critical, high, normal, low",
        {"metavar": "N", "type": priority},
    ),
    "parallelism": (
        "how many tasks of the batch may run at once, 1 to 10",
        {"metavar": "N", "type": count},
    ),
    "callback-url": ("URL that receives a POST when the task finishes", {"metavar": "URL"}),
    "idempotency-key": (
        "key that makes it safe to resend this request: it takes effect only once",
        {"metavar": "KEY"},
    ),
    "timeout": ("time limit for each attempt", {"type": duration}),
    "run-at": ("do not start before this time (RFC 3339)", {"metavar": "TIME"}),
    "preemptible": (
        "allow the task to be stopped when a critical task needs its slot",
        {"action": "store_true", "default": None},
    ),
    "sender": (
        "sender of the message; only messages from the same sender are merged",
        {"metavar": "NAME"},
    ),
    "message-id": (
        "ID of the message in the chat; use it to withdraw the message",
        {"metavar": "ID"},
    ),
    "sent-at": (
        "when the message was sent (RFC 3339); refused if that was before the last stopall",
        {"metavar": "TIME"},
    ),
    "no-merge": (
        "never merge the message with others",
        {"action": "store_true", "default": None},
    ),
    "mode": ("queue, followup, interrupt, collect, steer, reject or rollback", {"metavar": "MODE"}),
    "cap": ("maximum number of waiting tasks", {"metavar": "N", "type": whole}),
    "drop": ("what to drop when the cap is exceeded: old or new", {"metavar": "WHICH"}),
    "debounce": (
        "how long to wait for more messages from the same sender (0: do not wait)",
        {"type": duration},
    ),
    "debounce-max": (
        "longest time that a message may wait for more messages",
        {"type": duration},
    ),
    "max-concurrent": (
        "how many tasks of the session may run at once",
        {"metavar": "N", "type": count},
    ),
    "note": ("note for operators", {"metavar": "TEXT"}),
}
_FILTERS: Final[Mapping[str, tuple[str, str]]] = {
    "agent": ("ID", "of this agent"),
    "lane": ("NAME", "in this lane"),
    "session": ("KEY", "of this session"),
    "batch": ("ID", "of this batch"),
    "task": ("ID", "of this task"),
    "kind": ("KIND", "of this kind: action, handler or instruction"),
    "name": ("NAME", "with this name"),
    "handler": ("NAME", "of this handler"),
}


_TIMES: Final[Mapping[str, str]] = {
    "--since": "only tasks created after this time: 1h ago, 10:00, a date or RFC 3339",
    "--until --older-than": "only tasks created before this time",
    "--finished-since": "only tasks that ended after this time",
    "--finished-until": "only tasks that ended before this time",
}


def offer(group: Group, *names: str, **helps: str) -> None:
    """Add shared options; `helps` replaces the help of options that mean something else here."""
    for name in names:
        about, how = _SHARED[name]
        about = helps.get(name.replace("-", "_"), about)
        if how.get("type") is duration:
            span_option(group, f"--{name}", about)
        else:
            group.add_argument(f"--{name}", help=about, **how)


def span_option(group: Group, option: str, about: str) -> None:
    """Add an option that is a duration, and the same in milliseconds."""
    about += ", such as 30s or 5m; a bare number is seconds"
    group.add_argument(option, metavar="TIME", type=duration, help=about)
    dest = option.removeprefix("--").replace("-", "_")
    about = "the same in milliseconds"
    group.add_argument(f"{option}-ms", metavar="MS", type=whole, dest=dest, help=about)


def filters(group: Group, things: str, *names: str) -> None:
    """Add options that restrict a list."""
    for name in names:
        metavar, which = _FILTERS[name]
        group.add_argument(f"--{name}", metavar=metavar, help=f"only {things} {which}")


def filter_tasks(parser: Parser) -> None:
    parser.add_argument(
        "--state",
        metavar="STATE",
        action="append",
        help=f"only tasks in this state: {', '.join(lifecycle.STATES)}; "
        "repeat the option or separate states with commas",
    )
    filters(parser, "tasks", "agent", "lane", "session", "batch", "kind", "handler")
    parser.add_argument("--depends-on", metavar="ID", help="only tasks that depend on this task")
    for option, which in _TIMES.items():
        parser.add_argument(*option.split(), metavar="TIME", type=time_point, help=which)
    parser.add_argument("--error", metavar="TEXT", help="only tasks with this text in their error")
    parser.add_argument(
        "--failure",
        metavar="ERR",
        help="only failed or parked tasks of this failure group (see fairlane failures)",
    )
    parser.add_argument(
        "--where",
        metavar="NAME=VALUE",
        action="append",
        help="only tasks with this value, such as metadata.customer=42 or params.url=x; "
        "a list matches if one item does (repeatable)",
    )
    parser.add_argument(
        "--tag", metavar="TAG", help="only tasks with this tag, an item of metadata.tags"
    )
    parser.add_argument(
        "--priority",
        metavar="N",
        help="only tasks of this priority: a number, critical, high, normal or low",
    )
    parser.add_argument(
        "--text",
        metavar="TEXT",
        help="only tasks with this text in their ID, agent, handler, lane, session, batch, error, "
        "instruction, params or metadata",
    )


def paging(parser: Parser) -> None:
    about, how = _described(PageLimit)
    parser.add_argument("--limit", help=f"{about} per page (default 100)", **how)
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--cursor", metavar="CURSOR", help="continue after a previous page; use its nextCursor"
    )
    place.add_argument("--all", action="store_true", help="print all pages")


def task_fields(group: Group, **helps: str) -> None:
    """Add the options that describe a task, except its handler, action and instruction."""
    offer(group, "params")
    named_values(group, "--param", "one parameter")
    offer(group, "tab", "ref", "selector", "metadata", "callback-url")
    offer(group, "priority", "lane", "timeout", **helps)
    needs(group)


def named_values(group: Group, option: str, about: str) -> None:
    group.add_argument(
        option,
        metavar="NAME=VALUE",
        type=pair,
        action="append",
        help=f"{about}; VALUE is read as JSON if possible, otherwise as text (repeatable)",
    )


def needs(group: Group) -> None:
    group.add_argument(
        "--need",
        metavar="NAME:UNIT=AMOUNT",
        type=need,
        action="append",
        help="amounts of a resource that the task needs: gpt:requests=1,tokens=3000 (repeatable)",
    )


def retries(group: Group, default: str = "") -> None:
    about = f"number of retries after the first attempt{default}"
    group.add_argument("--retries", metavar="N", type=whole, help=about)
    span_option(group, "--backoff", "wait before the first retry")
    group.add_argument(
        "--multiplier",
        metavar="X",
        type=number,
        help="multiplier for each further wait (default 2)",
    )


def wait_option(
    parser: Parser, summary: str = "wait until the task has finished, at most this long"
) -> None:
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        nargs="?",
        type=seconds,
        const=float("inf"),
        help=f"{summary} (default: no limit)",
    )


def quiet(parser: Parser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="print only IDs, one per line")


def dry_run(parser: Parser, about: str) -> None:
    parser.add_argument("--dry-run", action="store_true", help=about)


def follow(parser: Parser, about: str, *flags: str) -> None:
    parser.add_argument("--follow", *flags, action="store_true", help=about)


def confirmation(parser: Parser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def input_file(parser: Parser, about: str) -> None:
    parser.add_argument("file", metavar="FILE", help=f"{about}; - reads standard input")


def one(thing: str) -> Callable[[Parser], None]:
    """Return a function that adds the ID of one thing."""

    def fill(parser: Parser) -> None:
        parser.add_argument("id", metavar="ID", help=f"{thing} ID")

    return fill


def several(thing: str) -> Callable[[Parser], None]:
    """Return a function that adds the IDs of one or more things."""

    def fill(parser: Parser) -> None:
        parser.add_argument("ids", metavar="ID", nargs="+", help=f"{thing} IDs")

    return fill
