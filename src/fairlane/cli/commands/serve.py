"""Programs that run until a signal: the server, the demo, a worker, an MCP server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import sys
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Final

from fairlane import config
from fairlane.cli.commands import Commands, Exit, Parser, nowhere, token_file, where
from fairlane.cli.options import count, port, seconds
from fairlane.core.errors import InvalidSettings
from fairlane.core.json_types import JsonObject
from fairlane.core.policy import nearest

if TYPE_CHECKING:
    from fairlane.mcp.calls import Perform
    from fairlane.worker.external import Worker

_REPEATABLE: Final = {"action": "append"}
# The settings of the server that are options, with metavar, help and further arguments.
_SETTINGS: Final[dict[str, tuple[str, str, JsonObject]]] = {
    "host": ("ADDRESS", "address to listen on (default: 127.0.0.1)", {}),
    "port": ("N", "port to listen on; 0 picks a free one (default: 9867)", {}),
    "processes": ("N", "processes that serve requests, 1 to 64 (default: 1)", {}),
    "uds": ("PATH", "Unix socket to listen on, instead of a host and port", {}),
    "allowed_hosts": (
        "NAME[:PORT]",
        "additional host name under which clients may reach this server (repeatable)",
        _REPEATABLE,
    ),
    "store": (
        "URL",
        "sqlite:///PATH or postgresql://… (default: fairlane.db in your user data directory)",
        {},
    ),
    "policy": ("FILE", "JSON file with the policy; reloaded when it changes", {}),
    "instance": (
        "URL",
        "browser instance; URL#token=env:NAME if it needs a token (repeatable)",
        _REPEATABLE,
    ),
    "agent": (
        "URL",
        "server of the agent that runs instructions; URL#token=env:NAME if it needs a token",
        {},
    ),
    "allow_outbound": (
        "HOST|CIDR[:PORT]",
        "allow outbound requests to this address even if it is not public (repeatable)",
        _REPEATABLE,
    ),
    "deny_outbound": (
        "HOST|CIDR[:PORT]",
        "block outbound requests to this address even if it is public (repeatable)",
        _REPEATABLE,
    ),
    "drain_seconds": (
        "N",
        "seconds that running tasks get to finish on shutdown (default: 10)",
        {},
    ),
    "max_streams": ("N", "maximum number of open streams per token or address (default: 500)", {}),
    "max_waits": ("N", "maximum number of long polls per token or address (default: 4000)", {}),
    "mcp_writes": (
        "",
        "allow agents to make changes through /mcp, not just read",
        {"action": "store_true"},
    ),
    "log_level": ("LEVEL", "debug, info, warning or error (default: info)", {}),
    "log_format": ("FORMAT", "text or json (default: text)", {}),
    "secret_key": (
        "REFERENCE",
        "where to find the key that encrypts secrets in the store: env:NAME or file:PATH",
        {},
    ),
    "secrets_folder": ("PATH", "directory with the secret files that tasks may refer to", {}),
    "allow_secrets": (
        "REFERENCE",
        "env:NAME or file:NAME that tasks may refer to, optionally with @URL (repeatable)",
        _REPEATABLE,
    ),
}
SERVE_SETTINGS: Final = tuple(_SETTINGS)
_SERVE_NOTE: Final = (
    "Each option can also be set in fairlane.toml (drain-seconds = 20) or in the environment\n"
    "(FAIRLANE_DRAIN_SECONDS=20). Options override the environment, which overrides the file."
)
_WORKER_NOTE: Final = (
    "example: tasks.py contains worker = fairlane.Worker() and functions with @worker.handler(…)\n"
    "  fairlane worker tasks:worker --lanes main,team --concurrency 20\n"
    "Options override what the module sets. The first signal drains the worker, a second one ends\n"
    "it immediately."
)
_MCP_NOTE: Final = (
    "This is for programs that start an MCP server themselves. fairlane serve offers the same\n"
    "tools over HTTP at /mcp. Needs an extra: pip install '.[mcp]' in a clone of fairlane."
)
_DEMO_NOTE: Final = "The demo keeps everything in memory. Press Ctrl-C to stop it."
_WORKER_FORM: Final = "MODULE:NAME, for example tasks:worker"


def register(commands: Commands) -> None:
    commands.add("serve", serve, _serve_options, epilog=_SERVE_NOTE, side=nowhere)
    commands.add("worker", worker, _worker_options, epilog=_WORKER_NOTE, side=nowhere)
    commands.add("mcp", mcp, _mcp_options, epilog=_MCP_NOTE, side=where)
    commands.add("demo", demo, _demo_options, epilog=_DEMO_NOTE, side=nowhere)


# The programs are imported when they start: to print help and completion scripts does not need
# the server (250 ms), the demo (330 ms) or the worker (190 ms).


def _serve_options(parser: Parser) -> None:
    for name, (metavar, about, how) in _SETTINGS.items():
        flag = f"--{name.replace('_', '-')}"
        value: JsonObject = {"metavar": metavar} if metavar else {}
        parser.add_argument(flag, help=about, default=None, **value, **how)


def serve(args: argparse.Namespace) -> int:
    settings = config.load({name: getattr(args, name) for name in SERVE_SETTINGS})
    from fairlane.cli import server  # noqa: PLC0415 - see above

    server.serve(settings)
    return Exit.OK


def _demo_options(parser: Parser) -> None:
    about = "stop after this many seconds (default: run until Ctrl-C)"
    parser.add_argument("--seconds", metavar="N", type=seconds, help=about)
    about = "port to listen on (default: any free port)"
    parser.add_argument("--port", metavar="N", type=port, default=0, help=about)


def demo(args: argparse.Namespace) -> int:
    from fairlane.cli import demo  # noqa: PLC0415 - see above

    demo.run(args.port, args.seconds)
    return Exit.OK


# -------------------------------------------------------------------- worker


def _worker_options(parser: Parser) -> None:
    about = "Python module, and the name of the fairlane.Worker in it"
    parser.add_argument("app", metavar="MODULE:NAME", help=about)
    parser.add_argument(
        "--lanes",
        metavar="NAMES",
        type=lambda text: [name for name in text.split(",") if name],
        action="extend",
        help="lanes to lease from; repeat the option or separate lanes with commas (default: all)",
    )
    about = "address of the server (default: FAIRLANE_URL, or what the module sets)"
    parser.add_argument("--url", metavar="URL", help=about)
    token_file(parser)
    about = "maximum number of tasks to run at once (default: 10)"
    parser.add_argument("--concurrency", metavar="N", type=count, help=about)
    parser.add_argument(
        "--no-capture",
        action="store_true",
        help="do not store what handlers print and log as output of their tasks",
    )
    about = "name of the worker in events and tasks"
    parser.add_argument("--name", metavar="NAME", help=about)
    about = "seconds that running tasks get to finish on shutdown (default: 10)"
    parser.add_argument("--drain-seconds", metavar="N", type=seconds, help=about)
    levels = ("debug", "info", "warning", "error")
    about = "debug, info, warning or error (default: info)"
    parser.add_argument("--log-level", metavar="LEVEL", default="info", choices=levels, help=about)
    about = "text, or json for one object per line (default: text)"
    parser.add_argument(
        "--log-format", metavar="FORMAT", default="text", choices=("text", "json"), help=about
    )


def worker(args: argparse.Namespace) -> int:
    from fairlane import logs  # noqa: PLC0415 - see above
    from fairlane.client import transport  # noqa: PLC0415 - see above

    logs.begin(args.log_level, args.log_format)
    found = _find_worker(args.app)
    found.url = args.url or config.variable("FAIRLANE_URL") or found.url
    found.token = config.token(args.token_file) or found.token
    found.lanes = args.lanes or found.lanes
    found.concurrency = args.concurrency or found.concurrency
    found.capture_output = found.capture_output and not args.no_capture
    found.name = args.name or found.name
    if args.drain_seconds is not None:
        found.drain_seconds = args.drain_seconds
    address = transport.parsed(found.url)[0]

    def announce() -> None:
        print(f"fairlane worker {found.name} leases from {address}", flush=True)  # noqa: T201 - for people and scripts

    found.serve(announce)
    return Exit.OK


def _find_worker(app: str) -> Worker:
    from fairlane.worker.external import Worker  # noqa: PLC0415 - see above

    module_name, colon, name = app.partition(":")
    if not colon or not module_name or not name:
        raise InvalidSettings([f"the worker must be given as {_WORKER_FORM}, not {app[:100]!r}"])
    module = _import_module(module_name)
    found = getattr(module, name, None)
    if isinstance(found, Worker):
        return found
    others = [other for other, value in vars(module).items() if isinstance(value, Worker)]
    hint = f"; {module_name} has {', '.join(others)}" if others else ""
    if found is None:
        hint = hint or nearest(name, vars(module))
        raise InvalidSettings([f"module {module_name} has no {name}{hint}"])
    kind = type(found).__name__
    raise InvalidSettings([f"{app} is of type {kind}, not a fairlane.Worker{hint}"])


def _import_module(name: str) -> ModuleType:
    """Import a module as Python would from the current directory."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            problem = f"module {missing} was not found in {folder} or on Python's module path"
            raise InvalidSettings([problem]) from None
        raise InvalidSettings([f"module {name} needs {missing}, which is not installed"]) from None
    except Exception as error:
        traceback.print_exception(error.with_traceback(_own_frames(error.__traceback__)))
        problem = f"cannot import module {name}: {type(error).__name__}: {error}"
        raise InvalidSettings([problem]) from error


