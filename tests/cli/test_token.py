"""`fairlane token`, and how the command line and a client authenticate."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from fairlane.client.sync import Client
from fairlane.core import access
from fairlane.core.errors import InvalidSettings, Unauthenticated
from tests.cli.processes import run_process, running_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.cli.conftest import Ran

    Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """A server that wants tokens: its address, one that may do all, and its folder."""
    folder = tmp_path_factory.mktemp("guarded")
    store = f"sqlite:///{folder / 'fairlane.db'}"
    made = run_process(
        *("token", "create", "--name", "root", "--scope", "all", "--store", store), folder=folder
    )
    assert made.returncode == 0, made
    with running_server(store, folder) as url:
        yield url, made.stdout.decode().strip(), folder


def _store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'f.db'}"


def test_only_the_token_goes_to_the_output(run: Run, tmp_path: Path) -> None:
    words = ("--name", "bot", "--agent", "a1", "--scope", "read,lease", "--scope", "submit")
    ran = run("token", "create", *words, "--expires", "30d", "--store", _store(tmp_path))
    assert ran.code == 0
    token = ran.out.removesuffix("\n")
    found = access.parse_token(token.encode())
    assert found is not None
    assert re.fullmatch(
        rf"token {found[0]} \(bot\) of agent a1: submit, read, lease, "
        r"until \S+Z; save it now; it will not be shown again\n",
        ran.err,
    )
    listed = run("token", "list", "--json", "--store", _store(tmp_path))
    assert found[1].decode() not in listed.out
    (kept,) = listed.json["tokens"]
    assert (kept["agentId"], kept["scopes"]) == ("a1", ["submit", "read", "lease"])


def test_a_list_for_people(run: Run, tmp_path: Path) -> None:
    store = _store(tmp_path)
    run("token", "create", "--name", "first", "--store", store)
    run("token", "create", "--name", "second", "--expires", "2999-01-01", "--store", store)
    assert run("token", "revoke", "first", "--store", store).out.startswith("revoked first (")
    lines = run("token", "list", "--store", store).out.splitlines()
    assert [line.split()[1:2] for line in lines] == [["NAME"], ["first"], ["second"]]
    assert lines[1].endswith("revoked")
    assert lines[2].endswith("until 2999-01-01T00:00:00.000Z")


def test_an_empty_list_of_tokens_is_explained(run: Run, tmp_path: Path) -> None:
    run("submit", "--handler", "x", "--store", _store(tmp_path))
    assert "no tokens" in run("token", "list", "--store", _store(tmp_path)).out


def test_json_is_what_the_route_answers(run: Run, tmp_path: Path) -> None:
    ran = run("token", "create", "--name", "n", "--rate", "5/s", "--max-open", "7", "--json",
              "--store", _store(tmp_path))  # fmt: skip
    assert ran.json["token"].startswith(f"fl_{ran.json['id']}_")
    assert (ran.json["rate"], ran.json["maxOpen"]) == ("5/s", 7)
    gone = run("token", "revoke", ran.json["id"], "--json", "--store", _store(tmp_path))
    assert gone.json == {"id": ran.json["id"], "name": "n", "revoked": True}


def test_a_token_that_is_not_there_keeps_no_other_from_being_revoked(
    run: Run, tmp_path: Path
) -> None:
    run("token", "create", "--name", "leaked", "--store", _store(tmp_path))
    ran = run("token", "revoke", "nobody", "leaked", "--store", _store(tmp_path))
    assert ran.code == 3
    assert ran.out.startswith("revoked leaked (")
    assert ran.err.startswith("error: token not found")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--scope", "write"), "write"),
        (("--expires", "2020-13-01"), "--expires"),
        (("--expires", "2020-01-01"), "expiresAt"),
        (("--expires", "soon"), "expiresAt"),
        (("--rate", "5"), "rate"),
        (("--max-open", "0"), "--max-open"),
        (("--agent", "a/b"), "agentId"),
        (("--agent", "a", "--scope", "admin"), "admin"),
    ],
)
def test_what_is_wrong_is_named(
    run: Run, tmp_path: Path, words: tuple[str, ...], named: str
) -> None:
    ran = run("token", "create", "--name", "n", *words, "--store", _store(tmp_path))
    assert ran.code != 0
    assert named in ran.err


# -------------------------------------------------------------------- proving who one is


def test_a_command_without_a_token_says_what_is_missing(
    guarded: tuple[str, str, Path],
) -> None:
    url, _, folder = guarded
    ran = run_process("tasks", "--url", url, folder=folder)
    assert ran.returncode != 0
    assert b"this request needs a valid token" in ran.stderr
    assert ran.stderr.endswith(b"; set FAIRLANE_TOKEN or use --token-file\n")


def test_the_token_comes_from_the_environment_or_from_a_file(
    guarded: tuple[str, str, Path], tmp_path: Path
) -> None:
    url, token, folder = guarded
    said = run_process("tasks", "--url", url, "--json", folder=folder, FAIRLANE_TOKEN=token)
    assert json.loads(said.stdout)["count"] == 0
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    file.chmod(0o600)
    named = run_process("tasks", "--url", url, "--token-file", str(file), folder=folder)
    assert named.returncode == 0, named
    there = run_process("tasks", "--url", url, folder=folder, FAIRLANE_TOKEN_FILE=str(file))
    assert there.returncode == 0, there
    file.chmod(0o644)
    open_ = run_process("tasks", "--url", url, "--token-file", str(file), folder=folder)
    assert open_.returncode != 0
    assert b"is readable by others" in open_.stderr
    gone = run_process("tasks", "--url", url, "--token-file", "/nowhere", folder=folder)
    assert gone.returncode != 0


def test_tokens_are_made_over_http_by_who_may(guarded: tuple[str, str, Path]) -> None:
    url, token, folder = guarded
    made = run_process(
        *("token", "create", "--name", "reader", "--scope", "read", "--url", url),
        folder=folder,
        FAIRLANE_TOKEN=token,
    )
    reader = made.stdout.decode().strip()
    refused = run_process("token", "list", "--url", url, folder=folder, FAIRLANE_TOKEN=reader)
    assert refused.returncode != 0
    assert b"scope admin" in refused.stderr


def test_a_client_has_a_token(guarded: tuple[str, str, Path]) -> None:
    url, token, _ = guarded
    with Client(url, token=token) as client:
        assert client.whoami()["name"] == "root"
        made = client.create_token("by-client", agent="a9", scopes=["submit"])
        assert made["agentId"] == "a9"
        assert client.revoke_token("by-client")["revoked"] is True
    with Client(url, token="") as client, pytest.raises(Unauthenticated):
        client.tasks()
    with pytest.raises(InvalidSettings, match="characters"):
        Client(url, token="a\r\nX-Evil: 1")
