"""What the commands of `fairlane policy` do."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fairlane.cli import exits
from fairlane.cli.asking import pages
from fairlane.cli.backends import NOWHERE, names_side, opened
from fairlane.cli.output import Shape, complain, print_json, remark
from fairlane.cli.submitting import read_json
from fairlane.cli.values import NO_JSON, parsed
from fairlane.core import json_diff
from fairlane.core.errors import InvalidPolicy, InvalidRequest, Unreachable
from fairlane.schema import wire

if TYPE_CHECKING:
    from fairlane.cli.human_policy import HumanPolicyOutput


def run(args: argparse.Namespace) -> int:
    try:
        return VERBS[args.verb](args)
    except InvalidPolicy as error:
        if args.json:
            print_json(wire.error(error))
        return _complained(args, error.problems)


def show(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        out.policy(side.client.policy(args.version))
    return exits.OK


def set_(args: argparse.Namespace) -> int:
    if bool(args.file) == bool(args.assignments):
        raise InvalidRequest("say what to set: PATH=VALUE, or --file; not both")
    document = _from_file(args.file) if args.file else _assigned(args.assignments)
    with opened(args, _for_people, create=True) as (side, out):
        client = side.client
        if args.dry_run:
            return _checked(args, client.check_policy(document, patch=not args.file), out)
        change = client.set_policy if args.file else client.patch_policy
        answer = change(document, **_why(args))
        _tell_notes(args, answer)
        out.policy_set(answer)
    return exits.OK


def check(args: argparse.Namespace) -> int:
    document = _from_file(args.file)
    try:
        return _asked(args, document)
    except Unreachable as error:
        if names_side(args):
            raise
        remark(f"{error.message}; checked against the default policy")
        args.store = NOWHERE
        return _asked(args, document)


def _asked(args: argparse.Namespace, document: dict[str, Any]) -> int:
    with opened(args, _for_people, empty=True, tell=remark) as (side, out):
        return _checked(args, side.client.check_policy(document), out)


def versions(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        for page in pages(args, side.client.policy_versions):
            out.policy_versions(page, more=args.all)
    return exits.OK


def diff(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        out.policy_diff(side.client.policy_diff(args.before, args.after))
    return exits.OK


def rollback(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        out.policy_set(side.client.rollback_policy(args.version, **_why(args)))
    return exits.OK


VERBS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "show": show,
    "set": set_,
    "check": check,
    "versions": versions,
    "diff": diff,
    "rollback": rollback,
}


# -------------------------------------------------------------------- parts


def _for_people() -> HumanPolicyOutput:
    from fairlane.cli.human_policy import HumanPolicyOutput  # noqa: PLC0415 - slow to import

    return HumanPolicyOutput()


def _from_file(name: str) -> dict[str, Any]:
    document = read_json(name)
    if not isinstance(document, dict):
        raise InvalidPolicy(["a policy is a JSON object"])
    return document


def _assigned(assignments: list[str]) -> dict[str, Any]:
    """Whether a value fits is for the policy to say: what is no JSON is a word."""
    said = [json_diff.assignment(text) for text in assignments]
    values = [(path, text, parsed(text)) for path, text in said]
    return json_diff.nested(
        (path, text if value is NO_JSON else value) for path, text, value in values
    )


def _why(args: argparse.Namespace) -> dict[str, Any]:
    author = args.author or _user()
    return {"note": args.note, "author": author, "expected_version": args.expect}


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may have no name for its user
        return None


def _checked(args: argparse.Namespace, answer: Shape, out: HumanPolicyOutput) -> int:
    out.policy_checked(answer)
    if not answer["valid"]:
        return _complained(args, answer["problems"])
    _tell_notes(args, answer)
    return exits.OK


def _complained(args: argparse.Namespace, problems: list[str]) -> int:
    for problem in problems:
        complain(_of_file(args, problem))
    return exits.SET_UP


def _tell_notes(args: argparse.Namespace, answer: Shape) -> None:
    for note in answer.get("notes", ()):
        remark(_of_file(args, note))


def _of_file(args: argparse.Namespace, text: str) -> str:
    """Say which file it is about, if it is about one."""
    file = getattr(args, "file", None)
    if not file:
        return text
    return f"{'standard input' if file == '-' else file}: {text}"
