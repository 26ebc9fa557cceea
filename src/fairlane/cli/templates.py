"""What the commands of `fairlane templates` do. A template is named by its id or by its name."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from fairlane import wire
from fairlane.cli import exits
from fairlane.cli.backends import Backend, backend
from fairlane.cli.output import JsonOutput, Output, Shape, print_json, tell
from fairlane.cli.submitting import read_json
from fairlane.cli.waiting import wait_for
from fairlane.core.errors import CallerError, InvalidRequest, NotFound

ID_PREFIX: Final = "tpl_"
# Options by the field of `POST /templates` and of `POST /tasks` that each fills.
_FIELDS: Final = ("name", "description", "instruction", "priority", "metadata")
_OVERRIDES: Final = {
    "agent": "agentId",
    "priority": "priority",
    "lane": "lane",
    "session": "sessionKey",
}


class TemplateOutput(Output, Protocol):
    def templates(self, page: Shape, *, more: bool) -> None: ...

    def template(self, template: Shape) -> None: ...

    def kept(self, template: Shape, verb: str) -> None: ...

    def deleted(self, answer: Shape) -> None: ...

    def filled(self, body: Shape) -> None: ...


class JsonTemplateOutput(JsonOutput):
    def templates(self, page: Shape, *, more: bool) -> None:  # noqa: ARG002 - of use to people only
        print_json(page)

    def template(self, template: Shape) -> None:
        print_json(template)

    def kept(self, template: Shape, verb: str) -> None:  # noqa: ARG002 - of use to people only
        print_json(template)

    def deleted(self, answer: Shape) -> None:
        print_json(answer)

    def filled(self, body: Shape) -> None:
        print_json(body)


def run(args: argparse.Namespace) -> int:
    return VERBS[args.verb](args)


def list_(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        limit = args.limit or (wire.LIST_LIMIT_MAX if args.all else None)
        cursor = args.cursor
        while True:
            page = side.client.templates(limit=limit, cursor=cursor)
            cursor = page.get("nextCursor")
            out.templates(page, more=args.all)
            if not args.all or cursor is None:
                return exits.OK


def show(args: argparse.Namespace) -> int:
    with _opened(args) as (side, out):
        out.template(side.client.template(_id(side, args.template)))
    return exits.OK


def create(args: argparse.Namespace) -> int:
    document = _document(args)
    with _opened(args, create=True) as (side, out):
        out.kept(side.client.create_template(document), "created")
    return exits.OK


def update(args: argparse.Namespace) -> int:
    document = _document(args)
    with _opened(args) as (side, out):
        answer = side.client.update_template(_id(side, args.template), document)
        out.kept(answer, "updated")
    return exits.OK


def delete(args: argparse.Namespace) -> int:
    code = exits.OK
    with _opened(args) as (side, out):
        for template in dict.fromkeys(args.templates):
            try:
                out.deleted(side.client.delete_template(_id(side, template)))
            except CallerError as error:  # the others may still be deleted
                tell(error, as_json=args.json)
                code = code or exits.exit_code(error)
    return code


def use(args: argparse.Namespace) -> int:
    submit = args.submit or args.wait is not None
    if args.idempotency_key is not None and not submit:
        raise InvalidRequest("--idempotency-key goes with --submit")
    with _opened(args) as (side, out):
        answer = side.client.use_template(
            _id(side, args.template),
            dict(args.set or ()),
            submit=submit,
            overrides=_overrides(args),
            idempotency_key=args.idempotency_key,
        )
        if not submit:
            out.filled(answer)
        elif args.wait is None:
            out.submitted(answer)
        else:
            return wait_for(side, out, [answer["taskId"]], args.wait)
    return exits.OK


VERBS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "list": list_,
    "show": show,
    "create": create,
    "update": update,
    "delete": delete,
    "use": use,
}


@contextlib.contextmanager
def _opened(
    args: argparse.Namespace, *, create: bool = False
) -> Iterator[tuple[Backend, TemplateOutput]]:
    side = backend(args, create=create)
    with side.client:
        yield side, _output(args)


def _output(args: argparse.Namespace) -> TemplateOutput:
    if args.json:
        return JsonTemplateOutput()
    from fairlane.cli.human_templates import HumanTemplateOutput  # noqa: PLC0415 - slow to import

    return HumanTemplateOutput()


def _id(side: Backend, word: str) -> str:
    if word.startswith(ID_PREFIX):
        return word
    found = side.client.templates(name=word)["templates"] if word.strip() else []
    if not found:
        raise NotFound(f"there is no template named '{word}'; fairlane templates list tells them")
    template_id: str = found[0]["id"]
    return template_id


def _document(args: argparse.Namespace) -> dict[str, Any]:
    document = read_json(args.file) if args.file else {}
    if not isinstance(document, dict):
        raise InvalidRequest(f"{args.file} must hold a template: a JSON object")
    given = {name: getattr(args, name) for name in _FIELDS}
    given["parameters"] = args.param
    if args.timeout is not None:
        given["timeoutMs"] = round(args.timeout * 1000)
        document.pop("timeout", None)
    return {**document, **{name: value for name, value in given.items() if value is not None}}


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    named = {field: getattr(args, option) for option, field in _OVERRIDES.items()}
    given = {field: value for field, value in named.items() if value is not None}
    return {**dict(args.override or ()), **given}
