"""A peer that nobody can connect to: `unshare --map-root-user --net --mount python -m tests.swarm.house FOLDER`.

A trainer at a public address, and a peer in a network of its own, as behind a home router: it can dial the trainer, and
listens on a private address to which no route leads. Prints what the trainer's `/metrics/swarm` tells of it, once steps
are committed.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

from swarmflow.local.swarm import LocalSwarm, terminable
from tests.swarm.runs import prepare, recipe, settings

PUBLIC, PRIVATE = "9.9.9.1", "10.0.0.7"
HOUSE, SEEN = "peer-0", "9.9.9.10"  # the machine, and the address from which it dials
STEPS = 3
SHOWN_S = 120.0


def ip(*arguments: str, within: str = "") -> None:
    subprocess.run(["ip", *(("-n", within) if within else ()), *arguments], check=True)


def build() -> None:
    """Make a network with one machine, from which only PUBLIC can be dialled."""
    subprocess.run(["mount", "-t", "tmpfs", "netns", "/run"], check=True)  # where `ip netns` keeps names
    ip("link", "set", "lo", "up")
    ip("netns", "add", HOUSE)
    ip("link", "add", "house", "type", "veth", "peer", "name", "wan", "netns", HOUSE)
    ip("address", "add", f"{PUBLIC}/32", "dev", "house")
    ip("link", "set", "house", "up")
    ip("route", "add", f"{SEEN}/32", "dev", "house")
    for device, address in (("lo", PRIVATE), ("wan", SEEN)):
        ip("address", "add", f"{address}/32", "dev", device, within=HOUSE)
        ip("link", "set", device, "up", within=HOUSE)
    ip("route", "add", f"{PUBLIC}/32", "dev", "wan", "src", SEEN, within=HOUSE)


def main(folder: Path) -> None:
    build()
    model, corpus = prepare(folder, "llama")
    run = settings(model, corpus, recipe("sgd", steps=100_000), stages=1)
    within = {HOUSE: ("ip", "netns", "exec", HOUSE)}
    with LocalSwarm(folder / "swarm", run, within=within) as swarm:
        trainer = swarm.start_trainer("--listen", f"{PUBLIC}:0", "--metrics-port", "0")
        swarm.start_peer("--listen", f"{PRIVATE}:0", stage=0)
        swarm.wait_steps(STEPS, SHOWN_S)
        [url] = re.findall(r"metrics: (\S+)", trainer.log.read_text(encoding="utf-8"))
        print(swarm.wait(reported_at(f"{url}/swarm"), "what the peer reports", SHOWN_S))


def reported_at(url: str) -> Callable[[], str | None]:
    """Return a function that reads the metrics, once the peer reports that it has worked."""

    def reported() -> str | None:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text: str = answer.read().decode()
        return text if re.search(r"^swarmflow_swarm_stage_microbatches\S* [1-9]", text, re.MULTILINE) else None

    return reported


if __name__ == "__main__":
    with terminable():
        main(Path(sys.argv[1]))
