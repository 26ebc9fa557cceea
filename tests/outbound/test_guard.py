"""What the guard lets out, decided without and with DNS and seen from the other side."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.core.errors import FairlaneError, InvalidRequest, InvalidSettings, TargetRefused
from fairlane.outbound.addresses import Address, is_own, is_public
from fairlane.outbound.guard import Guard
from fairlane.outbound.sending import Sender
from fairlane.outbound.targets import parse_target
from tests.fakes.waiting import WAIT_SECONDS, eventually
from tests.outbound.receivers import http, listening
from tests.outbound.test_addresses import FAMOUS, RANGES
from tests.outbound.urls import (
    INTERNAL,
    READ,
    UNREADABLE,
    spellings_of_ipv4,
    spellings_of_ipv6,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

GENERIC = "target address is not allowed"
UNKNOWN = "target address is not allowed or its name does not resolve"


class Names:
    """Name servers: the answers to each question in turn, the last one for ever."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = [list(answer) for answer in answers]
        self.asked: list[str] = []

    async def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


async def fetch(guard: Guard, url: str) -> int:
    async with Sender(guard) as sender:
        return await got(sender, url)


async def got(sender: Sender, url: str) -> int:
    async with sender.stream(
        "GET", url, headers={}, body=None, max_bytes=1000, timeout_seconds=WAIT_SECONDS
    ) as answer:
        await answer.read()
        return answer.status


# --- without DNS ----------------------------------------------------------------------------------


@pytest.mark.parametrize("url", INTERNAL)
def test_a_url_that_leads_inside_is_refused_without_a_reason(url: str) -> None:
    with pytest.raises(TargetRefused) as refusal:
        Guard().check(url)
    assert refusal.value.message == GENERIC


@pytest.mark.parametrize("url", UNREADABLE, ids=ascii)
def test_a_url_that_cannot_be_read_is_refused_even_when_everything_is_allowed(url: str) -> None:
    with pytest.raises(InvalidRequest):
        Guard(["0.0.0.0/0", "[::/0]", "localhost", "example.com"]).check(url)


@pytest.mark.parametrize("url", [url for url in READ if ":81" not in url])
def test_an_ordinary_url_passes(url: str) -> None:
    assert Guard().check(url).url == READ[url]


