"""Nothing reaches a forbidden address: forms of URLs x addresses x answers of a real name server.

The listeners at forbidden addresses count connections, and every attempt to connect is recorded:
there must be none from webhooks, from executors, and from a bare pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_network
from itertools import count, pairwise
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from fairlane.core.errors import FairlaneError
from fairlane.http1.messages import Origin, encode_request
from fairlane.outbound.guard import Guard
from fairlane.outbound.sending import Sender
from tests.fakes.waiting import WAIT_SECONDS
from tests.outbound.names import Records, Resolver
from tests.outbound.test_addresses import FAMOUS, PUBLIC, RANGES
from tests.outbound.urls import INTERNAL, READ, UNREADABLE, spellings_of_ipv4, spellings_of_ipv6
from tests.outbound.world import ALLOW, ALLOWED, FORBIDDEN, World, small_internet

REFUSED = (FairlaneError, OSError, ValueError)  # the last is what urlsplit raises
_numbers = count()


class Stage(NamedTuple):
    runner: asyncio.Runner
    world: World

    def guard(self) -> Guard:
        return Guard(
            ALLOW,
            deny=["127.77.0.9"],
            lookup=Resolver(self.world.names),
            on_blocked=lambda *_: None,
        )

    def unscathed(self) -> None:
        self.runner.run(self.world.unscathed())


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with asyncio.Runner() as runner:
        internet = small_internet()
        world = runner.run(internet.__aenter__())
        yield Stage(runner, world)
        runner.run(internet.__aexit__(None, None, None))


# --- the three ways out ---------------------------------------------------------------------------

Way = Callable[[Guard, list[str]], Coroutine[Any, Any, list[int | None]]]


async def as_webhooks(guard: Guard, urls: list[str]) -> list[int | None]:
    """The status of each answer, None for a refused request."""
    async with Sender(guard) as sender:
        return [await _outcome(_posted(sender, url)) for url in urls]


async def as_executors(guard: Guard, urls: list[str]) -> list[int | None]:
    async with Sender(guard) as sender:
        return [await _outcome(_asked(sender, url)) for url in urls]


async def as_bare_requests(guard: Guard, urls: list[str]) -> list[int | None]:
    """Without our reading of a URL, and following redirects: the pool's resolver has to hold."""
    async with Sender(guard) as sender:
        return [await _outcome(_got(sender, url)) for url in urls]


async def _posted(sender: Sender, url: str) -> int:
    answer = await sender.post(url, body=b"{}", headers={}, timeout_seconds=WAIT_SECONDS)
    return answer.status


async def _asked(sender: Sender, url: str) -> int:
    async with sender.stream(
        "GET", url, headers={}, body=None, max_bytes=1000, timeout_seconds=WAIT_SECONDS
    ) as answer:
        return answer.status


async def _got(sender: Sender, url: str) -> int:
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    origin = Origin(parts.hostname or "", parts.port or (443 if tls else 80), tls)
    request = encode_request(origin, "GET", "/", {}, None, repeatable=True)
    exchange = sender._pool.exchange(request, seconds=WAIT_SECONDS, bytes_max=1000)
    async with exchange as answer:
        await answer.read()
    if answer.status == 302:
        return await _got(sender, answer.headers["location"])
    return answer.status


async def _outcome(status: Awaitable[int]) -> int | None:
    try:
        return await status
    except REFUSED:
        return None


WAYS: list[Way] = [as_webhooks, as_executors, as_bare_requests]
ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


# --- listed forms ---------------------------------------------------------------------------------


def forms(port: int) -> list[str]:
    """Every listed way to write something that leads to a forbidden address, or nowhere."""
    hosts = ["localhost", "LOCALHOST", "a.localhost", "localhost.", "0.0.0.0", "0", "[::]"]
    for address in FORBIDDEN:
        if ":" in address:
            hosts += spellings_of_ipv6(IPv6Address(address))
        else:
            hosts += spellings_of_ipv4(IPv4Address(address))
    tails = ["/", "/a?b=c", "?x", "#x", "/..;/", "//127.77.0.1/", "/#@127.77.0.1"]
    listed = [f"http://{host}:{port}{tail}" for host in hosts for tail in tails[:2]]
    listed += [f"http://127.0.0.1:{port}{tail}" for tail in tails]
    listed += [f"HTTP://{host}:{port}" for host in hosts]
    listed += [f"https://{host}:{port}/" for host in hosts]
    # An allowed host in front, behind, or anywhere but where it counts.
    listed += [
        f"http://{decoy}127.0.0.1:{port}/"
        for decoy in ("127.77.0.1@", "127.77.0.1:80@", "127.77.0.1\\@", "127.77.0.1#@", "a:b@")
    ]
    for url in INTERNAL:
        scheme, _, rest = url.partition("://")
        host, _, path = rest.partition("/")
        listed.append(f"{scheme}://{host.removesuffix(':80').removesuffix(':8080')}:{port}/{path}")
    return [*listed, *INTERNAL, *UNREADABLE]


