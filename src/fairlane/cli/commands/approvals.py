"""Approvals: list them, approve, reject, create one-time links."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from fairlane.cli.backends import Side, connected, for_each, read_json
from fairlane.cli.commands import Commands, Parser
from fairlane.cli.options import one, paging, seconds, several
from fairlane.cli.output import Cell, Columns, Fields, Output, ago, label, with_ago
from fairlane.client.transport import DEFAULT_URL
from fairlane.core import approvals as rules
from fairlane.core import forms
from fairlane.core.errors import InvalidRequest
from fairlane.core.forms import Form, FormField
from fairlane.core.json_types import JsonObject

if TYPE_CHECKING:
    from fairlane.cli.output.terminal import Terminal
    from fairlane.schema.approvals import ApprovalStatus

_TIMES: Final = ("openedAt", "expiresAt", "decidedAt")
_LONG: Final = ("request", "form", "answer", "votes")


def register(commands: Commands) -> None:
    commands.noun(
        "approvals",
        _approvals,
        epilog="examples:\n"
        "  fairlane approvals\n"
        "  fairlane approvals show apr_7\n"
        "  fairlane approvals link apr_7 --approver ann --base-url https://fairlane.example",
    )
    note = (
        "On a terminal, the command shows the question and prompts for the fields of the form.\n\n"
        "examples:\n"
        "  fairlane approve apr_7\n"
        '  fairlane approve apr_7 --answer \'{"amount": 5}\' --comment "as agreed"'
    )
    commands.add("approve", connected(approve), _approve_options, epilog=note)
    commands.add("reject", connected(reject), _reject_options)


def _approvals(approvals: Commands) -> None:
    add = approvals.add
    add("list", connected(list_), _list_options, "List approvals, newest first")
    add("show", connected(show), one("approval"), "Show an approval with its hash")
    about = "Create a one-time link for a person without a token and print it; it is shown once"
    add("link", connected(link), _link_options, about)


# -------------------------------------------------------------------- read


def _list_options(parser: Parser) -> None:
    about = f"only approvals in this state: {', '.join(rules.STATES)}, or all (default: open)"
    parser.add_argument("--state", metavar="STATE", default=rules.OPEN, help=about)
    parser.add_argument("--task", metavar="ID", help="only approvals of this task")
    paging(parser)


def list_(args: argparse.Namespace, side: Side, out: Output) -> None:
    state = None if args.state == "all" else args.state
    ask = partial(side.client.approvals, state=state, task=args.task)
    none = "no open approvals" if state == rules.OPEN else "no approvals"
    out.pages(args, ask, "approvals", COLUMNS, none=none)


COLUMNS: Final[Columns] = {
    "APPROVAL": "id",
    "STATE": "state",
    "AGENT": "agentId",
    "TASK": lambda item: item.get("taskId", "-"),
    "OPENED": lambda item: ago(item["openedAt"]),
    "EXPIRES": lambda item: ago(item["expiresAt"]) if "expiresAt" in item else "never",
    "TITLE": "title",
}


def show(args: argparse.Namespace, side: Side, out: Output) -> None:
    out.show(side.client.approval(args.id), draw)


def draw(terminal: Terminal, approval: Fields) -> None:
    terminal.grid(_lines(approval))
    for name in _LONG:
        if approval.get(name):
            terminal.line("")
            terminal.line(f"{name}:")
            terminal.line(json.dumps(approval[name], indent=2, ensure_ascii=False))


def _lines(approval: Fields) -> Iterator[tuple[str, Cell]]:
    for name, value in approval.items():
        if name not in _LONG:
            text = ", ".join(value) if isinstance(value, list) else str(value)
            yield label(name), with_ago(value) if name in _TIMES else text


# -------------------------------------------------------------------- decide


def _approve_options(parser: Parser) -> None:
    one("approval")(parser)
    about = "values of the form as a JSON object, or @FILE (default: prompt for them on a terminal)"
    parser.add_argument("--answer", metavar="JSON", help=about)
    _decision_options(parser)


def _reject_options(parser: Parser) -> None:
    several("approval")(parser)
    _decision_options(parser)


def _decision_options(parser: Parser) -> None:
    parser.add_argument("--comment", metavar="TEXT", help="reason that the caller will see")
    about = "decide only if the approval still has this hash"
    parser.add_argument("--hash", metavar="HASH", help=about)


def approve(args: argparse.Namespace, side: Side, out: Output) -> None:
    found = side.client.approval(args.id)
    answer = _answer(args, out, found)
    after = side.client.decide(
        args.id, "approve", args.hash or found.hash, answer=answer, comment=args.comment
    )
    _print_decision(out, after)


def reject(args: argparse.Namespace, side: Side, out: Output) -> int:
    def act(id_: str) -> None:
        seen = args.hash or side.client.approval(id_).hash
        _print_decision(out, side.client.decide(id_, "reject", seen, comment=args.comment))

    return for_each(args, args.ids, act)


def _print_decision(out: Output, after: ApprovalStatus) -> None:
    text = f"{after.id} is {after.state}"
    if after.state == rules.OPEN:
        text = f"{after.id} needs {after.count} approvals; {len(after.votes)} received so far"
    out.line(after, text)


def _answer(args: argparse.Namespace, out: Output, found: ApprovalStatus) -> JsonObject | None:
    """Return the answer from `--answer`, or prompt for the fields on a terminal."""
    if args.answer is not None:
        text = args.answer
        content: object = read_json(text[1:]) if text.startswith("@") else _parsed(text)
        if not isinstance(content, dict):
            raise InvalidRequest("--answer must be a JSON object")
        return content
    if found.state != rules.OPEN or out.is_json or not sys.stdin.isatty():
        return None
    out.show(found, draw)
    if found.form is None or found.answer is not None:
        return None
    form = msgspec.convert(found.form, Form)
    required = set(form.required or ())
    answer: JsonObject = {}
    for name, field in form.properties.items():
        value = _asked(name, field, required=name in required)
        if value is not None:
            answer[name] = value
    return answer


def _parsed(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"--answer is not JSON: {error}") from None


def _asked(name: str, field: FormField, *, required: bool) -> object:
    """Prompt for one field until its value is valid; an empty line takes the default."""
    hints = [_HINTS[field.type]]
    if field.enum is not None:
        hints = [", ".join(map(str, field.enum))]
    if field.default is not None:
        hints.append(f"default {json.dumps(field.default)}")
    elif not required:
        hints.append("optional")
    while True:
        text = input(f"{field.title or name} ({'; '.join(hints)}): ").strip()
        if not text and (field.default is not None or not required):
            return None
        value = _typed(field, text)
        problems = [problem.text for problem in forms.value_problems(field, value, name)]
        if not problems:
            return value
        sys.stderr.write(f"{problems[0]}\n")


_HINTS: Final[Mapping[str, str]] = {
    forms.STRING: "text",
    forms.NUMBER: "number",
    forms.INTEGER: "whole number",
    forms.BOOLEAN: "yes or no",
    forms.ARRAY: "values separated by commas",
}


def _typed(field: FormField, text: str) -> object:
    if field.type == forms.ARRAY:
        kind = field.items.type if field.items else forms.STRING
        return [_value(kind, part.strip()) for part in text.split(",") if part.strip()]
    return _value(field.type, text)


def _value(kind: str, text: str) -> object:
    words = {"yes": True, "y": True, "true": True, "no": False, "n": False, "false": False}
    if kind == forms.BOOLEAN:
        return words.get(text.lower(), text)
    if kind in (forms.NUMBER, forms.INTEGER):
        for convert in (int, float):
            try:
                return convert(text)
            except ValueError:
                continue
    return text


# -------------------------------------------------------------------- links


def _link_options(parser: Parser) -> None:
    one("approval")(parser)
    about = "name of the person; needed if the approval names its approvers"
    parser.add_argument("--approver", metavar="NAME", help=about)
    about = "how long the link is valid, such as 2h or 7d (default 1d)"
    parser.add_argument("--expires", metavar="TIME", type=seconds, help=about)
    about = "URL at which the person reaches the server (default: the URL that this command uses)"
    parser.add_argument("--base-url", metavar="URL", help=about)


def link(args: argparse.Namespace, side: Side, out: Output) -> None:
    more = {} if args.expires is None else {"expires_ms": round(args.expires * 1000)}
    base = args.base_url or (None if args.store else args.url or DEFAULT_URL)
    made = side.client.link_approval(args.id, approver=args.approver, base_url=base, **more)
    out.secret(made, made.url, f"the link works once, until {made.expires_at}")