@pytest.mark.parametrize("address", FAMOUS.values(), ids=FAMOUS)
def test_a_famous_internal_address_is_refused(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(TargetRefused, match=GENERIC):
        Guard().check(f"http://{host}/")


@given(st.data())
def test_no_spelling_of_a_forbidden_address_passes(data: st.DataObject) -> None:
    network = data.draw(st.sampled_from([ip_network(text) for text, *_ in RANGES]))
    number = data.draw(st.integers(int(network[0]), int(network[-1])))
    hosts = (
        spellings_of_ipv4(IPv4Address(number))
        if network.version == 4
        else spellings_of_ipv6(IPv6Address(number))
    )
    guard = Guard()
    for host in hosts:
        with pytest.raises(FairlaneError):
            guard.check(f"http://{host}/")


@given(st.ip_addresses().filter(is_public))
def test_every_public_address_passes(address: IPv4Address | IPv6Address) -> None:
    host = str(address) if address.version == 4 else f"[{address}]"
    assert Guard().check(f"http://{host}/").address is not None


def test_a_check_asks_no_name_server() -> None:
    names = Names(["8.8.8.8"])
    Guard(lookup=names).check("http://example.com/")
    assert names.asked == []


@pytest.mark.parametrize("port", [80, 443, 1024, 3000, 8080, 8443, 9867, 65535])
def test_a_port_where_http_lives_is_allowed(port: int) -> None:
    assert Guard().check(f"http://example.com:{port}/").port == port
    assert Guard().check(f"http://8.8.8.8:{port}/").port == port


_OTHER_PORTS = (
    *(1, 21, 22, 23, 25, 53, 81, 111, 135, 139, 445, 587, 993, 1023, 2049, 2375, 2376, 2377, 2378),
    *(2379, 2380, 3306, 5432, 5984, 6379, 6443, 9200, 10250, 11211, 27017),
)


@pytest.mark.parametrize("port", _OTHER_PORTS)
def test_a_port_of_something_else_is_refused_unless_listed(port: int) -> None:
    with pytest.raises(TargetRefused, match=f"port {port}"):
        Guard().check(f"http://example.com:{port}/")
    with pytest.raises(TargetRefused, match=GENERIC):
        Guard().check(f"http://8.8.8.8:{port}/")
    for host in ("example.com", "8.8.8.8"):
        assert Guard([f"{host}:{port}"]).check(f"http://{host}:{port}/").port == port


# --- the operator's list --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1/"),
        ("127.0.0.1", "http://127.0.0.1:6379/"),
        ("127.0.0.1", "http://[::ffff:127.0.0.1]:81/"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080/"),
        ("10.0.0.0/8", "http://10.1.2.3/"),
        ("10.0.0.0/8:9000", "https://10.1.2.3:9000/"),
        ("0.0.0.0/0", "http://169.254.169.254/"),
        ("[::1]", "http://[::1]:5000/"),
        ("[::1]:5000", "http://[::1]:5000/"),
        ("[fd00::/8]", "http://[fd12::1]/"),
        ("[fd00::/8]:81", "http://[fd12::1]:81/"),
        ("[64:ff9b::/96]", "http://[64:ff9b::7f00:1]/"),
        ("localhost", "http://localhost:81/"),
        ("LOCALHOST.", "http://localhost/"),
        ("localhost:81", "http://LocalHost.:81/"),
        ("app.localhost", "http://app.localhost/"),
        ("127.0.0.1", "http://localhost/"),
        ("[::1]:81", "http://localhost:81/"),
        ("redis.internal:6379", "http://redis.internal:6379/"),
        ("10.0.0.0/8:6379", "http://redis.internal:6379/"),
        ("b\u00fccher.example:81", "http://xn--bcher-kva.example:81/"),
    ],
)
def test_what_is_listed_passes(entry: str, url: str) -> None:
    with pytest.raises(TargetRefused):
        Guard().check(url)
    assert Guard([entry]).check(url) == parse_target(url)


@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8081/"),
        ("127.0.0.1:8080", "http://127.0.0.1/"),
        ("127.0.0.1", "http://127.0.0.2/"),
        ("127.0.0.1", "http://[::1]/"),
        ("10.0.0.0/8", "http://11.0.0.0:81/"),
        ("10.0.0.0/9", "http://10.128.0.0/"),
        ("10.0.0.0/8:80", "http://10.0.0.1:81/"),
        ("10.0.0.0/8", "http://[64:ff9b::a00:1]/"),
        ("10.0.0.0/8", "http://localhost/"),
        ("localhost", "http://127.0.0.1/"),
        ("localhost", "http://a.localhost/"),
        ("localhost:80", "http://localhost:81/"),
        ("example.com", "http://localhost/"),
        ("example.com:22", "http://www.example.com:22/"),
        ("[fd00::/8]", "http://[fc00::1]/"),
        ("0.0.0.0/0", "http://[::1]/"),
    ],
)
def test_what_is_not_listed_stays_refused(entry: str, url: str) -> None:
    with pytest.raises(TargetRefused):
        Guard([entry]).check(url)


_MEANINGLESS = (
    *("", " ", "http://localhost", "localhost/", "localhost:", "localhost:0", "localhost:65536"),
    *(
        "localhost:http",
        "user@localhost",
        "local_host",
        "*",
        "*.example.com",
        "exa mple.com",
        "a,b",
    ),
    *("::1", "fd00::/8", "fd00::1:8080", "[::1", "[::1]:", "[::1]:x", "[fd00::]/8", "[fd00::1/8]"),
    *("[::ffff:10.0.0.1]", "[::ffff:0:0/96]", "[fe80::1%eth0]", "[10.0.0.1]", "\uff11.1.1.1"),
    *("10.0.0.1/8", "10.0.0.0/33", "10.0.0.0/", "10.0.0", "010.0.0.1", "127.1", "0x7f000001"),
)