@ways
def test_no_listed_form_of_a_url_reaches_a_forbidden_address(stage: Stage, way: Way) -> None:
    listed = [url for url in forms(stage.world.port) if "#@" not in url or "127.77" not in url]
    assert len(set(listed)) > 500
    before = (stage.world.visits, list(stage.world.dials.dialled))
    outcomes = stage.runner.run(way(stage.guard(), listed))
    assert [url for url, status in zip(listed, outcomes, strict=True) if status is not None] == []
    assert (stage.world.visits, stage.world.dials.dialled) == before, "something was dialled"
    stage.unscathed()


@ways
def test_what_is_allowed_is_reached_in_the_same_world(stage: Stage, way: Way) -> None:
    """Or the test above would prove nothing."""
    port = stage.world.port
    urls = [f"http://{host}:{port}/" for host in (*ALLOWED, "[::ffff:127.77.0.1]", "127.77.0.2.")]
    outcomes = stage.runner.run(way(stage.guard(), urls))
    assert outcomes == [200] * 4
    stage.unscathed()


# --- listed answers of name servers ---------------------------------------------------------------

GOOD, BAD = ALLOWED[0], FORBIDDEN[0]
SCRIPTS: dict[str, tuple[list[Records], list[int | None]]] = {
    "allowed": ([Records([GOOD])], [200, 200]),
    "both allowed": ([Records([*ALLOWED])], [200]),
    "forbidden": ([Records([BAD])], [None]),
    "forbidden over IPv6": ([Records(["::1"])], [None]),
    "mapped": ([Records([f"::ffff:{BAD}"])], [None]),
    "mapped and allowed": ([Records([f"::ffff:{GOOD}"])], [200]),
    "mixed, the good one first": ([Records([GOOD, BAD])], [None]),
    "mixed, the bad one first": ([Records([BAD, GOOD])], [None]),
    "mixed with IPv6": ([Records([GOOD, "::1"])], [None]),
    "mixed with a public one": ([Records([GOOD, "8.8.8.8", "10.0.0.1"])], [None]),
    "none": ([Records([])], [None]),
    "denied": ([Records(["127.77.0.9"])], [None]),
    "rebinding": ([Records([GOOD]), Records([BAD])], [200, None, None]),
    "rebinding and back": (
        [Records([GOOD]), Records([BAD]), Records([GOOD])],
        [200, None, 200],
    ),
    "rebinding to a mixture": ([Records([GOOD]), Records([GOOD, BAD])], [200, None]),
    "rebinding with a long life": (
        [Records([GOOD], ttl=86_400), Records([BAD], ttl=86_400)],
        [200, None],
    ),
    "rebinding to another allowed one": ([Records([GOOD]), Records([ALLOWED[1]])], [200, 200]),
    "rebinding to nothing": ([Records([GOOD]), Records([])], [200, None]),
    **{
        f"{name}, beside a good one": ([Records([GOOD, address])], [None])
        for name, address in FAMOUS.items()
    },
}


@ways
@pytest.mark.parametrize("script", SCRIPTS)
def test_no_answer_of_a_name_server_leads_to_a_forbidden_address(
    stage: Stage, way: Way, script: str
) -> None:
    moments, expected = SCRIPTS[script]
    name = f"n{next(_numbers)}.test"
    stage.world.names.script[name] = moments
    urls = [f"http://{name}:{stage.world.port}/"] * len(expected)
    assert stage.runner.run(way(stage.guard(), urls)) == expected
    assert stage.world.names.lookups[name] == len(expected)
    stage.unscathed()


@ways
@pytest.mark.parametrize(("end", "expected"), [([GOOD], 200), ([BAD], None), ([GOOD, BAD], None)])
@pytest.mark.parametrize("hops", [1, 3, 9], ids=lambda hops: f"{hops} aliases")
def test_a_chain_of_aliases_is_judged_by_its_end(
    stage: Stage, way: Way, hops: int, end: list[str], expected: int | None
) -> None:
    number = next(_numbers)
    chain = [f"n{number}-{hop}.test" for hop in range(hops + 1)]
    for one, following in pairwise(chain):
        stage.world.names.script[one] = [Records(alias=following)]
    stage.world.names.script[chain[-1]] = [Records(end)]
    url = f"http://{chain[0]}:{stage.world.port}/"
    reached = stage.runner.run(way(stage.guard(), [url]))
    assert reached == [expected if hops < 8 else None]
    stage.unscathed()


@ways
def test_an_unknown_name_leads_nowhere(stage: Stage, way: Way) -> None:
    assert stage.runner.run(way(stage.guard(), ["http://unknown.test/"])) == [None]
    stage.unscathed()


@ways
def test_a_redirect_leads_nowhere(stage: Stage, way: Way) -> None:
    listener = stage.world.allowed[0]
    kept = listener.answer
    listener.answer = (
        f"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{stage.world.port}/\r\n"
        "Content-Length: 0\r\n\r\n"
    ).encode()
    try:
        outcomes = stage.runner.run(way(stage.guard(), [f"http://{GOOD}:{stage.world.port}/"]))
    finally:
        listener.answer = kept
    assert outcomes == [None if way is as_bare_requests else 302]
    stage.unscathed()


