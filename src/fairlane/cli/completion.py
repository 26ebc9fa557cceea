"""`fairlane completion SHELL`: a script that completes commands and options.

It is written out from the parser, so that it knows what the parser knows, and asks nobody while
somebody types.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fairlane.cli import exits
from fairlane.cli.options import Leaves
from fairlane.cli.parser import SHELLS, build

_BASH: Final = """\
_fairlane() {{
    local path="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "${{path:+$path }}$word" in
{steps}
                path="${{path:+$path }}$word" ;;
        esac
    done
    local words=""
    case "$path" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _fairlane fairlane
"""
_ZSH: Final = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"


def run(args: argparse.Namespace) -> int:
    words = _words(build()[1])
    script = "\n".join(_fish(words)) + "\n" if args.shell == "fish" else _bash(words)
    sys.stdout.write(_ZSH + script if args.shell == "zsh" else script)
    return exits.OK


def _words(leaves: Leaves) -> dict[str, list[str]]:
    """What may follow each beginning of a command: verbs, then options."""
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


def _bash(words: Mapping[str, Sequence[str]]) -> str:
    steps = " | ".join(f'"{path}"' for path in words if path)
    cases = (f'        "{path}") words="{" ".join(found)}" ;;' for path, found in words.items())
    return _BASH.format(steps=f"            {steps})", cases="\n".join(cases))


def _fish(words: Mapping[str, Sequence[str]]) -> Iterator[str]:
    yield "complete -c fairlane -f"
    for path, found in words.items():
        seen = [f"__fish_seen_subcommand_from {word}" for word in path.split(" ") if word]
        condition = "; and ".join(seen) or "__fish_use_subcommand"
        plain = [word for word in found if not word.startswith("--")]
        if plain:
            missing = f"; and not __fish_seen_subcommand_from {' '.join(plain)}" if path else ""
            yield f"complete -c fairlane -n '{condition}{missing}' -a '{' '.join(plain)}'"
        for word in found:
            if word.startswith("--"):
                yield f"complete -c fairlane -n '{condition}' -l {word.removeprefix('--')}"
