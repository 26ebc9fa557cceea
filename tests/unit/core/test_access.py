"""Scopes, tokens and buckets, without a store and without a clock."""

from __future__ import annotations

import pytest

from fairlane.core import access
from fairlane.core.access import ALL, TRUSTED, Caller, RateBucket, Scope, Token
from fairlane.core.errors import Forbidden, InvalidRequest

SECRET = bytes(range(32))
TEXT = access.format_token("abcdef012345", SECRET)


def token(**fields: object) -> Token:
    given = {"seq": 1, "id": "i", "name": "n", "digest": "d", "scopes": "read", "created_at": 0}
    return Token(**{**given, **fields})  # type: ignore[arg-type]  # as the test says


# -------------------------------------------------------------------- the token itself


def test_a_token_can_be_distinguished_from_other_text() -> None:
    prefix, token_id, secret, checksum = TEXT.split("_")
    assert (prefix, token_id) == ("fl", "abcdef012345")
    assert (len(secret), len(checksum)) == (43, 8)


def test_what_is_presented_is_what_was_made() -> None:
    found = access.parse_token(TEXT.encode())
    assert found is not None
    token_id, secret = found
    assert token_id == "abcdef012345"
    assert access.proves(secret, access.digest(secret))
    assert not access.proves(secret + b"x", access.digest(secret))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"fl",
        b"fl_abcdef012345",
        TEXT.encode() + b"\n",
        b" " + TEXT.encode(),
        TEXT.upper().encode(),
        TEXT.encode()[:-1] + (b"0" if TEXT[-1] != "0" else b"1"),
        TEXT.replace("abcdef", "abcdeg").encode(),
        TEXT.encode().replace(b"fl_", b"gh_"),
        "fl_ÄÖÜ".encode(),
        b"\xff" * 67,
        b"fl_" + b"a" * 100_000,
    ],
)
def test_what_is_not_a_token_is_not_even_looked_up(text: bytes) -> None:
    assert access.parse_token(text) is None


def test_different_secrets_are_spelled_differently() -> None:
    assert access.base62(b"\0" * 32, 43) == "0" * 43
    assert access.base62(b"\0\1", 2) == "01"
    assert len(access.base62(b"\xff" * 32, 43)) == 43
    assert access.base62(b"\xff" * 32, 43) != access.base62(b"\xff" * 31 + b"\xfe", 43)


# -------------------------------------------------------------------- what a token may do


def test_a_token_is_valid_until_it_is_revoked_or_expires() -> None:
    assert token().valid(10)
    assert not token(revoked_at=5).valid(10)
    assert token(expires_at=11).valid(10)
    assert not token(expires_at=10).valid(10)


def test_the_caller_of_a_token_is_who_it_was_made_for() -> None:
    caller = token(scopes="submit lease", agent="a1", max_open=3).caller()
    assert caller == Caller("n", "a1", frozenset({Scope.SUBMIT, Scope.LEASE}), "i", 3)
    assert token(parent="p").caller().token == "p"


def test_a_scope_that_is_missing_is_named() -> None:
    Caller("n", scopes=frozenset({Scope.READ})).require(Scope.READ)
    with pytest.raises(Forbidden, match="scope admin") as refused:
        Caller("n", scopes=frozenset({Scope.READ})).require(Scope.ADMIN)
    assert refused.value.details == {"scope": "admin"}


def test_a_caller_without_an_agent_owns_everything() -> None:
    assert TRUSTED.owns("a1")
    assert TRUSTED.owns(None)
    assert TRUSTED.scopes == ALL
    assert Caller("n", "a1").owns("a1")
    assert not Caller("n", "a1").owns("b1")
    assert not Caller("n", "a1").owns(None)


def test_a_request_is_about_the_agent_it_names_or_the_callers_own() -> None:
    assert TRUSTED.agent_for(None) is None
    assert TRUSTED.agent_for("b1") == "b1"
    mine = Caller("n", "a1")
    assert mine.agent_for(None) == "a1"
    assert mine.agent_for("") == "a1"
    assert mine.agent_for("a1") == "a1"
    with pytest.raises(Forbidden, match="'agentId' must be 'a1'"):
        mine.agent_for("b1")


# -------------------------------------------------------------------- making one


@pytest.mark.parametrize("name", ["a", "ci bot", "ada@example.com", "x" * 64])
def test_names_that_people_give(name: str) -> None:
    assert access.parse_name(name) == name


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "x" * 65, "Ünï", "<b>"])
def test_names_that_would_confuse_a_reader_of_the_log(name: str) -> None:
    with pytest.raises(InvalidRequest, match="'name'"):
        access.parse_name(name)


@pytest.mark.parametrize(
    ("words", "agent", "scopes"),
    [
        ([], None, "submit read cancel"),
        (["admin,read", "lease read"], None, "read lease admin"),
        (["all"], None, "submit read cancel lease approve operate admin"),
        (["all"], "a1", "submit read cancel lease approve operate"),
    ],
)
def test_scopes_are_words_in_their_order(words: list[str], agent: str | None, scopes: str) -> None:
    assert access.parse_scopes(words, agent) == scopes


def test_scopes_that_there_are_not() -> None:
    with pytest.raises(InvalidRequest, match="'write' is not a scope; use one of submit"):
        access.parse_scopes(["write"], None)
    with pytest.raises(InvalidRequest, match="admin covers all agents"):
        access.parse_scopes(["admin"], "a1")


def test_rates() -> None:
    assert access.parse_rate(None) is None
    assert access.parse_rate("50/s") == "50/s"
    assert access.parse_rate("100000/h") == "100000/h"
    for wrong in ("", "50", "0/s", "-1/s", "1.5/s", "50/d", "50/s ", "100001/s", "9999999/s"):
        with pytest.raises(InvalidRequest, match="'rate'"):
            access.parse_rate(wrong)


# -------------------------------------------------------------------- the bucket


def test_a_bucket_lets_through_what_fits_into_a_second() -> None:
    bucket = RateBucket("3/s", 0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [None, None, None, 333]
    assert bucket.take(0.34) is None
    assert bucket.take(0.34) == 327
    assert [bucket.take(60.0) for _ in range(4)] == [None, None, None, 333]


def test_a_slow_bucket_holds_one() -> None:
    bucket = RateBucket("60/h", 0.0)
    assert bucket.take(0.0) is None
    assert bucket.take(0.0) == 60_000
    assert bucket.take(59.0) == 1000
    assert bucket.take(60.0) is None


def test_a_clock_that_goes_back_gives_nothing_for_free() -> None:
    bucket = RateBucket("1/s", 100.0)
    assert bucket.take(100.0) is None
    assert bucket.take(0.0) == 1000
    assert bucket.take(0.9) == 100


def test_what_is_owed_is_paid_off_before_the_next_request() -> None:
    bucket = RateBucket("10/s", 0.0)
    assert bucket.take(0.0) is None
    bucket.owe(99)
    assert bucket.take(0.0) == 9100
    assert bucket.take(9.0) == 100
    assert bucket.take(9.2) is None