def _own_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return the frames of the module, without those of the import system."""
    while frames is not None and _is_import(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _is_import(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


# -------------------------------------------------------------------- mcp


def _mcp_options(parser: Parser) -> None:
    about = (
        "tools to list, separated by commas: read, submit, operate, approve or all; submit and "
        "operate also allow their tools (default: read, or submit with --allow-writes)"
    )
    parser.add_argument("--tools", metavar="SETS", help=about)
    about = "allow all tools that make changes, not just read-only ones"
    parser.add_argument("--allow-writes", action="store_true", help=about)
    about = "also offer the tools approve and reject, which decide on behalf of a person"
    parser.add_argument("--allow-approve", action="store_true", help=about)


def mcp(args: argparse.Namespace) -> int:
    from fairlane import logs  # noqa: PLC0415 - see above
    from fairlane.mcp import endpoint  # noqa: PLC0415 - see above

    endpoint.require()
    logs.begin("warning")
    asyncio.run(_serve_mcp(args))
    return Exit.OK


async def _serve_mcp(args: argparse.Namespace) -> None:
    from fairlane.mcp import stdio, toolsets  # noqa: PLC0415 - part of an extra

    sets = toolsets.chosen(args.tools)
    writes: bool = args.allow_writes
    create = writes or toolsets.SUBMIT in sets
    side = server_side(args) if args.store is None else store_side(args.store, create=create)
    async with side as perform:
        await stdio.serve(perform, writes=writes, decides=args.allow_approve, sets=sets)


@contextlib.asynccontextmanager
async def server_side(args: argparse.Namespace) -> AsyncIterator[Perform]:
    from fairlane.client.asynchronous import AsyncClient  # noqa: PLC0415 - see above
    from fairlane.client.transport import DEFAULT_URL  # noqa: PLC0415 - see above

    url = args.url or config.variable("FAIRLANE_URL") or DEFAULT_URL
    async with AsyncClient(url, token=config.token(args.token_file)) as client:
        yield client.perform


@contextlib.asynccontextmanager
async def store_side(url: str, *, create: bool) -> AsyncIterator[Perform]:
    """Perform operations on a store, whether or not a server runs on it."""
    from fairlane.cli.direct import StoreClient, usable_store  # noqa: PLC0415 - see above

    client = StoreClient(usable_store(url, create=create))
    try:
        yield client.answer
    finally:
        await asyncio.to_thread(client.close)
