"""The policy for people: the document itself, and changes one line each."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.text import Text

from fairlane.cli import drawing
from fairlane.cli.human import HumanOutput
from fairlane.cli.output import Shape
from fairlane.cli.text import shown
from fairlane.schema import wire


class HumanPolicyOutput(HumanOutput):
    def policy(self, answer: Shape) -> None:
        """Only the document goes to the output, so that a file of it can be made."""
        self._note(self._told(answer))
        self._write(f"{drawing.pretty(answer['policy']).plain}\n")

    def policy_set(self, answer: Shape) -> None:
        self._changes(answer)
        if answer["changed"]:
            self._line(f"the policy is at version {answer['version']} now")
        else:
            self._line(f"nothing changes; the policy is at version {answer['version']}")

    def policy_checked(self, answer: Shape) -> None:
        if answer["valid"]:
            self._changes(answer)
            count = len(answer["changes"])
            would = f"{_changes(count)} would be made" if count else "nothing would change"
            self._line(f"valid: {would} to version {answer['version']}")

    def policy_versions(self, page: Shape, *, more: bool) -> None:
        if not page["versions"]:
            self._line("no versions: the defaults are in force")
        for version in page["versions"]:
            self._line(Text(self._told(version), style="bold"))
            self._changes(version)
        self._tell_of_more(page, more=more)

    def policy_diff(self, answer: Shape) -> None:
        self._changes(answer)
        span = f"version {answer['from']} and version {answer['to']}"
        count = len(answer["changes"])
        self._line(f"{_changes(count) if count else 'no changes'} between {span}")

    def _changes(self, answer: Shape) -> None:
        for change in answer["changes"]:
            path = shown(change["path"])
            if "from" in change:
                self._line(Text(f"- {path}: {_value(change['from'])}", style="red"))
            if "to" in change:
                self._line(Text(f"+ {path}: {_value(change['to'])}", style="green"))

    def _told(self, version: Shape) -> str:
        if version["version"] == 0:
            return "version 0: the defaults"
        when = version["createdAt"]
        told = f"version {version['version']}, {when} ({self._ago(when)}), by {version['source']}"
        if "author" in version:
            told += f" of {version['author']}"
        return shown(told + (f": {version['note']}" if "note" in version else ""))


def _changes(count: int) -> str:
    return "1 change" if count == 1 else f"{count} changes"


def _value(value: Any) -> str:
    return shown(msgspec.json.format(wire.encode(value), indent=0).decode())
