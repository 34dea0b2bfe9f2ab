"""The page in a real browser: what it shows of a run, and that nothing of it leaves the machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from swarmflow.page.recording import Recording
from tests.page.browser import MISSING, Browser, browser, waited
from tests.page.serving import browsed
from tests.page.views import HOSTILE, PretendedRun

pytestmark = [pytest.mark.extended, pytest.mark.skipif(bool(MISSING) and "CI" not in os.environ, reason=MISSING)]

BANNER = "return document.getElementById('banner').textContent"
TEXT = "return document.getElementById(arguments[0]).textContent"
NOTE_CROSSES = "window.crossed = []; window.swarmflow.pipeline.drawDead = (_, __, { peer }) => crossed.push(peer.id)"
CROSSED = "return [...new Set(window.crossed)]"
# Where the dashed line of the validation goes to.
NOTE_DASHES = """
    window.dashed = new Set();
    const prototype = CanvasRenderingContext2D.prototype;
    const lineTo = prototype.lineTo;
    prototype.lineTo = function (x, y) {
      if (this.getLineDash().join() === "5,4") window.dashed.add(x);
      return lineTo.call(this, x, y);
    };
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as one:
        yield one


def assert_clean(chromium: Browser, port: int) -> None:
    """No error in the console, and no request to another host."""
    assert [entry for entry in chromium.console() if entry["level"] == "SEVERE"] == []
    urls = chromium.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert urls
    assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in urls)


@pytest.mark.asyncio
async def test_it_shows_the_run_a_death_and_its_repair_within_two_seconds(chromium: Browser) -> None:
    run = PretendedRun()

    def look(port: int) -> None:
        chromium.open(f"http://127.0.0.1:{port}/")
        chromium.wait("return document.querySelectorAll('#peer-table tbody tr').length === 6", "the peers")
        assert "40 / 100" in chromium.run(TEXT, "figures")
        assert chromium.wait("return window.swarmflow.steps.length", "the curves") == 40
        assert not chromium.run(BANNER)

        victim, heir = run.peers(1)
        run.dead.add(victim)
        run.add("died", f"{victim} is gone: its connection broke", victim, 1)
        run.add("repaired", f"{heir} takes over from {victim} on stage 1", heir, 1)
        shown = "return document.querySelectorAll('#events .died, #events .repaired').length === 2"
        chromium.wait(shown, "the death and the repair", timeout_s=2.0)
        assert "takes over" in chromium.run(TEXT, "news"), "a screen reader is told"
        chromium.wait("return document.querySelectorAll('#peer-table tbody tr').length === 5", "one peer less")

        run.dead.add(heir)
        run.waiting = "a peer for stage 1"
        chromium.wait(f"{BANNER}.includes('a peer for stage 1')", "the reason")
        run.error = "its trainers are electing a leader"
        chromium.wait(f"{BANNER}.includes('electing')", "the error")
        assert_clean(chromium, port)

    await browsed(run, look)


@pytest.mark.asyncio
async def test_a_server_that_hangs_is_named_and_given_up(chromium: Browser) -> None:
    class Hanging(PretendedRun):
        hangs = False
        hung = 0

        async def run(self, after: int) -> bytes:
            self.hung += self.hangs
            while self.hangs:
                await asyncio.sleep(0.02)
            return await super().run(after)

    run = Hanging(error="its trainers are electing a leader")

    def look(port: int) -> None:
        chromium.open(f"http://127.0.0.1:{port}/")
        chromium.wait(f"{BANNER}.includes('electing')", "the error")
        run.hangs = True
        chromium.wait(f"{BANNER}.includes('server has not answered for')", "the silence", timeout_s=8.0)
        assert run.hung == 1, "it is told while the first answer is awaited"
        run.hangs, run.error = False, None
        chromium.wait(f"{BANNER} === ''", "the answer")
        chromium.run(
            "const whole = AbortSignal.timeout; AbortSignal.timeout = (ms) => whole.call(AbortSignal, ms / 50)"
        )
        run.hung, run.hangs = 0, True
        waited(lambda: run.hung > 2, "another question", 10.0)
        run.hangs = False
        chromium.wait(f"{BANNER} === ''", "the answer")

    await browsed(run, look)


@pytest.mark.asyncio
async def test_what_it_cannot_show_is_told(chromium: Browser) -> None:
    class Odd(PretendedRun):
        def view(self) -> dict[str, Any]:
            return {**super().view(), "trainers": None}

    def look(port: int) -> None:
        chromium.open(f"http://127.0.0.1:{port}/")
        chromium.wait(f"{BANNER}.includes('cannot show what the run answers: TypeError')", "the fault")

    await browsed(Odd(), look)


