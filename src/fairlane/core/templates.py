"""Templates: named instructions with `{{placeholders}}` that are filled in for each use.

A definition is checked as a whole when it is created or changed, so a use can only fail because of
its values. Values are inserted in one pass and verbatim: placeholders or patterns inside a value
are plain text. Caution: `llm_config` holds secrets; show it only `masked`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from fairlane.core import secrets, validation
from fairlane.core.errors import InvalidRequest
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.policy import INSTRUCTION_TIMEOUT_MS_MAX, nearest
from fairlane.core.retries import Backoff
from fairlane.core.submissions import (
    INSTRUCTION_CHARACTERS_MAX,
    Instruction,
    Needs,
    Priority,
    TaskRequest,
    check_amounts,
)
from fairlane.core.types import json_name
from fairlane.core.validation import Problem

NAME_CHARACTERS_MAX: Final = 200
DESCRIPTION_CHARACTERS_MAX: Final = 10_000
PARAMETERS_MAX: Final = 100
DEFINITION_BYTES_MAX: Final = 524_288

# Task fields that a use may not set: they belong to the template.
_NOT_OVERRIDDEN: Final = (
    *("action", "tab", "ref", "selector", "handler", "instruction", "params", "key"),
)
_OBJECTS: Final = ("retry_policy", "llm_config", "metadata", "needs")
# Set by the store; a change ignores them, so that a caller can send back what it read.
_READ_ONLY: Final = frozenset({"id", "usageCount", "createdAt", "updatedAt"})
_PLACEHOLDER: Final = re.compile(r"\{\{([^{}]*)\}\}")
_NUMERIC: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER_MAX: Final = 1.7e308
_NUMBER_CHARACTERS_MAX: Final = 100

ParameterName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$(?!\n)")]
ParameterType = Literal["string", "number", "boolean"]
Description = Annotated[str, Meta(max_length=DESCRIPTION_CHARACTERS_MAX)]
TemplateTimeoutMs = Annotated[int, Meta(ge=1, le=INSTRUCTION_TIMEOUT_MS_MAX)]


class ParameterDocument(msgspec.Struct, rename=json_name, forbid_unknown_fields=True):
    name: ParameterName
    type: Annotated[
        ParameterType | None, Meta(description="Type of the values; default: string")
    ] = None
    required: Annotated[bool | None, Meta(description="Whether a value is required")] = None
    default: Annotated[Any, Meta(description="Value to use if none is given")] = None
    description: Description | None = None


class TemplateDocument(
    msgspec.Struct, rename=json_name, omit_defaults=True, forbid_unknown_fields=True
):
    """A template as a caller describes it. None is the same as leaving a field out."""

    name: Annotated[
        Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)],
        Meta(description="Unique name of the template, in one line"),
    ]
    instruction: Annotated[
        Instruction, Meta(description="Text of the instruction, with {{placeholders}}")
    ]
    description: Description | None = None
    priority: Annotated[
        Priority | None, Meta(description="Priority of the tasks; default: normal")
    ] = None
    parameters: Annotated[
        Annotated[list[ParameterDocument], Meta(max_length=PARAMETERS_MAX)] | None,
        Meta(description="The placeholders"),
    ] = None
    timeout_ms: Annotated[
        TemplateTimeoutMs | None, Meta(description="Maximum duration of one attempt")
    ] = None
    timeout: Annotated[
        TemplateTimeoutMs | None,
        Meta(description="Old name of timeoutMs", extra_json_schema={"deprecated": True}),
    ] = None
    retry_policy: Annotated[Backoff | None, Meta(description="Retry settings of the tasks")] = None
    llm_config: Annotated[
        JsonObject | None, Meta(description="Settings for the agent that runs the tasks")
    ] = None
    metadata: Annotated[JsonObject | None, Meta(description="Object stored with each task")] = None
    needs: Annotated[
        Needs | None, Meta(description="Amounts that each task needs, by resource and unit")
    ] = None


class Parameter(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str
    type: str
    required: bool
    default: str | int | float | bool | None = None
    description: str | None = None


class TemplateDefinition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A template with every default, as the store keeps it in JSON."""

    name: str
    description: str
    instruction: str
    priority: int | str
    parameters: list[Parameter]
    timeout_ms: int | None = None
    retry_policy: Backoff | None = None
    llm_config: JsonObject | None = None
    metadata: JsonObject | None = None
    needs: Needs | None = None


class Template(msgspec.Struct, frozen=True):
    """`usage_count` moves with each use, `updated_at` only with a change of the definition.

    `damaged` says that the stored definition cannot be read; `definition` then stands in for it.
    """

    seq: int
    id: str
    definition: TemplateDefinition
    usage_count: int
    created_at: int
    updated_at: int
    damaged: bool = False


# -------------------------------------------------------------------- create and change


def define(document: object) -> TemplateDefinition:
    """Return the definition of a new template. Raise `InvalidRequest` with every problem."""
    return _defined({}, _object(document))


