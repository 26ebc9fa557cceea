"""Which addresses are public: our own table, checked by one function.

The rule: an address that is not known to be public is not public. For IPv6 only 2000::/3 is in use
at all, so everything outside it is refused whether or not it is listed. Caution:
`ipaddress.is_global` does not test this. It treats NAT64, 6to4 and IPv4-compatible forms of
loopback and of cloud metadata services as global, and changes between versions of Python.
"""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address

FORBIDDEN: Final = (
    ("0.0.0.0/8", "this network"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier NAT; a metadata service at 100.100.100.200"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "a cloud's control plane on a public-looking address"),
    ("169.254.0.0/16", "link-local; metadata services at 169.254.169.254 and 169.254.170.2"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "protocol assignments"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "6to4 relays"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved, with the broadcast address"),
    ("::/96", "unspecified, loopback and IPv4-compatible"),
    ("::ffff:0:0:0/96", "IPv4-translated"),
    ("64:ff9b::/96", "NAT64: an IPv4 address in disguise"),
    ("64:ff9b:1::/48", "local NAT64"),
    ("100::/64", "discard"),
    ("100:0:0:1::/64", "dummy prefix"),
    ("2001::/23", "protocol assignments: Teredo, ORCHID, benchmarking"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4: an IPv4 address in disguise"),
    ("3fff::/20", "documentation"),
    ("5f00::/16", "segment routing"),
    ("fc00::/7", "unique local; a metadata service at fd00:ec2::254"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
)

_NETWORKS: Final = tuple((ip_network(text), what) for text, what in FORBIDDEN)
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
# Documentation addresses: no machine has them, so a system that binds them binds every address.
_NOBODYS: Final = {4: "192.0.2.1", 6: "2001:db8::1"}


def is_public(address: str | Address) -> bool:
    """Return whether this is a public address; False for text that is not an address."""
    try:
        return not special(unwrapped(address))
    except ValueError:
        return False


@lru_cache(maxsize=4096)
def unwrapped(address: str | Address) -> Address:
    """Return the address itself: ::ffff:1.2.3.4 is 1.2.3.4, which is where its packets go."""
    plain = ip_address(address)
    if isinstance(plain, IPv6Address) and plain.ipv4_mapped is not None:
        return plain.ipv4_mapped
    return plain


@lru_cache(maxsize=4096)
def special(address: Address) -> str:
    """Return the kind of an address that is not public; empty for a public one."""
    # A zone names one of our own interfaces, whatever the address in front of it is.
    if isinstance(address, IPv6Address) and address.scope_id:
        return "an address with a zone"
    for network, what in _NETWORKS:
        if address in network:
            return what
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return "outside the allocated address ranges"
    return ""


def is_own(address: Address) -> bool:
    """Return whether an interface of this machine has the address: only then can a socket bind it.

    Nothing is sent. Return False on a system where any address can be bound, as on some load
    balancers, because the test proves nothing there.
    """
    return _is_lent(str(address), address.version) and not _is_lent(
        _NOBODYS[address.version], address.version
    )


def _is_lent(address: str, version: int) -> bool:
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
