"""Pages of other sites in an operator's browser get nothing and change nothing.

Behind the door there is an echo, so that what gets through is seen.
"""

from __future__ import annotations

import pytest

from fairlane.config import load
from fairlane.core.errors import InvalidSettings
from fairlane.http.cross_site import PAGE_POLICY, allowed, authorities
from tests.hostile.echo import Echo
from tests.hostile.wires import Door, door

JSON = "Content-Type: application/json"


async def test_only_names_of_this_server_are_answered(entry: Door, echo: Echo) -> None:
    for name in ("127.0.0.1", "localhost", "LocalHost", "[::1]"):
        assert (await entry.ask("GET", "/a", f"Host: {name}:{entry.port}")).status == 200
    assert len(echo.seen) == 4
    for host in (
        "evil.example",
        f"evil.example:{entry.port}",
        f"127.0.0.1:{entry.port}.evil.example",
        f"127.0.0.1.evil.example:{entry.port}",
        f"localhost.evil.example:{entry.port}",
        "127.0.0.1:1",
        "127.0.0.1",
        "localhost",
        f"localhost.:{entry.port}",
        f"127.1:{entry.port}",
        f"2130706433:{entry.port}",
        f"0x7f000001:{entry.port}",
        f"evil@127.0.0.1:{entry.port}",
        f"127.0.0.1:{entry.port}/",
        f"http://127.0.0.1:{entry.port}",
        f"[::ffff:127.0.0.1]:{entry.port}",
        "",
        "\xff",
        "a" * 5000,
    ):
        for method in ("GET", "POST", "OPTIONS"):
            answer = await entry.ask(method, "/a", f"Host: {host}", JSON)
            assert answer.status == 421, host
            assert answer.json["code"] == "misdirected"
            assert len(answer.body) < 500
    assert len(echo.seen) == 4


async def test_an_operator_may_add_names(echo: Echo) -> None:
    async with door(echo, hosts=["fairlane.example", "other.example:8443"]) as entry:
        assert (await entry.ask("GET", "/", "Host: fairlane.example")).status == 200
        assert (await entry.ask("GET", "/", "Host: other.example:8443")).status == 200
        assert (await entry.ask("GET", "/", "Host: other.example")).status == 421
        ours = ("Host: fairlane.example", "Origin: https://fairlane.example")
        assert (await entry.ask("GET", "/", *ours)).status == 200
        proxied = f"Host: 127.0.0.1:{entry.port}"  # what some proxies make of it
        told = ("Origin: https://fairlane.example", "Sec-Fetch-Site: same-origin")
        assert (await entry.ask("POST", "/a", proxied, *told)).status == 200


def test_names_are_spelled_as_requests_spell_them() -> None:
    assert authorities(["LOCALHOST", "::1", "[::1]"], 9867) == ["localhost:9867", "[::1]:9867"]
    assert authorities(["localhost"], 80) == ["localhost:80", "localhost"]
    assert allowed(["a.example", "b.example:443", "[::2]", "[::2]:1"], 9867) == [
        *("a.example", "a.example:9867", "b.example:443"),
        *("[::2]", "[::2]:9867", "[::2]:1"),
    ]


def test_the_setting_is_checked() -> None:
    environment = {"FAIRLANE_ALLOWED_HOSTS": "Fairlane.Example a.example:8443"}
    found = load(environment=environment).allowed_hosts
    assert found == ("fairlane.example", "a.example:8443")
    for wrong in ("*", "http://a.example", "a.example/", "a b:c", "a.example:port", "ä.example"):
        with pytest.raises(InvalidSettings, match="allowed_hosts"):
            load({"allowed_hosts": [wrong]}, environment={})


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
async def test_another_origin_is_turned_away(entry: Door, echo: Echo, method: str) -> None:
    for origin in (
        "https://evil.example",
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        "http://localhost",
        f"http://127.0.0.1:{entry.port}.evil.example",
        f"http://evil.example#127.0.0.1:{entry.port}",
        f"ftp://127.0.0.1:{entry.port}",
        f"chrome-extension://127.0.0.1:{entry.port}",
        f"127.0.0.1:{entry.port}",
        "",
        "*",
    ):
        answer = await entry.ask(method, "/a", f"Origin: {origin}", JSON)
        assert answer.status == 403, origin
        assert not any(name.startswith("access-control") for name in answer.headers)
    assert echo.seen == []
    assert (await entry.ask(method, "/a", f"Origin: http://{entry.host}", JSON)).status == 200


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_what_a_browser_calls_foreign_is_turned_away(
    entry: Door, echo: Echo, method: str
) -> None:
    for site in ("cross-site", "same-site", "nonsense", ""):
        for more in (
            (),
            ("Sec-Fetch-Mode: cors",),
            ("Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"),
            ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"),
            ("Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"),
        ):
            for path in ("/tasks", "/events", "/mcp", "/"):
                if path == "/" and more[-1:] == ("Sec-Fetch-Dest: document",) and method == "GET":
                    continue  # a link to the dashboard
                answer = await entry.ask(method, path, f"Sec-Fetch-Site: {site}", *more)
                assert answer.status == 403, (site, more, path)
    assert echo.seen == []
    for site in ("same-origin", "none"):
        assert (await entry.ask(method, "/a", f"Sec-Fetch-Site: {site}")).status == 200