def update(template: Template, document: object, now: int) -> Template:
    """Merge `document` into the definition; null clears a field.

    A document that changes nothing is no change. Raise `InvalidRequest` with every problem.
    """
    current = msgspec.to_builtins(template.definition)
    given = {name: value for name, value in _object(document).items() if name not in _READ_ONLY}
    definition = _defined(current, given)
    if definition == template.definition:
        return template
    return msgspec.structs.replace(template, definition=definition, updated_at=now)


def _object(document: object) -> JsonObject:
    if not isinstance(document, dict):
        raise InvalidRequest("invalid template: it must be a JSON object")
    return document


def _defined(current: JsonMapping, given: JsonObject) -> TemplateDefinition:
    given = _with_one_timeout(given)
    kept = current.get("llmConfig")
    if "llmConfig" in given:
        given["llmConfig"] = secrets.restore_secrets(given["llmConfig"], kept)
    merged = {name: value for name, value in {**current, **given}.items() if value is not None}
    try:
        checked = validation.check(merged, TemplateDocument, lambda one: _problems(one, kept))
    except InvalidRequest as error:
        raise InvalidRequest(f"invalid template: {error.message}", details=error.details) from None
    return _definition(checked)


def _with_one_timeout(given: JsonMapping) -> JsonObject:
    """Return a copy with `timeout` under its other name, unless both have different values."""
    named = dict(given)
    if "timeout" in named and named.get("timeoutMs", named["timeout"]) == named["timeout"]:
        named["timeoutMs"] = named.pop("timeout")
    return named


def _definition(document: TemplateDocument) -> TemplateDefinition:
    return TemplateDefinition(
        name=document.name.strip(),
        description=document.description or "",
        instruction=document.instruction,
        priority="normal" if document.priority is None else document.priority,
        parameters=[
            Parameter(
                name=one.name,
                type=one.type or "string",
                required=one.required or False,
                default=one.default,
                description=one.description,
            )
            for one in document.parameters or ()
        ],
        timeout_ms=document.timeout_ms,
        retry_policy=document.retry_policy,
        llm_config=document.llm_config,
        metadata=document.metadata,
        needs=document.needs,
    )


def _problems(document: TemplateDocument, kept: object) -> list[Problem]:
    """List the problems of a template whose fields are each valid."""
    problems = [
        *_text_problems(document),
        *_parameter_problems(document.parameters or []),
        *_secret_problems("llmConfig", document.llm_config, kept),
        *_need_problems(document.needs or {}),
    ]
    if document.timeout is not None:
        text = "'timeout' is an alias of 'timeoutMs': give only one of them"
        problems.append(Problem("timeout", text))
    if not problems and len(msgspec.json.encode(document)) > DEFINITION_BYTES_MAX:
        text = f"it must not be larger than {DEFINITION_BYTES_MAX} bytes"
        problems.append(Problem("", text))
    return problems


def _need_problems(needs: Needs) -> list[Problem]:
    try:
        check_amounts(needs)
    except InvalidRequest as error:
        return [Problem("needs", error.message)]
    return []


def _text_problems(document: TemplateDocument) -> list[Problem]:
    problems = [
        Problem(name, f"field '{name}' must not be blank")
        for name in ("name", "instruction")
        if not getattr(document, name).strip()
    ]
    if not document.name.isprintable():  # it is shown in lists and messages
        text = "field 'name' must be one line without control characters"
        problems.append(Problem("name", text))
    declared = [one.name for one in document.parameters or ()]
    wanted = [name.strip() for name in _PLACEHOLDER.findall(document.instruction)]
    for name in dict.fromkeys(wanted):
        if name not in declared:
            hint = nearest(name, declared) or "; add it to 'parameters'"
            text = f"field 'instruction' has the placeholder {{{{{name[:40]}}}}}"
            problems.append(Problem("instruction", f"{text} that no parameter declares{hint}"))
    return problems


def _parameter_problems(parameters: Sequence[ParameterDocument]) -> list[Problem]:
    problems = []
    names = [one.name for one in parameters]
    for number, one in enumerate(parameters):
        path = f"parameters[{number}]"
        if one.name in names[:number]:
            text = f"field '{path}.name' declares the parameter '{one.name}' a second time"
            problems.append(Problem(f"{path}.name", text))
        kind = one.type or "string"
        fits = _kind(one.default) == kind and _value_text(kind, one.default) is not None
        if one.default is not None and not fits:
            text = f"field '{path}.default' must be a {kind}, got: {_kind(one.default)}"
            problems.append(Problem(f"{path}.default", text))
    return problems


def _secret_problems(path: str, config: JsonObject | None, kept: object) -> list[Problem]:
    """List secrets that are masked or moved; `kept` is the configuration before a change."""
    if config is None:
        return []
    moved = secrets.moved_secret_problem(kept, config, path)
    texts = [] if moved is None else [moved]
    secrets.check_secrets(path, config, texts)
    return [Problem(path, text) for text in texts]


