"""The address table, checked against a list written down here a second time."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlane.outbound.addresses import FORBIDDEN, Address, is_public, unwrapped

# Each range with its first and last address, and whether the address before and the one behind it
# are public. None: there is no such address.
RANGES: list[tuple[str, str, str, bool | None, bool | None]] = [
    ("0.0.0.0/8", "0.0.0.0", "0.255.255.255", None, True),
    ("10.0.0.0/8", "10.0.0.0", "10.255.255.255", True, True),
    ("100.64.0.0/10", "100.64.0.0", "100.127.255.255", True, True),
    ("127.0.0.0/8", "127.0.0.0", "127.255.255.255", True, True),
    ("168.63.129.16/32", "168.63.129.16", "168.63.129.16", True, True),
    ("169.254.0.0/16", "169.254.0.0", "169.254.255.255", True, True),
    ("172.16.0.0/12", "172.16.0.0", "172.31.255.255", True, True),
    ("192.0.0.0/24", "192.0.0.0", "192.0.0.255", True, True),
    ("192.0.2.0/24", "192.0.2.0", "192.0.2.255", True, True),
    ("192.88.99.0/24", "192.88.99.0", "192.88.99.255", True, True),
    ("192.168.0.0/16", "192.168.0.0", "192.168.255.255", True, True),
    ("198.18.0.0/15", "198.18.0.0", "198.19.255.255", True, True),
    ("198.51.100.0/24", "198.51.100.0", "198.51.100.255", True, True),
    ("203.0.113.0/24", "203.0.113.0", "203.0.113.255", True, True),
    ("224.0.0.0/4", "224.0.0.0", "239.255.255.255", True, False),
    ("240.0.0.0/4", "240.0.0.0", "255.255.255.255", False, None),
    ("::/96", "::", "::ffff:ffff", None, False),
    ("::ffff:0:0:0/96", "::ffff:0:0:0", "::ffff:0:ffff:ffff", False, False),
    ("64:ff9b::/96", "64:ff9b::", "64:ff9b::ffff:ffff", False, False),
    ("64:ff9b:1::/48", "64:ff9b:1::", "64:ff9b:1:ffff:ffff:ffff:ffff:ffff", False, False),
    ("100::/64", "100::", "100::ffff:ffff:ffff:ffff", False, False),
    ("100:0:0:1::/64", "100:0:0:1::", "100:0:0:1:ffff:ffff:ffff:ffff", False, False),
    ("2001::/23", "2001::", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", True, True),
    ("2001:db8::/32", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", True, True),
    ("2002::/16", "2002::", "2002:ffff:ffff:ffff:ffff:ffff:ffff:ffff", True, True),
    ("3fff::/20", "3fff::", "3fff:fff:ffff:ffff:ffff:ffff:ffff:ffff", True, True),
    ("5f00::/16", "5f00::", "5f00:ffff:ffff:ffff:ffff:ffff:ffff:ffff", False, False),
    ("fc00::/7", "fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", False, False),
    ("fe80::/10", "fe80::", "febf:ffff:ffff:ffff:ffff:ffff:ffff:ffff", False, False),
    ("fec0::/10", "fec0::", "feff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", False, False),
    ("ff00::/8", "ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", False, None),
]

# Places that an attacker wants, by the name they are known under.
FAMOUS = {
    "metadata": "169.254.169.254",
    "container credentials": "169.254.170.2",
    "cloud DNS": "169.254.169.253",
    "metadata behind carrier NAT": "100.100.100.200",
    "metadata over IPv6": "fd00:ec2::254",
    "another metadata over IPv6": "fd20:ce::254",
    "control plane": "168.63.129.16",
    "loopback": "127.0.0.1",
    "loopback over IPv6": "::1",
    "mapped loopback": "::ffff:127.0.0.1",
    "compatible loopback": "::127.0.0.1",
    "translated loopback": "::ffff:0:127.0.0.1",
    "loopback by NAT64": "64:ff9b::7f00:1",
    "metadata by NAT64": "64:ff9b::a9fe:a9fe",
    "metadata by local NAT64": "64:ff9b:1::a9fe:a9fe",
    "loopback by 6to4": "2002:7f00:1::",
    "private by 6to4": "2002:a00:1::1",
    "Teredo": "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "broadcast": "255.255.255.255",
    "anywhere": "0.0.0.0",
    "anywhere over IPv6": "::",
    "all nodes": "ff02::1",
    "site-local DNS": "fec0:0:0:ffff::1",
    "unassigned IPv6": "4000::1",
    "the last of the unassigned": "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
}

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.215.14",
    "::ffff:8.8.8.8",
    "2000::",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "2a00:1450:4001:81b::200e",
    "3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
]


def _neighbour(text: str, step: int) -> Address:
    """The address `step` away, of the same family also where the number is small."""
    address = ip_address(text)
    kind = IPv4Address if isinstance(address, IPv4Address) else IPv6Address
    return kind(int(address) + step)


def test_the_table_and_this_list_name_the_same_ranges() -> None:
    assert [text for text, _ in FORBIDDEN] == [text for text, *_ in RANGES]


@pytest.mark.parametrize("row", RANGES, ids=lambda row: row[0])
def test_a_range_is_refused_from_its_first_address_to_its_last(
    row: tuple[str, str, str, bool | None, bool | None],
) -> None:
    network, first, last, before, behind = row
    assert (ip_network(network)[0], ip_network(network)[-1]) == (
        ip_address(first),
        ip_address(last),
    )
    assert not is_public(first)
    assert not is_public(last)
    assert not is_public(ip_network(network)[ip_network(network).num_addresses // 2])
    if before is not None:
        assert is_public(_neighbour(first, -1)) is before
    if behind is not None:
        assert is_public(_neighbour(last, 1)) is behind


@pytest.mark.parametrize("address", FAMOUS.values(), ids=FAMOUS)
def test_a_famous_internal_address_is_not_public(address: str) -> None:
    assert not is_public(address)
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_an_ordinary_address_is_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "text", ["", "localhost", "127.1", "0x7f000001", "2130706433", "010.0.0.1", "8.8.8.8 ", "1.1.1"]
)
def test_text_that_is_not_an_address_is_not_public(text: str) -> None:
    assert not is_public(text)


def test_an_address_with_a_zone_is_not_public() -> None:
    assert is_public("2606:4700:4700::1111")
    assert not is_public("2606:4700:4700::1111%eth0")


@given(st.ip_addresses(v=4))
@example(IPv4Address("127.0.0.1"))
@example(IPv4Address("8.8.8.8"))
def test_a_mapped_address_is_judged_like_the_one_inside(inner: IPv4Address) -> None:
    mapped = IPv6Address(f"::ffff:{inner}")
    assert unwrapped(mapped) == inner
    assert is_public(mapped) is is_public(inner)


@given(st.data())
def test_no_address_of_a_forbidden_range_is_public(data: st.DataObject) -> None:
    network = data.draw(st.sampled_from([ip_network(text) for text, *_ in RANGES]))
    number = data.draw(st.integers(int(network[0]), int(network[-1])))
    kind = IPv4Address if network.version == 4 else IPv6Address
    assert not is_public(kind(number))


@given(st.ip_addresses(v=6).filter(lambda address: int(address) >> 125 != 1))
def test_nothing_outside_the_global_ipv6_space_is_public(address: IPv6Address) -> None:
    if address.ipv4_mapped is None:
        assert not is_public(address)
