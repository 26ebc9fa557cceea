"""What can be made up from `/openapi.json`, tried on a running server, one by one and in a row.

Nothing may go wrong in the server, and whatever it answers has to be what the document tells.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis.checks import not_a_server_error
from schemathesis.core import NotSet
from schemathesis.specs.openapi import checks

from fairlane.testing import MemoryFairlane
from tests.hostile.inside import Inside
from tests.hostile.trying import STILL, Tried

pytestmark = pytest.mark.slow

COMMAND = Path(sys.executable).parent / "fairlane"
READY = "fairlane is listening on "
ANSWER_SECONDS = 20
EXAMPLES = 6
ROWS = 8
JSON = {"Accept": "application/json"}
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
FEW = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
# Two never end, and one would lock the test out.
LEFT_OUT = ["GET /events/pulse", "POST /tokens", "POST /workers/{name}/presence"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("schema")
    names = [name for name in os.environ if not name.startswith("FAIRLANE_")]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [COMMAND, "serve", "--store", f"sqlite:///{folder / 'f.db'}", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env={name: os.environ[name] for name in names},
        )
    assert server.stdout
    try:
        line = server.stdout.readline()
        assert line.startswith(READY), (folder / "log").read_text()
        yield line.removeprefix(READY).strip()
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()
    assert "Traceback" not in (folder / "log").read_text()


@pytest.fixture(scope="module")
def api(url: str) -> Any:
    described = requests.get(f"{url}/openapi.json", timeout=ANSWER_SECONDS).json()
    return schema_of(described, url)


def schema_of(described: dict[str, Any], url: str) -> Any:
    for left_out in LEFT_OUT:
        method, path = left_out.split(" ")
        del described["paths"][path][method.lower()]
    schema = schemathesis.openapi.from_dict(described)
    schema.config.update(base_url=url)
    # The document says itself where a response names something: nothing has to be guessed.
    schema.config.phases.stateful.inference.algorithms = []
    return schema


def soon(case: Any) -> Any:
    """The same, so that the answer comes at once."""
    case.query = {name: text for name, text in (case.query or {}).items() if name != "follow"}
    if case.path.endswith("/wait"):
        case.query["timeoutMs"] = 0
    if isinstance(case.body, dict) and "waitMs" in case.body:
        case.body["waitMs"] = 0
    return case


def test_whatever_the_document_allows_is_answered_as_it_tells(api: Any) -> None:
    statuses: Counter[int] = Counter()
    operations = [found.ok() for found in api.get_all_operations()]
    for operation in operations:

        @settings(FEW, max_examples=EXAMPLES)
        @given(case=operation.as_strategy())
        def try_it(case: Any) -> None:
            answer = soon(case).call(headers=JSON, timeout=ANSWER_SECONDS)
            case.validate_response(answer, checks=CHECKS)
            statuses[answer.status_code] += 1

        try_it()
    assert max(statuses) < 500
    assert statuses.total() > 2 * len(operations) > 100, statuses


async def test_a_refused_request_has_changed_nothing() -> None:
    statuses: Counter[int] = Counter()
    async with MemoryFairlane(policy=STILL) as app:
        inside = Inside(app)
        tried = Tried(inside)
        described = (await tried.ask("GET", "/openapi.json")).json
        for found in schema_of(described, "http://127.0.0.1").get_all_operations():
            for case in made_up(found.ok().as_strategy()):
                before = inside.kept()
                answer = await tried.ask(case.method, target(case), **sent(soon(case)))
                statuses[answer.status] += 1
                assert answer.status < 400 or inside.kept() == before, (case, answer)
    assert max(statuses) < 500
    # There were many of both kinds.
    assert sum(count for status, count in statuses.items() if status < 300) > 50, statuses
    assert sum(count for status, count in statuses.items() if status >= 400) > 100, statuses


def made_up(cases: Any) -> list[Any]:
    found: list[Any] = []

    @settings(FEW, max_examples=EXAMPLES)
    @given(case=cases)
    def collect(case: Any) -> None:
        found.append(case)

    collect()
    return found


def target(case: Any) -> str:
    """As a server reads it: the path without its escapes, the query with them."""
    return f"{unquote(case.formatted_path)}?{urlencode(case.query or {}, doseq=True)}"


def sent(case: Any) -> dict[str, Any]:
    texts = {name: str(text) for name, text in (case.headers or {}).items()}
    headers = {name: text for name, text in texts.items() if text.isascii() and text.isprintable()}
    body = {} if isinstance(case.body, NotSet) else {"raw": msgspec.json.encode(case.body)}
    return {**body, "headers": {**headers, **JSON}}


# Where something is made, and what can then be done with it.
LINKED = {
    "tasks": r"^/tasks($|/{id})",
    "batches": r"^/tasks/batch$|^/batches/{id}",
    "leases": r"^/tasks$|^/leases($|/{id})",
    "queue": r"^/queue($|/{id})",
    "templates": r"^/templates($|/{id})",
    "jobs": r"^/cron/jobs($|/{id})",
}
MADE: dict[str, Callable[[int], dict[str, Any]]] = {
    "POST /tasks": lambda _: {"handler": "nobody"},
    "POST /tasks/batch": lambda _: {"tasks": [{"handler": "nobody"}, {"handler": "nobody"}]},
    "POST /leases": lambda _: {"worker": "w"},
    "POST /queue": lambda _: {"runId": "r"},
    "POST /templates": lambda number: {"name": f"t{number}", "instruction": "go"},
    "POST /cron/jobs": lambda number: {
        "name": f"j{number}",
        "schedule": {"kind": "every", "everyMs": 3_600_000},
        "task": {"handler": "nobody"},
    },
}


@pytest.mark.parametrize("noun", LINKED)
def test_what_was_made_can_be_used_in_any_order(api: Any, noun: str) -> None:
    linked = api.include(path_regex=LINKED[noun])
    found: set[str] = set()
    numbers = itertools.count()

    class Row(linked.as_state_machine()):  # type: ignore[misc]  # made at run time
        def call(self, case: Any, **_: Any) -> Any:
            make = MADE.get(f"{case.method} {case.path}")
            if make is not None:  # what is made up is nearly never all in order
                case.body, case.headers = make(next(numbers)), {}
            answer = soon(case).call(headers=JSON, timeout=ANSWER_SECONDS)
            if "{id}" in case.path and answer.status_code < 300:
                found.add(case.path)
            return answer

        def validate_response(self, response: Any, case: Any, **_: Any) -> None:
            case.validate_response(response, checks=CHECKS)

    run_state_machine_as_test(Row, settings=settings(FEW, max_examples=ROWS, stateful_step_count=8))
    assert found, "nothing that was made has been asked for again"
