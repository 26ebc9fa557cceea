"""The operator's lists: hosts, addresses and networks, each with an optional port.

The rule: an entry has exactly one meaning; otherwise an error names it. All errors are reported at
once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Final

import msgspec

from fairlane.core.errors import InvalidRequest, InvalidSettings
from fairlane.outbound.addresses import Address
from fairlane.outbound.targets import parse_host

_ENTRY: Final = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+(?:/[0-9]+)?)\]|(?P<ipv4>[0-9.]+(?:/[0-9]+)?)|(?P<host>[^:/\[\]]+))"
    r"(?::(?P<port>[1-9][0-9]{0,4}))?"
)


class Rule(msgspec.Struct, frozen=True):
    host: str | None
    network: IPv4Network | IPv6Network | None
    port: int | None

    def fits(self, port: int) -> bool:
        return self.port is None or self.port == port


class Rules:
    """Entries `HOST`, `IP` or `CIDR`, each with an optional `:PORT`; IPv6 is in brackets."""

    def __init__(self, setting: str, entries: Sequence[str]) -> None:
        self._rules = _parsed(setting, entries)

    def name(self, host: str, port: int) -> bool:
        """Return whether the host is listed by exactly this name."""
        return any(rule.host == host and rule.fits(port) for rule in self._rules)

    def hold(self, address: Address, port: int) -> bool:
        return any(
            rule.network is not None and address in rule.network and rule.fits(port)
            for rule in self._rules
        )

    def could_hold(self, port: int) -> bool:
        """Return whether any address is listed with this port."""
        return any(rule.network is not None and rule.fits(port) for rule in self._rules)


def _parsed(setting: str, entries: Sequence[str]) -> tuple[Rule, ...]:
    rules, problems = [], []
    for entry in entries:
        try:
            rules.append(_rule(entry))
        except (ValueError, InvalidRequest) as error:
            problems.append(f"{setting} {entry!r}: {error}")
    if problems:
        raise InvalidSettings(problems)
    return tuple(rules)


def _rule(entry: str) -> Rule:
    parts = _ENTRY.fullmatch(entry)
    if parts is None or int(parts["port"] or 0) > 65535:
        raise ValueError("use HOST, IP or CIDR, optionally with :PORT; put IPv6 in brackets")
    port = int(parts["port"]) if parts["port"] else None
    if parts["host"]:
        host, _ = parse_host(parts["host"])
        return Rule(host, None, port)
    network = IPv6Network(parts["ipv6"]) if parts["ipv6"] else IPv4Network(parts["ipv4"])
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped is not None:
        raise ValueError("use the IPv4 address itself, not its IPv6 form")
    return Rule(None, network, port)
