"""What the commands about sessions and lanes do."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from fairlane.cli import exits
from fairlane.cli.asking import given, pages
from fairlane.cli.backends import Backend, opened
from fairlane.cli.bulk import declined
from fairlane.cli.waiting import wait_for
from fairlane.core.errors import InvalidRequest

if TYPE_CHECKING:
    from fairlane.cli.human_sessions import HumanSessionOutput

# Options by the argument of `Verbs` that each fills.
_BEHAVIOUR: Final = {
    "mode": "mode",
    "cap": "cap",
    "drop": "drop",
    "debounce": "debounce_ms",
    "max_concurrent": "max_concurrent",
}
_SETTINGS: Final = {**_BEHAVIOUR, "debounce_max": "debounce_max_ms"}
_MESSAGE: Final = {
    **_BEHAVIOUR,
    "sender": "sender",
    "agent": "agent",
    "handler": "handler",
    "no_merge": "no_merge",
    "sent_at": "sent_at",
    "lane": "lane",
    "priority": "priority",
    "timeout": "timeout_ms",
    "metadata": "metadata",
    "callback_url": "callback_url",
}


# -------------------------------------------------------------------- sessions


def sessions(args: argparse.Namespace) -> int:
    return SESSION_VERBS[args.verb](args)


def list_(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        if args.key is not None:
            out.session(side.client.session(args.key))
            return exits.OK
        for page in pages(args, side.client.sessions):
            out.sessions(page, more=args.all)
    return exits.OK


def set_(args: argparse.Namespace) -> int:
    settings, unset = given(args, _SETTINGS), [_setting(name) for name in args.unset]
    if not settings and not unset:
        raise InvalidRequest("say what to set; see fairlane sessions set --help")
    with opened(args, _for_people) as (side, out):
        out.session(side.client.set_session(args.key, **settings, unset=unset))
    return exits.OK


def _setting(name: str) -> str:
    found = _SETTINGS.get(name.replace("-", "_"))
    if found is None:
        known = ", ".join(option.replace("_", "-") for option in _SETTINGS)
        raise InvalidRequest(f"--unset {name} is none of {known}")
    return found


def usage(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        out.session(side.client.set_usage(args.key, args.tokens, args.window))
    return exits.OK


def reset(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        out.stopped(side.client.reset_session(args.key), args.key)
    return exits.OK


def message(args: argparse.Namespace) -> int:
    with opened(args, _for_people, create=True) as (side, out):
        fields = given(args, _MESSAGE)
        answer = side.client.message(
            args.key, args.text, idempotency_key=args.idempotency_key, **fields
        )
        if "taskId" not in answer:  # the text was a command
            out.stopped(answer, args.key)
        elif args.wait is None:
            out.said(answer)
        else:
            return wait_for(side, out, [answer["taskId"]], args.wait)
    return exits.OK


def stop(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        out.stopped(side.client.stop_session(args.key), args.key)
    return exits.OK


def stop_all(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        out.stopped(side.client.stop_all(args.key), args.key)
    return exits.OK


SESSION_VERBS: Final[Mapping[str, Callable[[argparse.Namespace], int]]] = {
    "list": list_,
    "set": set_,
    "usage": usage,
    "reset": reset,
}


# -------------------------------------------------------------------- lanes


def lanes(args: argparse.Namespace) -> int:
    with opened(args, _for_people) as (side, out):
        client = side.client
        if args.verb == "list":
            out.lanes(client.lanes())
        elif args.verb == "clear":
            _clear(args, side, out)
        else:
            act = client.pause_lane if args.verb == "pause" else client.resume_lane
            out.lane_set(act(args.name))
    return exits.OK


def _clear(args: argparse.Namespace, side: Backend, out: HumanSessionOutput) -> None:
    def question() -> str | None:
        shapes = side.client.lanes()["lanes"]
        number = next((one["waiting"] for one in shapes if one["name"] == args.name), 0)
        tasks = "1 task" if number == 1 else f"{number} tasks"
        return f"cancel {tasks} in lane {args.name}? [y/N] " if number else None

    if not declined(args, question):
        out.lane_cleared(side.client.clear_lane(args.name))


# -------------------------------------------------------------------- parts


def _for_people() -> HumanSessionOutput:
    from fairlane.cli.human_sessions import HumanSessionOutput  # noqa: PLC0415 - slow to import

    return HumanSessionOutput()
