"""Routes of templates: keep them, change them, use them.

Whatever is answered has its secrets masked. A use goes the way of `POST /tasks`: what a template
makes is checked by the same rules, whether it is submitted or only shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fairlane.core import secrets, templates
from fairlane.core.access import Scope
from fairlane.core.errors import FairlaneError, InvalidRequest
from fairlane.core.policy import nearest
from fairlane.core.templates import Template
from fairlane.engine.commands import (
    CreateTemplate,
    DeleteTemplate,
    Submit,
    UpdateTemplate,
    UseTemplate,
)
from fairlane.engine.node import Node
from fairlane.engine.verbs.templates import damaged, not_found
from fairlane.http.messages import Answer, Request, Route, Routes, page_cursor, page_limit
from fairlane.http.routes.keys import idempotency_key
from fairlane.schema import bodies, fields, wire
from fairlane.schema.tasks import task_accepted
from fairlane.services.tasks import check_callback, submitter


class Templates:
    def __init__(self, node: Node) -> None:
        self._node = node

    def routes(self) -> Routes:
        return {
            "/templates": {
                "POST": Route(self.create, Scope.OPERATE, agents=False),
                "GET": Route(self.list, Scope.READ),
            },
            "/templates/{id}": {
                "GET": Route(self.show, Scope.READ),
                "PUT": Route(self.update, Scope.OPERATE, agents=False),
                "PATCH": Route(self.update, Scope.OPERATE, agents=False),
                "DELETE": Route(self.delete, Scope.OPERATE, agents=False),
            },
            "/templates/{id}/instantiate": {"POST": Route(self.instantiate, Scope.SUBMIT)},
        }

    async def create(self, request: Request) -> Answer:
        document = fields.parse_object(await request.body())
        made = CreateTemplate(self._node.new_id("tpl"), document)
        return Answer(201, _shape(await self._node.writer.ask(made)))

    async def list(self, request: Request) -> Answer:
        query = request.query("name", "limit", "cursor")
        limit = page_limit(query)
        before = page_cursor(query)
        views = self._node.views
        page = await views.read(views.templates, query.get("name") or None, before, limit)
        shape: dict[str, Any] = {"templates": [_shape(one) for one in page], "count": len(page)}
        if page.more:
            shape["nextCursor"] = str(page[-1].seq)
        return Answer(200, shape)

    async def show(self, request: Request) -> Answer:
        return Answer(200, _shape(await self._found(request)))

    async def update(self, request: Request) -> Answer:
        document = fields.parse_object(await request.body())
        change = UpdateTemplate(request.path["id"], document)
        return Answer(200, _shape(await self._node.writer.ask(change)))

    async def delete(self, request: Request) -> Answer:
        template_id = request.path["id"]
        await self._node.writer.ask(DeleteTemplate(template_id))
        return Answer(200, {"id": template_id, "deleted": True})

    async def instantiate(self, request: Request) -> Answer:
        raw = await request.body()
        use = _use(raw)
        template = await self._found(request)
        if template.damaged:
            raise damaged()
        body = templates.instantiate(template, use.params or {}, use.overrides)
        agent = request.caller.agent
        submission = bodies.parse_task(wire.encode(body), task_id=self._node.new_id(), agent=agent)
        request.caller.agent_for(submission.agent)
        check_callback(self._node, submission.callback_url)
        if not use.submit:
            await self._node.writer.ask(UseTemplate(template.id))
            return Answer(200, _masked(body))
        key = idempotency_key(request, submission.agent, template.id.encode() + raw)
        asked = UseTemplate(
            template.id, Submit([submission], key, caller=submitter(request.caller))
        )
        answer = (await self._node.submit(asked))[0]
        if isinstance(answer, FairlaneError):
            raise answer
        return Answer(202, {**task_accepted(answer).to_dict(), "templateId": template.id})

    async def _found(self, request: Request) -> Template:
        views = self._node.views
        template = await views.read(views.template, request.path["id"])
        if template is None:
            raise not_found()
        return template


class _Use(msgspec.Struct, frozen=True):
    params: dict[str, Any] | None = None
    overrides: dict[str, Any] | None = None
    submit: bool | None = None


def _use(raw: bytes) -> _Use:
    body = fields.parse_object(raw) if raw.strip() else {}
    for name, value in body.items():
        if name not in _USE:
            raise InvalidRequest(f"unknown field '{name[:40]}'{nearest(name, _USE)}")
        if value is not None and not isinstance(value, _USE[name][0]):
            raise InvalidRequest(f"field '{name}' must be {_USE[name][1]}")
    return _Use(**body)


_USE: Final[Mapping[str, tuple[type, str]]] = {
    "params": (dict, "an object"),
    "overrides": (dict, "an object"),
    "submit": (bool, "true or false"),
}


def _shape(template: Template) -> dict[str, Any]:
    definition: dict[str, Any] = msgspec.to_builtins(template.definition)
    if template.damaged:
        definition["unreadable"] = ["definition"]
    return {
        "id": template.id,
        **_masked(definition),
        "usageCount": template.usage_count,
        "createdAt": wire.moment(template.created_at),
        "updatedAt": wire.moment(template.updated_at),
    }


def _masked(body: dict[str, Any]) -> dict[str, Any]:
    if "llmConfig" not in body:
        return body
    return {**body, "llmConfig": secrets.masked(body["llmConfig"])}
