"""Writes the pictures of the page in docs/images, of a real swarm that loses a peer: `make screenshots`."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from swarmflow.demo.corpus import write_corpus
from swarmflow.local.swarm import LocalSwarm, terminable
from tests.page.browser import MISSING, browser

IMAGES = Path(__file__).parents[2] / "docs" / "images"
STAGES, STEPS, WAIT_S = 3, 400, 120.0
MODEL = {
    **{"model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": STAGES},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 128},
}


def main() -> int:
    """Write the pictures; the exit code."""
    if MISSING:
        print(MISSING, file=sys.stderr)
        return 1
    IMAGES.mkdir(exist_ok=True)
    run: dict[str, dict[str, Any]] = {
        "run": {"name": "shakespeare", "output": "out"},
        "model": {"config": MODEL, "stages": STAGES},
        "data": {"path": "corpus.txt", "tokenizer": "bytes", "seq_len": 64},
        "optimizer": {"name": "adamw", "lr": 3e-3},
        "train": {"steps": STEPS, "microbatches": 16, "microbatch_sequences": 4, "checkpoint_every": 20},
    }
    with tempfile.TemporaryDirectory(prefix="swarmflow-screenshots-") as name:
        folder = Path(name)
        with LocalSwarm(folder, run) as swarm, browser(folder) as chromium:
            write_corpus(folder / "corpus.txt", 1 << 20)
            trainer = swarm.start_trainer("--page", "0")
            for number in range(3 * STAGES):
                swarm.start_peer(stage=number % STAGES)
            swarm.start_trainer()
            [url] = re.findall(r"page: (\S+)", trainer.log.read_text())
            chromium.open(url)
            swarm.wait_steps(40, WAIT_S)
            swarm.peers[4].kill()
            chromium.wait("return document.querySelector('#events .repaired')", "the repair")
            chromium.wait("return window.swarmflow.view.hops.length > 8", "microbatches on their way")
            for theme in ("light", "dark"):
                if chromium.run("return document.documentElement.dataset.theme") != theme:
                    chromium.run("document.getElementById('theme').click()")
                chromium.settle()
                chromium.screenshot(IMAGES / f"page-{theme}.png")
            chromium.resize(390, 844)
            chromium.settle()
            chromium.screenshot(IMAGES / "page-phone.png")
    return 0


if __name__ == "__main__":
    with terminable():
        sys.exit(main())
