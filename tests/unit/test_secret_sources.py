"""Where secrets may come from: variables and private files, and for tasks only what is allowed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fairlane import config
from fairlane.config import SECRET_BYTES_MAX, secret_at
from fairlane.core.errors import InvalidRequest, InvalidSettings
from fairlane.worker.executors.task_secrets import TaskSecrets


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "llm.key"
    found.write_text("hush\n")
    found.chmod(0o600)
    return found


def test_a_variable_and_a_private_file_hold_secrets(file: Path) -> None:
    assert secret_at("env:NAME", {"NAME": "hush"}) == "hush"
    assert secret_at(f"file:{file}", {}) == "hush"
    assert secret_at("file:llm.key", {}, file.parent) == "hush"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o644])
@pytest.mark.skipif(os.name != "posix", reason="files have no modes there")
def test_a_file_that_others_may_read_is_refused(file: Path, mode: int) -> None:
    file.chmod(mode)
    with pytest.raises(ValueError, match="is readable by others; run chmod 600 on it"):
        secret_at(f"file:{file}", {})


def test_what_is_wrong_with_a_file_is_reported_and_not_what_is_in_it(file: Path) -> None:
    for content, complaint in (
        (b"hush\xff", "it is not text"),
        (b" \n", "must have 1 to"),
        (b"hush" * SECRET_BYTES_MAX, "must have 1 to"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=complaint) as caught:
            secret_at(f"file:{file}", {})
        assert "hush" not in str(caught.value)
    with pytest.raises(ValueError, match=r"is not a file|cannot be read"):
        secret_at(f"file:{file.parent}", {})
    with pytest.raises(ValueError, match="the variable NAME is not set"):
        secret_at("env:NAME", {"NAME": ""})


def test_tasks_get_what_they_may_refer_to(file: Path) -> None:
    env = {"KEY": "of the environment", "OTHER": "not theirs"}
    allowed = ["env:KEY", "file:llm.key"]
    secrets = TaskSecrets(allowed, folder=str(file.parent), environment=env)
    config = {"model": "m", "apiKey": "env:KEY", "token": "file:llm.key", "password": "plain"}
    assert secrets.resolved(config) == {
        "model": "m",
        "apiKey": "of the environment",
        "token": "hush",
        "password": "plain",
    }
    for reference in ("env:OTHER", f"file:{file}", "file:other.key"):
        with pytest.raises(InvalidRequest, match="which tasks may not"):
            secrets.resolved({"apiKey": reference})


def test_what_no_key_of_this_node_opens_is_not_sent_anywhere() -> None:
    with pytest.raises(ValueError, match="a key that this node does not have"):
        TaskSecrets(environment={}).resolved({"apiKey": "sealed:1:0123456789abcdef:QUJD"})


def test_a_file_without_a_folder_leads_nowhere() -> None:
    with pytest.raises(ValueError, match="secrets_folder is not set"):
        TaskSecrets(["file:a"], environment={}).resolved({"apiKey": "file:a"})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"FAIRLANE_ALLOW_SECRETS": "KEY"}, "must be env:NAME or file:NAME"),
        ({"FAIRLANE_ALLOW_SECRETS": "env:"}, "must be env:NAME or file:NAME"),
        ({"FAIRLANE_ALLOW_SECRETS": "env:KEY@evil"}, "must be http(s)://"),
        ({"FAIRLANE_ALLOW_SECRETS": "env:Fairlane_Secret"}, "is one of this server's variables"),
        ({"FAIRLANE_ALLOW_SECRETS": "file:key"}, "needs secrets_folder"),
        ({"FAIRLANE_ALLOW_SECRETS": "file:/etc/passwd"}, "must name a file in secrets_folder"),
        ({"FAIRLANE_ALLOW_SECRETS": "file:a/../../b"}, "must name a file in secrets_folder"),
        ({"FAIRLANE_SECRET_KEY": "the key itself"}, "not the key itself"),
        ({"FAIRLANE_SECRET_KEY": "env:NONE"}, "secret_key: the variable NONE is not set"),
        ({"FAIRLANE_WEBHOOK_SECRET": "file:none"}, "webhook_secret: the file none cannot be read"),
        ({"FAIRLANE_LOG_FORMAT": "xml"}, "log_format must be one of text, json"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    tmp_path: Path, settings: dict[str, str], complaint: str
) -> None:
    with pytest.raises(InvalidSettings) as caught:
        config.load(environment=settings, folder=tmp_path)
    assert complaint in caught.value.message


def test_settings_show_none_of_the_secrets_that_they_hold(file: Path, tmp_path: Path) -> None:
    env: dict[str, Any] = {
        "FAIRLANE_SECRET_KEY": f"file:{file}",
        "FAIRLANE_WEBHOOK_SECRET": "env:W",
        "W": "whsec_hush",
        "FAIRLANE_AGENT": "http://a:1#token=env:T",
        "T": "hush-hush",
        "FAIRLANE_STORE": "postgresql://user:open-sesame@host/name",
    }
    settings = config.load(environment=env, folder=tmp_path)
    assert settings.secret_key == "hush"
    assert sorted(config.secrets_of(settings)) == [
        "hush",
        "hush-hush",
        "open-sesame",
        "whsec_hush",
    ]
    assert "hush" not in repr(settings)
    assert "sesame" not in repr(settings)
