"""Shell completion: commands, verbs, options and their values.

Values that only a server knows, such as the names of lanes and jobs, are asked for while a person
types, with `fairlane completion --values`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from fairlane import config
from fairlane.cli.commands import Commands, Exit, Leaves, Parser, build, nowhere
from fairlane.client.sync import Client
from fairlane.client.transport import DEFAULT_URL
from fairlane.core import events, lifecycle
from fairlane.core.errors import FairlaneError, InvalidRequest

SHELLS: Final = ("bash", "zsh", "fish")
ANSWER_SECONDS: Final = 2.0
_STATIC: Final = {
    "--state": lifecycle.STATES,
    "--kind": ("action", "handler", "instruction"),
    "--type": events.TYPES,
    "--mode": ("queue", "followup", "interrupt", "collect"),
    "--drop": ("old", "new"),
}
# What a server is asked for, by the option or argument that takes it.
_ASKED: Final = {"--lane": "lanes", "--handler": "handlers", "JOB": "jobs", "--agent": "agents"}
_LANE_VERBS: Final = ("lanes pause", "lanes resume", "lanes clear")
_BASH: Final = """\
_fairlane() {{
    local path="" word current="${{COMP_WORDS[COMP_CWORD]}}"
    local previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "${{path:+$path }}$word" in
{steps}
                path="${{path:+$path }}$word" ;;
        esac
    done
    local words="" values=""
    case "$path" in
{cases}
    esac
    case "$previous" in
{values}
        *)
            case "$path" in
{arguments}
            esac ;;
    esac
    COMPREPLY=($(compgen -W "$words $values" -- "$current"))
}}
complete -o default -F _fairlane fairlane
"""
_ZSH: Final = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def register(commands: Commands) -> None:
    note = 'For bash, add this to ~/.bashrc: eval "$(fairlane completion bash)"'
    commands.add("completion", completion, _options, epilog=note, side=nowhere)


def _options(parser: Parser) -> None:
    about = "bash, zsh or fish"
    parser.add_argument("shell", metavar="SHELL", nargs="?", choices=SHELLS, help=about)
    parser.add_argument(
        "--values",
        metavar="NAMES",
        choices=tuple(_NAMES),
        help=f"print the names that the server knows: {', '.join(_NAMES)}",
    )


def completion(args: argparse.Namespace) -> int:
    if args.values is not None:
        _print_names(args.values)
        return Exit.OK
    if args.shell is None:
        raise InvalidRequest(f"name a shell: {', '.join(SHELLS)}")
    leaves = build()[1]
    words = _words(leaves)
    script = (
        "\n".join(_fish(words, leaves)) + "\n" if args.shell == "fish" else _bash(words, leaves)
    )
    sys.stdout.write(_ZSH + script if args.shell == "zsh" else script)
    return Exit.OK


# -------------------------------------------------------------------- what a server knows


def _handlers(client: Client) -> Iterable[str]:
    return {name for worker in client.workers().workers for name in worker.handlers or ()}


_NAMES: Final[Mapping[str, Callable[[Client], Iterable[str]]]] = {
    "lanes": lambda client: (lane.name for lane in client.lanes().lanes),
    "jobs": lambda client: (job.name for job in client.cron_jobs(limit=1000).jobs),
    "handlers": _handlers,
    "agents": lambda client: client.stats().queue.agents,
}


def _print_names(what: str) -> None:
    """Print names, one per line. Print nothing if there is no answer: a person is typing."""
    url = config.variable("FAIRLANE_URL") or DEFAULT_URL
    try:
        with Client(url, token=config.token(None), timeout=ANSWER_SECONDS) as client:
            found = sorted(_NAMES[what](client))
    except FairlaneError:
        return
    sys.stdout.write("".join(f"{name}\n" for name in found if name.isprintable()))


# -------------------------------------------------------------------- scripts


def _words(leaves: Leaves) -> dict[str, list[str]]:
    """Return the words that may follow each command: its verbs, then its options."""
    words: dict[str, list[str]] = {"": []}
    for path, leaf in leaves.items():
        *before, last = path.split(" ")
        for depth in range(len(before)):
            parent, child = " ".join(before[:depth]), before[depth]
            _add(words, parent, child)
        _add(words, " ".join(before), last)
        options = words.setdefault(path, [])
        options += [option for option in leaf.option_names() if option.startswith("--")]
    words["completion"] += SHELLS
    words[""] += ["--help", "--version"]
    return words


def _add(words: dict[str, list[str]], parent: str, child: str) -> None:
    known = words.setdefault(parent, [])
    if child not in known:
        known.append(child)


def _valued(leaves: Leaves) -> dict[str, Sequence[str]]:
    """Return the options that take a value, each with the values that are known beforehand."""
    found: dict[str, Sequence[str]] = {}
    for leaf in leaves.values():
        for option, choices in leaf.valued_options().items():
            found[option] = found.get(option) or choices or _STATIC.get(option, ())
    return found


def _arguments(leaves: Leaves) -> dict[str, str]:
    """Return the names to ask for, by the command that takes one of them as an argument."""
    lanes = dict.fromkeys(_LANE_VERBS, "lanes")
    jobs = {path: _ASKED["JOB"] for path, leaf in leaves.items() if "JOB" in leaf.argument_names()}
    return {**lanes, **jobs}


def _asked(names: str) -> str:
    return f"$(fairlane completion --values {names} 2>/dev/null)"


def _bash(words: Mapping[str, Sequence[str]], leaves: Leaves) -> str:
    steps = " | ".join(f'"{path}"' for path in words if path)
    cases = (f'        "{path}") words="{" ".join(found)}" ;;' for path, found in words.items())
    values = []
    for option, known in _valued(leaves).items():
        text = _asked(_ASKED[option]) if option in _ASKED else " ".join(known)
        values.append(f'        {option}) words="" values="{text}" ;;')
    arguments = (
        f'                "{path}") values="{_asked(names)}" ;;'
        for path, names in _arguments(leaves).items()
    )
    return _BASH.format(
        steps=f"            {steps})",
        cases="\n".join(cases),
        values="\n".join(values),
        arguments="\n".join(arguments),
    )


def _fish(words: Mapping[str, Sequence[str]], leaves: Leaves) -> Iterator[str]:
    valued, arguments = _valued(leaves), _arguments(leaves)
    yield "complete -c fairlane -f"
    for path, found in words.items():
        seen = [f"__fish_seen_subcommand_from {word}" for word in path.split(" ") if word]
        condition = "; and ".join(seen) or "__fish_use_subcommand"
        plain = [word for word in found if not word.startswith("--")]
        if plain:
            missing = f"; and not __fish_seen_subcommand_from {' '.join(plain)}" if path else ""
            yield f"complete -c fairlane -n '{condition}{missing}' -a '{' '.join(plain)}'"
        if path in arguments:
            asked = f"(fairlane completion --values {arguments[path]} 2>/dev/null)"
            yield f"complete -c fairlane -n '{condition}' -a '{asked}'"
        for word in found:
            if word.startswith("--"):
                yield f"complete -c fairlane -n '{condition}' -l {word.removeprefix('--')}"
    for option, known in valued.items():
        text = " ".join(known)
        if option in _ASKED:
            text = f"(fairlane completion --values {_ASKED[option]} 2>/dev/null)"
        if text:
            yield f"complete -c fairlane -l {option.removeprefix('--')} -x -a '{text}'"
