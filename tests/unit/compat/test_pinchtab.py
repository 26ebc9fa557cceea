"""PinchTab's configuration as a policy: the file with all its sections, and the section alone."""

from __future__ import annotations

from typing import Any

import pytest

from fairlane.compat.policies import merge, notes, patch, reduced, replace
from fairlane.core.errors import InvalidPolicy
from fairlane.core.policy import Policy, to_document

# The top-level sections that `pinchtab config init` and its reference have.
FILE: dict[str, Any] = {
    "$schema": "https://example.com/schema/config.json",
    "configVersion": "0.8.0",
    "server": {"port": "9867", "bind": "127.0.0.1", "token": "hush"},
    "browser": {"version": "144.0.7559.133"},
    "instanceDefaults": {"mode": "headless", "maxTabs": 20},
    "security": {"allowEvaluate": False},
    "profiles": {"baseDir": "/profiles"},
    "multiInstance": {"strategy": "always-on"},
    "timeouts": {"actionSec": 30},
    "autoSolver": {"enabled": False, "maxAttempts": 8},
    "scheduler": {"enabled": True, "maxQueueSize": 7, "maxInflight": 3},
    "observability": {"activity": {"enabled": True}},
    "sessions": {"dashboard": {"idleTimeoutSec": 60}},
}
IGNORED = [name for name in FILE if name != "scheduler"]
SECTION = {"strategy": "fair-fifo", "maxQueueSize": 7, "maxInflight": 3, "workerCount": 4}


def _problems(document: Any) -> list[str]:
    with pytest.raises(InvalidPolicy) as raised:
        merge(Policy(), document)
    return raised.value.problems


# --- the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lay", [merge, replace, patch])
def test_of_the_file_only_its_scheduler_counts(lay: Any) -> None:
    before = merge(Policy(), {"lanes": {"main": {"maxInflight": 77}}})
    assert lay(before, FILE) == lay(before, {"scheduler": FILE["scheduler"]})
    assert lay(before, FILE).lanes["main"].max_inflight == 77
    assert lay(before, FILE).lanes["browser"].max_queue_size == 7


def test_what_is_ignored_of_the_file_is_named_and_not_shown() -> None:
    (note,) = notes(FILE)
    assert note.partition(": ")[0] == ("ignored, because the document is a PinchTab configuration")
    names = note.partition(": ")[2].split(", ")
    assert names == ["'$schema'", *IGNORED[1:]]
    assert "hush" not in note


def test_only_the_file_with_other_sections_has_a_note() -> None:
    quiet: list[Any] = [
        {"scheduler": {"maxInflight": 3}},
        SECTION,
        {"lanes": {}},
        {"maxConcurrent": 2},
        {"server": {}},
        {},
        [],
        None,
    ]
    assert [document for document in quiet if notes(document)] == []


def test_a_note_says_what_may_be_misspelt_and_is_of_bounded_length() -> None:
    assert notes({"scheduler": {}, "lanse": {}})[0].endswith(": lanse (did you mean lanes?)")
    (note,) = notes({"scheduler": {}, **{f"{n}" * 1000: n for n in range(1, 30)}})
    assert note.endswith(", 9 more")
    assert len(note) < 700


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"server": {}}, "unknown key server"),
        ({"server": {}, "lane": {}}, "unknown key lane; did you mean lanes?"),
        ({"scheduler": {}, "lanes": {}, "lane": {}}, "unknown key lane; did you mean lanes?"),
        ({"scheduler": {}, "sessions": {"cap": 3, "mod": "queue"}}, "did you mean mode?"),
        ({"scheduler": {"maxInflght": 3}, "server": {}}, "scheduler.maxInflght; did you mean"),
        ({"scheduler": [], "server": {}}, "scheduler must be an object"),
    ],
)
def test_what_is_misspelt_in_a_document_of_ours_or_in_the_section_is_refused(
    document: Any, problem: str
) -> None:
    assert problem in " ".join(_problems(document))


