"""Policy: show it, change it, compare its versions, go back to one."""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from fairlane.cli.backends import (
    NOWHERE,
    Perform,
    Side,
    connected,
    file_name,
    names_side,
    read_json,
)
from fairlane.cli.commands import Commands, Exit, Parser
from fairlane.cli.options import NO_JSON, dry_run, input_file, offer, paging, parsed, whole
from fairlane.cli.output import (
    Fields,
    Output,
    Shape,
    Styled,
    ago,
    complain,
    counted,
    pages,
    pretty,
    print_json,
    remark,
    shown,
)
from fairlane.core import json_diff
from fairlane.core.errors import InvalidPolicy, InvalidRequest, Unreachable
from fairlane.core.json_types import JsonObject
from fairlane.schema import wire

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal

_SET_NOTE: Final = (
    "VALUE is JSON or a word. null restores the default; none removes a limit.\n"
    'Put a name that contains a dot in quotes: agents."bot@example.com".weight=2.'
)


def register(commands: Commands) -> None:
    commands.noun(
        "policy",
        _verbs,
        epilog="examples:\n"
        "  fairlane policy show > policy.json\n"
        "  fairlane policy set lanes.main.maxInflight=50 --note 'more capacity'\n"
        "  fairlane policy set --file policy.json --dry-run\n"
        "  fairlane policy rollback 3",
    )


def _verbs(policy: Commands) -> None:
    add = policy.add
    add("show", _command(show), _show_options, "Print the current policy, or one of its versions")
    about = "Change keys of the policy, or replace it"
    add("set", _command(set_, create=True), _set_options, about, epilog=_SET_NOTE)
    about = "Report problems in a policy file, or what it would change"
    add("check", _command(check, empty=True), lambda parser: input_file(parser, "JSON file"), about)
    about = "List the versions: author, time, note and changes"
    add("versions", _command(versions), paging, about)
    add("diff", _command(diff), _diff_options, "Compare two versions")
    add("rollback", _command(rollback), _rollback_options, "Make an old version the current one")


def _command(
    perform: Perform, *, create: bool = False, empty: bool = False
) -> Callable[[argparse.Namespace], int]:
    """Return a command that prints each problem of an invalid policy on a line."""
    tell = remark if empty else None
    connect = connected(perform, create=create, empty=empty, tell=tell)

    def run(args: argparse.Namespace) -> int:
        try:
            return connect(args)
        except InvalidPolicy as error:
            if args.json:
                print_json(wire.error(error))
            return _complain_about(args, error.problems)

    return run


# -------------------------------------------------------------------- show


def _show_options(parser: Parser) -> None:
    about = "version to print; 0 is the defaults"
    parser.add_argument("--version", metavar="N", type=whole, help=about)


def show(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.policy(args.version), _draw_policy)


def _draw_policy(terminal: Terminal, response: Fields) -> None:
    """Print only the document to stdout, so that it can be redirected to a file."""
    terminal.note(_headline(response))
    terminal.write(f"{pretty(response['policy']).text}\n")


def _headline(version: Fields) -> str:
    if version["version"] == 0:
        return "version 0: the defaults"
    when = version["createdAt"]
    text = f"version {version['version']}, {when} ({ago(when)}), by {version['source']}"
    if "author" in version:
        text += f" ({version['author']})"
    return shown(text + (f": {version['note']}" if "note" in version else ""))


# -------------------------------------------------------------------- set, check, rollback


def _set_options(parser: Parser) -> None:
    about = "a key and its new value, such as lanes.main.maxInflight=50"
    parser.add_argument("assignments", metavar="PATH=VALUE", nargs="*", default=[], help=about)
    about = "replace the policy with this JSON file; - reads standard input"
    parser.add_argument("--file", metavar="FILE", help=about)
    dry_run(parser, "only show what would change")
    _why_options(parser)


def _why_options(parser: Parser) -> None:
    offer(parser, "note", note="reason for the change, stored with the version")
    parser.add_argument(
        "--author", metavar="NAME", help="who makes the change (default: your user name)"
    )
    parser.add_argument(
        "--expect",
        metavar="N",
        type=whole,
        help="refuse the change if the current version is not N",
    )


def set_(args: argparse.Namespace, side: Side, out: Output) -> int | None:
    if bool(args.file) == bool(args.assignments):
        raise InvalidRequest("give either PATH=VALUE or --file")
    document = _from_file(args.file) if args.file else _assigned(args.assignments)
    client = side.client
    if args.dry_run:
        return _checked(args, client.check_policy(document, patch=not args.file), out)
    change = client.set_policy if args.file else client.patch_policy
    response = change(document, **_why(args))
    _print_notes(args, response)
    out.show(response, _draw_set)
    return None


