"""Settings: the only reader of the environment, configuration files and secret files.

Flags override `FAIRLANE_*` variables, variables override `fairlane.toml`, and the file overrides
the defaults. All problems are reported at once, before anything is opened; an unknown key is
reported with the nearest known one. The policy is not a setting: it is data in the store, and
`policy` here names a file to load.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from fairlane.compat import browseros, goclaw
from fairlane.core.errors import InvalidSettings
from fairlane.core.json_types import JsonMapping, JsonObject
from fairlane.core.policy import nearest
from fairlane.core.secrets import is_reference

CONFIG_FILE: Final = "fairlane.toml"
DEFAULT_PORT: Final = 9867


class InstanceSetting(msgspec.Struct, frozen=True):
    """The URL of a browser instance or agent server, and its token if it needs one."""

    url: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"InstanceSetting({self.url!r})"


class Settings(msgspec.Struct, frozen=True):
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    processes: int = 1
    uds: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    store: str = ""
    policy: str | None = None
    instance: tuple[InstanceSetting, ...] = ()
    agent: InstanceSetting | None = None
    allow_outbound: tuple[str, ...] = ()
    deny_outbound: tuple[str, ...] = ()
    drain_seconds: float = 10.0
    webhook_secret: str | None = None
    lanes: dict[str, int] = {}
    mcp_writes: bool = False
    max_streams: int | None = None
    max_waits: int | None = None
    log_level: str = "info"
    log_format: str = "text"
    secret_key: str | None = None
    secrets_folder: str | None = None
    allow_secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Show only the address, because settings hold secrets."""
        return f"Settings({self.host!r}, {self.port!r})"


_KNOWN: Final = Settings.__struct_fields__
_LISTS: Final = frozenset(
    {"allowed_hosts", "instance", "allow_outbound", "deny_outbound", "allow_secrets", "lanes"}
)
# Not settings, but known: the settings file, and what commands read.
_OTHER_VARIABLES: Final = frozenset(
    {"FAIRLANE_CONFIG", "FAIRLANE_URL", "FAIRLANE_TOKEN", "FAIRLANE_TOKEN_FILE"}
)
_LEVELS: Final = ("debug", "info", "warning", "error")
_FORMATS: Final = ("text", "json")
# The ceiling of one lane: FAIRLANE_LANE_BROWSER=5. A name in capitals means one in lower case.
_LANE_VARIABLE: Final = "FAIRLANE_LANE_"
_LANE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}")
_CEILING_MAX: Final = 100_000
_COUNT_MAX: Final = 1_000_000
_PROCESSES_MAX: Final = 64
_SWITCH: Final = {"true": True, "1": True, "false": False, "0": False, "": False}