def test_keys_of_ours_may_stand_beside_what_is_left_of_the_file() -> None:
    for document in (FILE, FILE["scheduler"] | {"resultTTL": "1m0s"}):
        left = reduced(document) | {"lanes": {"browser": {"maxInflight": 5}}}
        browser = merge(Policy(), left).lanes["browser"]
        assert (browser.max_inflight, browser.max_queue_size) == (5, 7)
    assert reduced({"lanes": {}}) == {"lanes": {}}


def test_the_file_may_stand_in_the_frame_that_a_policy_is_shown_in() -> None:
    framed = {"version": 3, "policy": FILE}
    assert merge(Policy(), framed) == merge(Policy(), FILE)
    assert notes(framed) == notes(FILE)


# --- the section by itself -----------------------------------------------------------------------


@pytest.mark.parametrize("lay", [merge, replace, patch])
def test_the_section_by_itself_is_the_section(lay: Any) -> None:
    before = merge(Policy(), {"maxInflight": 99, "retention": {"days": 5}})
    after = lay(before, SECTION)
    assert after == lay(before, {"scheduler": SECTION})
    assert (after.max_inflight, after.lanes["browser"].max_inflight) == (99, 3)


def test_keys_that_both_have_are_ours_without_one_that_is_only_pinchtabs() -> None:
    after = merge(Policy(), {"maxInflight": 3, "workerCount": 4, "enabled": False})
    assert (after.max_inflight, after.worker_count, after.enabled) == (3, 4, False)
    assert after.lanes["browser"] == Policy().lanes["browser"]


def test_a_misspelt_key_of_the_section_is_refused_with_the_nearest() -> None:
    assert _problems({**SECTION, "maxInflght": 3}) == [
        "unknown key maxInflght; did you mean maxInflight?"
    ]


def test_a_document_of_ours_has_no_place_for_keys_of_the_section() -> None:
    (problem,) = _problems({"maxQueueSize": 7, "lanes": {}})
    assert problem.startswith("unknown key maxQueueSize")
    (problem,) = _problems({"maxQueueSize": 7, "maxConcurrent": 2})
    assert problem.startswith("unknown key maxQueueSize")


# --- resultTTL -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("5m0s", 300),
        ("2h2m5s", 7325),
        ("1.5h", 5400),
        (".5m", 30),
        ("500ms", 1),
        ("1500000us", 2),
        ("1000000µs", 1),
        ("3000000000ns", 3),
        (300, 300),
    ],
)
def test_a_result_is_kept_for_the_span_that_pinchtab_shows(said: Any, seconds: int) -> None:
    for document in ({"scheduler": {"resultTTL": said}}, {"resultTTL": said}):
        assert merge(Policy(), document).retention.result_ttl_sec == seconds


@pytest.mark.parametrize("said", ["0s", "0", 0, None])
def test_a_span_of_nothing_keeps_what_was(said: Any) -> None:
    before = merge(Policy(), {"retention": {"resultTTLSec": 60}})
    assert merge(before, {"scheduler": {"resultTTL": said}}) == before


@pytest.mark.parametrize("said", ["", "5", "5 m", "-5m", "5M", "m", "1h" * 100, "٣s"])
def test_a_span_that_is_none_is_refused(said: str) -> None:
    assert _problems({"scheduler": {"resultTTL": said}}) == [
        "scheduler.resultTTL must be a number of seconds, or a duration such as 5m0s"
    ]
    assert _problems({"resultTTL": said}) == [
        "resultTTL must be a number of seconds, or a duration such as 5m0s"
    ]


def test_nanoseconds_are_not_taken_for_seconds() -> None:
    (problem,) = _problems({"scheduler": {"resultTTL": 300_000_000_000}})
    assert problem.startswith("retention.resultTTLSec must be")


def test_what_was_understood_is_a_policy_like_any_other() -> None:
    policy = merge(Policy(), FILE)
    assert merge(Policy(), to_document(policy)) == policy
