"""The one reading of a URL."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from fairlane.core.errors import InvalidRequest
from fairlane.outbound.targets import Target, parse_target
from tests.outbound.urls import INTERNAL, READ, UNREADABLE

# The parts that parsers have disagreed about, to be joined in any order.
_PIECES = (
    st.sampled_from(
        ["http://", "https://", "http:", "//", "..", "%2e", "xn--", "user", ":80", "80"]
    )
    | st.sampled_from(["[::1]", "127.0.0.1", "0x7f", "8.8.8.8", "example.com", "localhost"])
    | st.sampled_from("/\\@:?#.%[]a-_ \t\x00\u3002\uff0e\uff11\u00fc\u00df")
)
_URLISH = st.lists(_PIECES, max_size=10).map("".join).map(lambda rest: f"http://{rest}")


@pytest.mark.parametrize(("written", "sent"), READ.items())
def test_a_url_is_read_in_one_way(written: str, sent: str) -> None:
    assert parse_target(written).url == sent


@pytest.mark.parametrize(("written", "told"), UNREADABLE.items(), ids=map(ascii, UNREADABLE))
def test_a_url_with_two_readings_is_refused_and_the_reason_reported(
    written: str, told: str
) -> None:
    with pytest.raises(InvalidRequest, match=told) as refusal:
        parse_target(written)
    assert "\n" not in refusal.value.message
    assert "secret" not in refusal.value.message


@pytest.mark.parametrize("url", INTERNAL)
def test_where_a_url_leads_is_not_the_parsers_business(url: str) -> None:
    assert parse_target(url).host


def test_a_target_has_its_parts() -> None:
    target = parse_target("https://Example.com:8443/a?b#c")
    assert target == Target("https", "example.com", 8443, "/a?b", None)
    assert target.authority == "example.com:8443"
    assert parse_target("https://example.com").authority == "example.com:443"


def test_an_address_in_a_url_is_an_address() -> None:
    assert parse_target("http://127.0.0.1./").address == IPv4Address("127.0.0.1")
    assert parse_target("http://[::ffff:a00:1]/").address == IPv4Address("10.0.0.1")
    assert parse_target("http://[::1]:81/") == Target("http", "::1", 81, "/", IPv6Address("::1"))
    assert parse_target("http://[::1]:81/").authority == "[::1]:81"


@given(st.text() | _URLISH | st.text().map(lambda text: f"http://{text}"))
@example("http://[")
@example("http://\u0130.example/")
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        target = parse_target(text)
    except InvalidRequest:
        return
    assert target.url.isascii()
    assert parse_target(target.url) == target


@given(_URLISH)
@example("http://example.com/\u00fc?[")
@example("http://8.8.8.8.:80")
def test_other_parsers_read_what_we_send_as_we_do(text: str) -> None:
    try:
        target = parse_target(text)
    except InvalidRequest:
        return
    ours = (target.scheme, target.host, target.port)
    dialled, split = URL(target.url, encoded=True), urlsplit(target.url)
    assert (dialled.scheme, dialled.raw_host, dialled.port) == ours
    assert (split.scheme, split.hostname, split.port or dialled.port) == ours
    assert dialled.raw_path_qs == target.path


@given(_URLISH)
@example("http://127.1/")
@example("http://0x7f/")
def test_a_name_is_never_what_the_c_library_takes_for_an_address(text: str) -> None:
    try:
        target = parse_target(text)
    except InvalidRequest:
        return
    if target.address is not None:
        assert str(ip_address(target.host)) == target.host
        return
    with pytest.raises(OSError, match=r"."):
        socket.inet_aton(target.host)
