"""`python -m swarmflow` is the command `swarmflow`, whichever interpreter runs it."""

from __future__ import annotations

import sys

from swarmflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
