"""Resources in a policy's document: the problems of their limits, levels and needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from zoneinfo import available_timezones

from fairlane.core import amounts, limits, moments
from fairlane.core.documents import nearest, quote_key
from fairlane.core.errors import InvalidRequest, NeedsUnsatisfiable
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.resources import (
    LEVELS,
    LIMITS_MAX,
    LOCK,
    NEEDS_MAX,
    PERIOD_MS_MAX,
    UNIT,
    LimitPolicy,
    ResourcePolicy,
    read_needs,
)

_LIMIT_KEYS: Final = LimitPolicy.__struct_encode_fields__


def check_limits(value: object) -> str | None:
    """Return the problem of a resource's limits in a policy, or None."""
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= LIMITS_MAX:
        return f"must be a list of 1 to {LIMITS_MAX} limits"
    for number, one in enumerate(value, 1):
        problem = _limit_problem(one)
        if problem is not None:
            return f"[{number}]: {problem}"
    return None


def _limit_problem(one: object) -> str | None:
    if not isinstance(one, dict):
        return "must be an object"
    for key in one:
        if key not in _LIMIT_KEYS:
            return f"unknown key {quote_key(str(key))}{nearest(str(key), _LIMIT_KEYS)}"
    if not isinstance(one.get("unit", LOCK), str) or not UNIT.fullmatch(one.get("unit", LOCK)):
        return f"unit must be a name like {UNIT.pattern}"
    try:
        if not amounts.parse(one.get("amount")):
            return "amount must be above 0"
    except ValueError as error:
        return f"amount {error}"
    return _period_problem(one)


def _period_problem(one: JsonObject) -> str | None:
    periods = [key for key in ("perMs", "resetEveryMs", "resetEvery") if one.get(key) is not None]
    if len(periods) > 1:
        return f"give either {periods[0]} or {periods[1]}, not both"
    for key in ("perMs", "resetEveryMs"):
        value = one.get(key)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is not None and not (whole and 1 <= value <= PERIOD_MS_MAX):
            return f"{key} must be a whole number from 1 to {PERIOD_MS_MAX}"
    if one.get("resetEvery") not in (None, *limits.CALENDAR):
        return f"resetEvery must be one of {', '.join(limits.CALENDAR)}"
    if one.get("window") not in (None, "sliding", limits.BUCKET):
        return "window must be one of sliding, bucket"
    for key, needed in (("window", "perMs"), ("anchor", "resetEveryMs"), ("tz", "resetEvery")):
        if one.get(key) is not None and one.get(needed) is None:
            return f"{key} is only for limits with {needed}"
    return _text_problem(one)


def _text_problem(one: JsonObject) -> str | None:
    anchor, tz = one.get("anchor"), one.get("tz")
    if anchor is not None:
        try:
            moments.parse(str(anchor))
        except ValueError as error:
            return f"anchor {error}"
    if tz is not None and tz not in available_timezones():
        return f"tz must be a time zone{nearest(str(tz), available_timezones())}"
    return None


def check_by(value: object) -> str | None:
    levels = value if isinstance(value, list | tuple) else [value]
    known = all(isinstance(one, str) and one in LEVELS for one in levels)
    if not levels or not known or len(set(levels)) < len(levels):
        return f"must be one of {', '.join(LEVELS)}, or a list of some of them"
    return None


def check_needs(value: object) -> str | None:
    """Return the problem of the form of needs, or None."""
    if not isinstance(value, dict) or len(value) > NEEDS_MAX:
        return f"must be an object of at most {NEEDS_MAX} resources"
    for name, units in value.items():
        if not isinstance(units, dict) or len(units) > LIMITS_MAX:
            return f"{quote_key(name)} must be an object of amounts by unit"
        for unit, amount in units.items():
            try:
                amounts.parse(amount)
            except ValueError as error:
                return f"{quote_key(name)}.{quote_key(unit)} {error}"
    return None


def needs_problems(
    path: str, needs: Mapping[str, JsonMapping], declared: Mapping[str, ResourcePolicy]
) -> list[str]:
    """Return the problems of well-formed needs that do not match the declared resources."""
    try:
        read_needs(needs, declared, path)
    except (InvalidRequest, NeedsUnsatisfiable) as error:
        return [error.message]
    return []
