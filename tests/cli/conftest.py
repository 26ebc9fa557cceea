"""One server for all tests of the command line, and the command in this process.

Tests tell their tasks apart by an agent of their own.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from fairlane.cli import main
from tests.cli.processes import running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Server:
    url: str
    store: str

    def get(self, path: str) -> str:
        """The very text that a route answers with."""
        with urlopen(self.url + path, timeout=60) as answer:
            text: bytes = answer.read()
        return text.decode()


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What was printed, which must be one line of JSON."""
        assert self.out.count("\n") == 1, self
        return json.loads(self.out)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    store = f"sqlite:///{folder / 'fairlane.db'}"
    with running_server(store, folder, "--allow-outbound", "127.0.0.1") as url:
        yield Server(url, store)


@pytest.fixture
def agent() -> str:
    return f"agent-{next(_numbers)}"


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Ran]:
    """`fairlane` in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("FAIRLANE_URL", raising=False)
    monkeypatch.delenv("FAIRLANE_STORE", raising=False)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        seen = capsys.readouterr()
        return Ran(code, seen.out, seen.err)

    return run


@pytest.fixture(params=["url", "store"])
def side(request: pytest.FixtureRequest, server: Server) -> list[str]:
    """Where a command is to work: on the server, and on the store beside the running server."""
    return [f"--{request.param}", getattr(server, request.param)]
