"""Write the tables of commands, options and exit codes in docs/cli.md from the parser."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairlane.cli import commands

PAGE = Path(__file__).parents[1] / "docs/cli.md"
SHARED = {"-h", "--help", "--url", "--store", "--token-file", "--json"}
PAGING = ["--limit", "--cursor", "--all"]


def page(text: str) -> str:
    """Return the page with its generated parts replaced."""
    for name, made in (("commands", command_table()), ("exit codes", exit_table())):
        begin, end = f"<!-- {name}: made by scripts/cli_reference.py -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{made}\n{end}{rest.partition(end)[2]}"
    return text


def command_table() -> str:
    leaves = commands.build()[1]
    nouns = {name.rpartition(" ")[0] for name in leaves if " " in name}
    ordered = sorted(leaves, key=lambda name: list(commands.COMMANDS).index(name.split()[0]))
    rows = [_row(name, leaves[name]) for name in ordered if name not in nouns]
    return "\n".join(["", "| command | what it does | options |", "|---|---|---|", *rows, ""])


def _row(name: str, leaf: commands.Parser) -> str:
    words, flags = [], []
    for action in leaf._actions:  # noqa: SLF001 - argparse has no other list of them
        if action.option_strings:
            flags += [next(one for one in action.option_strings if _is_long(one, action))]
        else:
            words.append(_positional(action))
    own = [flag for flag in flags if flag not in SHARED]
    if set(PAGING) <= set(own):
        own = [*(flag for flag in own if flag not in PAGING), "paging"]
    shown = " ".join(f"`{flag}`" if flag.startswith("-") else flag for flag in own)
    summary = (leaf.description or "").removesuffix(".")
    return f"| `{' '.join(['fairlane', name, *words])}` | {summary} | {shown} |"


def _is_long(option: str, action: argparse.Action) -> bool:
    return option.startswith("--") or not any(one.startswith("--") for one in action.option_strings)


def _positional(action: argparse.Action) -> str:
    metavar = str(action.metavar)
    return {"?": f"[{metavar}]", "*": f"[{metavar}...]", "+": f"{metavar}..."}.get(
        str(action.nargs), metavar
    )


def exit_table() -> str:
    rows = [f"| {code:d} | {meaning} |" for code, meaning in commands.MEANINGS.items()]
    return "\n".join(["", "| exit code | meaning |", "|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
