"""With `--json`, every refusal of every command has a code that docs/errors.md lists."""

from __future__ import annotations

import contextlib
import json
import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

import apsw
import pytest

from fairlane.cli import commands as parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cli.conftest import Ran

    Run = Callable[..., Ran]

ERRORS: Final = Path(__file__).parents[2] / "docs" / "errors.md"
EXITS: Final = {
    row[0]: row[1]
    for row in re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \| [^|]+ \| ([^|]+) \|", ERRORS.read_text())
}

# What each command needs besides to be understood. FILE is a file with a document that fits.
WORDS: Final = {
    "submit": "--handler x",
    "show": "x",
    "why": "x",
    "wait": "x",
    "cancel": "x",
    "retry": "x",
    "reset": "x",
    "signal": "x paid",
    "effect": "x charge --happened",
    "batch submit": "FILE",
    "batch show": "x",
    "batch cancel": "x",
    "output": "x",
    "message": "x hello",
    "stop": "x",
    "stopall": "x",
    "sessions set": "x --cap 3",
    "sessions usage": "x 1 2",
    "sessions reset": "x",
    "sessions withdraw": "x msg_1",
    "lanes pause": "main",
    "lanes resume": "main",
    "lanes clear": "main --yes",
    "sched renew": "x",
    "sched complete": "x",
    "sched release": "x",
    "sched reset": "x",
    "sched policy set": "--maxConcurrent 2",
    "queue show": "x",
    "queue import": "FILE",
    "templates show": "x",
    "templates create": "--name x --instruction y",
    "templates update": "x --name y",
    "templates delete": "x",
    "templates use": "x",
    "cron add": "--every 1m --name x --handler y",
    "cron show": "x",
    "cron create": "--every 1m --name x --handler y",
    "cron update": "x --disable-after 3",
    "cron toggle": "x off",
    "cron edit": "x --disable-after 3",
    "cron delete": "x",
    "cron on": "x",
    "cron off": "x",
    "cron run": "x",
    "cron preview": "--every 1m",
    "cron import": "FILE",
    "policy set": "maxInflight=3",
    "policy check": "FILE",
    "policy rollback": "1",
    "token create": "--name x",
    "token revoke": "x",
    "deliveries show": "x",
    "deliveries redeliver": "x",
    "webhooks add": "https://example.com/x",
    "webhooks rotate": "x",
    "webhooks enable": "x",
    "webhooks remove": "x",
    "approvals show": "x",
    "approvals link": "x",
    "approve": "x",
    "reject": "x",
    "resources ledger": "x",
    "resources usage": "x",
    "resources close": "x",
    "resources open": "x",
    "resources raise": "x --unit usd --amount 5",
    "backup": "copy.db",
    "restore": "copy.db",
    "move": "sqlite:///a.db sqlite:///b.db",
    "import": "--from goclaw FILE",
}
JOB: Final = {
    "name": "x",
    "schedule": {"kind": "every", "everyMs": 60_000},
    "task": {"handler": "y"},
}
FILES: Final = {
    "batch submit": [{"handler": "x", "agentId": "a"}],
    "queue import": {"schemaVersion": 1, "entries": []},
    "cron import": {"jobs": [JOB]},
    "policy check": {},
    "import": {"jobs": []},
}
LEAVES: Final = {name: leaf for name, leaf in parser.build()[1].items() if leaf.knows("--json")}
ON_STORES: Final = [name for name, leaf in LEAVES.items() if leaf.knows("--store")]
ASKING: Final = [name for name, leaf in LEAVES.items() if leaf.knows("--url")]
READING_FILES: Final = [*FILES, "submit --file", "policy set --file", "templates create --file"]


def _words(name: str, folder: Path) -> list[str]:
    words = [*name.split(), *WORDS.get(name, "").split()]
    if name in FILES:
        file = folder / "document.json"
        file.write_text(json.dumps(FILES[name]))
        words[-1] = str(file)
    return words


def _code(ran: Ran) -> str:
    """The code of a refusal, which is documented and fits the exit code."""
    assert ran.code != 0, ran
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert len(lines) == 1, ran
    code: str = lines[0]["code"]
    assert code in EXITS, f"docs/errors.md does not have {code}"
    assert EXITS[code].strip() in (str(ran.code), "-"), ran
    assert ran.err.splitlines()[-1].startswith("error: ")
    return code


def test_the_page_of_errors_was_read() -> None:
    assert EXITS["invalid_request"].strip() == "2"
    assert len(EXITS) > 30


@pytest.mark.parametrize("name", LEAVES)
def test_a_wrong_option_is_refused_with_a_code(run: Run, tmp_path: Path, name: str) -> None:
    ran = run(*_words(name, tmp_path), "--no-such-option", "--json")
    assert (_code(ran), ran.code) == ("invalid_request", 2)


