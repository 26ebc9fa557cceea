"""What the commands of `fairlane templates` do. A template is named by its id or by its name."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fairlane.cli import exits
from fairlane.cli.asking import for_each, given, pages
from fairlane.cli.backends import Backend, opened
from fairlane.cli.submitting import read_json
from fairlane.cli.waiting import wait_for
from fairlane.core.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from fairlane.cli.human_templates import HumanTemplateOutput

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


def run(args: argparse.Namespace) -> int:
    return VERBS[args.verb](args)


def list_(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        for page in pages(args, partial(side.client.templates, name=args.name)):
            out.templates(page, more=args.all)
    return exits.OK


def show(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        out.template(side.client.template(_id(side, args.template)))
    return exits.OK


def create(args: argparse.Namespace) -> int:
    document = _document(args)
    with opened(args, _for_people, create=True) as (side, out):
        out.kept(side.client.create_template(document), "created")
    return exits.OK


def update(args: argparse.Namespace) -> int:
    document = _document(args)
    with opened(args, _for_people) as (side, out):
        answer = side.client.update_template(_id(side, args.template), document)
        out.kept(answer, "updated")
    return exits.OK


def delete(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        delete = side.client.delete_template
        return for_each(args, args.templates, lambda one: out.deleted(delete(_id(side, one))))


def use(args: argparse.Namespace) -> int:
    submit = args.submit or args.wait is not None
    if args.idempotency_key is not None and not submit:
        raise InvalidRequest("--idempotency-key goes with --submit")
    with opened(args, _for_people) as (side, out):
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


def _for_people() -> HumanTemplateOutput:
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
    document = {**document, **given(args, _FIELDS)}
    if args.timeout is not None:
        document["timeoutMs"] = round(args.timeout * 1000)
        document.pop("timeout", None)
    return document


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    return {**dict(args.override or ()), **given(args, _OVERRIDES)}
