r"""Crontab files, read as the documents of jobs.

`CRON_TZ=` and `TZ=` set the zone of the lines below them (the first wins over the second); other
variables are handed to the commands. A `%` ends a command and begins its input, as cron has it;
`\%` is the letter. What is wrong with a line is told with its number, all of it at once.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from fairlane.core.cron import NICKNAMES

Shape = dict[str, Any]
MakeTask = Callable[[str, str | None, Mapping[str, str]], tuple[str, Shape]]

_VARIABLE: Final = re.compile(r"""\s*(['"]?)([A-Za-z_][A-Za-z0-9_]*)\1\s*=\s*(.*?)\s*""")
_FIELDS: Final = re.compile(r"\s*((?:\S+\s+){4}\S+)\s+(\S.*)")
_NICKNAME: Final = re.compile(r"\s*(@\S+)(?:\s+(.*))?")
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_NAME_CHARACTERS_MAX: Final = 100
_WORDS_MAX: Final = 4
_COMMAND_WORDS_MAX: Final = 3
_REDIRECTION: Final = re.compile(r"\d*[<>|]")
_ASIDE: Final = re.compile(r"-|&&$|[A-Za-z_]\w*=")
_ZONES: Final = ("CRON_TZ", "TZ")


class Line(msgspec.Struct):
    """A line that asks for something: a job's document, or what is wrong with it."""

    number: int
    document: Shape | None = None
    problem: str | None = None


def read(text: str, make: MakeTask, *, zone: str | None, prefix: str = "") -> list[Line]:
    """The lines that are neither blank nor comments nor variables.

    `make` gives what to call a job, and its task.
    """
    variables: dict[str, str] = {}
    names: set[str] = set()
    found: list[Line] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        variable = _VARIABLE.fullmatch(line)
        if variable:
            variables[variable[2]] = _unquoted(variable[3])
            continue
        try:
            expr, command, stdin = _split(line)
        except ValueError as error:
            found.append(Line(number, problem=str(error)))
            continue
        tz = next((variables[name] for name in _ZONES if variables.get(name)), zone)
        words, task = make(command, stdin, variables)
        document = {
            "name": _name(prefix, words, names),
            "schedule": {"kind": "cron", "expr": expr, **({"tz": tz} if tz else {})},
            "task": task,
        }
        found.append(Line(number, document=document))
    return found


def shell_task(handler: str) -> MakeTask:
    """A command is for the handler `handler` to run; the job is called after its words."""

    def make(command: str, stdin: str | None, variables: Mapping[str, str]) -> tuple[str, Shape]:
        params: Shape = {"command": command}
        if stdin is not None:
            params["stdin"] = stdin
        if variables:
            params["env"] = dict(variables)
        return _called(command), {"handler": handler, "params": params}

    return make


def _called(command: str) -> str:
    """Its first words, without options and folders, up to where its output goes."""
    words = itertools.takewhile(lambda word: not _REDIRECTION.match(word), command.split())
    plain = (word.rstrip("/").rpartition("/")[2] for word in words if not _ASIDE.match(word))
    return " ".join(itertools.islice(plain, _COMMAND_WORDS_MAX))


def instruction_task(words: str, more: str | None, _: Mapping[str, str]) -> tuple[str, Shape]:
    """The job is called after the first words."""
    text = words if more is None else f"{words}\n{more}"
    return " ".join(words.lower().split()[:_WORDS_MAX]), {"instruction": text}


def _split(line: str) -> tuple[str, str, str | None]:
    """When, what, and what it reads. Raises `ValueError` for what is no line of a crontab."""
    nickname = _NICKNAME.fullmatch(line)
    if nickname:
        return _checked_nickname(nickname[1]), *_command(nickname[2])
    fields = _FIELDS.fullmatch(line)
    if not fields:
        raise ValueError("must be five fields (minute hour day month weekday) and a command")
    return " ".join(fields[1].split()), *_command(fields[2])


def _checked_nickname(word: str) -> str:
    if word == "@reboot":
        raise ValueError("@reboot is no moment: have what starts the machine submit the task")
    if word not in NICKNAMES:
        raise ValueError(f"'{word[:40]}' is none of {', '.join(NICKNAMES)}")
    return word


def _command(text: str | None) -> tuple[str, str | None]:
    first, *rest = re.split(r"(?<!\\)%", text or "")
    command = first.replace(r"\%", "%").strip()
    if not command:
        raise ValueError("there is no command behind the schedule")
    return command, "\n".join(rest).replace(r"\%", "%") if rest else None


def _name(prefix: str, words: str, names: set[str]) -> str:
    """A name that no line above has."""
    plain = prefix + (_NOT_IN_NAMES.sub("-", words).strip("-.")[:_NAME_CHARACTERS_MAX] or "job")
    name, number = plain, 1
    while name in names:
        number += 1
        name = f"{plain}-{number}"
    names.add(name)
    return name


def _unquoted(text: str) -> str:
    quoted = len(text) >= 2 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text
