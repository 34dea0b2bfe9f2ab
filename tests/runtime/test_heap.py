"""A process that computes starts itself again with another heap: same id, same arguments, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from swarmflow.runtime.execution.heap import TUNABLES, VARIABLE

if not (sys.platform == "linux" and (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")):
    pytest.skip("only glibc has these settings", allow_module_level=True)

SCRIPT = """
import json, os, sys
from swarmflow.runtime.execution.heap import restart_with_heap_settings
print(json.dumps([os.getpid(), sys.argv[1:], os.environ.get("GLIBC_TUNABLES")]), flush=True)
restart_with_heap_settings()
"""


def starts(chosen: str | None) -> tuple[int, list[list[object]]]:
    """Runs SCRIPT with a value for the variable: its process id, and what each of its starts printed."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if chosen is not None:
        environment[VARIABLE] = chosen
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "--stage", "auto"], env=environment, stdout=subprocess.PIPE, text=True
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return process.pid, [json.loads(line) for line in output.splitlines()]


def test_it_starts_once_more_with_the_same_id_and_arguments() -> None:
    pid, found = starts(None)
    settings = ":".join(f"{name}={value}" for name, value in TUNABLES.items())
    assert found == [[pid, ["--stage", "auto"], None], [pid, ["--stage", "auto"], settings]]


def test_what_the_person_chose_stays() -> None:
    pid, found = starts("glibc.malloc.check=0")
    assert found == [[pid, ["--stage", "auto"], "glibc.malloc.check=0"]]
