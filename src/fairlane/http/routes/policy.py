"""Routes of the policy: look at it, change it, compare its versions, go back to one.

A body is a policy document and nothing else; who changes it and why stand in the query. A check
goes the way of a change, up to where that would be kept, so that both always agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from fairlane.core import json_diff
from fairlane.core.access import Scope
from fairlane.core.errors import InvalidPolicy, InvalidRequest, NotFound, StoreMismatch
from fairlane.core.json_diff import Difference
from fairlane.core.policy import Policy, nearest, notes, read, to_document
from fairlane.engine.commands import PATCH, REPLACE, PolicyChange, SetPolicy
from fairlane.engine.engine import kept_policy
from fairlane.engine.node import Node
from fairlane.engine.reads.views import PolicyView
from fairlane.http.messages import (
    Answer,
    Request,
    Route,
    Routes,
    actor,
    flag,
    page_cursor,
    page_limit,
    short_text,
    whole_number,
)
from fairlane.schema import fields, wire
from fairlane.store.pages import Page

_NUMBER_MAX: Final = 2**62
_WHY: Final = ("note", "author", "expectedVersion")


class Policies:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {
            "/policy": {
                "GET": Route(self.show, Scope.READ, agents=False),
                "PUT": Route(self.replace, Scope.ADMIN, agents=False),
                "PATCH": Route(self.patch, Scope.ADMIN, agents=False),
            },
            "/policy/check": {"POST": Route(self.check, Scope.READ, agents=False)},
            "/policy/versions": {"GET": Route(self.versions, Scope.READ, agents=False)},
            "/policy/diff": {"GET": Route(self.diff, Scope.READ, agents=False)},
            "/policy/rollback": {"POST": Route(self.rollback, Scope.ADMIN, agents=False)},
        }

    async def show(self, request: Request) -> Answer:
        wanted = whole_number(request.query("version"), "version", None, low=0, high=_NUMBER_MAX)
        view = await self._find(wanted)
        if view is None:
            shape = {"version": 0, "policy": to_document(Policy()), "source": "default"}
            return Answer(200, shape)
        policy = kept_policy(view.version, view.document)
        return Answer(200, {**_about(view), "policy": to_document(policy)})

    async def replace(self, request: Request) -> Answer:
        document = fields.parse_object(await request.body())
        return await self._set(request, document, "put", REPLACE)

    async def patch(self, request: Request) -> Answer:
        document = fields.parse_object(await request.body())
        return await self._set(request, document, "patch", PATCH)

    async def rollback(self, request: Request) -> Answer:
        version = _version(fields.parse_object(await request.body()))
        view = await self._find(version)
        document = {} if view is None else _kept(view)
        usual = f"rollback to version {version}"
        return await self._set(request, document, "rollback", REPLACE, note=usual)

    async def check(self, request: Request) -> Answer:
        how = PATCH if flag(request.query("patch"), "patch") else REPLACE
        document = fields.parse_object(await request.body())
        try:
            change = await self._node.set_policy(SetPolicy(document, "", how, dry_run=True))
        except InvalidPolicy as error:
            return Answer(200, {"valid": False, "problems": error.problems, "changes": []})
        shape = {"valid": True, "problems": [], "changes": _changes(change)}
        return Answer(200, {**shape, "version": change.version, **_notes(document)})

    async def versions(self, request: Request) -> Answer:
        query = request.query("limit", "cursor")
        limit = page_limit(query)
        before = page_cursor(query)
        return Answer(200, await self._node.views.read(self._page, before, limit))

    async def diff(self, request: Request) -> Answer:
        query = request.query("from", "to")
        to = whole_number(query, "to", None, low=0, high=_NUMBER_MAX)
        after = await self._find(to)
        to = 0 if after is None else after.version
        from_ = whole_number(query, "from", max(0, to - 1), low=0, high=_NUMBER_MAX)
        before = await self._find(from_)
        changes = json_diff.between(_document(before), _document(after))
        return Answer(200, {"from": from_, "to": to, "changes": _shapes(changes)})

    async def _set(
        self, request: Request, document: Any, source: str, how: str, note: str | None = None
    ) -> Answer:
        query = request.query(*_WHY)
        change = await self._node.set_policy(
            SetPolicy(
                document,
                source,
                how,
                author=_author(request, query.get("author")),
                note=short_text("query parameter 'note'", query.get("note")) or note,
                expected_version=whole_number(
                    query, "expectedVersion", None, low=0, high=_NUMBER_MAX
                ),
            )
        )
        shape = {
            "version": change.version,
            "changed": change.before != change.after,
            "changes": _changes(change),
            "policy": to_document(change.after),
        }
        return Answer(200, {**shape, **_notes(document)})

    def _page(self, before: int | None, limit: int) -> dict[str, Any]:
        """Each version with what it has changed: too much, maybe, for the event loop."""
        found = self._node.views.policy_versions(before, limit)
        documents = [*map(_document, found), _document(self._older(found))]
        shapes = [
            {**_about(view), "changes": _shapes(json_diff.between(older, newer))}
            for view, (newer, older) in zip(found, pairwise(documents), strict=True)
        ]
        shape: dict[str, Any] = {"versions": shapes, "count": len(shapes)}
        if found.more:
            shape["nextCursor"] = str(found[-1].version)
        return shape

    def _older(self, page: Page[PolicyView]) -> PolicyView | None:
        """Return the version before the last of a page; None stands for the defaults."""
        if not page.more:
            return None
        return next(iter(self._node.views.policy_versions(page[-1].version, 1)), None)

    async def _find(self, version: int | None) -> PolicyView | None:
        """A version, or the newest. None stands for the defaults, which are version 0."""
        if version == 0:
            return None
        views = self._node.views
        view = await views.read(views.policy, version)
        if view is None and version is not None:
            raise NotFound(f"the policy has no version {version}; GET /policy/versions lists them")
        return view


def _notes(document: Any) -> dict[str, list[str]]:
    """What a caller should know of a document that was taken; no key when there is nothing."""
    found = notes(document)
    return {"notes": found} if found else {}


def _author(request: Request, said: str | None) -> str | None:
    """Who has a token is who the token says, whatever else is said."""
    named = short_text("query parameter 'author'", said)
    return actor(request) if request.caller.token is not None else named or actor(request)


def _version(body: dict[str, Any]) -> int:
    for name in body:
        if name != "version":
            raise InvalidRequest(f"unknown field '{name[:40]}'{nearest(name, ['version'])}")
    if "version" not in body:
        raise InvalidRequest("missing required field 'version'")
    version = body["version"]
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < _NUMBER_MAX:
        raise InvalidRequest("field 'version' must be a whole number, 0 for the defaults")
    return version


def _about(view: PolicyView) -> dict[str, Any]:
    shape = {
        "version": view.version,
        "createdAt": wire.moment(view.created_at),
        "source": view.source,
        "author": view.author,
        "note": view.note,
    }
    return {key: value for key, value in shape.items() if value is not None}


def _kept(view: PolicyView) -> Any:
    try:
        return msgspec.json.decode(view.document)
    except msgspec.DecodeError:
        raise StoreMismatch(f"version {view.version} of the policy is not valid JSON") from None


def _document(view: PolicyView | None) -> Any:
    """As this version understands it; the text when it cannot. None is the defaults."""
    if view is None:
        return to_document(Policy())
    try:
        return to_document(read(_kept(view))[0])
    except (InvalidPolicy, StoreMismatch):
        return view.document


def _changes(change: PolicyChange) -> list[dict[str, Any]]:
    return _shapes(json_diff.between(to_document(change.before), to_document(change.after)))


def _shapes(changes: Sequence[Difference]) -> list[dict[str, Any]]:
    return [_shape(change) for change in changes]


def _shape(change: Difference) -> dict[str, Any]:
    shape = {"path": json_diff.spelled(change.path), "from": change.before, "to": change.after}
    return {key: value for key, value in shape.items() if value is not msgspec.UNSET}