@pytest.mark.parametrize("entry", _MEANINGLESS, ids=ascii)
def test_an_entry_that_means_nothing_is_an_error_that_names_it(entry: str) -> None:
    with pytest.raises(InvalidSettings) as error:
        Guard([entry])
    assert repr(entry) in error.value.message
    assert "\n" not in error.value.message


def test_all_wrong_entries_are_reported_at_once() -> None:
    with pytest.raises(InvalidSettings) as error:
        Guard(["localhost", "10.0.0.1/8", "::1"])
    assert len(error.value.problems) == 2


# --- with DNS -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", FAMOUS.values(), ids=FAMOUS)
@pytest.mark.parametrize("order", [1, -1], ids=["public first", "public last"])
async def test_one_forbidden_answer_spoils_them_all(bad: str, order: int) -> None:
    answers = ["8.8.8.8", "2606:4700:4700::1111", bad][::order]
    with pytest.raises(TargetRefused) as refusal:
        await Guard(lookup=Names(answers)).resolve("example.com", 443)
    assert refusal.value.message == UNKNOWN


async def test_public_answers_are_dialled_as_they_came_and_once_each() -> None:
    answers = ["8.8.8.8", "2606:4700:4700::1111", "8.8.8.8", "::ffff:8.8.8.8", "1.1.1.1"]
    dialled = await Guard(lookup=Names(answers)).resolve("example.com", 443)
    assert dialled == ["8.8.8.8", "2606:4700:4700::1111", "1.1.1.1"]


@pytest.mark.parametrize("answer", ["", "localhost", "127.1", "fe80::1%eth0", "8.8.8.8%1", "\x00"])
async def test_an_answer_that_is_not_a_plain_address_is_refused(answer: str) -> None:
    with pytest.raises(TargetRefused, match=GENERIC):
        await Guard(lookup=Names([answer])).resolve("example.com", 80)


async def test_a_name_that_changes_its_answer_is_judged_again_each_time() -> None:
    guard = Guard(lookup=Names(["8.8.8.8"], ["10.0.0.1"], ["8.8.8.8"]))
    assert await guard.resolve("example.com", 80) == ["8.8.8.8"]
    with pytest.raises(TargetRefused, match=GENERIC):
        await guard.resolve("example.com", 80)
    assert await guard.resolve("example.com", 80) == ["8.8.8.8"]


async def test_private_answers_pass_only_when_each_is_listed() -> None:
    answers = ["10.0.0.1", "8.8.8.8", "fd00::1"]
    assert await Guard(["10.0.0.0/8", "[fd00::1]"], lookup=Names(answers)).resolve("a.b", 80)
    assert await Guard(["a.b"], lookup=Names(answers)).resolve("A.B.", 80) == answers
    for partly in (
        ["10.0.0.0/8"],
        ["[fd00::1]"],
        ["10.0.0.0/8", "[fd00::1]:81"],
        ["b"],
        ["a.b:81"],
    ):
        with pytest.raises(TargetRefused, match=GENERIC):
            await Guard(partly, lookup=Names(answers)).resolve("a.b", 80)


async def test_a_port_of_something_else_is_refused_on_public_answers_only() -> None:
    inside = Guard(["10.0.0.0/8"], lookup=Names(["10.0.0.1"]))
    assert await inside.resolve("redis.internal", 6379) == ["10.0.0.1"]
    with pytest.raises(TargetRefused, match=GENERIC):
        await Guard(["10.0.0.0/8"], lookup=Names(["8.8.8.8"])).resolve("redis.internal", 6379)


async def test_a_name_without_answers_is_an_os_error() -> None:
    with pytest.raises(OSError, match="no address"):
        await Guard(lookup=Names([])).resolve("example.com", 80)


async def test_a_lookup_that_hangs_is_given_up() -> None:
    async def never(_: str) -> list[str]:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(OSError, match="too long"):
        await Guard(lookup=never, lookup_seconds=0.01).resolve("example.com", 80)


async def test_the_system_is_asked_by_default() -> None:
    assert "127.0.0.1" in await Guard(["localhost"]).resolve("localhost", 80)
    with pytest.raises(TargetRefused, match=GENERIC):
        await Guard().resolve("localhost", 80)


