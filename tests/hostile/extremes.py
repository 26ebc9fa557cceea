"""The extremes of every field of every operation, made from what `/openapi.json` says of it.

A field gets the values at its bounds and just beyond them, those that other readers of JSON choke
on, and moments at both ends of the calendar. `everything` then reads every route that there is.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from fairlane.core import moments
from fairlane.core.access import TRUSTED
from fairlane.http.messages import HttpRequest, Stream
from tests.hostile.inside import Answer, Inside

HANG_SECONDS: Final = 20.0
DAY_MS: Final = 86_400_000
NAMES: Final = itertools.count(1)

Path = tuple[str | int, ...]
Schema = Mapping[str, Any]


def raw(text: str) -> msgspec.Raw:
    """JSON that is sent as it stands, valid or not."""
    return msgspec.Raw(text.encode())


def _nested(depth: int) -> Any:
    value: Any = 1
    for number in range(depth):
        value = {"a": value} if number % 2 else [value]
    return {"deep": value}


MOMENTS: Final = (
    *("9999-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59.9995Z", "9999-12-31T23:59:59Z"),
    *("9999-12-31T23:59:59.999-00:01", "9999-12-31T10:00:00+14:00", "0001-01-01T00:00:00Z"),
    *("0001-01-01T00:00:00+00:01", "1970-01-01T00:00:00Z", "1969-12-31T23:59:59.999Z", "0"),
    *("10000-01-01T00:00:00Z", "2026-03-08T12:05:00", "253402300799999", "1e400", "now"),
)
TEXTS: Final = (
    *(
        "",
        " ",
        "x",
        "\x7f",
        "\x1b[31m",
        "\u202e",
        "\u2028\u2029",
        "\ufffe\uffff",
        "\U0010ffff",
        "é",
    ),
    *(
        "NaN",
        "-Infinity",
        "1e400",
        "null",
        "__proto__",
        "{{x}}",
        "${x}",
        "'; --",
        "</script>",
        "***",
    ),
    raw('"\\u0000"'),
    raw('"\\ud800"'),
    raw('"\\udc00\\ud800"'),
    raw('"\\ud83d\\ude00"'),
)
NUMBERS: Final = (
    *(0, -1, 1, 2, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 2**63),
    *(0.5, 1e308, 5e-324, DAY_MS, 366 * DAY_MS, moments.MAX, moments.MAX + 1),
    *(
        raw(text)
        for text in ("-0", "-0.0", "1e400", "-1e400", "1e-400", "NaN", "1" * 400, str(2**64))
    ),
)
OBJECTS: Final = (
    {},
    {"": ""},
    {"__proto__": {"a": 1}, "constructor": None, "\U0010ffff": "\u2028"},
    {str(number): number for number in range(1000)},
    {str(number): number for number in range(1001)},
    {"a": [2**63 - 1, -(2**63) + 1, 2**53 + 1, 1e308, 5e-324, raw("-0.0"), raw("1E+2")]},
    {"text": "x" * 262_144},
    *(_nested(depth) for depth in (60, 61, 62, 63, 64, 65)),
    raw('{"a":' + "[" * 5000 + "]" * 5000 + "}"),
    *(raw(text) for text in ('{"a":1e400}', '{"a":NaN}', '{"a":"\\ud800"}', '{"a":1,"a":2}')),
    *(raw(text) for text in ('{"\\u0000":1}', '{"a":9223372036854775808}', '{"a":1e-400}')),
)
ODD: Final = (None, True, [], {}, "", 0)  # for a field of whatever type


# --- values -----------------------------------------------------------------------------------


def values(schema: Schema, components: Mapping[str, Schema], name: str) -> Iterator[Any]:
    """Values for a field at and beyond its bounds; of every type that it may have."""
    for choice in schema.get("anyOf", [schema]):
        kind = choice.get("type")
        if kind in ("integer", "number"):
            yield from NUMBERS
            for bound in ("minimum", "maximum"):
                if bound in choice:
                    yield from (choice[bound] - 1, choice[bound], choice[bound] + 1)
        elif kind == "string":
            yield from _texts(choice, name)
        elif kind == "boolean":
            yield from (True, False)
        elif kind == "array":
            items = choice.get("items", {})
            inner = list(itertools.islice(values(items, components, name), 12)) if items else []
            yield from ([], *([one] for one in inner), [1] * 10_001, ["x"] * 1001)
        elif kind == "object" or not choice:
            yield from OBJECTS
        if not choice:  # any JSON
            yield from (*NUMBERS, *TEXTS, [[]] * 10)
    yield from ODD


def _texts(choice: Schema, name: str) -> Iterator[Any]:
    yield from choice.get("enum", ())
    if choice.get("format") == "date-time" or name.endswith("At") or name in ("at", "now"):
        yield from MOMENTS
    yield from TEXTS
    found = re.search(r"\{0,(\d+)\}\$$", choice.get("pattern", ""))
    limits = {choice.get("maxLength", 0), int(found[1]) + 1 if found else 0, 64, 256, 4096}
    for limit in sorted(limits - {0}):
        yield from ("x" * limit, "x" * (limit + 1))
    yield from ("x" * 100_000, "\U0010ffff" * 65_000, "x" * 262_145)


def paths(schema: Schema, components: Mapping[str, Schema], at: Path = ()) -> Iterator[Any]:
    """Each field of a body with its schema, those of the objects in it included."""
    for name, inner in schema.get("properties", {}).items():
        yield (*at, name), inner
        for choice in inner.get("anyOf", [inner]):
            found = _object(choice, components)
            if found is not None and len(at) < 3:
                yield from paths(found, components, (*at, name))


def _object(choice: Schema, components: Mapping[str, Schema]) -> Schema | None:
    return resolved(choice, components) if "$ref" in choice else None


def resolved(schema: Schema, components: Mapping[str, Schema]) -> Schema:
    """What a schema refers to, or itself."""
    return components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def quoted(text: str) -> str:
    return quote(text, safe="")


def changed(body: Any, path: Path, value: Any) -> Any:
    """The body with another value at a path; what is missing on the way is made."""
    result = copy.deepcopy(body)
    where = result
    for part in path[:-1]:
        if not isinstance(where.get(part), dict):
            where[part] = {}
        where = where[part]
    where[path[-1]] = value
    return result


class Attempt(NamedTuple):
    method: str
    target: str
    body: bytes
    about: str
    headers: Mapping[str, str] = {}


def attempts(
    name: str, bases: Sequence[Any], schema: Schema, components: Mapping[str, Schema]
) -> Iterator[Attempt]:
    """All requests of one operation: each base as it is, then with one field after the other."""
    method, target = name.split(" ")
    for base in bases:
        yield Attempt(method, target, msgspec.json.encode(base), name)
        for path, inner in paths(schema, components):
            for value in values(inner, components, str(path[-1])):
                yield _attempt(method, target, base, path, value)


def _attempt(method: str, target: str, base: Any, path: Path, value: Any) -> Attempt:
    body = changed(_named(base), path, value)
    about = f"{method} {target} {path} = {_short(value)}"
    return Attempt(method, target, msgspec.json.encode(body), about)


def _named(base: Any) -> Any:
    """Names that have to be free are."""
    return {**base, "name": f"n{next(NAMES)}"} if "name" in base else base


def _short(value: Any) -> str:
    text = repr(bytes(value) if isinstance(value, msgspec.Raw) else value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)})"


# --- reads ------------------------------------------------------------------------------------


# Where ids come from that other routes take, and what they are called in a list.
LISTS: Final = {
    "/tasks": ("tasks", "taskId", "/tasks/{id}"),
    "/batches": ("batches", "batchId", "/batches/{id}"),
    "/sessions": ("sessions", "sessionKey", "/sessions/{key}"),
    "/queue": ("entries", "id", "/queue/{id}"),
    "/templates": ("templates", "id", "/templates/{id}"),
    "/cron/jobs": ("jobs", "id", "/cron/jobs/{id}"),
    "/cron/runs": ("runs", None, None),
    "/deliveries": ("deliveries", "id", "/deliveries/{id}"),
    "/webhooks": ("endpoints", "id", "/webhooks/{id}"),
    "/policy/versions": ("versions", None, None),
    "/audit": ("entries", None, None),
}
PICKED: Final = 60  # of each kind are looked at one by one
_METRIC: Final = re.compile(
    r'[a-z_]+(\{([a-z]+="[\w.:+-]*",?)*\})? (-?[0-9.]+(e[+-]?[0-9]+)?|\+Inf)'
)


class Reader:
    """Asks every route that reads, and holds each answer to be JSON that another reader takes."""

    def __init__(self, inside: Inside, headers: Mapping[str, str] | None = None) -> None:
        self.inside = inside
        self._headers = headers or {}
        self.count = 0

    async def ask(self, target: str, **headers: str) -> Answer:
        async with asyncio.timeout(HANG_SECONDS):
            answer = await self.inside.ask("GET", target, headers={**self._headers, **headers})
        self.count += 1
        assert answer.status < 500, (target, answer)
        if answer.headers["content-type"] == "application/json":
            check_json(answer.raw)
        return answer

    async def everything(self) -> None:
        found: dict[str, list[str]] = {}
        for path, (name, key, one) in LISTS.items():
            listed = [item async for item in self._pages(path, name)]
            if one is not None and key is not None:
                found[one] = [item[key] for item in listed]
        for path, methods in self.inside.http.routes.items():
            if "GET" in methods:
                await self._read(path, found)
        await self._streams()

    async def _pages(self, path: str, name: str) -> AsyncIterator[Any]:
        cursor = ""
        while True:
            answer = await self.ask(f"{path}?limit=500{cursor}")
            assert answer.status == 200, (path, answer)
            for item in answer.json[name]:
                yield item
            if "nextCursor" not in answer.json:
                return
            cursor = f"&cursor={quote(answer.json['nextCursor'], safe='')}"

    async def _read(self, path: str, found: Mapping[str, list[str]]) -> None:
        if "{" in path:
            assert (await self.ask(path)).status == 404, "a pattern is no name"
        else:
            if path != "/events/pulse":
                await self.ask(_with_query(path))
            return
        prefix = next((one for one in found if path.startswith(one)), None)
        ids = found.get(prefix or "", ["nothing"])
        step = max(1, len(ids) // PICKED)
        for id_ in ids[::step]:
            target = re.sub(r"{\w+}", id_, path)
            answer = await self.ask(_with_query(target))
            assert answer.status in (200, 404), (target, answer)  # it may have ended meanwhile

    async def _streams(self) -> None:
        """The log of events, as a stream and as pages, from the first to the last."""
        metrics = await self.ask("/metrics")
        for line in metrics.raw.decode().splitlines():
            assert line.startswith("# ") or _METRIC.fullmatch(line), line
        after, streamed = 0, await self._streamed()
        while page := (answer := await self.ask(f"/events?after={after}&limit=500")).json["events"]:
            assert answer.status == 200
            after = page[-1]["id"]
        assert after >= streamed, (after, streamed)

    async def _streamed(self) -> int:
        """The number of the last event that a stream has brought."""
        last = int(await self._last_event())
        headers = {b"accept": b"text/event-stream"}
        request = HttpRequest("GET", "/events", b"after=0", headers, named=TRUSTED)
        seen, rest = 0, b""
        async with asyncio.timeout(HANG_SECONDS), contextlib.AsyncExitStack() as stack:
            stream = await self.inside.http(request)
            assert isinstance(stream, Stream)
            stack.callback(stream.release)
            pieces = aiter(stream.pieces)
            while seen < last:
                *lines, rest = (rest + await anext(pieces)).split(b"\n")
                for line in lines:
                    if line.startswith(b"id: "):
                        seen = int(line[4:])
                    elif line.startswith(b"data: "):
                        check_json(line[6:])
        return seen

    async def _last_event(self) -> int:
        views = self.inside.app.node.views
        return await views.read(views.last_event)


def _with_query(path: str) -> str:
    """What a route needs, or must have so that it does not wait."""
    if path == "/cron/preview":
        return f"{path}?at=9999-12-31T23:59:59.999999999Z&tz=Asia/Tokyo"
    if path == "/scheduler/plan":
        return f"{path}?now=9999-12-31T23:59:59.999999999Z"
    if path == "/policy/diff":
        return f"{path}?from=1&to=1"
    return f"{path}?timeoutMs=0" if path.endswith("/wait") else path


def check_json(body: bytes) -> None:
    """Raise for what a strict reader of JSON refuses: NaN, a key twice, half a character."""
    json.loads(body.decode(), parse_constant=_refuse, object_pairs_hook=_once, parse_int=_whole)


def _refuse(text: str) -> Any:
    raise AssertionError(f"{text} is no JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def _whole(text: str) -> int:
    assert len(text) <= 20, text
    return int(text)
