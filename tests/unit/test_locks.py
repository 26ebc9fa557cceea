"""The locks: every pin has a hash and meets its minimum; a release has a bill of materials."""

from __future__ import annotations

import json
import re
import stat
from typing import TYPE_CHECKING, Any

import pytest
from scripts import dependencies
from scripts.dependencies import LOCKS, RUNTIME, Pin, below_floors, judged, pins, sbom

if TYPE_CHECKING:
    from pathlib import Path

HASH = "0" * 64
LOCK = f"""# made by a tool
one==1.2 \\
    --hash=sha256:{HASH} \\
    --hash=sha256:{"1" * 64}
two-three==4.5.6 ; sys_platform != 'win32' \\
    --hash=sha256:{HASH}
"""


def pin(name: str, version: str) -> Pin:
    return Pin(name, version, None, (HASH,))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_pin_has_a_hash_and_none_is_below_its_floor(lock: Path) -> None:
    found = pins(lock.read_text("utf-8"))
    assert len(found) == len(re.findall(r"(?m)^\S+==", lock.read_text("utf-8")))
    assert below_floors(found) == []
    assert not re.search(r"https?://", lock.read_text("utf-8"))


def test_a_lock_is_read_with_its_hashes_and_markers() -> None:
    assert pins(LOCK) == [
        Pin("one", "1.2", None, (HASH, "1" * 64)),
        Pin("two-three", "4.5.6", "sys_platform != 'win32'", (HASH,)),
    ]
    with pytest.raises(ValueError, match="a hash for each pin: bare"):
        pins(LOCK + "bare==1.0\n")
    with pytest.raises(ValueError, match="it is empty"):
        pins("# nothing")


@pytest.mark.parametrize(
    ("version", "below"),
    [("1.22.9", 1), ("1.23.0rc1", 1), ("1.23", 0), ("1.23.0", 0), ("2.3.0", 0)],
)
def test_a_pin_below_its_floor_is_named(version: str, below: int) -> None:
    assert len(below_floors([pin("mcp", version), pin("other", "0.1")])) == below


def test_a_known_vulnerability_is_distinguished_from_a_package_that_was_skipped() -> None:
    hole = {"id": "CVE-2026-1", "fix_versions": ["1.1"]}
    report: dict[str, Any] = {
        "dependencies": [
            {"name": "good", "version": "1.0", "vulns": []},
            {"name": "bad", "version": "1.0", "vulns": [hole, {"id": "CVE-2026-2"}]},
            {"name": "unknown", "skip_reason": "not found"},
        ]
    }
    assert judged(report) == (
        [
            "bad 1.0: CVE-2026-1, fixed in 1.1",
            "bad 1.0: CVE-2026-2, fixed in no version yet",
        ],
        2,
        1,
    )


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}', 0, "1 pins asked about"),
        ('{"dependencies": [{"name": "a", "skip_reason": "no"}]}', 0, "SKIPPED"),
        ("no connection", 0, "SKIPPED"),
        (
            '{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "X-1"}]}]}',
            1,
            "VULNERABLE a 1: X-1",
        ),
    ],
)
def test_the_audit_fails_on_holes_and_says_when_it_could_not_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str, code: int, said: str
) -> None:
    tool = tmp_path / "pip-audit"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    assert dependencies.main(["audit", str(tool)]) == code
    assert said in capsys.readouterr().out


def test_without_the_tool_the_audit_is_skipped_aloud(capsys: pytest.CaptureFixture[str]) -> None:
    assert dependencies.main(["audit", "/nowhere/pip-audit"]) == 0
    assert "SKIPPED: no advisory service could be asked" in capsys.readouterr().out


def test_a_release_says_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "new" / "sbom.json"
    assert dependencies.main(["sbom", str(file)]) == 0
    document = json.loads(file.read_text("utf-8"))
    assert (document["bomFormat"], document["specVersion"], document["version"]) == (
        "CycloneDX",
        "1.6",
        1,
    )
    number = r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert re.fullmatch(number, document["serialNumber"])
    assert not document.keys() - {
        *("$schema", "bomFormat", "specVersion", "serialNumber", "version", "metadata"),
        *("components", "dependencies"),
    }
    parts = [document["metadata"]["component"], *document["components"]]
    for part in parts:
        assert {"type", "name", "version", "bom-ref", "purl"} <= part.keys()
        assert part["purl"] == f"pkg:pypi/{part['name']}@{part['version']}"
        for one in part.get("hashes", ()):
            assert re.fullmatch("SHA-256 [0-9a-f]{64}", f"{one['alg']} {one['content']}")
    refs = [part["bom-ref"] for part in parts]
    assert len(set(refs)) == len(refs)
    assert document["dependencies"] == [{"ref": refs[0], "dependsOn": refs[1:]}]
    names = {part["name"] for part in document["components"]}
    assert names >= {"apsw", "cryptography", "httptools"}
    assert not names & {"aiohttp", "pytest"}  # what only the tests need


def test_the_same_lock_gives_the_same_document() -> None:
    lock = RUNTIME.read_text("utf-8")
    assert sbom(lock, "1.0") == sbom(lock, "1.0")
    assert sbom(lock, "1.0")["serialNumber"] != sbom(lock, "1.1")["serialNumber"]
