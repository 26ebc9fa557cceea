"""Every slot of a rule, once: in all zones whose clocks ever change, against a walk through time.

The oracle in `wall_clock` shares nothing with the core but the words of the contract.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlane.core.cron import Schedule, Slot, next_slot
from tests.property import wall_clock
from tests.property.histories import BOUNDED
from tests.property.wall_clock import DAY, HOUR, Change, Firing, Rule, firings, walk

MORE: Final = settings(max_examples=300, deadline=None)
SLICES: Final = 4
SLOTS_MAX: Final = 3000
# Half an hour; a whole day skipped; a second offset that is the winter's; two hours; three quarters
# past; once with seconds in it; at midnight.
ODD: Final = (
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kwajalein",
    "Africa/Casablanca",
    "Europe/Dublin",
    "Antarctica/Troll",
    "Pacific/Chatham",
    "Africa/Monrovia",
    "America/Sao_Paulo",
    "Asia/Beirut",
    "Asia/Gaza",
    "America/Caracas",
)


def slots(schedule: Schedule, after: int, until: int) -> list[Firing]:
    """What the core says will fire in (after, until], as the engine asks: slot by slot."""
    found: list[Firing] = []
    slot = next_slot(schedule, after)
    while slot is not None and slot.at <= until:
        assert len(found) < SLOTS_MAX
        assert slot.at > after
        found.append(Firing(slot.at, slot.key))
        after = slot.at
        slot = next_slot(schedule, after)
    return found


def cron(expr: str, tz: str = "UTC") -> Schedule:
    return Schedule(kind="cron", expr=expr, tz=tz)


def only(slot: Slot | None) -> Slot:
    assert slot is not None
    return slot


# --- around every change of every clock -------------------------------------------------------


def rules_around(change: Change) -> list[str]:
    """Times inside, at the edges of and after what is skipped or comes twice; rules of any kind."""
    low, high = sorted((change.at + change.before, change.at + change.after))
    first, last = (datetime.fromtimestamp(at, UTC) for at in (low, high))
    middle = first + (last - first) / 2
    hours = ",".join(str(hour) for hour in sorted({first.hour, middle.hour, last.hour}))
    return [
        f"{middle.minute} {middle.hour} * * *",
        f"{first.minute} {first.hour} * * *",
        f"{last.minute} {last.hour} * * *",
        f"{first.minute},{middle.minute},59 {hours} * * *",
        f"*/20 {hours} * * *",
        f"{middle.minute} {middle.hour} {middle.day} {middle.month} *",
        f"{middle.minute} {middle.hour} * * {middle.isoweekday()}",
        "*/20 * * * *",
        f"{middle.minute} * * * *",
        "45 * * * *",
        "0 */2 * * *",
        f"0 */2 {last.day} * *",
    ]


def windows() -> list[Change]:
    """Of each zone one change of each shape and the last two; of the odd ones far more."""
    found: dict[Change, None] = {}
    for changes in wall_clock.zones():
        found.update(dict.fromkeys({change.shape: change for change in changes}.values()))
        found.update(dict.fromkeys(changes[-2:]))
    for name in ODD:
        found.update(dict.fromkeys(wall_clock.changes_of(name)[-24:]))
    return list(found)


@pytest.mark.no_cover  # which takes as long again; the other tests here reach every branch
@pytest.mark.slow
@pytest.mark.parametrize("part", range(SLICES))
def test_around_every_change_of_a_clock_each_slot_fires_once_by_the_rule(part: int) -> None:
    changes = windows()
    assert len(changes) > 1000
    for change in changes[part::SLICES]:
        reach = abs(change.after - change.before) + 5 * HOUR
        start, end = change.at - reach, change.at + reach
        moments = walk(change.zone, start, end)
        for expr in rules_around(change):
            expected = [f for f in firings(Rule(expr), moments) if f.at > start * 1000]
            assert slots(cron(expr, change.zone), start * 1000, end * 1000) == expected, (
                change,
                expr,
            )


# --- any rule, any moment, any zone -----------------------------------------------------------

MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS = wall_clock.RANGES


def ranges(bounds: tuple[int, int], names: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    def spelled(number: int) -> st.SearchStrategy[str]:
        words = [str(number), f"{number:02}"]
        if names and number < len(names) + bounds[0] and number >= bounds[0]:
            name = names[number - bounds[0]]
            words += [name, name.upper(), name.capitalize()]
        return st.sampled_from(words)

    def spans(pair: tuple[int, int]) -> st.SearchStrategy[str]:
        low, high = sorted(pair)
        return st.tuples(spelled(low), spelled(high)).map("-".join)

    number = st.integers(*bounds)
    span = st.tuples(number, number).flatmap(spans)
    step = st.integers(1, bounds[1])
    one = number.flatmap(spelled)
    stepped = st.tuples(span | st.just("*"), step.map(str)).map("/".join)
    return one | span | stepped


def fields(bounds: tuple[int, int], names: tuple[str, ...] = ()) -> st.SearchStrategy[str]:
    several = st.lists(ranges(bounds, names), min_size=1, max_size=4).map(",".join)
    return st.just("*") | ranges(bounds, names) | several


month_names, weekday_names = tuple(wall_clock.MONTHS), tuple(wall_clock.WEEKDAYS)
usual = st.tuples(
    fields(MINUTES),
    fields(HOURS),
    st.just("*") | fields(DAYS),
    st.just("*") | fields(MONTHS, month_names),
    st.just("*") | fields(WEEKDAYS, weekday_names),
).map(" ".join)
daily = st.tuples(fields(MINUTES), fields(HOURS)).map(lambda pair: f"{pair[0]} {pair[1]} * * *")
expressions = usual | daily | st.sampled_from(sorted(wall_clock.NAMED))
all_changes = st.deferred(lambda: st.sampled_from(wall_clock.zones()).flatmap(st.sampled_from))


@pytest.mark.slow
@MORE
@given(expressions, all_changes, st.integers(-26 * HOUR, 26 * HOUR), st.integers(0, 59_999))
def test_the_next_slot_after_any_moment_is_the_one_that_a_walk_finds(
    expr: str, change: Change, seconds: int, milliseconds: int
) -> None:
    start, end = change.at - 28 * HOUR, change.at + 40 * HOUR
    after = (change.at + seconds) * 1000 + milliseconds
    moments = walk(change.zone, start, end)
    expected = next((f for f in firings(Rule(expr), moments) if f.at > after), None)
    slot = next_slot(cron(expr, change.zone), after)
    if expected is None:
        assert slot is None or slot.at > end * 1000
    else:
        assert slot is not None
        assert (slot.at, slot.key) == expected


@pytest.mark.slow
@BOUNDED
@given(expressions, all_changes, st.integers(-90, 90))
def test_moments_increase_and_keys_never_repeat(expr: str, change: Change, days: int) -> None:
    schedule, after = cron(expr, change.zone), (change.at + days * DAY) * 1000
    found: list[Slot] = []
    while len(found) < 60 and (slot := next_slot(schedule, after)) is not None:
        found.append(slot)
        after = slot.at
    assert all(one.at < two.at for one, two in pairwise(found))
    assert len({slot.key for slot in found}) == len(found)


@pytest.mark.slow
@MORE
@given(expressions, all_changes, st.integers(-3 * HOUR, 3 * HOUR), st.integers(1, 3 * HOUR))
def test_from_wherever_one_looks_the_slots_are_the_same(
    expr: str, change: Change, seconds: int, before: int
) -> None:
    """What a restart sees must be what the first life saw."""
    schedule, late = cron(expr, change.zone), (change.at + seconds) * 1000
    slot = next_slot(schedule, late)
    early = late - before * 1000
    while slot is not None and (earlier := only(next_slot(schedule, early))).at < slot.at:
        assert earlier.at <= late
        early = earlier.at
        slot = slot if late - early < DAY * 1000 else None
    assert slot is None or next_slot(schedule, early) == slot


# --- over the years ---------------------------------------------------------------------------

days_of_years = st.tuples(
    fields(DAYS), st.just("*") | fields(MONTHS, month_names), fields(WEEKDAYS, weekday_names)
)
dates = st.dates(date(1970, 1, 2), date(2037, 1, 1))


@pytest.mark.slow
@MORE
@given(days_of_years, dates, st.integers(0, 59), st.integers(0, 23))
def test_a_day_is_chosen_by_day_of_month_or_weekday(
    chosen: tuple[str, str, str], start: date, minute: int, hour: int
) -> None:
    expr = f"{minute} {hour} {' '.join(chosen)}"
    rule, midnight = Rule(expr), datetime(start.year, start.month, start.day, tzinfo=UTC)
    days = (start + timedelta(days=number) for number in range(9 * 366))
    day = next((day for day in days if rule.matches_day(day)), None)
    slot = next_slot(cron(expr), int(midnight.timestamp() * 1000) - 1)
    if day is None:
        assert slot is None or slot.at > (midnight.timestamp() + 9 * 365 * DAY) * 1000
    else:
        expected = datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)
        assert only(slot).at == expected.timestamp() * 1000
        assert only(slot).key == expected.isoformat(timespec="minutes")[:16]


def test_the_twenty_ninth_of_february_comes_also_over_a_century() -> None:
    slot = only(next_slot(cron("0 0 29 2 *"), _moment("2096-03-01T00:00")))
    assert slot.key == "2104-02-29T00:00"


@pytest.mark.parametrize("expr", ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 31 feb *"])
def test_a_day_that_no_month_has_never_comes(expr: str) -> None:
    assert next_slot(cron(expr), _moment("2026-01-01T00:00")) is None


@pytest.mark.parametrize(("name", "meaning"), sorted(wall_clock.NAMED.items()))
def test_a_name_means_its_five_fields(name: str, meaning: str) -> None:
    after = _moment("2026-03-14T15:09")
    assert next_slot(cron(name), after) == next_slot(cron(meaning), after)


# --- as in the contract -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "expr", "day", "keys"),
    [
        ("Europe/Berlin", "30 2 * * *", "2026-03-29", ["2026-03-29T03:00"]),
        ("Europe/Berlin", "15,45 2 * * *", "2026-03-29", ["2026-03-29T03:00"]),
        ("Europe/Berlin", "0,30 2,3 * * *", "2026-03-29", ["2026-03-29T03:00", "2026-03-29T03:30"]),
        ("Europe/Berlin", "30 2 * * *", "2026-10-25", ["2026-10-25T02:30"]),
        (
            "Europe/Berlin",
            "30 * * * *",
            "2026-10-25",
            [f"2026-10-25T{hour:02}:30" for hour in (0, 1, 2)]
            + ["2026-10-25T02:30+01:00"]
            + [f"2026-10-25T{hour:02}:30" for hour in range(3, 24)],
        ),
        ("America/New_York", "30 1 * * *", "2026-11-01", ["2026-11-01T01:30"]),
        ("America/New_York", "30 2 * * *", "2026-03-08", ["2026-03-08T03:00"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-04", ["2026-10-04T02:30"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-05", ["2026-04-05T01:45"]),
        ("America/Sao_Paulo", "0 0 * * *", "2018-11-04", ["2018-11-04T01:00"]),
        ("Pacific/Apia", "0 12 * * *", "2011-12-31", ["2011-12-31T00:00", "2011-12-31T12:00"]),
        ("Africa/Casablanca", "30 2 * * *", "2026-03-22", ["2026-03-22T03:00"]),
    ],
)
def test_a_day_on_which_the_clock_changes(zone: str, expr: str, day: str, keys: list[str]) -> None:
    midnight = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
    around = slots(cron(expr, zone), int(midnight - DAY) * 1000, int(midnight + 2 * DAY) * 1000)
    assert [slot.key for slot in around if slot.key.startswith(day)] == keys


def test_an_ambiguous_time_is_the_first_of_the_two_moments() -> None:
    slot = only(next_slot(cron("30 2 * * *", "Europe/Berlin"), _moment("2026-10-24T12:00")))
    assert slot.at == _moment("2026-10-25T00:30")
    again = only(next_slot(cron("30 2 * * *", "Europe/Berlin"), _moment("2026-10-25T00:45")))
    assert again.key == "2026-10-26T02:30"


# --- every and at -----------------------------------------------------------------------------

moments_ms = st.integers(0, 2_145_916_800_000)


@BOUNDED
@given(st.integers(1000, 366 * DAY * 1000), moments_ms, moments_ms)
def test_an_interval_is_anchored_and_does_not_drift(every: int, anchor: int, after: int) -> None:
    schedule = Schedule(kind="every", every_ms=every, anchor_at=anchor)
    slot = only(next_slot(schedule, after))
    assert slot.at > max(after, anchor)
    assert (slot.at - anchor) % every == 0
    assert slot.at - every <= max(after, anchor)
    following = only(next_slot(schedule, slot.at))
    assert following.at == slot.at + every
    assert following.key != slot.key


@BOUNDED
@given(moments_ms, moments_ms)
def test_a_moment_comes_once(at: int, after: int) -> None:
    slot = next_slot(Schedule(kind="at", at=at), after)
    assert (slot is not None) == (at > after)
    assert slot is None or slot.at == at


@BOUNDED
@given(moments_ms, st.integers(1000, DAY * 1000))
def test_the_key_of_an_interval_is_its_moment(anchor: int, every: int) -> None:
    slot = only(next_slot(Schedule(kind="every", every_ms=every, anchor_at=anchor), anchor))
    assert datetime.fromisoformat(slot.key) == datetime.fromtimestamp(slot.at / 1000, UTC)


def _moment(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)
