"""Secrets: hidden wherever they stand, and nothing else is."""

from __future__ import annotations

from fairlane.core.secrets import MASK, SECRETS, masked


def test_every_secret_is_hidden_and_the_rest_is_shown() -> None:
    config = {**dict.fromkeys(SECRETS, "hush"), "model": "m", "apikey": "another word"}
    shown = masked(config)
    assert {name: shown[name] for name in SECRETS} == dict.fromkeys(SECRETS, MASK)
    assert (shown["model"], shown["apikey"]) == ("m", "another word")
    assert config["apiKey"] == "hush"


def test_secrets_are_hidden_at_any_depth() -> None:
    config = {"a": {"b": [{"apiKey": "hush"}, [{"sessionToken": {"x": 1}}], 5, None]}}
    assert masked(config) == {"a": {"b": [{"apiKey": MASK}, [{"sessionToken": MASK}], 5, None]}}
