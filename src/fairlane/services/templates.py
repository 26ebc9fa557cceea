"""Templates: create, list, show, change, delete, and create a task from one.

A use follows the same path as `POST /tasks`: the task passes the same checks, whether it is
submitted or only shown.
"""

from __future__ import annotations

import msgspec

from fairlane.core import templates
from fairlane.core.access import Caller
from fairlane.core.errors import FairlaneError
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
from fairlane.schema import templates as schema
from fairlane.schema.tasks import task_accepted
from fairlane.schema.templates import (
    TemplateDeleted,
    TemplateDetail,
    TemplateFilled,
    TemplatePage,
    TemplateSubmitted,
    template_detail,
    template_filled,
)
from fairlane.services import offers
from fairlane.services.pages import number
from fairlane.services.registry import implements
from fairlane.services.tasks import idempotency_key, submission_of, submitter


@implements(schema.CREATE_TEMPLATE)
async def create_template(
    node: Node, _: Caller, request: schema.CreateTemplateRequest
) -> TemplateDetail:
    definition = templates.define(request.document)
    made = CreateTemplate(node.new_id("tpl"), definition)
    return template_detail(await node.writer.ask(made))


@implements(schema.TEMPLATES)
async def list_templates(node: Node, _: Caller, request: schema.ListTemplates) -> TemplatePage:
    views = node.views
    before = number(request.cursor)
    page = await views.read(views.templates, request.name, before, request.limit)
    return TemplatePage(
        templates=[template_detail(template) for template in page],
        count=len(page),
        next_cursor=str(page[-1].seq) if page.more else None,
    )


@implements(schema.TEMPLATE)
async def show_template(node: Node, _: Caller, request: schema.TemplateRequest) -> TemplateDetail:
    return template_detail(await _found(node, request.template_id))


@implements(schema.UPDATE_TEMPLATE)
async def update_template(node: Node, _: Caller, request: schema.ChangeTemplate) -> TemplateDetail:
    change = UpdateTemplate(request.template_id, request.document)
    return template_detail(await node.writer.ask(change))


@implements(schema.DELETE_TEMPLATE)
async def delete_template(
    node: Node, _: Caller, request: schema.TemplateRequest
) -> TemplateDeleted:
    await node.writer.ask(DeleteTemplate(request.template_id))
    return TemplateDeleted(request.template_id, deleted=True)


@implements(schema.USE_TEMPLATE)
async def use_template(
    node: Node, caller: Caller, request: schema.FillTemplate
) -> TemplateSubmitted | TemplateFilled:
    template = await _found(node, request.template_id)
    if template.damaged:
        raise damaged()
    task = templates.instantiate(template, request.params or {}, request.overrides)
    made = submission_of(node, caller, task)
    if not request.submit:
        await node.writer.ask(UseTemplate(template.id))
        return template_filled(task)
    warnings = await offers.checked(node, made)
    raw = template.id.encode() + request.raw
    key = idempotency_key(request.idempotency_key, made.agent, raw)
    use = UseTemplate(template.id, Submit([made], key, caller=submitter(caller)))
    answer = (await node.submit(use))[0]
    if isinstance(answer, FairlaneError):
        raise answer
    accepted = msgspec.structs.asdict(task_accepted(answer, warnings))
    return TemplateSubmitted(**accepted, template_id=template.id)


async def _found(node: Node, template_id: str) -> Template:
    template: Template | None = await node.views.read(node.views.template, template_id)
    if template is None:
        raise not_found()
    return template
