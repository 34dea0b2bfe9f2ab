"""The page in a real browser: what it shows of a run, and that nothing of it leaves the machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from swarmflow.page.recording import Recording
from tests.page.browser import MISSING, Browser, browser
from tests.page.serving import browsed
from tests.page.views import HOSTILE, PretendedRun

pytestmark = [pytest.mark.extended, pytest.mark.skipif(bool(MISSING) and "CI" not in os.environ, reason=MISSING)]

BANNER = "return document.getElementById('banner').textContent"
TEXT = "return document.getElementById(arguments[0]).textContent"


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
    for second in range(6):
        run.step = second
        frames.append({"t": float(second), "view": run.view()})
    run.add("died", "p0 is gone", "p0", 0)
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
        chromium.run(
            "document.getElementById('speed').value = '4';"
            "document.getElementById('speed').dispatchEvent(new Event('change'));"
            "document.getElementById('play').click()"
        )
        chromium.wait("return document.getElementById('figures').textContent.includes('5 / 100')", "the end")
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
