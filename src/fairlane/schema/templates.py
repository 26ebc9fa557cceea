"""Templates: create, list, show, change, delete, and use one for a task."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta, field

from fairlane.core import secrets
from fairlane.core.access import Scope
from fairlane.core.json_types import JsonObject
from fairlane.core.retries import Backoff
from fairlane.core.submissions import Needs, TaskRequest
from fairlane.core.templates import Parameter, Template, TemplateDocument
from fairlane.core.types import Cursor, Moment, PageLimit
from fairlane.schema.operation import (
    DELETE,
    GET,
    PATCH,
    POST,
    PUT,
    Header,
    IdOf,
    Operation,
    RawBody,
    Request,
    Response,
    WholeBody,
)
from fairlane.schema.tasks import Once, TaskAccepted
from fairlane.schema.wire import moment

TemplateId = Annotated[str, IdOf("template"), Meta(description="Id of the template")]


class CreateTemplateRequest(Request):
    document: Annotated[JsonObject, WholeBody(TemplateDocument), Meta(description="The template")]


class ListTemplates(Request):
    name: Annotated[str | None, Meta(description="Only the template with this name")] = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class TemplateRequest(Request):
    """The id of one template."""

    template_id: TemplateId = field(name="id")


class ChangeTemplate(Request):
    template_id: TemplateId = field(name="id")
    document: Annotated[
        JsonObject,
        WholeBody(),
        Meta(description="Fields to change; null clears a field"),
    ]


class FillTemplate(Request):
    template_id: TemplateId = field(name="id")
    params: Annotated[
        JsonObject | None, Meta(description="Values for the template's parameters")
    ] = None
    overrides: Annotated[
        TaskRequest | None, Meta(description="Fields of the task, which override the template's")
    ] = None
    submit: Annotated[bool | None, Meta(description="Submit the task; default: only show it")] = (
        None
    )
    idempotency_key: Annotated[Once | None, Header("Idempotency-Key")] = None
    raw: Annotated[bytes, RawBody()] = b""


class TemplateDetail(Response, kw_only=True):
    id: str
    name: str
    description: str
    instruction: str
    priority: int | str
    parameters: list[Parameter]
    timeout_ms: int | None = None
    retry_policy: Backoff | None = None
    llm_config: Annotated[
        JsonObject | None, Meta(description="Settings for the agent; secrets are masked")
    ] = None
    metadata: JsonObject | None = None
    needs: Needs | None = None
    unreadable: Annotated[
        list[str] | None, Meta(description="Fields that are damaged in the store")
    ] = None
    usage_count: Annotated[int, Meta(description="Number of tasks created from it")]
    created_at: Moment
    updated_at: Moment


class TemplatePage(Response):
    templates: list[TemplateDetail]
    count: int
    next_cursor: str | None = None


class TemplateDeleted(Response):
    id: str
    deleted: bool


class TemplateSubmitted(TaskAccepted, kw_only=True):
    template_id: str


class TemplateFilled(TaskRequest, Response, forbid_unknown_fields=False):
    """The task of a filled-in template, as `POST /tasks` takes it; secrets are masked."""


def template_detail(template: Template) -> TemplateDetail:
    definition = template.definition
    config = definition.llm_config
    return TemplateDetail(
        id=template.id,
        name=definition.name,
        description=definition.description,
        instruction=definition.instruction,
        priority=definition.priority,
        parameters=definition.parameters,
        usage_count=template.usage_count,
        created_at=moment(template.created_at),
        updated_at=moment(template.updated_at),
        timeout_ms=definition.timeout_ms,
        retry_policy=definition.retry_policy,
        llm_config=None if config is None else secrets.mask_secrets(config),
        metadata=definition.metadata,
        needs=definition.needs,
        unreadable=["definition"] if template.damaged else None,
    )


def template_filled(task: TaskRequest) -> TemplateFilled:
    shown = TemplateFilled(**msgspec.structs.asdict(task))
    if shown.llm_config is not None:
        shown.llm_config = secrets.mask_secrets(shown.llm_config)
    return shown


CREATE_TEMPLATE: Final = Operation(
    "create_template",
    POST,
    "/templates",
    CreateTemplateRequest,
    TemplateDetail,
    Scope.OPERATE,
    "Create a template: an instruction with parameters",
    status=201,
    agents=False,
)
TEMPLATES: Final = Operation(
    "templates",
    GET,
    "/templates",
    ListTemplates,
    TemplatePage,
    Scope.READ,
    "List templates, newest first",
)
TEMPLATE: Final = Operation(
    "template",
    GET,
    "/templates/{id}",
    TemplateRequest,
    TemplateDetail,
    Scope.READ,
    "Show a template",
)
UPDATE_TEMPLATE: Final = Operation(
    "update_template",
    PATCH,
    "/templates/{id}",
    ChangeTemplate,
    TemplateDetail,
    Scope.OPERATE,
    "Change fields of a template",
    agents=False,
    also=(PUT,),
)
DELETE_TEMPLATE: Final = Operation(
    "delete_template",
    DELETE,
    "/templates/{id}",
    TemplateRequest,
    TemplateDeleted,
    Scope.OPERATE,
    "Delete a template",
    agents=False,
)
USE_TEMPLATE: Final[Operation[FillTemplate, TemplateSubmitted | TemplateFilled]] = Operation(
    "use_template",
    POST,
    "/templates/{id}/instantiate",
    FillTemplate,
    TemplateSubmitted,
    Scope.SUBMIT,
    "Fill in a template: show the resulting task, or submit it",
    status=202,
    statuses={TemplateFilled: 200},
    positional=("params",),
)
