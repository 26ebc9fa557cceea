"""`make release` in a clone: what it makes can be installed, checked and run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from scripts import release
from scripts.release import NotReleasable

from tests.e2e.processes import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

LOG = "# Changelog\n\n## 0.2.0\n\n- New: b.\n\n## 0.1.0 (2026-01-01)\n\n- a\n"


def run(*command: str, folder: Path, env: Mapping[str, str] | None = None) -> str:
    ran = subprocess.run(
        command, cwd=folder, env=env, check=False, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_a_release_can_be_checked_installed_and_run(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git = ["git", "-c", "user.name=Test", "-c", "user.email=test@example.com"]
    run(*git, "clone", "--quiet", str(ROOT), str(clone), folder=tmp_path)
    program = [sys.executable, "scripts/release.py", "dist"]
    refused = subprocess.run(program, cwd=clone, check=False, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "rename it to the new version" in refused.stderr
    log = clone / "CHANGELOG.md"
    log.write_text(f"# Changelog\n\n## {release.version()}\n\n- All of it.\n", "utf-8")
    dirty = subprocess.run(program, cwd=clone, check=False, capture_output=True, text=True)
    assert "the working tree has changes" in dirty.stderr
    run(*git, "commit", "--quiet", "--all", "--message", "Release", folder=clone)

    made = [Path(line) for line in run(*program, folder=clone).splitlines()]
    out = clone / "dist"
    assert {file.suffix for file in made} == {".whl", ".gz", ".json", ".md", ""}
    assert (out / "NOTES.md").read_text("utf-8") == "- All of it.\n"
    assert json.loads((out / "sbom.json").read_text("utf-8"))["bomFormat"] == "CycloneDX"
    checked = run("sha256sum", "--check", "SHA256SUMS", folder=out)
    assert checked.count(": OK") == len(made) - 1

    sums = (out / "SHA256SUMS").read_text("utf-8")
    run(*program, folder=clone)
    assert (out / "SHA256SUMS").read_text("utf-8") == sums, "the same commit gives the same bytes"

    (wheel,) = out.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    run(*install, "--target", str(tmp_path / "lib"), str(wheel), folder=tmp_path)
    alone = {**os.environ, "PYTHONPATH": str(tmp_path / "lib")}
    said = run(sys.executable, "-m", "fairlane", "--version", folder=tmp_path, env=alone)
    assert said == f"fairlane {release.version()}\n"


def test_the_notes_are_the_section_of_the_version() -> None:
    assert release.notes(LOG, "0.2.0") == "- New: b.\n"
    assert release.notes(LOG, "0.1.0") == "- a\n"
    for changelog, version in ((LOG, "0.3.0"), ("## 0.3.0\n\n## 0.2.0\n\n- a\n", "0.3.0")):
        with pytest.raises(NotReleasable, match=r"no section '## 0\.3\.0', or it is empty"):
            release.notes(changelog, version)


def test_changes_without_a_version_are_not_released() -> None:
    release.check_changelog(LOG)
    sections = LOG.removeprefix("# Changelog\n\n")
    release.check_changelog(f"## Unreleased\n\n{sections}")
    with pytest.raises(NotReleasable, match="changes under '## Unreleased'"):
        release.check_changelog(f"## Unreleased\n\n- c\n\n{sections}")


def test_a_file_that_the_wheel_lacks_is_named(tmp_path: Path) -> None:
    wheel = tmp_path / "fairlane.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("fairlane/__init__.py", "")
    assert "fairlane/version.py" in release.missing_from(wheel)
