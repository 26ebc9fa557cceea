"""Settings: the only reader of the environment and of configuration files.

Defaults, then `fairlane.toml`, then `FAIRLANE_*`, then flags; the later wins. Unknown keys are
refused with the nearest known one, and all problems are reported at once, before anything opens.
Policy is not a setting: it is data in the store, and `policy` here only names a file to load.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlane.core.errors import InvalidSettings
from fairlane.core.policy import nearest

CONFIG_FILE: Final = "fairlane.toml"
DEFAULT_PORT: Final = 9867


class InstanceSetting(msgspec.Struct, frozen=True):
    url: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"InstanceSetting({self.url!r})"


class Settings(msgspec.Struct, frozen=True):
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    store: str = ""
    policy: str | None = None
    instance: tuple[InstanceSetting, ...] = ()
    agent: InstanceSetting | None = None
    allow_outbound: tuple[str, ...] = ()
    drain_seconds: float = 10.0
    webhook_secret: str | None = None
    lanes: dict[str, int] = {}
    mcp_writes: bool = False
    log_level: str = "info"


_KNOWN: Final = Settings.__struct_fields__
_LISTS: Final = frozenset({"instance", "allow_outbound", "lanes"})
# Not settings, but understood: where the settings file is, and what the CLI reads for itself.
_OTHER_VARIABLES: Final = frozenset({"FAIRLANE_CONFIG", "FAIRLANE_URL"})
_LEVELS: Final = ("debug", "info", "warning", "error")
# The ceiling of one lane: FAIRLANE_LANE_BROWSER=5. A name in capitals means the one in small ones.
_LANE_VARIABLE: Final = "FAIRLANE_LANE_"
# What BrowserOS calls the ceiling of the lane for instructions.
_MAX_CONCURRENT: Final = "TASK_QUEUE_MAX_CONCURRENT"
_LANE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")
_CEILING_MAX: Final = 100_000
_SWITCH: Final = {"true": True, "1": True, "false": False, "0": False, "": False}


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """The settings in force. Raises `InvalidSettings` with every problem."""
    env = os.environ if environment is None else environment
    problems: list[str] = []
    values = _from_file(env, folder or Path.cwd(), problems)
    values.update(_from_environment(env, problems))
    values.update({key: value for key, value in (flags or {}).items() if value not in (None, [])})
    settings = _checked(values, env, problems)
    if problems:
        raise InvalidSettings(problems)
    return settings


def variable(name: str) -> str | None:
    """One variable of the environment, for edges that may not read it themselves."""
    return os.environ.get(name)


def default_store() -> str:
    return f"sqlite:///{data_folder(os.environ) / 'fairlane.db'}"


def data_folder(env: Mapping[str, str]) -> Path:
    """Where a user's programs keep their data, by the custom of the system."""
    if env.get("XDG_DATA_HOME"):
        return Path(env["XDG_DATA_HOME"]) / "fairlane"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "fairlane"
    if sys.platform == "win32" and env.get("LOCALAPPDATA"):
        return Path(env["LOCALAPPDATA"]) / "fairlane"
    return Path.home() / ".local" / "share" / "fairlane"


def _from_file(env: Mapping[str, str], folder: Path, problems: list[str]) -> dict[str, Any]:
    named = env.get("FAIRLANE_CONFIG")
    file = Path(named) if named else folder / CONFIG_FILE
    if not named and not file.exists():
        return {}
    import tomllib  # noqa: PLC0415 - most commands read no file

    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problems.append(f"{file}: cannot be read: {error}")
        return {}
    return {
        key.replace("-", "_"): value
        for key, value in content.items()
        if _known(key.replace("-", "_"), f"{file}: unknown key {key}", problems)
    }


