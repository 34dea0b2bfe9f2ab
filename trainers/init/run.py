"""`swarmflow init`: writes a RUN.toml, checks it as `swarmflow check` does, and prints the commands that come next."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from swarmflow.errors import ConfigError
from trainers.init.options import InitOptions, exists_already


def main(options: InitOptions) -> int:
    """Write RUN.toml and print what comes next; return 1 where the check finds problems, else 0.

    Raises ConfigError, DataError, ModelError or ForeignFileError where nothing is written.
    """
    print(f"looking at the model {options.model} and the text ...", file=sys.stderr, flush=True)

    from trainers.check.run import check_run, table
    from trainers.init.plan import plan_run
    from trainers.init.template import render

    run = plan_run(options)
    _write(options.out, render(run, options.out.name))
    shown = _shown(options.out)
    print(f"wrote {shown}; checking it ...", file=sys.stderr, flush=True)
    facts, demands, problems = check_run(options.out, None)
    print("\n".join([*(f"{name:<10} {text}" for name, text in facts), *table(demands)]))
    for problem in problems:
        print(f"swarmflow: {problem}", file=sys.stderr)
    if problems:
        print(f"swarmflow: correct {shown}, then: swarmflow check {shlex.quote(shown)}", file=sys.stderr)
        return 1
    print(next_commands(shown, run.stages))
    return 0


def next_commands(run_toml: str, stages: int) -> str:
    """Return what a person types next, for the run in a file."""
    peers = "a peer" if stages == 1 else f"{stages} peers or more, each in a terminal of its own"
    return (
        "\nNothing is wrong. Start the run:\n\n"
        f"    swarmflow trainer {shlex.quote(run_toml)}\n\n"
        f"and in another terminal, once the trainer has printed an invite, {peers}:\n\n"
        "    swarmflow peer\n\n"
        "On this machine a peer needs no invite; on another one: swarmflow peer --join INVITE."
    )


def _write(path: Path, text: str) -> None:
    """Create a file. Raises ForeignFileError where it exists, ConfigError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise exists_already(path) from None
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    except UnicodeEncodeError:
        path.unlink()
        raise ConfigError("a path has characters that UTF-8 cannot hold: rename it") from None


def _shown(path: Path) -> str:
    """Return a path as a person in the current folder writes it."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)