async def test_a_link_to_the_dashboard_may_be_followed(entry: Door) -> None:
    visit = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
    assert (await entry.ask("GET", "/", *visit)).status == 200
    assert (await entry.ask("GET", "/tasks", *visit)).status == 403
    assert (await entry.ask("POST", "/", *visit)).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "BREW"])
async def test_what_changes_something_is_json(entry: Door, echo: Echo, method: str) -> None:
    if method == "BREW":
        assert (await entry.ask(method, "/a", JSON, body=b"{}")).status == 400  # of the parser
        return
    for kind in (
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        "application/json;charset=UTF-8",
        'application/json; charset="utf-8"',
    ):
        assert (await entry.ask(method, "/a", f"Content-Type: {kind}", body=b"{}")).status == 200
    taken = len(echo.seen)
    for kind in (
        "text/plain",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json; charset=utf-16",
        "application/jsonp",
        "application/json, text/plain",
        "application/json; x=1; charset=latin-1",
        "text/html",
        "",
    ):
        answer = await entry.ask(method, "/a", f"Content-Type: {kind}", body=b"{}")
        assert (answer.status, answer.json["code"]) == (415, "unsupported_media_type"), kind
        assert "application/json" in answer.json["error"]
    assert (await entry.ask(method, "/a", body=b"{}")).status == 415
    assert len(echo.seen) == taken


async def test_a_request_without_a_body_needs_no_type_but_is_no_form(
    entry: Door, echo: Echo
) -> None:
    assert (await entry.ask("POST", "/a")).status == 200
    assert (await entry.ask("POST", "/a", "Content-Length: 0")).status == 200
    assert (await entry.ask("DELETE", "/a", "Content-Type: application/octet-stream")).status == 200
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data"):
        answer = await entry.ask("POST", "/a", f"Content-Type: {kind}", "Content-Length: 0")
        assert answer.status == 415
    assert len(echo.seen) == 3


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, identity", "x"])
async def test_a_packed_body_is_not_unpacked(entry: Door, echo: Echo, coding: str) -> None:
    answer = await entry.ask("POST", "/a", JSON, f"Content-Encoding: {coding}", body=b"{}")
    assert answer.status == 415
    assert echo.seen == []


ALWAYS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


async def test_every_answer_has_the_headers(entry: Door) -> None:
    answers = [
        await entry.ask("GET", "/"),
        await entry.ask("GET", "/a"),
        await entry.ask("GET", "/broken"),
        await entry.ask("GET", "/a", "Host: evil"),
        await entry.ask("GET", "/a", "Origin: null"),
        await entry.ask("POST", "/a", body=b"x"),
        await entry.ask("GET", "/" + "a" * 9000),
        *await entry.say(b"nonsense\r\n\r\n"),
    ]
    assert [one.status for one in answers] == [200, 200, 500, 421, 403, 415, 414, 400]
    for answer in answers:
        for name, text in ALWAYS.items():
            assert answer.headers[name] == text, answer
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert not any(name.startswith("access-control") for name in answer.headers)
        assert "server" not in answer.headers


async def test_a_page_may_load_what_is_ours_and_run_nothing_else(entry: Door) -> None:
    page = await entry.ask("GET", "/")
    assert page.headers["content-security-policy"].encode() == PAGE_POLICY
    assert "unsafe" not in page.headers["content-security-policy"]


async def test_files_say_themselves_how_long_they_may_be_kept(entry: Door) -> None:
    answer = await entry.ask("GET", "/ui/kept.js")
    assert answer.headers["cache-control"] == "no-cache"


async def test_every_answer_has_a_number_of_its_own(entry: Door) -> None:
    numbers = [(await entry.ask("GET", "/a")).headers["x-request-id"] for _ in range(3)]
    numbers.append((await entry.ask("GET", "/a", "Host: evil")).headers["x-request-id"])
    assert len(set(numbers)) == 4
    mine = await entry.ask("GET", "/a", "X-Request-Id: mine")
    assert mine.headers["x-request-id"] != "mine"