def _from_environment(env: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, text in env.items():
        if not name.startswith("FAIRLANE_") or name in _OTHER_VARIABLES:
            continue
        if name.startswith(_LANE_VARIABLE):
            continue  # read with the lanes
        key = name.removeprefix("FAIRLANE_").lower()
        if _known(key, f"unknown variable {name}", problems):
            values[key] = text.split() if key in _LISTS else text
    return values


def _known(key: str, complaint: str, problems: list[str]) -> bool:
    if key in _KNOWN:
        return True
    problems.append(complaint + nearest(key, _KNOWN))
    return False


def _checked(values: Mapping[str, Any], env: Mapping[str, str], problems: list[str]) -> Settings:
    level = str(values.get("log_level", "info")).lower()
    if level not in _LEVELS:
        problems.append(f"log_level must be one of {', '.join(_LEVELS)}")
    return Settings(
        host=str(values.get("host", Settings().host)),
        port=int(_number(values, "port", DEFAULT_PORT, (0, 65_535), problems)),
        store=str(values.get("store") or f"sqlite:///{data_folder(env) / 'fairlane.db'}"),
        policy=values.get("policy") or None,
        instance=tuple(
            _instance("instance", text, env, problems)
            for text in _list(values, "instance", problems)
        ),
        agent=_instance("agent", str(values["agent"]), env, problems)
        if values.get("agent")
        else None,
        allow_outbound=tuple(_list(values, "allow_outbound", problems)),
        drain_seconds=_number(values, "drain_seconds", 10.0, (0, 3600), problems),
        webhook_secret=values.get("webhook_secret") or None,
        lanes=_lanes(values.get("lanes", {}), env, problems),
        mcp_writes=_switch(values, "mcp_writes", problems),
        log_level=level,
    )


def _number(
    values: Mapping[str, Any],
    key: str,
    default: float,
    bounds: tuple[float, float],
    problems: list[str],
) -> float:
    low, high = bounds
    value = values.get(key, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = low - 1
    if isinstance(value, bool) or not low <= number <= high:
        problems.append(f"{key} must be a number from {low} to {high}, not {value!r}")
        return default
    return number


def _switch(values: Mapping[str, Any], key: str, problems: list[str]) -> bool:
    value = values.get(key, False)
    said = value if isinstance(value, bool) else _SWITCH.get(str(value).lower())
    if said is None:
        problems.append(f"{key} must be true or false, not {value!r}")
    return bool(said)


def _list(values: Mapping[str, Any], key: str, problems: list[str]) -> list[str]:
    value = values.get(key, [])
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        problems.append(f"{key} must be a list of texts")
        return []
    return list(value)


_INSTANCE: Final = re.compile(r"([^#]+)(?:#token=(env|file):(.+))?")


def _instance(key: str, text: str, env: Mapping[str, str], problems: list[str]) -> InstanceSetting:
    """`URL`, or `URL#token=env:NAME` or `URL#token=file:PATH` for one that wants a token."""
    found = _INSTANCE.fullmatch(text)
    if not found or not found[1].startswith(("http://", "https://")):
        problems.append(f"{key} {text.partition('#')[0]!r} must be http(s)://… or …#token=env:NAME")
        return InstanceSetting(text)
    url, where, name = found[1].rstrip("/"), found[2], found[3]
    if where == "env":
        token = env.get(name)
        if not token:
            problems.append(f"{key} {url}: the variable {name} for its token is not set")
        return InstanceSetting(url, token)
    if where == "file":
        return InstanceSetting(url, _secret_file(f"{key} {url}", name, problems))
    return InstanceSetting(url)


def _secret_file(whose: str, path: str, problems: list[str]) -> str | None:
    try:
        return Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{whose}: its token file cannot be read: {error}")
        return None


def _lanes(given: Any, env: Mapping[str, str], problems: list[str]) -> dict[str, int]:
    """Ceilings of lanes; a variable for one lane wins over `lanes`."""
    ceilings = _lane_pairs(given, problems)
    if env.get(_MAX_CONCURRENT):
        ceilings["instruction"] = (_MAX_CONCURRENT, env[_MAX_CONCURRENT])
    for variable_name, text in env.items():
        if variable_name.startswith(_LANE_VARIABLE) and text:
            name = variable_name.removeprefix(_LANE_VARIABLE)
            ceilings[name.lower() if name.isupper() else name] = (variable_name, text)
    lanes: dict[str, int] = {}
    for name, (source, value) in ceilings.items():
        if not _LANE.fullmatch(name):
            problems.append(f"{source}: {name[:64]!r} cannot be the name of a lane")
        elif not re.fullmatch(r"[0-9]{1,9}", str(value)) or not 1 <= int(value) <= _CEILING_MAX:
            problems.append(
                f"{source} must be a whole number from 1 to {_CEILING_MAX}, not {value!r}"
            )
        else:
            lanes[name] = int(value)
    return lanes


def _lane_pairs(given: Any, problems: list[str]) -> dict[str, tuple[str, Any]]:
    """A table of ceilings, or `NAME=N` each; with every ceiling, where it comes from."""
    if isinstance(given, list) and all(isinstance(one, str) and "=" in one for one in given):
        given = {name: value for name, _, value in (one.partition("=") for one in given)}
    if not isinstance(given, dict):
        problems.append("lanes must be a table of ceilings, or NAME=N with spaces between them")
        return {}
    return {name: (f"lanes.{name}", value) for name, value in given.items()}