@pytest.mark.parametrize("name", ASKING)
def test_a_server_that_is_away_is_reported_with_a_code(
    run: Run, tmp_path: Path, name: str, nobody: str
) -> None:
    ran = run(*_words(name, tmp_path), "--json", "--url", nobody)
    assert (_code(ran), ran.code) == ("unreachable", 5)


@pytest.fixture(scope="module")
def nobody() -> str:
    """An address where nothing listens: port 1 is nobody's on this machine."""
    return "http://127.0.0.1:1"


@pytest.mark.parametrize("name", ASKING)
def test_an_address_of_no_server_is_refused_with_a_code(
    run: Run, tmp_path: Path, name: str
) -> None:
    ran = run(*_words(name, tmp_path), "--json", "--url", "ftp://127.0.0.1")
    assert (_code(ran), ran.code) == ("invalid_settings", 2)


@pytest.mark.parametrize("name", ASKING)
def test_a_token_that_cannot_be_read_is_reported_with_a_code(
    run: Run, tmp_path: Path, name: str, nobody: str
) -> None:
    flags = ("--json", "--url", nobody, "--token-file", str(tmp_path / "none"))
    assert _code(run(*_words(name, tmp_path), *flags)) == "invalid_settings"


# What makes a store, or answers as an empty one would.
WITHOUT_STORE: Final = {
    *("submit", "message", "batch submit", "templates create", "cron add", "cron create"),
    "cron import",
    *("policy set", "policy check", "token create", "webhooks add", "restore", "import"),
    *(name for name in LEAVES if name.split()[0] in ("queue", "sched")),
}


@pytest.mark.parametrize("name", sorted(set(ON_STORES) - WITHOUT_STORE))
def test_a_missing_store_is_reported_with_a_code(run: Run, tmp_path: Path, name: str) -> None:
    file = tmp_path / "none" / "fairlane.db"
    ran = run(*_words(name, tmp_path), "--json", "--store", f"sqlite:///{file}")
    assert (_code(ran), ran.code) == ("store_missing", 6)
    assert not file.parent.exists()


@pytest.mark.parametrize("name", ON_STORES)
def test_a_database_of_another_program_is_refused_with_a_code(
    run: Run, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "invoices.db"
    with contextlib.closing(apsw.Connection(str(file))) as connection:
        connection.execute("CREATE TABLE invoice (id INTEGER PRIMARY KEY)")
    before = file.read_bytes()
    ran = run(*_words(name, tmp_path), "--json", "--store", f"sqlite:///{file}")
    assert (_code(ran), ran.code) == ("store_mismatch", 6)
    assert file.read_bytes() == before


@pytest.mark.parametrize("name", ON_STORES)
def test_an_address_of_no_store_is_refused_with_a_code(run: Run, tmp_path: Path, name: str) -> None:
    ran = run(*_words(name, tmp_path), "--json", "--store", "mysql://127.0.0.1/x")
    assert (_code(ran), ran.code) == ("invalid_setup", 6)


@pytest.mark.parametrize("name", ON_STORES)
def test_settings_that_are_wrong_are_reported_with_a_code(
    run: Run, tmp_path: Path, name: str
) -> None:
    (tmp_path / "fairlane.toml").write_text("colour = 3\n")
    store = f"sqlite:///{tmp_path / 'fairlane.db'}"
    Path(tmp_path / "fairlane.db").touch()
    ran = run(*_words(name, tmp_path), "--json", "--store", store)
    assert (_code(ran), ran.code) == ("invalid_settings", 2)


@pytest.mark.parametrize("name", READING_FILES)
@pytest.mark.parametrize("content", [None, b"{", b"\xff\xfe"])
def test_a_file_that_cannot_be_used_is_reported_with_a_code(
    run: Run, tmp_path: Path, name: str, content: bytes | None
) -> None:
    file = tmp_path / "document.json"
    if content is not None:
        file.write_bytes(content)
    flags = ("--handler", "x") if name == "cron import" else ()
    ran = run(*name.split(), str(file), *flags, "--json", "--url", "http://127.0.0.1:1")
    assert (_code(ran), ran.code) == ("invalid_request", 2)


class Broken(BaseHTTPRequestHandler):
    """A server that is out of order in one way."""

    status, body = 500, b'{"code": "internal_error", "error": "internal error; see the log"}'

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    kind = type("Answering", (Broken,), {"status": status, "body": body})
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (500, Broken.body, "internal_error"),
        (408, b'{"code": "request_timeout", "error": "too slow"}', "request_timeout"),
        (500, b'{"code": "invalid_setup", "error": "no key"}', "invalid_setup"),
        (502, b"<html>", "unreachable"),
        (200, b"[]", "unreachable"),
    ],
)
def test_what_a_server_in_trouble_answers_keeps_its_code(
    run: Run, status: int, body: bytes, code: str
) -> None:
    with answering(status, body) as url:
        ran = run("stats", "--json", "--url", url)
    assert _code(ran) == code
    assert ran.code == (70 if EXITS[code].strip() == "-" else int(EXITS[code]))