# --- on the wire ----------------------------------------------------------------------------------

# Hosts that lead to a listener on loopback if anything follows them.
_LOOPBACK_HOSTS = [
    *spellings_of_ipv4(IPv4Address("127.0.0.1")),
    "localhost",
    "a.localhost",
    "0.0.0.0",
]


@pytest.mark.parametrize("host", _LOOPBACK_HOSTS, ids=ascii)
async def test_no_spelling_of_loopback_opens_a_connection(host: str) -> None:
    """On a bare session, without any check before it: the connector alone has to hold."""
    async with listening() as listener:
        with pytest.raises(FairlaneError):
            await fetch(Guard(lookup=Names(["127.0.0.1"])), f"http://{host}:{listener.port}/")
    assert listener.connections == 0


async def test_no_spelling_of_ipv6_loopback_opens_a_connection() -> None:
    async with listening(host="::1") as listener:
        for host in spellings_of_ipv6(IPv6Address("::1")):
            with pytest.raises(FairlaneError):
                await fetch(Guard(lookup=Names(["::1"])), f"http://{host}:{listener.port}/")
        assert await listener.counted() == 0
        assert await fetch(Guard(["[::1]"]), f"http://[::1]:{listener.port}/") == 200


@pytest.mark.parametrize("entry", ["127.0.0.1", "127.0.0.1:{}", "127.0.0.0/8", "127.0.0.0/8:{}"])
async def test_a_listed_address_is_reached(entry: str) -> None:
    async with listening() as listener:
        guard = Guard([entry.format(listener.port)])
        assert await fetch(guard, listener.url) == 200
        assert await fetch(guard, f"http://[::ffff:127.0.0.1]:{listener.port}/") == 200
    assert listener.connections == 2


@pytest.mark.parametrize("entry", ["127.0.0.1:1", "127.0.0.2", "10.0.0.0/8", "localhost", "[::1]"])
async def test_an_address_that_is_not_listed_is_not_reached(entry: str) -> None:
    async with listening() as listener:
        with pytest.raises(TargetRefused, match=GENERIC):
            await fetch(Guard([entry]), listener.url)
    assert listener.connections == 0


async def test_a_name_that_leads_inside_opens_no_connection() -> None:
    async with listening() as listener:
        for answers in (["127.0.0.1"], ["8.8.8.8", "127.0.0.1"], ["::ffff:127.0.0.1"]):
            with pytest.raises(TargetRefused, match=GENERIC):
                await fetch(Guard(lookup=Names(answers)), f"http://a.test:{listener.port}/")
    assert listener.connections == 0


async def test_a_name_is_asked_once_and_the_checked_answer_dialled() -> None:
    """A second lookup between check and use is where rebinding would get in."""
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    async with listening(host="127.0.0.1") as listener:
        guard = Guard(["127.0.0.1"], lookup=names)
        assert await fetch(guard, f"http://a.test:{listener.port}/") == 200
        assert names.asked == ["a.test"]
        with pytest.raises(TargetRefused, match=GENERIC):
            await fetch(guard, f"http://a.test:{listener.port}/")
    assert listener.connections == 1
    assert f"Host: a.test:{listener.port}".encode() in listener.requests[0]


async def test_a_kept_connection_is_left_when_its_address_is_no_answer_any_more() -> None:
    names = Names(["127.0.0.1"], ["127.0.0.1"], ["127.0.0.2"], ["10.0.0.1"])
    async with (
        listening() as first,
        listening(host="127.0.0.2", port=first.port) as second,
        Sender(Guard(["127.0.0.0/8"], lookup=names)) as sender,
    ):
        for _ in range(3):
            await got(sender, f"http://a.test:{first.port}/")
        with pytest.raises(TargetRefused, match=GENERIC):
            await got(sender, f"http://a.test:{first.port}/")
    assert len(names.asked) == 4
    assert (first.connections, len(first.requests)) == (1, 2)
    assert (second.connections, len(second.requests)) == (1, 1)


