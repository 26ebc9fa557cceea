"""When a node counts as dead: checks in a row, and what restarts the count."""

from __future__ import annotations

from fairlane.core import presence
from fairlane.core.presence import LOOK_SECONDS, LOOKS, RETURN_SECONDS, STALLED_SECONDS, Watch


def looks(watch: Watch, *seen: tuple[str, ...], every: float = LOOK_SECONDS) -> list[list[str]]:
    """What each look finds gone."""
    found = []
    now = watch.looked_at
    for missing in seen:
        now += every
        watch, gone = presence.look(watch, missing, now)
        found.append(gone)
    return found


def test_a_node_is_gone_when_it_was_missing_several_times_in_a_row() -> None:
    watch = presence.watch(0.0, returned=False)
    assert looks(watch, ("n",), ("n",), ("n", "m")) == [[], [], ["n"]]


def test_a_node_that_is_back_in_time_is_not_gone() -> None:
    watch = presence.watch(0.0, returned=False)
    assert looks(watch, ("n",), ("n",), (), ("n",), ("n",)) == [[]] * 5


def test_a_node_that_stays_missing_is_reported_again() -> None:
    watch = presence.watch(0.0, returned=False)
    assert looks(watch, *[("n",)] * (2 * LOOKS)) == [[], [], ["n"]] * 2


def test_an_observer_that_was_stopped_starts_again() -> None:
    watch = presence.watch(0.0, returned=False)
    assert looks(watch, *[("n",)] * 5, every=STALLED_SECONDS + 0.1) == [[]] * 5


def test_an_observer_that_lost_its_own_connection_waits_for_the_others() -> None:
    watch = presence.watch(0.0, returned=True)
    early = round(RETURN_SECONDS / LOOK_SECONDS) - 1
    assert looks(watch, *[("n",)] * early) == [[]] * early
    found = looks(watch, *[("n",)] * (early + LOOKS + 1))
    assert found[-2:].count(["n"]) == 1
