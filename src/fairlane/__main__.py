"""`python -m fairlane`: the command `fairlane`."""

from __future__ import annotations

import sys

from fairlane.cli import main

sys.exit(main())
