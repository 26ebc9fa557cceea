"""Webhooks: their log, the visible part of their URLs, and the order of sending."""

from __future__ import annotations

import msgspec
import pytest

from fairlane.core import webhooks
from fairlane.core.webhooks import Delivery, Endpoint, Try


@pytest.mark.parametrize(
    ("state", "attempts", "error", "being_sent"),
    [
        (webhooks.DUE, 0, None, False),
        (webhooks.DUE, 1, None, True),
        (webhooks.DUE, 1, "500", False),
        (webhooks.DELIVERED, 1, None, False),
    ],
)
def test_a_delivery_without_the_outcome_of_its_try_is_being_sent(
    state: str, attempts: int, error: str | None, *, being_sent: bool
) -> None:
    one = Delivery("msg_t_1", "a", "https://x.test/", "e", state, attempts, 0, 0, error=error)
    assert one.being_sent is being_sent


def test_a_log_of_tries_can_be_read_again() -> None:
    made = [Try(1, 1, status=500, error="500", took_ms=7), Try(2, 2, status=200)]
    assert webhooks.tries("".join(map(webhooks.line, made))) == made
    assert webhooks.tries("") == []


def test_a_damaged_line_of_a_log_is_left_out_alone() -> None:
    good = Try(5, 1, 503, "a\u2028b", 10)
    log = f'{{\n{webhooks.line(good)}nul\n\n{{"at":"x"}}\n'
    assert webhooks.tries(log) == [good]


def test_a_delivery_is_named_after_what_it_tells_of() -> None:
    assert webhooks.about("msg_tsk_01_a_17") == "tsk_01_a"


@pytest.mark.parametrize(
    ("url", "endpoint", "origin", "host"),
    [
        ("https://r.test/hook?key=1", "https://r.test/hook", "https://r.test", "r.test"),
        ("HTTPS://R.Test:443", "https://r.test/", "https://r.test", "r.test"),
        ("http://u:p@r.test:80/a/b#c", "http://r.test/a/b", "http://r.test", "r.test"),
        (" http://r.test:8080/x ", "http://r.test:8080/x", "http://r.test:8080", "r.test:8080"),
        ("nonsense", "http:///", "http://", ""),
    ],
)
def test_of_an_address_only_so_much_counts_and_less_is_shown(
    url: str, endpoint: str, origin: str, host: str
) -> None:
    assert webhooks.endpoint_url(url) == endpoint
    assert (webhooks.origin(url), webhooks.host_of(url)) == (origin, host)


def test_one_host_does_not_get_all_the_slots() -> None:
    hosts = [(host, "@ann") for host in ("slow", "slow", "quick", "slow", "other")]
    assert webhooks.choose(hosts, 5, {"slow": 1}, 16) == ([0, 2, 4], [1, 3])
    assert webhooks.choose(hosts, 5, {"slow": 0}, 16) == ([2, 4], [0, 1, 3])


def test_one_agent_does_not_get_all_the_slots_with_many_hosts() -> None:
    targets = [*((f"host{n}", "@ann") for n in range(9)), ("other", "@ben"), ("host0", "@ben")]
    assert webhooks.choose(targets, 9, {}, 2) == ([*range(6), 9, 10], [6, 7, 8])
    assert webhooks.choose(targets, 9, {"@ann": 1}, 2) == ([0, 9, 10], [*range(1, 9)])
    assert webhooks.choose(targets, 9, {"@ann": 1}, 1)[0] == [0, 9], "a full host is full for all"


def test_no_more_are_chosen_than_there_are_slots() -> None:
    assert webhooks.choose([(host, "@a") for host in "abc"], 2, {}, 16) == ([0, 1], [])
    assert webhooks.choose([(host, "@a") for host in "aaa"], 9, {}, 2) == ([0, 1], [2])


def test_a_webhook_counts_for_its_host_and_for_its_agent_which_is_no_host() -> None:
    host, sender = webhooks.target("https://Receiver.example/path", "crawler")
    assert (host, sender) == (webhooks.host_of("https://receiver.example/"), "@crawler")
    assert webhooks.choose([(host, sender)] * 3, 9, {sender: 2}, 9) == ([0, 1], [2])


def test_an_endpoint_gets_the_events_that_it_subscribes_to() -> None:
    plain = Endpoint(1, "whk_1", "ada", "https://a.example/", 0)
    assert not plain.wants("approval.opened", "ada")
    some = msgspec.structs.replace(plain, events="approval.opened approval.decided")
    assert some.wants("approval.opened", "ada")
    assert not some.wants("approval.expired", "ada")
    assert not some.wants("approval.opened", "bob")
    assert msgspec.structs.replace(some, agent="").wants("approval.opened", "bob")
    assert not msgspec.structs.replace(some, disabled_at=5).wants("approval.opened", "ada")
