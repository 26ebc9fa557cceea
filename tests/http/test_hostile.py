"""What nobody sane would send: never a 5xx, always `code` and `error`, and nothing is stored.

Each case is a request. Those of wrong form or content must be refused; those in `ODD` may be taken
or refused, but whatever is taken can be read, listed, run and cancelled like any other task.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.http.api import Answer, balance
from tests.http.stage import HELD, Stage, on_sqlite

pytestmark = pytest.mark.asyncio(loop_scope="session")

ERROR_CHARACTERS_MAX = 2000


class Case(NamedTuple):
    name: str
    body: bytes = b""
    path: str = "/tasks"
    method: str = "POST"
    headers: Mapping[str, str] = MappingProxyType({})


def task(fields: str) -> bytes:
    """A submission with more fields, as raw JSON."""
    base = '{"agentId":"hostile","action":"click","tabId":"t","lane":"held"'
    return f"{base},{fields}}}".encode() if fields else f"{base}}}".encode()


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


def objects(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def keys(count: int) -> str:
    return ",".join(f'"k{number}":{number}' for number in range(count))


BATCH = "/tasks/batch"

WRONG_TYPES = [
    Case(f"{field} is {value[:12]}", task(f'"{field}":{value}'))
    for field, values in {
        "agentId": ["5", "true", "[]", "{}", "1.5", "[1]"],
        "action": ["5", "false", "[]", "{}"],
        "tabId": ["5", "true", "[]", "{}"],
        "ref": ["5", "[]", "{}", "true"],
        "selector": ["5", "[]", "{}"],
        "params": ['"text"', "5", "[]", "[1]", "true"],
        "priority": [
            "1.5",
            '"1"',
            '"urgent"',
            "[]",
            "{}",
            "true",
            "1e400",
            "9" * 30,
            "-" + "9" * 30,
        ],
        "deadline": ["5", "[]", "{}", "true", '"now"', '"0"', '"\\u0000"'],
        "callbackUrl": ["5", "[]", "{}", "true"],
        "lane": ["5", '""', '"a b"', '"../x"', '"' + "l" * 200 + '"', '"\\u0000"', '"lane\\n"'],
        "sessionKey": [
            "5",
            '""',
            '"a%b"',
            '" a"',
            '"' + "s" * 200 + '"',
            '"\\u0000"',
            '"a\'; DROP"',
        ],
    }.items()
    for value in values
]

BAD_VALUES = [
    Case("agent with a space", b'{"agentId":"a b","action":"click"}'),
    Case("agent of spaces", b'{"agentId":"   ","action":"click"}'),
    Case("agent with a newline", b'{"agentId":"a\\nX-Evil: 1","action":"click"}'),
    Case("agent with NUL", b'{"agentId":"a\\u0000","action":"click"}'),
    Case("agent with a slash", b'{"agentId":"../../etc","action":"click"}'),
    Case("agent too long", b'{"agentId":"' + b"a" * 129 + b'","action":"click"}'),
    Case("agent in another script", '{"agentId":"агент","action":"click"}'.encode()),
    Case("agent with SQL", b'{"agentId":"a\' OR 1=1--","action":"click"}'),
    Case("action with a space", task('"action":"cl ick"')),
    Case("action with a newline", task('"action":"click\\r\\n"')),
    Case("action too long", task('"action":"' + "a" * 70 + '"')),
    Case("tab with a path", task('"tabId":"../../admin"')),
    Case("tab with a query", task('"tabId":"t?x=1"')),
    Case("tab with a percent", task('"tabId":"t%2f.."')),
    Case("tab with a fragment", task('"tabId":"t#x"')),
    Case("tab too long", task('"tabId":"' + "t" * 129 + '"')),
    Case("tab with a newline at its end", task('"tabId":"t\\n"')),
    Case("tab with a path in a session", task('"tabId":"../../admin","sessionKey":"s"')),
    Case("ref too long", task('"ref":"' + "e" * 5000 + '"')),
    Case("selector too long", task('"selector":"' + "s" * 5000 + '"')),
    Case("NUL in ref", task('"ref":"e\\u0000"')),
    Case("NUL in selector", task('"selector":"\\u0000"')),
    Case("NUL in params", task('"params":{"text":"a\\u0000b"}')),
    Case("NUL deep in params", task('"params":{"a":[{"b":"\\u0000"}]}')),
    Case("NUL in a key of params", task('"params":{"a\\u0000":1}')),
    Case("lone surrogate in params", task('"params":{"text":"\\ud800"}')),
    Case("lone surrogate in ref", task('"ref":"\\udc00"')),
    Case("two callbacks", task('"callbackUrl":"http://a/","webhookUrl":"http://b/"')),
    Case("action and handler", task('"handler":"h"')),
    Case("unknown field", task('"evil":1')),
    Case("state set by the caller", task('"state":"done"')),
    Case("id set by the caller", task('"taskId":"tsk_1"')),
    Case("result set by the caller", task('"result":{}')),
    Case("attempts set by the caller", task('"attempts":-5')),
    Case("a prototype", task('"__proto__":{"admin":true}')),
    Case("a huge unknown field", task('"' + "x" * 200_000 + '":1')),
    Case("field name in another case", b'{"AGENTID":"a","action":"click"}'),
]

BAD_JSON = [
    Case("nothing", b""),
    Case("blank", b"   \n"),
    Case("null", b"null"),
    Case("array", b"[]"),
    Case("array of a task", b"[" + task("") + b"]"),
    Case("number", b"5"),
    Case("text", b'"task"'),
    Case("true", b"true"),
    Case("NaN", b"NaN"),
    Case("NaN in params", task('"params":{"x":NaN}')),
    Case("Infinity in params", task('"params":{"x":Infinity}')),
    Case("infinite number in params", task('"params":{"x":1e999}')),
    Case("hexadecimal number", task('"priority":0x10')),
    Case("leading zero", task('"priority":01')),
    Case("leading plus", task('"priority":+1')),
    Case("half an object", b'{"agentId":"a","action":"cl'),
    Case("trailing garbage", task("") + b"garbage"),
    Case("two objects", task("") + task("")),
    Case("trailing comma", b'{"agentId":"a","action":"click",}'),
    Case("comment", b'{"agentId":"a",/* x */"action":"click"}'),
    Case("single quotes", b"{'agentId':'a','action':'click'}"),
    Case("raw newline in text", b'{"agentId":"a","action":"cl\nick"}'),
    Case("raw NUL", b'{"agentId":"a","action":"click"}\x00'),
    Case("byte order mark", b"\xef\xbb\xbf" + task("")),
    Case("UTF-16", task("").decode().encode("utf-16")),
    Case("UTF-32", task("").decode().encode("utf-32")),
    Case("Latin-1", '{"agentId":"a","action":"click","ref":"ü"}'.encode("latin-1")),
    Case("overlong UTF-8", b'{"agentId":"a","action":"click","ref":"\xc0\xaf"}'),
    Case("surrogate in UTF-8", b'{"agentId":"a","action":"click","ref":"\xed\xa0\x80"}'),
    Case("invalid UTF-8 in params", b'{"agentId":"a","action":"click","params":{"t":"\xff"}}'),
    Case("invalid escape", b'{"agentId":"a","action":"cl\\xick"}'),
    Case("half an escape", b'{"agentId":"a","action":"cl\\u00'),
    Case("binary", bytes(range(256))),
    Case("form", b"agentId=a&action=click"),
    Case("XML", b"<task><agentId>a</agentId></task>"),
    Case("nested without end", b"[" * 200_000),
    Case("objects without end", b'{"a":' * 100_000),
    Case("params nested very deeply", task(f'"params":{{"x":{nested(100_000)}}}')),
    Case("params nested 2000 deep", task(f'"params":{{"x":{nested(2_000)}}}')),
    Case("unknown field nested", task(f'"x":{nested(5_000)}')),
]

BAD_BATCHES = [
    Case(f"batch: {name}", body, "/tasks/batch")
    for name, body in {
        "nothing": b"",
        "array": b"[]",
        "tasks is an object": b'{"agentId":"a","tasks":{}}',
        "tasks is text": b'{"agentId":"a","tasks":"x"}',
        "tasks is null": b'{"agentId":"a","tasks":null}',
        "agent is a number": b'{"agentId":5,"tasks":[{"action":"click"}]}',
        "agent with a space": b'{"agentId":"a b","tasks":[{"action":"click"}]}',
        "unknown field": b'{"agentId":"a","taks":[{"action":"click"}]}',
        "many": b'{"agentId":"a","tasks":[' + b",".join([b'{"action":"click"}'] * 5000) + b"]}",
        "half an item": b'{"agentId":"a","tasks":[{"action":"cl',
        "nested": b'{"agentId":"a","tasks":' + nested(50_000).encode() + b"}",
        "callback is a number": b'{"agentId":"a","callbackUrl":5,"tasks":[{"action":"click"}]}',
        "garbage behind": b'{"agentId":"a","tasks":[{"action":"click"}]}x',
        "invalid UTF-8": b'{"agentId":"\xff","tasks":[{"action":"click"}]}',
    }.items()
]

BAD_HEADERS = [
    Case(f"Idempotency-Key: {name}", task(""), headers={"Idempotency-Key": value})
    for name, value in {
        "empty": "",
        "blank inside": "a b",
        "too long": "k" * 256,
        "not ASCII": "schlüssel",
        "a tab": "a\tb",
    }.items()
]

BAD_QUERIES = [
    Case(f"query: {query[:40]}", b"", f"/tasks?{query}", "GET")
    for query in [
        "cursor=x",
        "cursor=-1",
        "cursor=0",
        "cursor=1.5",
        "cursor=" + "9" * 30,
        "cursor=" + "9" * 5000,
        "cursor=1%00",
        "cursor=%D9%A1",
        "cursor=²",
        "limit=0",
        "limit=-1",
        "limit=x",
        "limit=1001",
        "limit=1e3",
        "limit=" + "9" * 30,
        "limit=" + "0" * 19 + "1" + "0" * 30,
        "limit=" + "0" * 5000 + "1",
        "limit=%2B5",
        "state=nonsense",
        "state=queued;DROP",
        "state=%00",
        "evil=1",
        "agentId[]=a",
        "%00=1",
        "AGENTID=a",
    ]
]

BAD_PATHS = [
    Case("wait: not a number", b"", "/tasks/x/wait?timeoutMs=x", "GET"),
    Case("wait: negative", b"", "/tasks/x/wait?timeoutMs=-1", "GET"),
    Case("wait: too long", b"", "/tasks/x/wait?timeoutMs=99999999", "GET"),
    Case("wait: zeros first", b"", "/tasks/x/wait?timeoutMs=" + "0" * 20 + "99999999", "GET"),
    Case("wait: zeros only", b"", "/tasks/x/wait?timeoutMs=" + "0" * 5000, "GET"),
    Case("wait: unknown", b"", "/tasks/x/wait?timeout=1", "GET"),
    Case("stats: unknown", b"", "/scheduler/stats?x=1", "GET"),
    *(
        Case(f"id {name}: {verb}", b"", f"/tasks/{text}{suffix}", method)
        for name, text in {
            "with NUL": "a%00b",
            "that is NUL": "%00",
            "with SQL": "'%20OR%201=1--",
            "that is long": "t" * 5000,
            "that is no UTF-8": "%ff%fe",
            "with a surrogate": "%ed%a0%80",
            "with a newline": "a%0d%0ab",
            "in another script": "%E2%9C%93",
        }.items()
        for verb, suffix, method in (
            ("show", "", "GET"),
            ("cancel", "/cancel", "POST"),
            ("wait", "/wait?timeoutMs=0", "GET"),
        )
    ),
]

TOO_MUCH = [
    Case("a key twice", b'{"agentId":"hostile","action":"click","action":"hover","lane":"held"}'),
    Case("an agent twice", b'{"agentId":"hostile","agentId":"hostile","action":"a","lane":"held"}'),
    Case("params twice", task('"params":{"a":1},"params":{"b":2}')),
    Case("a number of 20 digits", task('"params":{"n":12345678901234567890}')),
    Case("a number of 40 digits", task('"params":{"n":' + "1" * 40 + "}")),
    Case("a number of 5000 digits", task('"params":{"n":' + "1" * 5000 + "}")),
    Case("smallest integer", task('"params":{"n":-9223372036854775808}')),
    Case("many keys", task('"params":{' + ",".join(f'"k{n}":{n}' for n in range(5000)) + "}")),
    Case("a long list", task('"params":{"l":[' + ",".join(["1"] * 100_000) + "]}")),
    Case("no content type", task(""), headers={"Content-Type": ""}),
    Case("another content type", task(""), headers={"Content-Type": "text/plain"}),
    Case("another charset", task(""), headers={"Content-Type": "application/json; charset=utf-16"}),
    Case("filter with NUL", b"", "/tasks?agentId=%00", "GET"),
    Case("lane with NUL", b"", "/tasks?lane=a%00b", "GET"),
    Case("session with NUL", b"", "/tasks?sessionKey=%00", "GET"),
    Case("batch with NUL", b"", "/tasks?batchId=%00", "GET"),
    Case("filter is no UTF-8", b"", "/tasks?agentId=%ff%ed%a0%80", "GET"),
    Case("filter is long", b"", "/tasks?agentId=" + "a" * 20_000, "GET"),
    Case("the same filter twice", b"", "/tasks?limit=5&limit=x", "GET"),
    Case("a key twice, spelled differently", task('"params":{"a":1,"\\u0061":2}')),
    Case("a key twice, deep inside", task('"params":{"a":[{"b" :1,"c":":","b" :2}]}')),
    Case("more keys than allowed", task(f'"params":{{{keys(1001)}}}')),
    Case("more items than allowed", task('"params":{"l":[' + "1," * 10_000 + "1]}")),
    Case("a long text", task('"params":{"t":"' + "x" * 262_145 + '"}')),
    Case("a long key", task('"params":{"' + "x" * 262_145 + '":1}')),
    Case("a number beyond the bounds", task('"params":{"n":9223372036854775808}')),
    Case("a batch with a key twice", b'{"agentId":"a","tasks":[],"tasks":[{"action":"a"}]}', BATCH),
    *(
        Case(f"params nested {depth} deep", task(f'"params":{{"x":{nested(depth)}}}'))
        for depth in (64, 100, 900, 950, 980, 1000)
    ),
    *(
        Case(f"objects nested {depth} deep", task(f'"params":{objects(depth)}'))
        for depth in (65, 900, 960, 980)
    ),
]

FORM = [*WRONG_TYPES, *BAD_JSON, *BAD_BATCHES, *BAD_HEADERS, *TOO_MUCH]
CONTENT = [*BAD_VALUES, *BAD_QUERIES, *BAD_PATHS]

ODD = [
    Case("a long fraction", task('"params":{"n":0.' + "1" * 400 + "}")),
    Case("negative zero", task('"params":{"n":-0.0}')),
    Case("a tiny number", task('"params":{"n":1e-400}')),
    Case("all nulls", task('"ref":null,"selector":null,"params":null,"priority":null')),
    Case("null deadline and callback", task('"deadline":null,"callbackUrl":null')),
    Case("empty params", task('"params":{}')),
    Case("empty key in params", task('"params":{"":1}')),
    Case("emoji", task('"params":{"text":"\\ud83d\\ude80"},"ref":"🚀"')),
    Case("right to left", task('"ref":"\u202eevil\u202c"')),
    Case("control characters", task('"params":{"text":"\\u0001\\u001b[31m\\u007f"}')),
    Case("html", task('"params":{"text":"<script>alert(1)</script>&"}')),
    Case("whitespace around", b"\r\n\t " + task("") + b" \n"),
    *(
        Case(f"params nested {depth} deep", task(f'"params":{{"x":{nested(depth)}}}'))
        for depth in (30, 60, 63)
    ),
    *(
        Case(f"objects nested {depth} deep", task(f'"params":{objects(depth)}'))
        for depth in (60, 64)
    ),
    Case("as many keys as allowed", task(f'"params":{{{keys(1000)}}}')),
    Case("as many items as allowed", task('"params":{"l":[' + "1," * 9_999 + "1]}")),
    Case("as long a text as allowed", task('"params":{"t":"' + "x" * 262_144 + '"}')),
    Case("the largest number", task('"params":{"n":[9223372036854775807,-9223372036854775807]}')),
    Case("every filter blank", b"", "/tasks?agentId=&state=&lane=&sessionKey=&batchId=", "GET"),
    Case("filter with SQL", b"", "/tasks?agentId='%20OR%201=1--", "GET"),
    Case("cursor far away", b"", f"/tasks?cursor={2**62}", "GET"),
    Case("a cancel with a body", b"{nonsense", "/tasks/tsk_x/cancel"),
    Case("a get with a body", b"{nonsense", "/tasks?limit=1", "GET"),
]


async def send(stage: Stage, case: Case) -> Answer:
    return await stage.api.ask(case.method, case.path, raw=case.body or None, headers=case.headers)


async def stored(stage: Stage) -> tuple[int, int]:
    metrics = (await stage.api.stats())["metrics"]
    return metrics["tasksSubmitted"], metrics["tasksRejected"]


def check_error(answer: Answer) -> None:
    assert 400 <= answer.status < 500, answer
    assert answer.headers["Content-Type"].startswith("application/json")
    assert isinstance(answer.json["code"], str)
    assert answer.json["code"]
    assert isinstance(answer.json["error"], str)
    assert answer.json["error"]
    assert len(answer.json["error"]) <= ERROR_CHARACTERS_MAX, len(answer.json["error"])
    assert answer.json["error"].isprintable(), answer.json["error"]


@on_sqlite
@pytest.mark.parametrize("case", FORM, ids=lambda case: case.name)
async def test_wrong_form_is_refused_in_words_and_nothing_is_stored(
    stage: Stage, case: Case
) -> None:
    before = await stored(stage)
    check_error(await send(stage, case))
    assert await stored(stage) == before


@pytest.mark.parametrize("case", CONTENT, ids=lambda case: case.name)
async def test_wrong_content_is_refused_in_words_and_nothing_is_stored(
    stage: Stage, case: Case
) -> None:
    before = await stored(stage)
    check_error(await send(stage, case))
    assert await stored(stage) == before


@pytest.mark.parametrize("case", ODD, ids=lambda case: case.name)
async def test_it_is_refused_in_words_or_taken_whole(stage: Stage, case: Case) -> None:
    answer = await send(stage, case)
    if answer.status >= 300:
        check_error(answer)
        return
    if case.method == "GET":
        assert answer.status == 200
        return
    assert answer.status == 202
    task_id = answer.json["taskId"]
    assert (await stage.api.get(f"/tasks/{task_id}")).status == 200
    assert (await stage.api.get("/tasks", agentId="hostile", limit=5)).status == 200
    assert (await stage.api.cancel(task_id)).status == 200


@pytest.mark.parametrize(
    "params",
    [
        b'{"n":12345678901234567890}',
        b'{"n":' + b"1" * 40 + b"}",
        b'{"x":' + b"[" * 60 + b"]" * 60 + b"}",
        b'{"x":' + b"[" * 600 + b"]" * 600 + b"}",
        b'{"x":' + b"[" * 950 + b"]" * 950 + b"}",
        '{"text":"\u202e🚀\\u001b"}'.encode(),
        b'{"":1,"a.b":2,"$where":3}',
    ],
    ids=["20 digits", "40 digits", "60 deep", "600 deep", "950 deep", "odd text", "odd keys"],
)
async def test_odd_params_that_are_taken_can_be_carried_out(stage: Stage, params: bytes) -> None:
    agent = stage.new_agent()
    body = f'{{"agentId":"{agent}","action":"click","tabId":"{stage.tab()}","params":'.encode()
    answer = await stage.api.ask("POST", "/tasks", raw=body + params + b"}")
    if answer.status != 202:
        check_error(answer)
        return
    ended = await stage.api.get(f"/tasks/{answer.json['taskId']}/wait", timeoutMs=5000)
    assert ended.status == 200
    assert b'"state":"done"' in ended.raw, ended
    assert len(stage.actions(agent)) == 1


@pytest.mark.parametrize(("depth", "status"), [(64, 202), (65, 400)])
async def test_params_may_be_nested_sixty_four_deep(stage: Stage, depth: int, status: int) -> None:
    for innermost in ("", "1", "{}"):
        lists = "[" * (depth - (2 if innermost == "{}" else 1))
        params = f'{{"x":{lists}{innermost}{lists.replace("[", "]")}}}'
        answer = await stage.api.ask("POST", "/tasks", raw=task(f'"params":{params}'))
        assert answer.status == status, innermost


async def test_text_that_only_looks_like_nul_is_taken(stage: Stage) -> None:
    answer = await stage.api.ask("POST", "/tasks", raw=task(r'"params":{"text":"\\u0000"}'))
    assert answer.status == 202
    assert (await stage.api.show(answer.json["taskId"]))["params"] == {"text": r"\u0000"}


async def test_one_item_with_nul_does_not_spoil_its_batch(stage: Stage) -> None:
    good, bad = task('"ref":"a"'), task('"ref":"\\u0000"')
    items = b",".join(one.replace(b'"agentId":"hostile",', b"") for one in (good, bad))
    raw = b'{"agentId":"hostile","tasks":[' + items + b"]}"
    answer = await stage.api.ask("POST", "/tasks/batch", raw=raw)
    assert answer.status == 202
    assert [one["state"] for one in answer.json["tasks"]] == ["queued", "rejected"]


async def test_the_server_is_well_and_its_books_are_in_order_after_all_that(stage: Stage) -> None:
    assert (await stage.run())["state"] == "done"
    assert balance(await stage.api.stats()) == 0
    assert (await stage.api.get("/tasks", lane=HELD, limit=1000)).status == 200


async def test_a_message_does_not_repeat_what_it_was_sent_at_length(stage: Stage) -> None:
    answer = await stage.api.ask("POST", "/tasks", raw=task('"' + "x" * 500_000 + '":1'))
    assert answer.status == 400
    assert len(answer.raw) < ERROR_CHARACTERS_MAX
