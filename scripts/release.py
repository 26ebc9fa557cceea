"""Make a release in `dist/`: wheel, sdist, SBOM, notes and checksums. Nothing is uploaded.

    python scripts/release.py [FOLDER]

It refuses a working tree with changes, changes under "Unreleased" in CHANGELOG.md, and a version
without a section there. The files are the same bytes each time: their times are the commit's.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
CHANGELOG: Final = ROOT / "CHANGELOG.md"
UNRELEASED: Final = "Unreleased"
_SECTION: Final = re.compile(r"^## +\[?v?([^\]\s]+)\]?.*$", re.MULTILINE)


class NotReleasable(Exception):
    """A problem of the release, and what to do about it."""


def version() -> str:
    text = (ROOT / "src" / "fairlane" / "version.py").read_text("utf-8")
    found = re.search(r'__version__[^=]*= "([^"]+)"', text)
    if found is None:
        raise NotReleasable("src/fairlane/version.py has no __version__")
    return found[1]


def notes(changelog: str, release: str) -> str:
    """Return the section of a version, without its heading."""
    headings = list(_SECTION.finditer(changelog))
    for number, heading in enumerate(headings):
        if heading[1] == release:
            end = headings[number + 1].start() if number + 1 < len(headings) else len(changelog)
            text = changelog[heading.end() : end].strip()
            if text:
                return f"{text}\n"
    raise NotReleasable(
        f"CHANGELOG.md has no section '## {release}', or it is empty; write it first"
    )


def check_changelog(changelog: str) -> None:
    """Raise `NotReleasable` if there are changes that belong to no version yet."""
    try:
        notes(changelog, UNRELEASED)
    except NotReleasable:
        return
    raise NotReleasable(
        f"CHANGELOG.md has changes under '## {UNRELEASED}'; rename it to the new version, "
        "and set that in src/fairlane/version.py"
    )


def checksums(files: list[Path]) -> str:
    """Return a text that `sha256sum --check` understands."""
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files]
    return "".join(f"{line}\n" for line in lines)


def missing_from(wheel: Path) -> list[str]:
    """Return the files of the package that the wheel lacks."""
    package = ROOT / "src"
    wanted = {
        str(file.relative_to(package))
        for file in (package / "fairlane").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        return sorted(wanted - set(archive.namelist()))


def make(folder: Path) -> list[Path]:
    """Make all files of a release and return them."""
    release = version()
    changelog = CHANGELOG.read_text("utf-8")
    check_changelog(changelog)
    text = notes(changelog, release)
    if _git("status", "--porcelain"):
        raise NotReleasable("the working tree has changes; commit them or put them aside first")
    folder.mkdir(parents=True, exist_ok=True)
    old = [file for file in folder.iterdir() if file.is_file()]
    for file in old:
        file.unlink()
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    moment = _git("log", "-1", "--format=%ct")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": moment}
    _run(build, environment)
    (wheel,) = folder.glob("*.whl")
    lacks = missing_from(wheel)
    if lacks:
        raise NotReleasable(f"the wheel lacks {', '.join(lacks[:5])}; see pyproject.toml")
    bill = [sys.executable, str(ROOT / "scripts" / "dependencies.py"), "sbom"]
    _run([*bill, str(folder / "sbom.json")], environment)
    (folder / "NOTES.md").write_text(text, "utf-8")
    files = sorted(file for file in folder.iterdir() if file.is_file())
    (folder / "SHA256SUMS").write_text(checksums(files), "utf-8")
    return [*files, folder / "SHA256SUMS"]


def _git(*arguments: str) -> str:
    return _run(["git", *arguments], os.environ).strip()


def _run(command: list[str], environment: Mapping[str, str]) -> str:
    run = subprocess.run(  # noqa: S603 - our own commands
        command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    return run.stdout


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else ROOT / "dist"
    try:
        files = make(folder)
    except NotReleasable as problem:
        sys.stderr.write(f"error: {problem}\n")
        return 1
    for file in files:
        sys.stdout.write(f"{file}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