@pytest.mark.asyncio
async def test_it_begins_anew_with_another_server_on_the_port(chromium: Browser) -> None:
    class Restarted:
        now = PretendedRun()

        async def run(self, after: int) -> bytes:
            return await self.now.run(after)

        async def steps(self, after: int) -> bytes:
            return await self.now.steps(after)

        async def recording(self) -> bytes | None:
            return None

    server = Restarted()
    for number in range(3):
        server.now.add("other", f"former {number}")
    another = PretendedRun(step=5, feed="another")
    another.add("other", "new 0")

    def look(port: int) -> None:
        chromium.open(f"http://127.0.0.1:{port}/")
        chromium.wait("return document.querySelectorAll('#events li').length === 3", "the events")
        chromium.wait("return window.swarmflow.steps.length === 40", "the curves")
        server.now = another
        chromium.wait("return window.swarmflow.steps.length === 5", "the new curves")
        assert chromium.run("return [...document.querySelectorAll('#events .what')].map(e => e.textContent)") == [
            "new 0"
        ]
        another.add("other", "new 1")
        chromium.wait("return document.querySelectorAll('#events li').length === 2", "the next event")
        assert_clean(chromium, port)

    await browsed(server, look)


@pytest.mark.asyncio
async def test_only_peers_that_died_are_crossed(chromium: Browser) -> None:
    run = PretendedRun()

    def look(port: int) -> None:
        chromium.open(f"http://127.0.0.1:{port}/")
        shown = "return document.querySelectorAll('#peer-table tbody tr').length === arguments[0]"
        chromium.wait(shown, "the peers", 6)
        chromium.run(NOTE_CROSSES)
        drained, victim, late = (run.peers(stage)[0] for stage in range(3))
        run.add("leaving", f"{drained} finishes the step and leaves", drained, 0)
        run.dead.add(drained)
        chromium.wait(shown, "one less", 5)
        run.add("died", f"{victim} is gone", victim, 1)
        run.dead.add(victim)
        chromium.wait(f"{CROSSED}.length", "a cross")
        run.dead.add(late)
        chromium.wait(shown, "three less", 3)
        assert chromium.run(CROSSED) == [victim]
        run.add("died", f"{late} is gone", late, 2)
        chromium.wait(f"{CROSSED}.length === 2", "another cross")
        assert chromium.run(CROSSED) == [victim, late]

    await browsed(run, look)


@pytest.mark.asyncio
async def test_a_long_run_shows_each_validation(chromium: Browser) -> None:
    def look(port: int) -> None:
        chromium.open(f"http://127.0.0.1:{port}/")
        chromium.wait("return window.swarmflow.steps.length", "the curves")
        chromium.run(NOTE_DASHES)
        chromium.run("document.querySelector('[data-zoom=all]').click()")
        chromium.wait("return window.dashed.size === 99", "100 points of the validation")
        chromium.run("window.dashed.clear(); document.querySelector('[data-zoom=in]').click()")
        chromium.wait("return window.dashed.size === 49", "50 in the middle half")

    await browsed(PretendedRun(step=2000, validated_every=20), look)


@pytest.mark.asyncio
async def test_it_keeps_fewer_of_the_older_steps_and_each_validation(chromium: Browser) -> None:
    def look(port: int) -> None:
        chromium.open(f"http://127.0.0.1:{port}/")
        kept = chromium.wait("return window.swarmflow.steps.length", "the curves")
        assert 17_500 <= kept <= 17_600
        steps = "return window.swarmflow.steps"
        assert chromium.run(f"{steps}.at(-10_000).step") == 15_000
        assert chromium.run(f"{steps}.filter(step => step.validation_loss).length") == len(range(1, 25_000, 101))

    await browsed(PretendedRun(step=25_000, validated_every=101), look)


@pytest.mark.asyncio
async def test_what_peers_call_themselves_is_shown_as_text(chromium: Browser) -> None:
    run = PretendedRun()

    def look(port: int) -> None:
        run.add(HOSTILE, HOSTILE, HOSTILE, 1)
        chromium.open(f"http://127.0.0.1:{port}/")
        chromium.wait("return document.querySelector('#events .what')", "the event")
        assert chromium.run("return document.querySelector('#events .what').textContent") == HOSTILE
        assert chromium.run("return document.querySelectorAll('main img').length") == 0
        chromium.run(
            "document.getElementById('text').value = 'nothing like it';"
            "document.getElementById('text').dispatchEvent(new Event('input'))"
        )
        assert chromium.run("return document.querySelectorAll('#events li').length") == 0
        assert_clean(chromium, port)

    await browsed(run, look)


