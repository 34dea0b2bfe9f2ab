"""`python -m swarmflow` is the command `swarmflow`, whichever interpreter runs it."""

from __future__ import annotations

from swarmflow.cli import run

if __name__ == "__main__":
    run()
