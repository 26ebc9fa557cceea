"""There is one way out: no code but the guarded one opens a connection or speaks HTTP to others."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import fairlane

SOURCE = Path(fairlane.__file__).parent
GUARDED = "outbound/sending.py"
ASYNC, BLOCKING = "fairlane.http1.asynchronous", "fairlane.http1.blocking"

# What opens connections or speaks HTTP, by the module and the name that would be used.
MODULES = {
    *("http.client", "urllib.request", "ftplib", "smtplib", "poplib", "imaplib", "telnetlib"),
    *("xmlrpc.client", "requests", "httpx", "urllib3", "pycurl", "websockets", "aiohttp", "yarl"),
    *("socket", "socketserver", "subprocess", "aiohappyeyeballs", "dns", "aiodns"),
    *(ASYNC, BLOCKING),  # our own, which know nothing of the guard
}
CALLS = {
    *("create_connection", "open_connection", "open_unix_connection", "sock_connect"),
    *("create_unix_connection", "create_datagram_endpoint", "create_subprocess_exec"),
    *("create_subprocess_shell", "getaddrinfo", "gethostbyname", "urlopen"),
    "start_tls",
}
# Classes, that others may name as types.
MAKERS = {"ClientSession", "TCPConnector", "AsyncPool", "BlockingPool"}

# Who may use what, and why that is no way around the guard.
ALLOWED = {
    "outbound/sending.py": {ASYNC, "AsyncPool"},  # the guarded way itself
    # Dials what a resolver gives it; who may give it one stands in this table.
    "http1/asynchronous.py": {"socket", "sock_connect", "getaddrinfo", "create_connection"},
    "http1/blocking.py": {"socket", "create_connection"},
    "outbound/guard.py": {"socket", "getaddrinfo"},  # asks for names
    "outbound/addresses.py": {"socket"},  # asks the system for its own addresses; sends nothing
    # The client of a Fairlane server: a program of the user's, to a server that the user names.
    "client/connection.py": {BLOCKING, "BlockingPool"},
    "client/asynchronous.py": {ASYNC, "AsyncPool"},
    "worker/external.py": {"socket"},  # the name of this machine
    "cli/server.py": {"socket"},  # listens
    "http/server.py": {"socket"},  # listens
    # Pairs of sockets between the processes of one server, and their connections from callers.
    "cli/front.py": {"socket"},
    "cli/fronts.py": {"socket", "create_subprocess_exec"},
    "engine/links.py": {"socket", "create_connection"},
}


def uses(tree: ast.AST) -> set[str]:
    """What of the above a module imports or names."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one for name in node.names for one in _modules(name.name)}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= _modules(node.module)
            found |= {one for name in node.names for one in _modules(f"{node.module}.{name.name}")}
            found |= {name.name for name in node.names} & CALLS
        elif isinstance(node, ast.Attribute):
            found |= {node.attr} & CALLS
        elif isinstance(node, ast.Call):
            found |= {getattr(node.func, "attr", getattr(node.func, "id", ""))} & MAKERS
    return found


def _modules(name: str) -> set[str]:
    return {known for known in MODULES if name == known or name.startswith(f"{known}.")}


@cache
def used() -> dict[str, set[str]]:
    """By module; modules that use nothing of it are left out."""
    words = {f"import {name}" for name in MODULES} | {"from http", "from urllib"} | CALLS | MAKERS
    words |= {f"from {name}" for name in MODULES}
    anything = re.compile("|".join(map(re.escape, sorted(words))))
    texts = {file: file.read_text("utf-8") for file in sorted(SOURCE.rglob("*.py"))}
    found = {
        file.relative_to(SOURCE).as_posix(): uses(ast.parse(text))
        for file, text in texts.items()
        if anything.search(text)
    }
    return {name: names for name, names in found.items() if names}


def test_nothing_but_the_guarded_way_opens_a_connection() -> None:
    found = {name: names - ALLOWED.get(name, set()) for name, names in used().items()}
    assert {name: names for name, names in found.items() if names} == {}


def test_what_is_allowed_here_is_really_used() -> None:
    unused = {name: allowed - used().get(name, set()) for name, allowed in ALLOWED.items()}
    assert {name: names for name, names in unused.items() if names} == {}


def test_all_pools_but_the_clients_own_come_from_one_place() -> None:
    """Webhooks, executors and alerts of cron jobs alike."""
    makers = [name for name, names in used().items() if names & MAKERS]
    assert makers == ["client/asynchronous.py", "client/connection.py", GUARDED]


@pytest.mark.parametrize(
    "text",
    [
        "import requests",
        "import aiohttp\naiohttp.ClientSession()",
        "import aiohttp.client",
        "from fairlane.http1.asynchronous import AsyncPool",
        "from fairlane.http1 import blocking",
        "from urllib import request",
        "from urllib.request import urlopen",
        "from http import client",
        "import asyncio\nasync def f(): await asyncio.open_connection('a', 1)",
        "from asyncio import open_connection",
        "async def f(loop): await loop.sock_connect(s, a)",
        "import socket as s\ns.socket().connect(('a', 1))",
    ],
)
def test_a_way_around_would_be_found(text: str) -> None:
    assert uses(ast.parse(text))
