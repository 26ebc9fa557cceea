"""Write the tables of commands and exit codes in docs/cli.md from the parser."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairlane.cli import commands

PAGE = Path(__file__).parents[1] / "docs/cli.md"


def page(text: str) -> str:
    """Return the page with its generated parts replaced."""
    for name, made in (("commands", command_table()), ("exit codes", exit_table())):
        begin, end = f"<!-- {name}: made by scripts/cli_reference.py -->", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{made}\n{end}{rest.partition(end)[2]}"
    return text


def command_table() -> str:
    """A row per command. `--help` lists its options, and that of a noun explains its verbs."""
    leaves = commands.build()[1]
    rows = [_row(word, about, leaves) for word, (_, about) in commands.COMMANDS.items()]
    return "\n".join(["", "| command | what it does | verbs |", "|---|---|---|", *rows, ""])


def _row(word: str, about: str, leaves: commands.Leaves) -> str:
    below = [name.partition(" ")[2] for name in leaves if name.startswith(f"{word} ")]
    nouns = {verb.rpartition(" ")[0] for verb in below}
    verbs = ", ".join(f"`{verb}`" for verb in below if verb not in nouns)
    if verbs:
        return f"| `fairlane {word}` | {about} | {verbs} |"
    actions = leaves[word]._actions  # noqa: SLF001 - argparse has no other list of them
    words = [_positional(action) for action in actions if not action.option_strings]
    return f"| `{' '.join(['fairlane', word, *words])}` | {about} | |"


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
