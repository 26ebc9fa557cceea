"""Templates: instructions with `{{placeholders}}`, kept under a name and filled in for each use.

A definition is checked as a whole when it is made or changed, so a use can only go wrong over the
values it brings. Values are inserted in one pass and as they are: what looks like a placeholder or
a pattern inside one is text. The trap: `llm_config` holds secrets; show it only `masked`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from fairlane.core import secrets
from fairlane.core.errors import InvalidRequest
from fairlane.core.model import PRIORITY_MAX, PRIORITY_NAMES
from fairlane.core.policy import INSTRUCTION_TIMEOUT_MS_MAX, nearest

NAME_CHARACTERS_MAX: Final = 200
DESCRIPTION_CHARACTERS_MAX: Final = 10_000
INSTRUCTION_CHARACTERS_MAX: Final = 100_000
PARAMETERS_MAX: Final = 100
DEFINITION_BYTES_MAX: Final = 524_288

TYPES: Final = ("string", "number", "boolean")
# Fields of `POST /tasks` that a use may set for its own task.
OVERRIDES: Final = (
    "agentId", "priority", "deadline", "callbackUrl", "webhookUrl", "lane", "sessionKey",
    "dependsOn", "retryPolicy", "timeoutMs", "timeout", "metadata", "llmConfig", "runAt",
    "delayMs", "preemptible",
)  # fmt: skip

_OBJECTS: Final = ("retryPolicy", "llmConfig", "metadata")
_DEFAULTS: Final[Mapping[str, Any]] = {"description": "", "priority": "normal", "parameters": []}
_REQUIRED: Final = ("name", "instruction")
# What the store sets: passed over in a change, so that what was read may be sent back.
_READ_ONLY: Final = frozenset({"id", "usageCount", "createdAt", "updatedAt"})
_PLACEHOLDER: Final = re.compile(r"\{\{([^{}]*)\}\}")
_PARAMETER_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_NUMERIC: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?\d+", re.ASCII)
_NUMBER_MAX: Final = 1.7e308
_NUMBER_CHARACTERS_MAX: Final = 100

Problems = list[str]


class Parameter(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str
    type: str
    required: bool
    default: str | int | float | bool | None = None
    description: str | None = None


class Definition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a person wrote. As JSON it is what the store keeps."""

    name: str
    description: str
    instruction: str
    priority: int | str
    parameters: list[Parameter]
    timeout_ms: int | None = None
    retry_policy: dict[str, Any] | None = None
    llm_config: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class Template(msgspec.Struct, frozen=True):
    """`usage_count` moves with each use, `updated_at` only with a change of the definition.

    `damaged` says that the store's definition cannot be read, and `definition` stands in for it.
    """

    seq: int
    id: str
    definition: Definition
    usage_count: int
    created_at: int
    updated_at: int
    damaged: bool = False


# -------------------------------------------------------------------- make and change


def create(document: Any, *, template_id: str, seq: int, now: int) -> Template:
    """Raises `InvalidRequest` with all problems."""
    problems: Problems = []
    merged = _merged({}, _object(document), problems)
    return Template(seq, template_id, _definition(merged, problems), 0, now, now)


def update(template: Template, document: Any, now: int) -> Template:
    """Lay `document` over the definition; null clears a field. What changes nothing is no change.

    Raises `InvalidRequest` with all problems.
    """
    current = msgspec.to_builtins(template.definition)
    given = {name: value for name, value in _object(document).items() if name not in _READ_ONLY}
    problems: Problems = []
    definition = _definition(_merged(current, given, problems), problems)
    if definition == template.definition:
        return template
    return msgspec.structs.replace(template, definition=definition, updated_at=now)