async def test_every_new_connection_asks_again() -> None:
    names = Names(["127.0.0.1"], ["127.0.0.2"])
    async with listening(http("200 OK", "Connection: close")) as listener:
        listener.hang_up = True
        async with Sender(Guard(["127.0.0.1"], lookup=names)) as sender:
            await got(sender, f"http://a.test:{listener.port}/")
            with pytest.raises(TargetRefused, match=GENERIC):
                await got(sender, f"http://a.test:{listener.port}/")
    assert listener.connections == 1


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with listening() as listener:
        guard = Guard(["a.test"], lookup=Names(["127.0.0.9", "127.0.0.1"]))
        assert await fetch(guard, f"http://a.test:{listener.port}/") == 200


async def test_the_peer_is_checked_before_anything_is_sent() -> None:
    class Distrustful(Guard):
        def check_peer(self, host: str, port: int, *, peer: str, own: str) -> None:
            assert (host, port) == ("127.0.0.1", listener.port)
            assert (peer, own) == ("127.0.0.1", "127.0.0.1")
            raise TargetRefused(GENERIC)

    async with listening() as listener:
        with pytest.raises(TargetRefused, match=GENERIC):
            await fetch(Distrustful(["127.0.0.1"]), listener.url)
        assert await listener.counted() == 1
        await eventually(lambda: listener.ended == 1)
    assert listener.requests == []


@pytest.mark.parametrize(
    ("host", "peer", "own", "passes"),
    [
        ("a.test", "8.8.8.8", "9.9.9.9", True),
        ("a.test", "10.0.0.1", "10.0.0.1", True),
        ("own.test", "8.8.8.8", "8.8.8.8", True),
        ("a.test", "8.8.8.8", "8.8.8.8", False),
        ("a.test", "::ffff:8.8.8.8", "8.8.8.8", False),
        ("a.test", "10.0.0.2", "10.0.0.9", False),
        ("a.test", "127.0.0.1", "127.0.0.1", False),
        ("a.test", "fe80::1%eth0", "fe80::2", False),
    ],
)
def test_a_peer_is_judged_like_an_answer_and_is_not_ourselves(
    host: str, peer: str, own: str, *, passes: bool
) -> None:
    guard = Guard(["10.0.0.1", "own.test"])
    if passes:
        guard.check_peer(host, 80, peer=peer, own=own)
    else:
        with pytest.raises(TargetRefused, match=GENERIC):
            guard.check_peer(host, 80, peer=peer, own=own)


# --- ourselves ------------------------------------------------------------------------------------


def test_the_machine_knows_its_own_addresses() -> None:
    for mine in ("127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::"):
        assert is_own(ip_address(mine))
    for other in ("192.0.2.1", "198.51.100.7", "8.8.8.8", "2001:db8::1", "2606:4700:4700::1111"):
        assert not is_own(ip_address(other))


async def test_a_public_address_of_this_machine_is_refused_unless_listed() -> None:
    def mine(address: Address) -> bool:
        return str(address) in ("8.8.8.8", "2606:4700:4700::1111")

    guard = Guard(is_own=mine, lookup=Names(["1.1.1.1", "8.8.8.8"]))
    for url in ("http://8.8.8.8/", "http://[::ffff:8.8.8.8]/", "http://[2606:4700:4700::1111]/"):
        with pytest.raises(TargetRefused, match=GENERIC):
            guard.check(url)
    with pytest.raises(TargetRefused, match=GENERIC):
        await guard.resolve("a.test", 80)
    assert guard.check("http://1.1.1.1/").host == "1.1.1.1"
    assert Guard(["8.8.8.8"], is_own=mine).check("http://8.8.8.8/").host == "8.8.8.8"


@pytest.mark.parametrize(
    "entry", ["127.0.0.1", "127.0.0.1:{}", "localhost", "localhost:{}", "0.0.0.0/0", "a.test"]
)
async def test_our_own_listener_is_never_asked_whatever_is_listed(entry: str) -> None:
    async with listening() as listener, listening() as other:
        guard = Guard([entry.format(listener.port)], lookup=Names(["127.0.0.1"]))
        guard.own_ports.add(listener.port)
        for host in ("127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]", "a.test"):
            with pytest.raises(TargetRefused):
                await fetch(guard, f"http://{host}:{listener.port}/")
        if ":" not in entry and entry != "localhost":
            host = "a.test" if entry == "a.test" else "127.0.0.1"
            assert await fetch(guard, f"http://{host}:{other.port}/") == 200
    assert listener.connections == 0


