"""A process that is told to end at once does not wait for its threads."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# A program with a loop of its own: what is tested is how the loop, and the process, end.
PROGRAM = """
import asyncio, os, signal, sys, time, uvloop
from swarmflow.runtime.operations.ending import Threads

def write(threads):
    while sys.argv[1] != "before" and not threads._ending:
        time.sleep(0.005)
    if sys.argv[1] != "before":
        print("over", flush=True)
    time.sleep(60)

async def main():
    threads, loop = Threads.of_this_loop(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, threads.abandon)
    writing = loop.run_in_executor(None, write, threads)
    if sys.argv[1] == "before":
        threads.abandon()
        print("over", flush=True)

uvloop.run(main())
print("not waited for", flush=True)
os._exit(3)
"""


@pytest.mark.parametrize(("when", "output", "code"), [("before", "not waited for\n", 3), ("while it waits", "", 0)])
def test_threads_that_are_abandoned_are_not_waited_for(when: str, output: str, code: int) -> None:
    """Before the loop ends, as a peer does; and while its end waits for them already, as a trainer may."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM, when], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "over\n"
        try:
            if when != "before":
                process.send_signal(signal.SIGTERM)
            assert process.wait(20.0) == code
            assert process.stdout.read() == output
        finally:
            process.kill()