def load(
    flags: JsonMapping | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Return the settings in force. Raise `InvalidSettings` with all problems."""
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
    """Return an environment variable, for modules that may not read the environment."""
    return os.environ.get(name)


def secrets_of(settings: Settings) -> list[str]:
    """Return the secrets that must not appear in any log."""
    servers = [*settings.instance, *([settings.agent] if settings.agent else [])]
    found = [settings.webhook_secret, settings.secret_key, *(one.token for one in servers)]
    password = urlsplit(settings.store).password if "@" in settings.store else None
    return [secret for secret in (*found, password) if secret]


def token(file: str | None = None) -> str | None:
    """Return the access token from a file, FAIRLANE_TOKEN or FAIRLANE_TOKEN_FILE, or None.

    A token is never a command-line argument, because every user of the machine can see those.
    """
    if file is None:
        said = os.environ.get("FAIRLANE_TOKEN")
        if said:
            return said.strip()
        file = os.environ.get("FAIRLANE_TOKEN_FILE") or None
    if file is None:
        return None
    try:
        return secret_at(f"file:{file}", os.environ)
    except ValueError as error:
        raise InvalidSettings([f"token: {error}"]) from None


def servers(key: str, said: str | Iterable[object]) -> list[InstanceSetting]:
    """Return the servers that a program names by URL, as in the settings, or with a token.

    Raise `InvalidSettings` with all problems.
    """
    problems: list[str] = []
    found = []
    for one in [said] if isinstance(said, str) else said:
        if isinstance(one, str):
            found.append(_instance(key, one, os.environ, problems))
        elif isinstance(one, InstanceSetting):
            found.append(one)
        else:
            problems.append(f"{key} must be a URL or an InstanceSetting, not {type(one).__name__}")
    if problems:
        raise InvalidSettings(problems)
    return found


def key_file() -> Path:
    """Return the file of the key that seals secrets, for stores that are not a file."""
    return data_folder(os.environ) / "secret.key"


def data_folder(env: Mapping[str, str]) -> Path:
    """Return the folder for a user's data that is usual on the operating system."""
    if env.get("XDG_DATA_HOME"):
        return Path(env["XDG_DATA_HOME"]) / "fairlane"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "fairlane"
    if sys.platform == "win32" and env.get("LOCALAPPDATA"):
        return Path(env["LOCALAPPDATA"]) / "fairlane"
    return Path.home() / ".local" / "share" / "fairlane"


def _from_file(env: Mapping[str, str], folder: Path, problems: list[str]) -> JsonObject:
    named = env.get("FAIRLANE_CONFIG")
    file = Path(named) if named else folder / CONFIG_FILE
    if not named and not file.exists():
        return {}
    import tomllib  # noqa: PLC0415 - most commands read no file

    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        problems.append(f"cannot read {file}: {why}")
        return {}
    return {
        key.replace("-", "_"): value
        for key, value in content.items()
        if _known(key.replace("-", "_"), f"{file}: unknown key {key}", problems)
    }


def _from_environment(env: Mapping[str, str], problems: list[str]) -> JsonObject:
    values: JsonObject = {}
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


def _checked(values: JsonMapping, env: Mapping[str, str], problems: list[str]) -> Settings:
    level = str(values.get("log_level", "info")).lower()
    if level not in _LEVELS:
        problems.append(f"log_level must be one of {', '.join(_LEVELS)}")
    log_format = str(values.get("log_format", "text")).lower()
    if log_format not in _FORMATS:
        problems.append(f"log_format must be one of {', '.join(_FORMATS)}")
    folder = str(values["secrets_folder"]) if values.get("secrets_folder") else None
    allowed = _list(values, "allow_secrets", problems)
    problems += [one for one in (entry_problem(entry, folder) for entry in allowed) if one]
    return Settings(
        host=str(values.get("host", Settings().host)),
        port=int(_number(values, "port", DEFAULT_PORT, (0, 65_535), problems)),
        processes=_count(values, "processes", problems, _PROCESSES_MAX) or 1,
        uds=str(values["uds"]) if values.get("uds") else None,
        allowed_hosts=_hosts(values, problems),
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
        deny_outbound=tuple(_list(values, "deny_outbound", problems)),
        drain_seconds=_number(values, "drain_seconds", 10.0, (0, 3600), problems),
        webhook_secret=_secret(values, "webhook_secret", env, problems),
        lanes=_lanes(values.get("lanes", {}), env, problems),
        mcp_writes=_switch(values, "mcp_writes", problems),
        max_streams=_count(values, "max_streams", problems),
        max_waits=_count(values, "max_waits", problems),
        log_level=level,
        log_format=log_format,
        secret_key=_secret_key(values, env, problems),
        secrets_folder=folder,
        allow_secrets=tuple(allowed),
    )


def _number(
    values: JsonMapping,
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


def _count(
    values: JsonMapping, key: str, problems: list[str], most: int = _COUNT_MAX
) -> int | None:
    """Return a whole number, or None for the default."""
    value = values.get(key)
    if value is None:
        return None
    if not re.fullmatch(r"[0-9]{1,7}", str(value)) or not 1 <= int(value) <= most:
        problems.append(f"{key} must be a whole number from 1 to {most}, not {value!r}")
        return None
    return int(value)


def _switch(values: JsonMapping, key: str, problems: list[str]) -> bool:
    value = values.get(key, False)
    said = value if isinstance(value, bool) else _SWITCH.get(str(value).lower())
    if said is None:
        problems.append(f"{key} must be true or false, not {value!r}")
    return bool(said)


def _list(values: JsonMapping, key: str, problems: list[str]) -> list[str]:
    value = values.get(key, [])
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        problems.append(f"{key} must be a list of strings")
        return []
    return list(value)


_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")


def _hosts(values: JsonMapping, problems: list[str]) -> tuple[str, ...]:
    hosts = _list(values, "allowed_hosts", problems)
    problems += [
        f"allowed_hosts: {host[:80]!r} must be NAME or NAME:PORT, as in the Host header"
        for host in hosts
        if not _HOST.fullmatch(host)
    ]
    return tuple(host.lower() for host in hosts)


_INSTANCE: Final = re.compile(r"([^#]+)(?:#token=(env|file):(.+))?")


def _instance(key: str, text: str, env: Mapping[str, str], problems: list[str]) -> InstanceSetting:
    """Parse `URL`, `URL#token=env:NAME` or `URL#token=file:PATH`."""
    found = _INSTANCE.fullmatch(text)
    if not found or not found[1].startswith(("http://", "https://")):
        problems.append(f"{key} {text.partition('#')[0]!r} must be http(s)://… or …#token=env:NAME")
        return InstanceSetting(text)
    url, where = found[1].rstrip("/"), found[2]
    if where is None:
        return InstanceSetting(url)
    try:
        return InstanceSetting(url, secret_at(f"{where}:{found[3]}", env))
    except ValueError as error:
        problems.append(f"{key} {url}: token: {error}")
        return InstanceSetting(url)


def _secret(
    values: JsonMapping, key: str, env: Mapping[str, str], problems: list[str]
) -> str | None:
    """Return a secret given as itself, as `env:NAME` or as `file:PATH`."""
    given = values.get(key)
    if not given or not is_reference(given):
        return given or None
    try:
        return secret_at(given, env)
    except ValueError as error:
        problems.append(f"{key}: {error}")
        return None


def _secret_key(values: JsonMapping, env: Mapping[str, str], problems: list[str]) -> str | None:
    """Accept only a reference: a key in a settings file soon ends up in a backup."""
    if values.get("secret_key") and not is_reference(values["secret_key"]):
        problems.append("secret_key must be env:NAME or file:PATH, not the key itself")
        return None
    return _secret(values, "secret_key", env, problems)


def _lanes(given: object, env: Mapping[str, str], problems: list[str]) -> dict[str, int]:
    """Return the ceilings of lanes; the variable of a lane wins over `lanes`."""
    ceilings = _lane_pairs(given, problems)
    ceilings |= browseros.lane_ceilings(env) | goclaw.lane_ceilings(env)
    for variable_name, text in env.items():
        if variable_name.startswith(_LANE_VARIABLE) and text:
            name = variable_name.removeprefix(_LANE_VARIABLE)
            ceilings[name.lower() if name.isupper() else name] = (variable_name, text)
    lanes: dict[str, int] = {}
    for name, (source, value) in ceilings.items():
        if not _LANE.fullmatch(name):
            problems.append(f"{source}: {name[:64]!r} is not a valid lane name")
        elif not re.fullmatch(r"[0-9]{1,9}", str(value)) or not 1 <= int(value) <= _CEILING_MAX:
            problems.append(
                f"{source} must be a whole number from 1 to {_CEILING_MAX}, not {value!r}"
            )
        else:
            lanes[name] = int(value)
    return lanes


def _lane_pairs(given: object, problems: list[str]) -> dict[str, tuple[str, Any]]:
    """Return each lane's ceiling with its source, from a table or from `NAME=N` items."""
    if isinstance(given, list) and all(isinstance(one, str) and "=" in one for one in given):
        given = {name: value for name, _, value in (one.partition("=") for one in given)}
    if not isinstance(given, dict):
        problems.append("lanes must be a table of ceilings, or NAME=N items separated by spaces")
        return {}
    return {name: (f"lanes.{name}", value) for name, value in given.items()}


# -------------------------------------------------------------------- secrets

SECRET_BYTES_MAX: Final = 65_536
# Readable by others. For a file of root's that was handed to us: writable, or readable by others.
_OTHERS: Final = 0o077
_OTHERS_OF_ROOT: Final = 0o037


def secret_at(
    reference: str, env: Mapping[str, str] | None = None, folder: Path | None = None
) -> str:
    """Return the secret that `env:NAME` or `file:PATH` refers to.

    Raise `ValueError` if it is missing or readable by others; the message never quotes the secret.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        value = (os.environ if env is None else env).get(name)
        if not value:
            raise ValueError(f"the variable {name} is not set")
        return value
    return _content(folder / name if folder else Path(name))


def _content(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            _check_private(file, os.fstat(opened.fileno()))
            raw = opened.read(SECRET_BYTES_MAX + 1)
        text = raw.decode("utf-8").strip()
    except OSError as error:
        raise ValueError(f"the file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {file} cannot be read: it is not text") from None
    if not text or len(raw) > SECRET_BYTES_MAX:
        raise ValueError(f"the file {file} must have 1 to {SECRET_BYTES_MAX} bytes")
    return text


def _check_private(file: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{file} is not a file")
    if os.name != "posix":
        return
    lent = found.st_uid == 0 and os.geteuid() != 0  # as systemd and containers hand them out
    if stat.S_IMODE(found.st_mode) & (_OTHERS_OF_ROOT if lent else _OTHERS):
        raise ValueError(f"the file {file} is readable by others; run chmod 600 on it")


def entry_problem(entry: str, folder: str | None) -> str | None:
    """Return the problem of an entry of `allow_secrets`, or None."""
    reference, at, url = entry.partition("@")
    kind, _, name = reference.partition(":")
    if kind not in ("env", "file") or not name:
        return f"allow_secrets: {entry[:80]!r} must be env:NAME or file:NAME, optionally with @URL"
    if at and not url.startswith(("http://", "https://")):
        return f"allow_secrets: the part after @ in {entry[:80]!r} must be http(s)://…"
    if kind == "env" and name.upper().startswith("FAIRLANE_"):
        return (
            f"allow_secrets: {reference[:80]!r} is one of this server's variables; use another name"
        )
    if kind == "file" and (name.startswith(("/", ".")) or "/.." in name or "\\" in name):
        return f"allow_secrets: {reference[:80]!r} must name a file in secrets_folder"
    if kind == "file" and not folder:
        return f"allow_secrets: {reference[:80]!r} needs secrets_folder, the folder of the file"
    return None
