"""Operations: each is implemented once, and what is derived from it agrees with it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode

import msgspec
import pytest
from msgspec import Meta, field

from fairlane.client.binding import bound
from fairlane.core.access import Caller, Scope
from fairlane.core.errors import Forbidden, InvalidRequest
from fairlane.core.types import Identifier
from fairlane.http import messages, operations
from fairlane.schema import openapi
from fairlane.schema.catalog import OPERATIONS
from fairlane.schema.operation import (
    GET,
    PATCH,
    POST,
    Header,
    Nulls,
    Operation,
    Query,
    Request,
    Response,
    WholeBody,
)
from fairlane.services import catalog
from fairlane.testing import MemoryFairlane

ROOT = Path(__file__).parents[2]
each = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


class Sent(Request):
    """A field from every place that a request has."""

    sample_id: str = field(name="id")
    delay_ms: Annotated[int, Meta(ge=0, le=10)] = 0
    states: list[str] | None = field(default=None, name="state")
    brief: Annotated[bool, Query()] = False
    actor: Annotated[Annotated[str, Meta(max_length=5)] | None, Header("X-Fairlane-Actor")] = None


class Kept(Response):
    name: str
    error: str | None = None


READ: Operation[Sent, Kept] = Operation(
    "read_sample", GET, "/samples/{id}", Sent, Kept, Scope.READ, "Read a sample"
)
WRITE: Operation[Sent, Kept] = Operation(
    "write_sample", POST, "/samples/{id}", Sent, Kept, Scope.OPERATE, "Write a sample"
)


class Whole(Request):
    document: Annotated[dict[str, Any], WholeBody()]


REPLACE: Operation[Whole, Kept] = Operation(
    "replace_sample", POST, "/samples", Whole, Kept, Scope.ADMIN, "Replace all samples"
)


def received(operation: Operation[Any, Any], request: Request) -> Any:
    """Send a request as a client does and read it as the server does."""
    path, asked = bound(operation, request)
    body = msgspec.json.encode(asked["body"]) if "body" in asked else b""
    headers = {name.lower().encode(): text.encode() for name, text in asked["headers"].items()}
    query = urlencode(asked["query"] or {}).encode()
    arrived = messages.HttpRequest(operation.method, path, query, headers, body)
    arrived.path = {"id": path.rpartition("/")[2]}
    return asyncio.run(operations.reader(operation)(arrived))


@pytest.mark.parametrize("operation", [READ, WRITE], ids=["GET", "POST"])
@pytest.mark.parametrize(
    "request_",
    [
        Sent("a"),
        Sent("b", delay_ms=3, states=["queued", "done"], brief=True, actor="ann"),
    ],
    ids=["defaults", "everything"],
)
def test_what_a_client_sends_is_what_the_server_reads(
    operation: Operation[Sent, Kept], request_: Sent
) -> None:
    assert received(operation, request_) == request_


def test_a_whole_body_is_one_field() -> None:
    assert received(REPLACE, Whole({"a": {"b": 1}})) == Whole({"a": {"b": 1}})


class Tuned(Request):
    sample_id: Identifier = field(name="id")
    delay_ms: int | None = None
    mode: str | None = None
    unset: Annotated[list[str], Nulls()] = field(default_factory=list)


class Refused(Response):
    reason: str


TUNE: Operation[Tuned, Kept | Refused] = Operation(
    "tune_sample",
    PATCH,
    "/samples/{id}",
    Tuned,
    Kept,
    Scope.OPERATE,
    "Tune a sample",
    statuses={Refused: 202},
)


def test_a_change_says_which_fields_are_null_and_which_are_absent() -> None:
    assert received(TUNE, Tuned("a", delay_ms=1)) == Tuned("a", delay_ms=1)
    assert received(TUNE, Tuned("a", unset=["delayMs"])) == Tuned("a", unset=["delay_ms"])
    assert bound(TUNE, Tuned("a", unset=["delay_ms"]))[1]["body"] == {"delayMs": None}
    with pytest.raises(InvalidRequest, match="unknown field 'mod'; did you mean mode"):
        bound(TUNE, Tuned("a", unset=["mod"]))


def test_the_path_is_checked_too() -> None:
    with pytest.raises(InvalidRequest, match="path parameter 'id' has invalid characters"):
        received(TUNE, Tuned("a*"))


def test_each_type_of_response_has_its_status_and_is_read_back_as_itself() -> None:
    assert TUNE.responses == {Kept: 200, Refused: 202}
    assert TUNE.status_of(Refused("no")) == 202
    assert TUNE.convert_response({"reason": "no"}) == Refused("no")
    assert TUNE.convert_response({"name": "a"}) == Kept("a")
    with pytest.raises(msgspec.ValidationError):
        TUNE.convert_response({})
    described = openapi.describe([TUNE], {})["paths"]["/samples/{id}"]["patch"]
    assert list(described["responses"]) == ["200", "202"]


def test_fields_are_read_from_where_they_are_declared() -> None:
    assert READ.places == {
        "sample_id": "path",
        "delay_ms": "query",
        "states": "query",
        "brief": "query",
        "actor": "header",
    }
    assert WRITE.places["delay_ms"] == "body"
    assert WRITE.places["brief"] == "query"
    path, asked = bound(WRITE, Sent("a/b", delay_ms=3, brief=True))
    assert path == "/samples/a%2Fb"
    assert parse_qs(urlencode(asked["query"] or {})) == {"brief": ["true"]}
    assert asked["body"] == {"delayMs": 3}


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (Sent("a", delay_ms=11), "query parameter 'delayMs' must be from 0 to 10"),
        (Sent("a", actor="annabel"), "the header X-Fairlane-Actor must not be longer than 5"),
    ],
)
def test_a_refusal_names_the_parameter_or_the_header(request_: Sent, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        received(READ, request_)


def test_a_field_of_the_path_cannot_be_set_in_the_body() -> None:
    part = WRITE.part("body")
    assert part.__struct_encode_fields__ == ("delayMs", "state")


def test_a_response_can_be_read_by_its_json_names_too() -> None:
    kept = Kept("a")
    assert kept["name"] == "a"
    assert "error" not in kept
    assert kept.get("error", "none") == "none"
    assert dict(kept.items()) == kept.to_dict() == {"name": "a"}
    assert list(kept) == list(kept.keys()) == ["name"]


def test_only_changes_by_operators_are_audited() -> None:
    assert WRITE.is_audited
    assert REPLACE.is_audited
    assert not READ.is_audited


@each
def test_every_operation_has_a_service_and_a_summary(operation: Operation[Any, Any]) -> None:
    assert operation.name in catalog.SERVICES
    assert operation.summary[0].isupper()
    assert not operation.summary.endswith(".")
    assert set(operation.parameters) <= set(operation.part("path").__struct_encode_fields__)


def test_a_caller_without_the_scope_is_refused_in_this_process_too() -> None:
    agent = Caller("a", agent="a", scopes=frozenset({Scope.OPERATE}))
    assert isinstance(catalog.refused(agent, OPERATIONS["lanes"]), Forbidden)
    assert isinstance(catalog.refused(agent, OPERATIONS["pause_lane"]), Forbidden)
    assert catalog.refused(Caller("b"), OPERATIONS["pause_lane"]) is None


async def test_the_embedded_api_calls_the_service_and_returns_its_type() -> None:
    async with MemoryFairlane() as app:
        lanes = await app.lanes()
        paused = await app.pause_lane("main")
        with pytest.raises(InvalidRequest, match="query parameter 'limit' must be from 1 to 1000"):
            await app.batches(limit=0)
    assert {lane.name for lane in lanes.lanes} >= {"main", "browser"}
    assert (paused.lane, paused.paused) == ("main", True)


def test_the_client_methods_are_those_of_the_operations() -> None:
    """`make generate` writes them, and the tables of the documentation."""
    command = [sys.executable, str(ROOT / "scripts" / "generate.py"), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