def _object(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        raise InvalidRequest("invalid template: it must be a JSON object")
    return document


def _merged(
    current: Mapping[str, Any], given: dict[str, Any], problems: Problems
) -> dict[str, Any]:
    given = _with_one_timeout(given, problems)
    if "llmConfig" in given:
        kept = current.get("llmConfig")
        given["llmConfig"] = secrets.unmasked(given["llmConfig"], kept)
        _check_place("llmConfig", given["llmConfig"], kept, problems)
    return {**_DEFAULTS, **_given({**current, **given})}


def _check_place(path: str, config: Any, kept: Any, problems: Problems) -> None:
    if isinstance(config, dict):
        moved = secrets.moved(kept, config, path)
        problems += [] if moved is None else [moved]


def _with_one_timeout(given: dict[str, Any], problems: Problems) -> dict[str, Any]:
    """A copy in which `timeout` has its other name."""
    given = dict(given)
    if "timeout" in given:
        value = given.pop("timeout")
        if given.setdefault("timeoutMs", value) != value:
            problems.append("'timeout' is another word for 'timeoutMs': give one of them")
    return given


def _definition(document: dict[str, Any], problems: Problems) -> Definition:
    problems += [f"missing required field '{name}'" for name in _REQUIRED if name not in document]
    for name, value in document.items():
        check = _CHECKS.get(name)
        if check is None:
            problems.append(f"unknown field '{name[:40]}'{nearest(name, _CHECKS)}")
        else:
            check(name, value, problems)
    if not problems:
        _check_placeholders(document, problems)
    if not problems and len(msgspec.json.encode(document)) > DEFINITION_BYTES_MAX:
        problems.append(f"as a whole it must not be larger than {DEFINITION_BYTES_MAX} bytes")
    if problems:
        raise InvalidRequest(f"invalid template: {'; '.join(problems)}")
    return msgspec.convert(_whole_document(document), Definition)


def _whole_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document in order, with what it leaves unsaid and without what it leaves empty."""
    implied = {"type": "string", "required": False}
    whole = {
        **document,
        "name": document["name"].strip(),
        "parameters": [{**implied, **_given(one)} for one in document["parameters"]],
    }
    if "retryPolicy" in document:
        whole["retryPolicy"] = _given(document["retryPolicy"])
    return whole


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _check_placeholders(document: Mapping[str, Any], problems: Problems) -> None:
    declared = [parameter["name"] for parameter in document["parameters"]]
    wanted = [name.strip() for name in _PLACEHOLDER.findall(document["instruction"])]
    for name in dict.fromkeys(wanted):
        if name not in declared:
            hint = nearest(name, declared) or "; add it to 'parameters'"
            problems.append(
                f"field 'instruction' has the placeholder {{{{{name[:40]}}}}} "
                f"that no parameter declares{hint}"
            )


# -------------------------------------------------------------------- what each field must be

Check = Callable[[str, Any, Problems], None]


def _said(problem: Callable[[Any], str | None]) -> Check:
    def check(name: str, value: Any, problems: Problems) -> None:
        found = problem(value)
        if found:
            problems.append(f"field '{name}' {found}")

    return check


def _text(limit: int, *, blank: bool = False) -> Check:
    def problem(value: Any) -> str | None:
        if not isinstance(value, str) or not (blank or value.strip()):
            return "must be text" if blank else "must be text that is not blank"
        return f"must not be longer than {limit} characters" if len(value) > limit else None

    return _said(problem)


def _integer(low: int, high: int) -> Check:
    def problem(value: Any) -> str | None:
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return None if good else f"must be a whole number from {low} to {high}"

    return _said(problem)


def _real(low: int, high: int) -> Check:
    def problem(value: Any) -> str | None:
        good = _kind(value) == "number" and low <= value <= high
        return None if good else f"must be a number from {low} to {high}"

    return _said(problem)


def _priority(value: Any) -> str | None:
    if isinstance(value, str):
        good = value in PRIORITY_NAMES
    else:
        good = isinstance(value, int) and not isinstance(value, bool)
        good = good and -PRIORITY_MAX <= value <= PRIORITY_MAX
    names = ", ".join(PRIORITY_NAMES)
    hint = nearest(value, PRIORITY_NAMES) if isinstance(value, str) else ""
    return None if good else f"must be one of {names}, or a whole number{hint}"


def _one_line(value: Any) -> str | None:
    """Names stand in lists and messages."""
    if isinstance(value, str) and not value.isprintable():
        return "must be one line without control characters"
    return None


def _name(name: str, value: Any, problems: Problems) -> None:
    _text(NAME_CHARACTERS_MAX)(name, value, problems)
    _said(_one_line)(name, value, problems)


def _fields(known: Mapping[str, Check]) -> Check:
    """An object with these fields and no others; null is as good as absent."""

    def check(path: str, value: Any, problems: Problems) -> None:
        if not isinstance(value, dict):
            problems.append(f"field '{path}' must be an object")
            return
        for name, inner in value.items():
            if name not in known:
                problems.append(f"unknown field '{path}.{name[:40]}'{nearest(name, known)}")
            elif inner is not None:
                known[name](f"{path}.{name}", inner, problems)

    return check


def _free_object(value: Any) -> str | None:
    return None if isinstance(value, dict) else "must be an object"


def _llm_config(path: str, value: Any, problems: Problems) -> None:
    _said(_free_object)(path, value, problems)
    secrets.check_given(path, value, problems)


def _parameter_name(value: Any) -> str | None:
    if isinstance(value, str) and _PARAMETER_NAME.fullmatch(value):
        return None
    return f"must be a name like ^{_PARAMETER_NAME.pattern}$"


def _type(value: Any) -> str | None:
    return None if value in TYPES else f"must be one of {', '.join(TYPES)}"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _parameters(path: str, value: Any, problems: Problems) -> None:
    if not isinstance(value, list):
        problems.append(f"field '{path}' must be a list")
        return
    if len(value) > PARAMETERS_MAX:
        problems.append(f"field '{path}' must not have more than {PARAMETERS_MAX} items")
        return
    seen: set[str] = set()
    for number, parameter in enumerate(value):
        before = len(problems)
        _PARAMETER(f"{path}[{number}]", parameter, problems)
        if len(problems) == before:
            _check_parameter(f"{path}[{number}]", parameter, seen, problems)


def _check_parameter(
    path: str, parameter: Mapping[str, Any], seen: set[str], problems: Problems
) -> None:
    """What its fields say together, when each of them is in order."""
    name = parameter.get("name")
    if name is None:
        problems.append(f"missing required field '{path}.name'")
        return
    if name in seen:
        problems.append(f"field '{path}.name' names the parameter '{name}' a second time")
    seen.add(name)
    default = parameter.get("default")
    type_ = parameter.get("type") or "string"
    fits = _kind(default) == type_ and _spelled(type_, default) is not None
    if default is not None and not fits:
        problems.append(f"field '{path}.default' must be a {type_}, got: {_kind(default)}")


_PARAMETER: Final = _fields(
    {
        "name": _said(_parameter_name),
        "type": _said(_type),
        "required": _said(_flag),
        "default": lambda *_: None,  # judged by the type
        "description": _text(DESCRIPTION_CHARACTERS_MAX, blank=True),
    }
)
_CHECKS: Final[Mapping[str, Check]] = {
    "name": _name,
    "description": _text(DESCRIPTION_CHARACTERS_MAX, blank=True),
    "instruction": _text(INSTRUCTION_CHARACTERS_MAX),
    "priority": _said(_priority),
    "parameters": _parameters,
    "timeoutMs": _integer(1, INSTRUCTION_TIMEOUT_MS_MAX),
    "retryPolicy": _fields(
        {
            "maxRetries": _integer(0, 1000),
            "backoffMs": _integer(0, 86_400_000),
            "backoffMultiplier": _real(1, 100),
        }
    ),
    "llmConfig": _llm_config,
    "metadata": _said(_free_object),
}


# -------------------------------------------------------------------- use


def instantiate(
    template: Template, params: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The body of `POST /tasks` that the template stands for, secrets and all.

    Objects of `overrides` are laid over the template's key by key, other values replace.
    """
    definition = template.definition
    instruction = _filled(definition.instruction, _texts(definition.parameters, params))
    body: dict[str, Any] = {"instruction": instruction, "priority": definition.priority}
    for name in ("timeoutMs", *_OBJECTS):
        value = getattr(definition, _ATTRIBUTES[name])
        if value is not None:
            body[name] = value
    _override(body, overrides or {})
    origin = {"templateId": template.id, "templateName": definition.name}
    body["metadata"] = {**body.get("metadata", {}), **origin}
    return body


_ATTRIBUTES: Final = {
    "timeoutMs": "timeout_ms",
    "retryPolicy": "retry_policy",
    "llmConfig": "llm_config",
    "metadata": "metadata",
}


def _override(body: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    problems: Problems = []
    for name, value in _with_one_timeout(_given(overrides), problems).items():
        path = f"overrides.{name}"
        if name not in OVERRIDES:
            problems.append(f"unknown field '{path[:60]}'{nearest(name, OVERRIDES)}")
        elif name not in _OBJECTS:
            body[name] = value
        elif not isinstance(value, dict):
            problems.append(f"field '{path}' must be an object")
        else:
            kept = body.get(name, {})
            laid = secrets.unmasked(value, kept) if name == "llmConfig" else value
            body[name] = {**kept, **laid}
            if name == "llmConfig":
                _check_place(path, body[name], kept, problems)
    if "llmConfig" in body:
        _llm_config("overrides.llmConfig", body["llmConfig"], problems)
    if problems:
        raise InvalidRequest("; ".join(problems))


def _texts(parameters: Sequence[Parameter], params: Mapping[str, Any]) -> dict[str, str]:
    """What is inserted for each parameter. Raises for what is missing, wrong or not declared."""
    declared = [parameter.name for parameter in parameters]
    for name in params:
        if name not in declared:
            known = f"; there is {', '.join(declared)}" if declared else "; there are none"
            hint = nearest(name, declared) or known
            raise InvalidRequest(f"unknown parameter '{name[:40]}'{hint}")
    return {one.name: _inserted(one, params.get(one.name)) for one in parameters}


def _inserted(parameter: Parameter, value: Any) -> str:
    if value is None:
        value = parameter.default
    if value is None:
        if parameter.required:
            raise InvalidRequest(f"Missing required parameter: {parameter.name}")
        return ""
    text = _spelled(parameter.type, value)
    if text is None:
        raise InvalidRequest(
            f"Parameter '{parameter.name}' must be a {parameter.type}, got: {_kind(value)}"
        )
    return text


def _filled(instruction: str, texts: Mapping[str, str]) -> str:
    """Its length is known before it is made: few placeholders can ask for a great deal of text."""
    parts = _PLACEHOLDER.split(instruction)  # text and names by turns
    parts[1::2] = [texts[name.strip()] for name in parts[1::2]]
    if sum(map(len, parts)) > INSTRUCTION_CHARACTERS_MAX:
        raise InvalidRequest(
            f"the instruction must not be longer than {INSTRUCTION_CHARACTERS_MAX} characters "
            "when its parameters are filled in"
        )
    return "".join(parts)


# -------------------------------------------------------------------- values


def _kind(value: Any) -> str:
    """The name of a value's type in JSON."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    names = ((str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def _spelled(type_: str, value: Any) -> str | None:
    """A value as it is inserted, or None when it cannot be of that type."""
    if type_ == "number":
        return _number(value)
    if type_ == "boolean":
        return _boolean(value)
    if isinstance(value, str):
        return value
    return _boolean(value) or _number(value)


def _boolean(value: Any) -> str | None:
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
