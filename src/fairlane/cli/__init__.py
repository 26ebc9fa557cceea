"""The command `fairlane`."""

from __future__ import annotations

import sys

from fairlane.config import load


def main() -> None:
    from fairlane.cli.serve import serve

    flags = dict(zip([a[2:].replace("-", "_") for a in sys.argv[2::2]], sys.argv[3::2]))
    for k in ("instance", "allow_outbound"):
        if k in flags:
            flags[k] = [flags[k]]
    serve(load(flags))
