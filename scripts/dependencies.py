"""Check the pinned dependencies for known vulnerabilities, and write the bill of materials.

    python scripts/dependencies.py audit [PIP-AUDIT]   fails on a pin below its minimum or with a
                                                       known vulnerability; prints SKIPPED offline
    python scripts/dependencies.py sbom FILE           a CycloneDX document of the runtime's lock

The minimums need no network. The rest comes from pip-audit, which has its own environment.
Caution: pip-audit exits with 0 for packages it could not check ("skipped"); this script reports
them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parent.parent
RUNTIME: Final = ROOT / "requirements" / "runtime.txt"
LOCKS: Final = (RUNTIME, *(ROOT / "requirements" / name for name in ("dev.txt", "docs.txt")))
SECONDS_MAX: Final = 180

# The first versions without vulnerabilities that affect us; older pins fail, online or not.
FLOORS: Final[Mapping[str, str]] = {
    "aiohttp": "3.13.3",  # request smuggling and unbounded bodies before that
    "apsw": "3.51.3.0",  # brings the first SQLite without the WAL corruption
    "cryptography": "44.0.1",  # an OpenSSL with a hole before that
    "h11": "0.16.0",  # chunked bodies that others read differently
    "idna": "3.7",  # quadratic time on hostile names
    "mcp": "1.23.0",  # no protection against DNS rebinding before that
    "starlette": "0.49.1",  # quadratic time on a Range header
    "urllib3": "2.5.0",  # redirects that could not be turned off
}

_PIN: Final = re.compile(r"([a-z0-9][a-z0-9._-]*)==([^\s;\\]+)(?:\s*;\s*([^\\]+?))?\s*\\?")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Pin(NamedTuple):
    name: str
    version: str
    marker: str | None
    hashes: tuple[str, ...]


def pins(lock: str) -> list[Pin]:
    """Return the pins of a hashed lock, in order. Raise `ValueError` for a pin without a hash."""
    found: list[Pin] = []
    for line in lock.splitlines():
        pin = _PIN.fullmatch(line.strip()) if line[:1].isalnum() else None
        if pin is not None:
            found.append(Pin(pin[1], pin[2], pin[3], ()))
        elif found:
            found[-1] = found[-1]._replace(hashes=(*found[-1].hashes, *_HASH.findall(line)))
    bare = [pin.name for pin in found if not pin.hashes]
    if bare or not found:
        raise ValueError(f"a lock needs a hash for each pin: {', '.join(bare) or 'it is empty'}")
    return found


# -------------------------------------------------------------------- audit


def below_floors(found: Iterable[Pin]) -> list[str]:
    return sorted(
        f"{pin.name} {pin.version} is below {FLOORS[pin.name]}, the first version without a hole"
        for pin in set(found)
        if pin.name in FLOORS and _number(pin.version) < _number(FLOORS[pin.name])
    )


def _number(version: str) -> tuple[int, ...]:
    """Order a pre-release (rc, beta) before its final version."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    assert found is not None, version
    final = found.end() == len(version) or version[found.end()] in "+-."
    parts = [int(part) for part in found[0].split(".")]
    return (*parts, *[0] * (6 - len(parts)), 0 if final else -1)


def judged(report: Mapping[str, Any]) -> tuple[list[str], int, int]:
    """Return the vulnerable pins, and how many packages were checked and skipped."""
    holes, asked, skipped = [], 0, 0
    for one in report["dependencies"]:
        if "skip_reason" in one:
            skipped += 1
            continue
        asked += 1
        for hole in one["vulns"]:
            fixed = ", ".join(hole.get("fix_versions") or ()) or "no version yet"
            holes.append(f"{one['name']} {one['version']}: {hole['id']}, fixed in {fixed}")
    return sorted(holes), asked, skipped


def asked(tool: str) -> Mapping[str, Any] | None:
    """Return the report of pip-audit; None if it cannot run."""
    locks = [word for lock in LOCKS for word in ("-r", str(lock))]
    flags = ["--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json"]
    try:
        run = subprocess.run(  # noqa: S603 - the tool that the Makefile has installed
            [tool, *locks, *flags, "--timeout", "10"],
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
            text=True,
        )
        report: Mapping[str, Any] = json.loads(run.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return report if "dependencies" in report else None


def audit(tool: str | None) -> int:
    found = [pin for lock in LOCKS for pin in pins(lock.read_text("utf-8"))]
    problems = below_floors(found)
    report = asked(tool) if tool and Path(tool).exists() else None
    holes, count, skipped = judged(report) if report else ([], 0, len(set(found)))
    for problem in (*problems, *holes):
        _say(f"VULNERABLE {problem}")
    if not count:
        _say("audit of the locks SKIPPED: no advisory service could be asked; floors are checked")
    elif skipped:
        _say(f"audit of the locks: {count} pins asked about, {skipped} could NOT be")
    else:
        _say(f"audit of the locks: {count} pins asked about")
    return 1 if problems or holes else 0


# -------------------------------------------------------------------- bill of materials


def sbom(lock: str, version: str) -> dict[str, Any]:
    """The same lock gives the same document."""
    parts = [_component(pin) for pin in pins(lock)]
    number = uuid.UUID(bytes=hashlib.sha256(f"{version}\n{lock}".encode()).digest()[:16], version=4)
    root = f"pkg:pypi/fairlane@{version}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{number}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "fairlane",
                "version": version,
                "purl": root,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": parts,
        "dependencies": [{"ref": root, "dependsOn": [part["bom-ref"] for part in parts]}],
    }


def _component(pin: Pin) -> dict[str, Any]:
    purl = f"pkg:pypi/{pin.name}@{pin.version}"
    part: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": pin.name,
        "version": pin.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": one} for one in dict.fromkeys(pin.hashes)],
    }
    if pin.marker:
        part["properties"] = [{"name": "fairlane:marker", "value": pin.marker}]
    return part


def _version() -> str:
    text = (ROOT / "src" / "fairlane" / "version.py").read_text("utf-8")
    found = re.search(r'"([^"]+)"', text.partition("__version__")[2])
    assert found is not None
    return found[1]


def _say(text: str) -> None:
    print(text)  # noqa: T201 - this is a command


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("audit").add_argument("tool", nargs="?")
    commands.add_parser("sbom").add_argument("file", type=Path)
    args = parser.parse_args(arguments)
    if args.command == "audit":
        return audit(args.tool)
    document = sbom(RUNTIME.read_text("utf-8"), _version())
    args.file.parent.mkdir(parents=True, exist_ok=True)
    args.file.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    _say(f"{args.file}: {len(document['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
