"""Templates: stored instructions with parameters. A template is named by its ID or its name."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Final

from fairlane.cli.backends import Side, connected, for_each, given, read_object
from fairlane.cli.commands import Commands, Parser
from fairlane.cli.commands.tasks import draw_submitted, wait_for
from fairlane.cli.options import (
    NO_JSON,
    filters,
    named_values,
    offer,
    paging,
    parsed,
    seconds,
    text_pair,
    wait_option,
)
from fairlane.cli.output import (
    Cell,
    Columns,
    Fields,
    Layouts,
    Output,
    ago,
    counted,
    label,
    pretty,
    value_text,
    warn,
    with_ago,
)
from fairlane.core.errors import InvalidRequest, NotFound
from fairlane.core.json_types import JsonObject

ID_PREFIX: Final = "tpl_"
# Options by the field of `POST /templates` and of `POST /tasks` that each fills.
_FIELDS: Final = {
    "name": "name",
    "description": "description",
    "instruction": "instruction",
    "priority": "priority",
    "metadata": "metadata",
    "param": "parameters",
}
_OVERRIDES: Final = {
    "agent": "agentId",
    "priority": "priority",
    "lane": "lane",
    "session": "sessionKey",
}
_CREATE_EXAMPLE: Final = (
    "example:\n"
    "  fairlane templates create --name trip --instruction 'Go to {{city}} for {{n}} days' \\\n"
    "    --param city:string:required --param n:number=2"
)


def register(commands: Commands) -> None:
    commands.noun("templates", _verbs)


def _verbs(templates: Commands) -> None:
    add = templates.add
    add("list", connected(list_), _list_options, "List templates, newest first")
    add("show", connected(show), _template, "Show a template")
    run = connected(create, create=True)
    add("create", run, _fields, "Create a template", epilog=_CREATE_EXAMPLE)
    add("update", connected(update), _update_options, "Change fields of a template")
    add("delete", connected(delete), _delete_options, "Delete templates")
    about = "Fill in a template; with --submit, submit the resulting task"
    example = "example:\n  fairlane templates use trip --set city=Rome --submit --wait"
    add("use", connected(use), _use_options, about, epilog=example)


def _template(parser: Parser) -> None:
    parser.add_argument("template", metavar="TEMPLATE", help="template ID or name")


# -------------------------------------------------------------------- list, show


def _list_options(parser: Parser) -> None:
    filters(parser, "templates", "name")
    paging(parser)


def list_(args: argparse.Namespace, side: Side, out: Output) -> None:
    ask = partial(side.client.templates, name=args.name)
    out.pages(args, ask, "templates", TEMPLATES, none="no templates", layouts=LAYOUTS)


def _brief(parameter: Fields) -> str:
    """Return the name of a parameter, in brackets if it is optional."""
    name = str(parameter["name"])
    return name if parameter["required"] and "default" not in parameter else f"[{name}]"


TEMPLATES: Final[Columns] = {
    "TEMPLATE": "id",
    "NAME": "name",
    "USED": "usageCount",
    "CREATED": lambda template: ago(template["createdAt"]),
    "PARAMETERS": lambda template: " ".join(map(_brief, template["parameters"])),
}
LAYOUTS: Final[Layouts] = ((0, {"NAME": 30}),)


def show(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.details(side.client.template(_id(side, args.template)), _lines)


def _lines(template: Fields) -> Iterator[tuple[str, Cell]]:
    yield "template", template["id"]
    yield "name", template["name"]
    yield "used", counted(template["usageCount"], "time")
    for name, value in template.items():
        if name in ("id", "name", "usageCount") or value in ("", []):
            continue
        if name in ("createdAt", "updatedAt"):
            yield label(name), with_ago(value)
        elif name == "parameters":
            yield from (("parameter", _described(one)) for one in value)
        else:
            yield label(name), value_text(value)


def _described(parameter: Fields) -> str:
    text = f"{parameter['name']}: {parameter['type']}"
    if "default" in parameter:
        text += f", default {pretty(parameter['default']).text}"
    elif parameter["required"]:
        text += ", required"
    return text + (f" - {parameter['description']}" if parameter.get("description") else "")


# -------------------------------------------------------------------- create, update, delete


def _fields(parser: Parser) -> None:
    about = "JSON file as for POST /templates; - reads standard input; options override it"
    parser.add_argument("--file", metavar="FILE", help=about)
    offer(parser, "name", name="unique name of the template")
    parser.add_argument("--description", metavar="TEXT", help="short description, shown in lists")
    about = "prompt for an agent, with {{name}} in place of each parameter"
    offer(parser, "instruction", instruction=about)
    offer(parser, "priority", "metadata", metadata="JSON object to store with each task")
    parser.add_argument(
        "--param",
        metavar="NAME[:TYPE][:required][=DEFAULT]",
        type=parameter,
        action="append",
        help="a parameter; TYPE is string, number or boolean (repeatable; replaces all parameters)",
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, help="time limit for each attempt"
    )


def parameter(text: str) -> JsonObject:
    """Return a parameter as for `POST /templates`. The first `=` starts the default."""
    head, equals, default = text.partition("=")
    name, *words = head.split(":")
    required = words[-1:] == ["required"]
    words = words[:-1] if required else words
    if not name or len(words) > 1:
        raise argparse.ArgumentTypeError(
            f"must be NAME[:TYPE][:required][=DEFAULT], not {text[:40]!r}"
        )
    found: JsonObject = {"name": name, "type": words[0] if words else "string"}
    if required:
        found["required"] = True
    if equals:
        value = default if found["type"] == "string" else parsed(default)
        found["default"] = default if value is NO_JSON else value
    return found


def create(args: argparse.Namespace, side: Side, out: Output) -> None:
    document = _document(args)
    template = side.client.create_template(document)
    out.line(template, f"created {template['id']} ({template['name']})")


def _update_options(parser: Parser) -> None:
    _template(parser)
    _fields(parser)


def update(args: argparse.Namespace, side: Side, out: Output) -> None:
    document = _document(args)
    template = side.client.update_template(_id(side, args.template), document)
    out.line(template, f"updated {template['id']} ({template['name']})")


def _delete_options(parser: Parser) -> None:
    parser.add_argument("templates", metavar="TEMPLATE", nargs="+", help="template IDs or names")


def delete(args: argparse.Namespace, side: Side, out: Output) -> int:
    def act(template: str) -> None:
        response = side.client.delete_template(_id(side, template))
        out.line(response, f"deleted {response['id']}")

    return for_each(args, args.templates, act)


def _id(side: Side, name: str) -> str:
    if name.startswith(ID_PREFIX):
        return name
    found = side.client.templates(name=name)["templates"] if name.strip() else []
    if found:
        template_id: str = found[0]["id"]
        return template_id
    with contextlib.suppress(NotFound, InvalidRequest):
        return side.client.template(name).id  # an imported template has a foreign id
    raise NotFound(f"no template is named '{name}'; fairlane templates list shows all of them")


def _document(args: argparse.Namespace) -> JsonObject:
    document = read_object(args.file, "a template") if args.file else {}
    document = {**document, **given(args, _FIELDS)}
    if args.timeout is not None:
        document["timeoutMs"] = round(args.timeout * 1000)
        document.pop("timeout", None)
    return document


# -------------------------------------------------------------------- use


def _use_options(parser: Parser) -> None:
    _template(parser)
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        type=text_pair,
        action="append",
        help="value of a parameter (repeatable)",
    )
    parser.add_argument("--submit", action="store_true", help="submit the resulting task")
    wait_option(parser, "submit the task and wait until it has finished, at most this long")
    offer(parser, "priority", priority="priority of the task, instead of the template's")
    offer(parser, "agent", "lane", "session")
    named_values(parser, "--override", "any other field of POST /tasks")
    offer(parser, "idempotency-key")


def use(args: argparse.Namespace, side: Side, out: Output) -> int | None:
    submit = args.submit or args.wait is not None
    if args.idempotency_key is not None and not submit:
        raise InvalidRequest("--idempotency-key needs --submit")
    response = side.client.use_template(
        _id(side, args.template),
        dict(args.set or ()),
        submit=submit,
        overrides={**dict(args.override or ()), **given(args, _OVERRIDES)},
        idempotency_key=args.idempotency_key,
    )
    warn(response.get("warnings") or ())
    if not submit:
        out.details(response, _body_lines)
    elif args.wait is None:
        out.show(response, draw_submitted)
    else:
        return wait_for(side, out, [response["taskId"]], args.wait)
    return None


def _body_lines(body: Fields) -> Iterator[tuple[str, Cell]]:
    return ((label(name), value_text(value)) for name, value in body.items())