# --- forms x addresses x answers ------------------------------------------------------------------

_NETWORKS = [ip_network(text) for text, *_ in RANGES]


@st.composite
def forbidden_addresses(draw: st.DrawFn) -> str:
    """A listening one, a famous one, or any of the forbidden ranges."""
    near = st.sampled_from([*FORBIDDEN, "127.77.0.9"])
    network = draw(st.sampled_from(_NETWORKS))
    number = draw(st.integers(int(network[0]), int(network[-1])))
    far = str(IPv4Address(number) if network.version == 4 else IPv6Address(number))
    found = draw(near | st.sampled_from([*FAMOUS.values()]) | st.just(far))
    return BAD if found in ALLOWED or _is_allowed(found) else found


def _is_allowed(address: str) -> bool:
    return address.startswith("127.77.") and address != "127.77.0.9"


@st.composite
def moments(draw: st.DrawFn) -> tuple[Records, bool]:
    """What a name has at one moment, and whether it may be reached then.

    Public addresses only come with a forbidden one: nothing may leave this machine.
    """
    good = draw(st.lists(st.sampled_from(ALLOWED), max_size=3))
    bad = draw(st.lists(forbidden_addresses(), max_size=2))
    public = draw(st.lists(st.sampled_from(PUBLIC), max_size=2)) if bad else []
    mapped = [f"::ffff:{one}" if draw(st.booleans()) else one for one in good]
    addresses = draw(st.permutations([*mapped, *bad, *public]))
    ttl = draw(st.sampled_from([0, 0, 1, 86_400]))
    return Records(addresses, ttl=ttl), bool(good) and not bad


@st.composite
def hosts(draw: st.DrawFn, name: str) -> str:
    """A name as a caller could write it."""
    cased = "".join(one.upper() if draw(st.booleans()) else one for one in name)
    return cased + draw(st.sampled_from(["", "."]))


@settings(max_examples=60)
@given(st.data(), st.sampled_from(WAYS))
def test_whatever_name_servers_say_no_forbidden_address_is_reached(
    stage: Stage, data: st.DataObject, way: Way
) -> None:
    number = next(_numbers)
    hops = data.draw(st.integers(0, 3), "aliases")
    script = data.draw(st.lists(moments(), min_size=1, max_size=3), "moments")
    chain = [f"n{number}-{hop}.test" for hop in range(hops + 1)]
    for one, following in pairwise(chain):
        stage.world.names.script[one] = [Records(alias=following)]
    stage.world.names.script[chain[-1]] = [records for records, _ in script]
    tries = data.draw(st.integers(1, 4), "tries")
    host = data.draw(hosts(chain[0]), "host")
    urls = [f"http://{host}:{stage.world.port}/"] * tries
    outcomes = stage.runner.run(way(stage.guard(), urls))
    reachable = [script[min(one, len(script) - 1)][1] for one in range(tries)]
    event(f"reachable: {any(reachable)}, refused: {not all(reachable)}")
    assert outcomes == [200 if one else None for one in reachable]
    stage.unscathed()


@given(st.data(), st.sampled_from(WAYS))
def test_however_an_address_is_written_no_forbidden_one_is_reached(
    stage: Stage, data: st.DataObject, way: Way
) -> None:
    address = data.draw(forbidden_addresses(), "address")
    known = (
        spellings_of_ipv6(IPv6Address(address))
        if ":" in address
        else spellings_of_ipv4(IPv4Address(address))
    )
    host = data.draw(st.sampled_from(known), "host")
    scheme = data.draw(st.sampled_from(["http", "https", "HTTP"]), "scheme")
    port = data.draw(st.sampled_from(["", ":80", ":8080", f":{stage.world.port}"]), "port")
    tail = data.draw(st.sampled_from(["", "/", "/a/../b", "?q=1", "#f", "/%2e%2e/"]), "tail")
    assert stage.runner.run(way(stage.guard(), [f"{scheme}://{host}{port}{tail}"])) == [None]
    stage.unscathed()


_PIECES = st.sampled_from(
    [
        *("http://", "https://", "//", "@", ":", "/", "\\", "?", "#", ".", "%2e", "%00", "[", "]"),
        *("\t", "localhost", "[::1]", "0x7f.1", "2130706433", "127.1", "{port}", "\u3002", "0"),
        *FORBIDDEN,
    ]
)


@given(st.lists(_PIECES, max_size=12).map("".join), st.sampled_from(WAYS))
def test_no_heap_of_pieces_of_urls_reaches_a_forbidden_address(
    stage: Stage, heap: str, way: Way
) -> None:
    url = f"http://{heap}".replace("{port}", str(stage.world.port))
    assert stage.runner.run(way(stage.guard(), [url])) == [None]
    stage.unscathed()


@pytest.mark.parametrize("url", [url for url in READ if "example" in url])
def test_a_good_url_of_a_name_that_does_not_exist_leads_nowhere(stage: Stage, url: str) -> None:
    assert stage.runner.run(as_webhooks(stage.guard(), [url])) == [None]
    stage.unscathed()