def _draw_set(terminal: Terminal, response: Fields) -> None:
    _draw_changes(terminal, response)
    if response["changed"]:
        terminal.line(f"the policy is now at version {response['version']}")
    else:
        terminal.line(f"no changes; the policy stays at version {response['version']}")


def _from_file(name: str) -> JsonObject:
    document = read_json(name)
    if not isinstance(document, dict):
        raise InvalidPolicy(["a policy must be a JSON object"])
    return document


def _assigned(assignments: list[str]) -> JsonObject:
    """Return the document that assignments describe. A value that is not JSON is a string."""
    split = [json_diff.assignment(text) for text in assignments]
    values = [(path, text, parsed(text)) for path, text in split]
    return json_diff.nested(
        (path, text if value is NO_JSON else value) for path, text, value in values
    )


def _why(args: argparse.Namespace) -> JsonObject:
    author = args.author or _user()
    return {"note": args.note, "author": author, "expected_version": args.expect}


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container may have no name for its user
        return None


def check(args: argparse.Namespace, side: Side, out: Output) -> int | None:
    document = _from_file(args.file)
    try:
        return _checked(args, side.client.check_policy(document), out)
    except Unreachable as error:
        if names_side(args):
            raise
        remark(f"{error.message}; checked against the default policy")
    args.store = NOWHERE
    default = Side(args, empty=True, tell=remark)
    try:
        return _checked(args, default.client.check_policy(document), out)
    finally:
        default.close()


def _checked(args: argparse.Namespace, response: Shape, out: Output) -> int | None:
    out.show(response, _draw_checked)
    if not response["valid"]:
        return _complain_about(args, response["problems"])
    _print_notes(args, response)
    return None


def _draw_checked(terminal: Terminal, response: Fields) -> None:
    if response["valid"]:
        _draw_changes(terminal, response)
        number = len(response["changes"])
        changes = counted(number, "change") if number else "no changes"
        terminal.line(f"valid: {changes} to version {response['version']}")


def _complain_about(args: argparse.Namespace, problems: list[str]) -> int:
    for problem in problems:
        complain(_in_file(args, problem))
    return Exit.SET_UP


def _print_notes(args: argparse.Namespace, response: Shape) -> None:
    for note in response.get("notes", ()):
        remark(_in_file(args, note))


def _in_file(args: argparse.Namespace, text: str) -> str:
    file = getattr(args, "file", None)
    return f"{file_name(file)}: {text}" if file else text


def _rollback_options(parser: Parser) -> None:
    about = "version to go back to; 0 is the defaults"
    parser.add_argument("version", metavar="VERSION", type=whole, help=about)
    _why_options(parser)


def rollback(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.rollback_policy(args.version, **_why(args)), _draw_set)


# -------------------------------------------------------------------- versions, diff


def versions(args: argparse.Namespace, side: Side, out: Output) -> None:
    for page in pages(args, side.client.policy_versions):
        out.show(page, _draw_versions, more=args.all)


def _draw_versions(terminal: Terminal, page: Fields, *, more: bool) -> None:
    if not page["versions"]:
        terminal.line("no versions: the policy is the default one")
    for version in page["versions"]:
        terminal.line(Styled(_headline(version), "bold"))
        _draw_changes(terminal, version)
    terminal.tell_more(page, more=more)


def _diff_options(parser: Parser) -> None:
    parser.add_argument(
        "before",
        metavar="FROM",
        nargs="?",
        type=whole,
        help="older version (default: the one before TO); 0 is the defaults",
    )
    about = "newer version (default: the current one)"
    parser.add_argument("after", metavar="TO", nargs="?", type=whole, help=about)


def diff(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.policy_diff(args.before, args.after), _draw_diff)


def _draw_diff(terminal: Terminal, response: Fields) -> None:
    _draw_changes(terminal, response)
    number = len(response["changes"])
    changes = counted(number, "change") if number else "no changes"
    terminal.line(f"{changes} between version {response['from']} and version {response['to']}")


def _draw_changes(terminal: Terminal, response: Fields) -> None:
    for change in response["changes"]:
        for key, sign, style in (("from", "-", "red"), ("to", "+", "green")):
            if key in change:
                terminal.line(Styled(f"{sign} {change['path']}: {_value(change[key])}", style))


def _value(value: object) -> str:
    return msgspec.json.format(wire.encode(value), indent=0).decode()
