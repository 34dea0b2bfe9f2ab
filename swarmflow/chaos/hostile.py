"""Malformed frames and impossible messages must end no process and change no digest. `python -m` runs it."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

import uvloop

from swarmflow.chaos.bad_frames import bombard, damages
from swarmflow.simulator.hostile import KINDS, attacked

PER_SWARM = 400  # messages


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return 0. Raises an error where a process was ended or changed."""
    parser = argparse.ArgumentParser(prog="python -m swarmflow.chaos.hostile", description=__doc__)
    parser.add_argument("--frames", type=int, default=100_000, help="malformed frames, each in a stream of its own")
    parser.add_argument("--messages", type=int, default=10_000, help=f"impossible messages, {PER_SWARM} to a swarm")
    parser.add_argument("--seed", type=int, default=0, help="of the frames, and of the first swarm")
    chosen = parser.parse_args(arguments)
    logging.getLogger("swarmflow").setLevel(logging.CRITICAL)  # one line a refusal is useful, a million are not
    if chosen.frames:
        began_s = time.monotonic()
        sent = uvloop.run(bombard(chosen.frames, chosen.seed))
        print(f"{sent.total()} frames in {time.monotonic() - began_s:.0f} s, of {', '.join(damages(sent))}: no process")
        print("ended, and what the receiver holds is as it was", flush=True)
    if chosen.messages:
        _send_messages(chosen.messages, chosen.seed)
    return 0


def _send_messages(messages: int, first: int) -> None:
    began_s, seed = time.monotonic(), first
    sent, refused = Counter[str](), 0.0
    while sent.total() < messages:
        world, some = attacked(seed, min(PER_SWARM, messages - sent.total()))
        sent += some
        refused += sum(count for name, count in world.counts.items() if name.startswith("messages_refused"))
        seed += 1
    taken_s = time.monotonic() - began_s
    classes = f"{len(sent)} of {len(KINDS)} classes"
    print(f"{sent.total()} messages of {classes} to the swarms of seeds {first} to {seed - 1} in {taken_s:.0f} s,")
    print(f"{refused:.0f} of them refused: no process ended, and the digests are those of the undisturbed runs")


if __name__ == "__main__":
    sys.exit(main())