# -------------------------------------------------------------------- use


def instantiate(
    template: Template, params: JsonMapping, overrides: TaskRequest | None = None
) -> TaskRequest:
    """Return the template's task, including secrets.

    Objects in `overrides` are merged key by key; other values replace the template's.
    """
    definition = template.definition
    task = TaskRequest(
        instruction=_fill_in(definition.instruction, _texts(definition.parameters, params)),
        priority=definition.priority,  # type: ignore[arg-type]  # checked when it was defined
        timeout_ms=definition.timeout_ms,
        retry_policy=definition.retry_policy,
        llm_config=definition.llm_config,
        needs=definition.needs,
    )
    metadata = definition.metadata or {}
    if overrides is not None:
        _override(task, overrides)
        metadata = {**metadata, **(overrides.metadata or {})}
    origin = {"templateId": template.id, "templateName": definition.name}
    task.metadata = {**metadata, **origin}
    return task


def _override(task: TaskRequest, overrides: TaskRequest) -> None:
    kept = task.llm_config or {}
    for name in TaskRequest.__struct_fields__:
        value = getattr(overrides, name)
        if value is None or name in _OBJECTS:
            continue
        if name in _NOT_OVERRIDDEN:
            path = f"overrides.{json_name(name)}"
            raise validation.refusal([Problem(path, f"unknown field '{path}'")])
        setattr(task, name, value)
    if overrides.needs is not None:
        task.needs = {**(task.needs or {}), **overrides.needs}
    if overrides.retry_policy is not None:
        task.retry_policy = _overlaid(task.retry_policy or Backoff(), overrides.retry_policy)
    if overrides.timeout is not None:
        task.timeout_ms = overrides.timeout_ms  # whether both agree is checked with the task
    if overrides.llm_config is not None:
        task.llm_config = {**kept, **secrets.restore_secrets(overrides.llm_config, kept)}
    problems = _secret_problems("overrides.llmConfig", task.llm_config, kept)
    if problems:
        raise validation.refusal(problems)


def _overlaid(policy: Backoff, over: Backoff) -> Backoff:
    given = msgspec.structs.asdict(over)
    named = {name: value for name, value in given.items() if value is not None}
    return msgspec.structs.replace(policy, **named)


def _texts(parameters: Sequence[Parameter], params: JsonMapping) -> dict[str, str]:
    """Return the text of each parameter. Raise for values that are missing, wrong or undeclared."""
    declared = [parameter.name for parameter in parameters]
    for name in params:
        if name not in declared:
            known = (
                f"; known parameters: {', '.join(declared)}"
                if declared
                else "; the template has no parameters"
            )
            hint = nearest(name, declared) or known
            raise InvalidRequest(f"unknown parameter '{name[:40]}'{hint}")
    return {one.name: _inserted(one, params.get(one.name)) for one in parameters}


def _inserted(parameter: Parameter, value: object) -> str:
    if value is None:
        value = parameter.default
    if value is None:
        if parameter.required:
            raise InvalidRequest(f"missing required parameter: {parameter.name}")
        return ""
    text = _value_text(parameter.type, value)
    if text is None:
        raise InvalidRequest(
            f"Parameter '{parameter.name}' must be a {parameter.type}, got: {_kind(value)}"
        )
    return text


def _fill_in(instruction: str, texts: Mapping[str, str]) -> str:
    """Fill in the values. Check the length first: few placeholders can expand to a lot of text."""
    parts = _PLACEHOLDER.split(instruction)  # text and names alternate
    parts[1::2] = [texts[name.strip()] for name in parts[1::2]]
    if sum(map(len, parts)) > INSTRUCTION_CHARACTERS_MAX:
        raise InvalidRequest(
            f"the instruction must not be longer than {INSTRUCTION_CHARACTERS_MAX} characters "
            "when its parameters are filled in"
        )
    return "".join(parts)


# -------------------------------------------------------------------- values


def _kind(value: object) -> str:
    """Return the JSON type name of a value."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    names = ((str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def _value_text(type_: str, value: object) -> str | None:
    """Return the text of a value, or None if it does not have the declared type."""
    if type_ == "number":
        return _number(value)
    if type_ == "boolean":
        return _boolean(value)
    if isinstance(value, str):
        return value
    return _boolean(value) or _number(value)


def _boolean(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if value in ("true", "false") else None


def _number(value: Any) -> str | None:
    if isinstance(value, str):
        value = _from_text(value.strip())
    if _kind(value) != "number" or not -_NUMBER_MAX <= value <= _NUMBER_MAX:
        return None
    return msgspec.json.encode(value).decode()


def _from_text(text: str) -> int | float | None:
    if len(text) > _NUMBER_CHARACTERS_MAX or not _NUMERIC.fullmatch(text):
        return None
    return int(text) if _INTEGER.fullmatch(text) else float(text)