async def test_what_is_denied_stays_denied() -> None:
    names = Names(["2a00:64::7f00:1"])
    deny = ["[2a00:64::/96]", "9.9.9.0/24:8080", "bad.test", "10.0.0.1"]
    guard = Guard(["10.0.0.0/8", "bad.test"], deny=deny, lookup=names)
    for url in (
        "http://[2a00:64::1]/",
        "http://9.9.9.9:8080/",
        "http://bad.test/",
        "http://10.0.0.1/",
    ):
        with pytest.raises(TargetRefused, match=GENERIC):
            guard.check(url)
    with pytest.raises(TargetRefused, match=GENERIC):
        await guard.resolve("a.test", 80)
    for url in ("http://9.9.9.9/", "http://10.0.0.2/", "http://good.test/"):
        assert guard.check(url).url == url
    with pytest.raises(InvalidSettings, match="deny-outbound 'x y'"):
        Guard(deny=["x y"])


# --- messages to the operator --------------------------------------------------------------------


async def test_a_refusal_is_reported_once_with_its_reason_and_without_secrets_of_the_url() -> None:
    told: list[tuple[str, str]] = []
    guard = Guard(
        ["127.0.0.1:80"],
        deny=["bad.test"],
        lookup=Names(["8.8.8.8", "10.0.0.1"]),
        on_blocked=lambda host, reason: told.append((host, reason)),
    )
    urls = ["http://169.254.169.254/a?key=geheim", "http://bad.test/geheim", "http://a.test:22/x"]
    for url in urls:
        with pytest.raises(TargetRefused):
            guard.check(url)
    with pytest.raises(TargetRefused):
        await fetch(guard, "http://a.test/geheim?key=geheim#geheim")
    assert told == [
        ("169.254.169.254", "link-local; metadata services at 169.254.169.254 and 169.254.170.2"),
        ("bad.test", "denied by the operator"),
        ("a.test", "port 22"),
        ("a.test", "10.0.0.1 is private"),
    ]


async def test_an_allowed_target_is_not_reported() -> None:
    told: list[tuple[str, str]] = []
    guard = Guard(["127.0.0.1"], on_blocked=lambda host, reason: told.append((host, reason)))
    async with listening() as listener:
        assert await fetch(guard, listener.url) == 200
    assert told == []


# --- redirects and proxies ------------------------------------------------------------------------


async def test_a_redirect_leads_nowhere() -> None:
    async with listening() as inside:
        answer = http("302 Found", f"Location: http://127.0.0.1:{inside.port}/")
        async with listening(answer) as outside:
            guard = Guard([f"127.0.0.1:{outside.port}"])
            assert await fetch(guard, outside.url) == 302
    assert (outside.connections, inside.connections) == (1, 0)


async def test_the_environments_proxy_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as proxy, listening() as listener:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        assert await fetch(Guard(["127.0.0.1"]), listener.url) == 200
    assert (proxy.connections, listener.connections) == (0, 1)


@pytest.mark.parametrize("scheme", ["ws", "wss", "ftp", "file", "unix", "http+unix"])
async def test_other_schemes_are_refused(scheme: str) -> None:
    async with listening() as listener:
        with pytest.raises(InvalidRequest, match="http or https"):
            await fetch(Guard(["127.0.0.1"]), f"{scheme}://127.0.0.1:{listener.port}/")
    assert listener.connections == 0


async def test_a_sender_keeps_no_cookies() -> None:
    answer = http("200 OK", "Set-Cookie: a=b; Path=/", body=b"ok")
    guard = Guard(["a.test"], lookup=Names(["127.0.0.1"]))
    async with listening(answer) as listener, Sender(guard) as sender:
        for _ in range(2):
            await got(sender, f"http://a.test:{listener.port}/")
    assert len(listener.requests) == 2
    assert not any(b"cookie" in request.lower() for request in listener.requests)
