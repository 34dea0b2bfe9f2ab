"""What the routers give over links of real speeds: `python -m benchmarks.routers` (Linux, root).

Nine real peers in three stages train with each router in turn, over links of a few Mb/s that the kernel shapes: of
unlike speeds, or all alike. Printed are tokens a second, and those of `flow` by those of each other router, in one run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.fidelity import MICROBATCHES, SEQ_LEN, SEQUENCES, settings
from benchmarks.shaped import inside, machines, unavailable
from swarmflow.demo.corpus import write_corpus
from swarmflow.local.swarm import LocalSwarm, terminable

STAGES, PEERS = 3, 9
UNLIKE_MBPS = (4.0, 10.0, 40.0)  # one of each in every stage
ALIKE_MBPS = 12.0
TRAINER_MBPS = 100.0
CAPACITY = 6
ROUTERS = ("iwrr", "flow", "gwtf", "gwtf-sum", "shortest")
RUN_S = 900.0


def main() -> int:
    """0; 2 where it cannot be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routers", description=__doc__)
    parser.add_argument("--alike", action="store_true", help="links of one speed")
    parser.add_argument("--steps", type=int, default=12, help="that are measured")
    parser.add_argument("--warmup", type=int, default=8, help="steps before them, with all peers")
    parser.add_argument("--router", action="append", choices=ROUTERS, help="may be given again; all, if none is")
    options = parser.parse_args()
    reason = unavailable()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 2
    tokens_s: dict[str, float] = {}
    for router in options.router or ROUTERS:
        tokens_s[router] = measure(router, options.alike, options.steps, options.warmup)
        print(f"{router:9} {tokens_s[router]:8.0f} tokens/s", flush=True)
    for router in tokens_s:
        if router != "flow" and "flow" in tokens_s:
            print(f"flow / {router:9} {tokens_s['flow'] / tokens_s[router]:.3f}")
    return 0


def measure(router: str, alike: bool, steps: int, warmup: int) -> float:
    """Tokens a second, over the middle of so many steps: what others do with this machine comes and goes."""
    names = ["trainer-0", *(f"peer-{number}" for number in range(PEERS))]
    unlike = {f"peer-{number}": UNLIKE_MBPS[number // STAGES] for number in range(PEERS)}
    rates = dict.fromkeys(names, ALIKE_MBPS) if alike else unlike
    rates["trainer-0"] = TRAINER_MBPS
    with tempfile.TemporaryDirectory(prefix="swarmflow-routers-") as folder, machines(names, rates) as addresses:
        corpus = Path(folder) / "corpus.txt"
        write_corpus(corpus)
        run = settings(corpus)
        run["train"]["router"] = router
        within = {name: inside(name) for name in names}
        with LocalSwarm(Path(folder) / "swarm", run, within=within) as swarm:
            swarm.start_trainer("--listen", f"{addresses['trainer-0']}:0")
            for number in range(PEERS):
                where = f"{addresses[f'peer-{number}']}:0"
                chosen = ("--capacity", str(CAPACITY), "--rebalance-period", "0", "--no-copies")
                swarm.start_peer("--listen", where, *chosen, stage=number % STAGES)
            all_peers = [PEERS // STAGES] * STAGES
            swarm.wait(lambda: all_peers in (step["peers"] for step in swarm.steps()), "a step with all peers", RUN_S)
            first = next(step["step"] for step in swarm.steps() if step["peers"] == all_peers) + warmup
            found = swarm.wait_steps(first + steps, RUN_S)[first : first + steps]
    seconds: float = statistics.median(step["seconds"] for step in found)
    return MICROBATCHES * SEQUENCES * SEQ_LEN / seconds


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