@pytest.mark.asyncio
async def test_curves_zoom_by_keys_and_the_table_sorts(chromium: Browser) -> None:
    def look(port: int) -> None:
        chromium.open(f"http://127.0.0.1:{port}/")
        chromium.wait("return window.swarmflow.steps.length", "the curves")
        chart = "document.querySelector('#curves canvas')"
        label = f"return {chart}.getAttribute('aria-label')"
        chromium.wait(f"{label}?.includes('steps 0 to 39')", "the whole curve")
        chromium.run(f"{chart}.dispatchEvent(new KeyboardEvent('keydown', {{key: '+'}}))")
        chromium.wait(f"{label}?.includes('steps 10 to 29')", "the middle of the curve")
        chromium.run("document.querySelector('[data-zoom=all]').click()")
        chromium.wait(f"{label}?.includes('steps 0 to 39')", "the whole curve again")
        chromium.run("document.querySelectorAll('#peer-table th button')[4].click()")
        first = "return document.querySelector('#peer-table tbody tr').children[0].textContent"
        assert chromium.run(first).endswith("n1.1001"), "the peer with the most microbatches"
        assert_clean(chromium, port)

    await browsed(PretendedRun(), look)


@pytest.mark.asyncio
async def test_a_recording_plays_and_is_dragged(chromium: Browser) -> None:
    run = PretendedRun()
    frames = []
    victim = run.peers(0)[0]
    for second in range(6):
        run.step = second
        if second == 3:
            run.dead.add(victim)
        frames.append({"t": float(second), "view": run.view()})
    run.add("died", f"{victim} is gone", victim, 0)
    run.events[0]["time"] = 3.0
    steps = [{**line, "time": 1.0 + line["step"]} for line in run.lines()]
    recorded = {"duration_s": 5.0, "frames": frames, "events": run.events, "steps": steps}

    def look(port: int) -> None:
        chromium.open(f"http://127.0.0.1:{port}/")
        chromium.wait("return !document.getElementById('player').hidden", "the player")
        assert "0 / 100" in chromium.run(TEXT, "figures")
        assert chromium.run("return document.querySelectorAll('#events li').length") == 0
        chromium.run(
            "const scrub = document.getElementById('scrub'); scrub.value = 700;scrub.dispatchEvent(new Event('input'))"
        )
        assert "3 / 100" in chromium.run(TEXT, "figures")
        assert chromium.run("return document.querySelectorAll('#events .died').length") == 1
        assert chromium.run("return document.querySelectorAll('#steps tbody tr').length") == 3
        chromium.run(
            "const scrub = document.getElementById('scrub'); scrub.value = 0; scrub.dispatchEvent(new Event('input'))"
        )
        assert chromium.run("return document.querySelectorAll('#events li, #steps tbody tr').length") == 0
        chromium.run(NOTE_CROSSES)
        chromium.run(
            "document.getElementById('speed').value = '4';"
            "document.getElementById('speed').dispatchEvent(new Event('change'));"
            "document.getElementById('play').click()"
        )
        chromium.wait("return document.getElementById('figures').textContent.includes('5 / 100')", "the end")
        assert chromium.run(CROSSED) == [victim]
        assert chromium.run(BANNER) == ""
        assert_clean(chromium, port)

    await browsed(Recording(recorded), look)


@pytest.mark.asyncio
async def test_it_fits_a_phone(chromium: Browser) -> None:
    def look(port: int) -> None:
        chromium.resize(360, 740)
        try:
            chromium.open(f"http://127.0.0.1:{port}/")
            chromium.wait("return document.querySelectorAll('#peer-table tbody tr').length", "the peers")
            assert chromium.run("return document.documentElement.scrollWidth") <= 360
        finally:
            chromium.command("Emulation.clearDeviceMetricsOverride", {})

    await browsed(PretendedRun(), look)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core, which checks contrast, labels, roles and landmarks."""
    npm = shutil.which("npm")
    if npm is None and "CI" not in os.environ:
        pytest.skip("no npm here, which brings axe-core")
    assert npm is not None
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), "axe-core@4"]
    brought = subprocess.run(command, capture_output=True, timeout=100).returncode == 0
    if not brought and "CI" not in os.environ:
        pytest.skip("npm could not bring axe-core")
    assert brought
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.asyncio
@pytest.mark.parametrize("dark", [False, True])
async def test_contrast_and_labels_pass_axe(dark: bool, chromium: Browser, axe: str) -> None:
    run = PretendedRun(waiting="a peer for stage 1")
    for kind in ("died", "repaired", "waiting", "loading"):
        run.add(kind, "what happened")

    def look(port: int) -> None:
        chromium.open(f"http://127.0.0.1:{port}/")
        chromium.wait("return document.querySelectorAll('#events li').length === 4", "the events")
        if dark != (chromium.run("return document.documentElement.dataset.theme") == "dark"):
            chromium.run("document.getElementById('theme').click()")
        # Through the DevTools protocol, since the page's own policy allows no script but its files.
        chromium.command("Runtime.evaluate", {"expression": axe})
        answer: Any = chromium.command(
            "Runtime.evaluate",
            {
                "expression": "axe.run().then(found => JSON.stringify(found.violations.map("
                "each => [each.id, each.nodes.map(node => node.html)])))",
                "awaitPromise": True,
            },
        )
        assert json.loads(answer["result"]["value"]) == []

    await browsed(run, look)
