"""The pictures of the page in docs/images: `make screenshots`.

Those of docs/images/page-light.png and its like show a real swarm that loses a peer; what takes a thousand peers, or a
run that stands still, is pretended.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from swarmflow.demo.corpus import write_corpus
from swarmflow.local.swarm import LocalSwarm
from swarmflow.page.recording import Recording
from tests.page.browser import MISSING, Browser, browser
from tests.page.fake_feed import FakeFeed, served
from tests.page.fake_run import FakeRun, record

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DESKTOP, PHONE = (1320, 1000), (360, 760)
COLOURS = 200
SWARM_S = 240.0  # for its first steps, on a machine that does other things too
STAGES = 3
MODEL = {
    **{"model_type": "llama", "hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": STAGES},
    **{"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 128},
}
RUN: dict[str, dict[str, Any]] = {
    "run": {"name": "shakespeare", "output": "out"},
    "model": {"config": MODEL, "stages": STAGES},
    "data": {"path": "corpus.txt", "tokenizer": "bytes", "seq_len": 64, "validation_path": "held-out.txt"},
    "optimizer": {"name": "adamw", "lr": 1e-3},
    "train": {
        "steps": 400,
        "microbatches": 24,
        "microbatch_sequences": 8,
        "checkpoint_every": 20,
        "validate_every": 10,
    },
}
# A picture shows most while some microbatches are on their way forward and some back.
BUSY = """
const hops = swarmflow.view?.hops ?? [];
return hops.some((hop) => hop[3] === "forward") && hops.some((hop) => hop[3] === "done")"""


class Studio:
    """A page that shows a pretended run, and what of it becomes a picture."""

    def __init__(self, page: Browser) -> None:
        self._page = page

    async def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call the browser in a thread: the loop serves the page meanwhile."""
        await asyncio.to_thread(function, *arguments)

    async def open(self, url: str, size: tuple[int, int], scheme: str) -> None:
        """Open the page of a viewer with such a window."""
        await asyncio.to_thread(self._page.resize, *size)
        await asyncio.to_thread(self._page.media, prefers_color_scheme=scheme)
        await self.call(self._page.command, "Emulation.setScrollbarsHidden", {"hidden": True})
        await self.call(self._page.open, url)
        await self.call(self._page.wait, "return window.swarmflow?.run.view !== null", "the first view")

    async def dress(self, scheme: str) -> None:
        """Show the page in another theme."""
        await asyncio.to_thread(self._page.media, prefers_color_scheme=scheme)

    async def wait(self, script: str, what: str) -> None:
        """Wait until a script of the page returns something true."""
        await asyncio.to_thread(self._page.wait, script, what, timeout_s=SWARM_S)

    async def shoot(self, name: str, element: str = "", *, seconds: float = 0.0) -> None:
        """Write a picture of an element, or of the window, after some seconds."""
        await asyncio.sleep(seconds)
        file = IMAGES / f"page-{name}.png"
        await self.call(self._page.screenshot, file, element)
        await asyncio.to_thread(_shrink, file)
        print(f"{file.relative_to(IMAGES.parents[1])} ({file.stat().st_size >> 10} KiB)")


def _shrink(file: Path) -> None:
    """Keep as many colours as the page has: a third of the bytes."""
    with Image.open(file) as image:
        image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


async def shoot_swarm(studio: Studio, folder: Path) -> None:
    """A real swarm that loses a peer, in light and dark, on a desktop and on a phone."""
    folder.mkdir()
    write_corpus(folder / "corpus.txt", 1 << 20)
    write_corpus(folder / "held-out.txt", 1 << 14)
    with LocalSwarm(folder, RUN) as swarm:
        trainer = await asyncio.to_thread(swarm.start_trainer, "--page", "0")
        for number in range(3 * STAGES):
            await asyncio.to_thread(swarm.start_peer, stage=number % STAGES)
        await asyncio.to_thread(swarm.start_trainer)
        [url] = re.findall(r"page: (\S+)", trainer.log.read_text(encoding="utf-8"))
        await studio.open(url, DESKTOP, "light")
        await asyncio.to_thread(swarm.wait_steps, 40, SWARM_S)
        await studio.wait(BUSY, "microbatches in the midst of a step")
        swarm.peers[4].kill()
        await studio.wait("return swarmflow.pipeline.repairs.takeovers.length > 0", "the repair")
        await studio.wait(BUSY, "microbatches in the midst of a step")
        await studio.shoot("pipeline", "#pipeline-card", seconds=0.5)
        await studio.shoot("light", "body")
        await studio.dress("dark")
        await studio.shoot("dark", "body")
        await studio.open(url, PHONE, "light")
        await studio.wait(BUSY, "microbatches in the midst of a step")
        await studio.shoot("phone", "body", seconds=0.7)


async def shoot_waiting(studio: Studio) -> None:
    """A stage that nobody serves."""
    run = FakeRun()
    run.advance(260.0)
    async with served(FakeFeed(run, pace=1.0)) as url:
        await studio.open(url, (1320, 620), "dark")
        for peer in run.serving(1):
            run.kill(peer)
        run.join(1)
        await studio.shoot("waiting", seconds=4.0)


async def shoot_many(studio: Studio) -> None:
    """A thousand peers."""
    run = FakeRun(8, 1000, 768, seed=11)
    run.advance(12.0)
    async with served(FakeFeed(run, pace=1.0)) as url:
        await studio.open(url, (1320, 720), "light")
        for stage in (2, 5):
            run.kill(run.busiest(stage))
        await studio.shoot("thousand", "#pipeline-card", seconds=3.0)


async def shoot_recording(studio: Studio) -> None:
    """A recording that plays."""
    run = FakeRun()
    whole = record(run, 60.0)
    peer = run.busiest(0)
    run.kill(peer)
    more = record(run, 60.0)
    died = [{**event, "time": 60.0} for event in run.events if event["kind"] == "died"]
    moved = {name: [{**entry, key: entry[key] + 60.0} for entry in more[name]] for name, key in _TIMES.items()}
    whole = {"duration_s": 120.0} | {name: whole[name] + moved[name] for name in _TIMES}
    whole["events"] = sorted([*whole["events"], *died], key=lambda event: float(event["time"]))
    async with served(Recording(whole)) as url:
        await studio.open(url, (1320, 760), "light")
        await studio.call(studio._page.run, "swarmflow.player.jump(58); document.getElementById('play').click()")
        await studio.shoot("recording", seconds=2.5)


_TIMES = {"frames": "t", "events": "time", "steps": "time"}


async def main() -> None:
    """Take all pictures."""
    if MISSING:
        sys.exit(f"make screenshots: {MISSING}")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="swarmflow-screenshots-") as folder, browser(Path(folder)) as page:
        studio = Studio(page)
        await shoot_swarm(studio, Path(folder) / "swarm")
        await shoot_waiting(studio)
        await shoot_many(studio)
        await shoot_recording(studio)


if __name__ == "__main__":
    asyncio.run(main())
