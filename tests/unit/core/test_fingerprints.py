"""Failures that are alike have one fingerprint."""

from __future__ import annotations

import pytest

from fairlane.core.fingerprints import (
    NO_ERROR,
    TASKS_MAX,
    TEMPLATE_CHARACTERS_MAX,
    Failure,
    fingerprint,
    groups,
    template,
)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("timed out after 1500 ms", "timed out after <number> ms"),
        ("HTTP 403: user 17 may not", "HTTP 403: user <number> may not"),
        ("executor returned 500: x", "executor returned 500: x"),
        ("no route to 10.0.0.7:8080", "no route to <address>"),
        ("cannot reach https://a.example/x?y=1 now", "cannot reach <url> now"),
        ("task tsk_019a97bc4f2e8a1b is lost", "task <id> is lost"),
        ("object at 0x7f3a", "object at <address>"),
        ("key 1b4e28ba-2fa1-11d2-883f-0016d3cca427", "key <id>"),
        ("bad digest deadbeef01", "bad digest <id>"),
        ("mail to ada@example.com", "mail to <address>"),
        ("KeyError: 'missing'", "KeyError: 'missing'"),
        ("a\n  b", "a b"),
        ("", NO_ERROR),
        (None, NO_ERROR),
    ],
)
def test_what_varies_has_a_mark(error: str | None, expected: str) -> None:
    assert template(error) == expected


def test_a_fingerprint_is_that_of_the_template() -> None:
    assert fingerprint("after 3 s") == fingerprint("after 44 s")
    assert fingerprint("HTTP 403") != fingerprint("HTTP 404")
    assert fingerprint("x").startswith("err_")
    assert len(template("word " * 1000)) == TEMPLATE_CHARACTERS_MAX


def test_failures_are_grouped_with_the_largest_group_first() -> None:
    def failure(seq: int, error: str | None, state: str = "failed") -> Failure:
        return Failure(seq, f"t{seq}", state, f"handler/h{seq % 2}", 1000 + seq, error)

    rare = failure(9, "other")
    many = [failure(seq, f"took {seq} s", "parked" if seq == 1 else "failed") for seq in range(8)]
    found = groups([rare, *many[::-1]])
    assert [(one.template, one.count) for one in found] == [("took <number> s", 8), ("other", 1)]
    first = found[0]
    assert (first.failed, first.parked, first.first_at, first.last_at) == (7, 1, 1000, 1007)
    assert first.example == "took 7 s"
    assert first.capabilities == {"handler/h1": 4, "handler/h0": 4}
    assert first.tasks == ["t7", "t6", "t5", "t4", "t3"][:TASKS_MAX]
    assert groups([]) == []
    assert groups([rare, rare])[0].count == 2


def test_a_range_of_times_ends_before_its_second_one() -> None:
    one = Failure(1, "t1", "failed", "handler/h", 1000, None)
    assert one.is_within(None, None)
    assert one.is_within(1000, 1001)
    assert not one.is_within(1001, None)
    assert not one.is_within(None, 1000)
