"""Which values are secrets, how they are shown, and how they are taken out of others' texts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.errors import InvalidRequest
from fairlane.core.secrets import (
    MASK,
    RedactedStream,
    Redactor,
    References,
    check_secrets,
    is_sealed,
    is_secret,
    map_secrets,
    mask_secrets,
    moved_secret_problem,
    restore_secrets,
    texts,
)

SECRET = "sk-canary-0123456789"


@pytest.mark.parametrize(
    "name",
    [
        *("apiKey", "api_key", "X-Api-Key", "accessKeyId", "secretAccessKey", "sessionToken"),
        *("token", "password", "Authorization", "clientSecret", "credentials", "privateKey"),
        *("key", "apiKeys"),
    ],
)
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["model", "maxTokens", "keyboard", "tokenizer", "sortKey", "url"])
def test_other_names_hold_no_secret(name: str) -> None:
    assert not is_secret(name)


def test_secrets_are_masked_at_any_depth_and_references_are_shown() -> None:
    config = {
        "apiKey": SECRET,
        "headers": {"Authorization": SECRET, "Accept": "text"},
        "fallbacks": [{"token": SECRET}, "plain"],
        "sessionToken": None,
        "accessKeyId": "env:AWS",
        "credentials": {"any": "thing"},
    }
    assert mask_secrets(config) == {
        "apiKey": MASK,
        "headers": {"Authorization": MASK, "Accept": "text"},
        "fallbacks": [{"token": MASK}, "plain"],
        "sessionToken": None,
        "accessKeyId": "env:AWS",
        "credentials": MASK,
    }


def test_a_mask_stands_for_what_is_kept_at_the_same_place() -> None:
    kept = {"apiKey": "a", "deep": {"token": "b"}}
    given = {"apiKey": MASK, "deep": {"token": MASK, "more": 1}, "password": MASK}
    assert restore_secrets(given, kept) == {
        "apiKey": "a",
        "deep": {"token": "b", "more": 1},
        "password": MASK,
    }
    assert restore_secrets(given, None) == given
    assert restore_secrets("no object", kept) == "no object"


def test_what_is_masked_and_not_kept_is_complained_about() -> None:
    problems: list[str] = []
    config = {"apiKey": MASK, "list": [{"token": MASK}], "accessKeyId": 7, "password": 7}
    check_secrets("llmConfig", config, problems)
    assert problems == [
        "field 'llmConfig.accessKeyId' must be text",
        "field 'llmConfig.apiKey' is masked, but no secret is stored: send the secret itself",
        (
            "field 'llmConfig.list[0].token' is masked, but no secret is stored: "
            "send the secret itself"
        ),
    ]


def test_all_texts_of_secrets_are_found() -> None:
    config = {"apiKey": "a", "credentials": {"x": ["b", 1]}, "plain": "c", "list": [{"key": "d"}]}
    assert sorted(texts(config)) == ["a", "b", "d"]


def test_only_what_is_whole_is_sealed() -> None:
    assert is_sealed("sealed:1:0123456789abcdef:QUJD")
    assert not is_sealed("sealed:1:0123:QUJD")
    assert not is_sealed(7)


def test_secrets_can_be_changed_and_nothing_else_is() -> None:
    assert map_secrets({"apiKey": "a", "model": "m"}, str.upper) == {"apiKey": "A", "model": "m"}


# --- references ---------------------------------------------------------------------------------


REFERENCES = References(["env:KEY", "env:LOCAL@https://llm.example/v1/", "env:LOCAL@http://b"])


@pytest.mark.parametrize(
    "config",
    [
        {"apiKey": SECRET, "baseUrl": "https://anywhere.example"},
        {"apiKey": "env:KEY", "provider": "openai", "model": "a/b:free", "temperature": 0.5},
        {"apiKey": "env:KEY", "region": "eu-1", "resourceName": "r", "on": True, "none": None},
        {"apiKey": "env:LOCAL", "baseUrl": "https://llm.example/v1"},
        {"apiKey": "env:LOCAL", "baseUrl": "http://b/"},
        {"model": "env:KEY is no secret here"},
    ],
)
def test_what_the_operator_allows_may_be_referred_to(config: dict[str, Any]) -> None:
    complaints = []
    try:
        REFERENCES.check(config)
    except InvalidRequest as error:
        complaints.append(error.message)
    assert complaints == []


@pytest.mark.parametrize(
    "reference",
    ["env:FAIRLANE_TOKEN", "env:HOME", "file:/etc/passwd", "file:../key", "env:", "env:KEY "],
)
def test_nothing_else_may_be_referred_to(reference: str) -> None:
    with pytest.raises(InvalidRequest, match=r"field 'llmConfig\.deep\[0\]\.token' refers to"):
        REFERENCES.check({"deep": [{"token": reference}]})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("baseUrl", "https://evil.example"),
        ("baseUrl", ["https://llm.example/v1"]),
        ("resourceName", "evil.example/#"),
        ("region", "eu.evil.example"),
        ("provider", "https://evil.example"),
        ("model", "../../x?y"),
        ("endpoint", "evil.example"),
        ("options", {"proxy": "evil.example"}),
        ("list", ["evil.example"]),
    ],
)
def test_a_reference_goes_nowhere_that_the_caller_chooses(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"field 'llmConfig.{name}' is not allowed next to"):
        REFERENCES.check({"apiKey": "env:LOCAL", name: value})


def test_an_address_that_goes_with_one_secret_does_not_go_with_another() -> None:
    config = {"apiKey": "env:LOCAL", "token": "env:KEY", "baseUrl": "http://b"}
    with pytest.raises(InvalidRequest, match="baseUrl"):
        REFERENCES.check(config)


# --- kept secrets -------------------------------------------------------------------------------

KEPT = {
    "apiKey": SECRET,
    "baseUrl": "https://llm.example/v1",
    "model": "m",
    "options": {"headers": {"X-Api-Key": f"{SECRET}-2"}, "mode": "fast"},
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"model": "n", "provider": "openai", "temperature": 0.5, "on": True},
        {"model": None, "baseUrl": None, "region": "eu-1"},
        {"apiKey": f"{SECRET}-3", "token": "t-12345"},
        {"apiKey": "other-secret", "options": None, "baseUrl": "https://anywhere.example"},
    ],
)
def test_a_kept_secret_may_go_where_it_went_with_other_plain_words(change: dict[str, Any]) -> None:
    assert moved_secret_problem(KEPT, KEPT | change) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("baseUrl", "https://evil.example"),
        ("endpoint", "evil.example"),
        ("provider", "https://evil.example"),
        ("options", {"proxy": "evil.example"}),
        ("credentials", {"endpoint": "evil.example"}),
        ("list", ["evil.example"]),
    ],
)
def test_a_kept_secret_goes_nowhere_else(name: str, value: Any) -> None:
    told = moved_secret_problem(KEPT, KEPT | {name: value}, "overrides.llmConfig")
    assert told is not None
    assert told.startswith(f"field 'overrides.llmConfig.{name}' ")
    assert SECRET not in told


def test_a_kept_secret_goes_nowhere_else_under_another_name() -> None:
    moved_one = {"sessionToken": SECRET, "baseUrl": "https://evil.example"}
    assert moved_secret_problem(KEPT, moved_one) is not None


def test_what_is_not_a_secret_or_stands_elsewhere_is_not_kept() -> None:
    elsewhere = {"baseUrl": "https://b.example"}
    assert moved_secret_problem(None, elsewhere) is None
    assert moved_secret_problem({"model": "m"}, {"model": "m", **elsewhere}) is None
    assert moved_secret_problem({"apiKey": "none"}, {"apiKey": "none", **elsewhere}) is None
    assert moved_secret_problem({"apiKey": "env:KEY"}, {"apiKey": "env:KEY", **elsewhere}) is None


# --- texts of others ----------------------------------------------------------------------------


def test_a_secret_is_hidden_in_every_form_that_it_takes() -> None:
    secret = 'a"b/ü&1'
    redactor = Redactor([secret])
    for form in (secret, 'a\\"b/ü&1', 'a\\"b/\\u00fc&1', "a%22b%2F%C3%BC%261"):
        assert redactor.hide(f"it is {form}!") == "it is ***!"


def test_short_ones_are_left_and_the_longest_goes_first() -> None:
    assert Redactor(["none", ""]).hide("none of them") == "none of them"
    assert Redactor(["secret", "secret-longer"]).hide("secret-longer") == MASK


def test_a_document_is_searched_with_its_names() -> None:
    document = {f"the {SECRET}": [SECRET, 1, {"deep": f"-{SECRET}-"}]}
    assert Redactor([SECRET]).hide_in(document) == {"the ***": [MASK, 1, {"deep": "-***-"}]}
    assert Redactor([]).hide_in(document) is document


@given(
    st.lists(st.sampled_from(["sk-ca", "sk-canary", "nary", "abcab", "ab", "c", "xyz", " "])),
    st.lists(st.integers(0, 30), max_size=8),
)
def test_a_secret_is_found_wherever_a_stream_is_cut(words: list[str], cuts: list[int]) -> None:
    redactor = Redactor(["sk-canary", "abcabc"])
    whole, told = "".join(words), list[str]()
    stream = RedactedStream(redactor, told.append)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    for start, end in itertools.pairwise(edges):
        stream.feed(whole[start:end])
    stream.end()
    said = "".join(told)
    assert said == redactor.hide(whole)
    assert "" not in told


def test_what_begins_like_a_secret_waits_for_the_rest() -> None:
    told: list[str] = []
    stream = RedactedStream(Redactor([SECRET]), told.append)
    stream.feed(f"now {SECRET[:7]}")
    assert told == ["now "]
    stream.end()
    assert told == ["now ", SECRET[:7]]
