"""The page in a real browser, with a pretended run that dies, repairs, waits and recovers as the test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from swarmflow.page.recording import Recording
from tests.page.browser import Browser
from tests.page.fake_feed import FakeFeed, served
from tests.page.fake_run import FakePeer, FakeRun, record

T = TypeVar("T")
DEATH_S = 2.0  # in which a death and its repair are on the page

# What the page says to a person, without what is hidden.
SAYS = "return document.body.innerText.includes(arguments[0])"
TYPE = """
const input = document.getElementById(arguments[0]);
input.value = arguments[1];
input.dispatchEvent(new Event(input.tagName === "SELECT" ? "change" : "input"));"""
CLICK = """
const all = [...document.querySelectorAll(arguments[0])];
all.find((each) => each.innerText.includes(arguments[1])).click();"""
PRESS = """
document.getElementById("picture").dispatchEvent(new KeyboardEvent("keydown", { key: arguments[0] }));
return document.getElementById("picked").textContent"""
AXE = """
const done = arguments[arguments.length - 1];
const say = ({ id, nodes }) => `${id}: ${nodes.map((node) => node.html + node.failureSummary).join(" | ")}`;
axe.run(document).then(({ violations, passes }) => done([violations.map(say), passes.length]));"""
READY = "return window.swarmflow?.run.view !== null && swarmflow.run.view?.step === arguments[0]"


async def off(function: Callable[..., T], *arguments: object, **options: object) -> T:
    """Call the browser in a thread: the loop serves the page meanwhile."""
    return await asyncio.to_thread(function, *arguments, **options)


def fake_run(seconds: float = 60.0, **options: int) -> FakeRun:
    run = FakeRun(**options)
    run.advance(seconds)
    return run


def busiest(run: FakeRun, stage: int) -> FakePeer:
    """Return the peer of a stage that holds most microbatches; the run is moved on until one holds some."""
    while True:
        peer = run.busiest(stage)
        if run.held_by(peer) > 1:
            return peer
        run.advance(0.1)


async def check_quiet(page: Browser, url: str) -> None:
    """Nothing is wrong in the console, and all that was asked for came from the page's server."""
    assert await off(page.console) == []
    asked = await off(page.requests)
    own = [address for address in asked if address.startswith(url)]
    assert own
    assert [address for address in asked if not address.startswith((url, "about:", "data:"))] == []
    entries = await off(page.run, "return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in entries if not name.startswith(url)] == []


async def open_page(page: Browser, url: str, run: FakeRun) -> None:
    await off(page.open, url)
    await off(page.wait, READY, "the first view", run.step)


@pytest.mark.asyncio
async def test_a_death_and_its_repair_are_shown_in_time(page: Browser) -> None:
    run = fake_run()
    async with served(FakeFeed(run)) as url:
        await open_page(page, url, run)
        peer = busiest(run, 1)
        run.kill(peer)
        script = """
        const { repairs, layout } = swarmflow.pipeline;
        const [{ heir } = {}] = repairs.takeovers;
        return repairs.dead.has(arguments[0]) && layout.places.get(arguments[0])?.ghost && heir !== arguments[0]
          && document.getElementById("news").textContent.includes(`${heir} takes over from ${arguments[0]}`)"""
        await off(page.wait, script, "the death and the repair", peer.id, timeout_s=DEATH_S)
        news = await off(page.run, "return document.getElementById('news').innerText")
        assert f"{peer.id} is gone" in news
        assert await off(page.run, "return document.getElementById('news').ariaLive") == "polite"
        assert await off(page.run, SAYS, "✕ died 1")
        # The cross is really painted: its colour is in the picture, where the peer was.
        painted = """
        const { x, y, r } = swarmflow.pipeline.layout.places.get(arguments[0]);
        const canvas = document.getElementById("picture-top");
        const scale = canvas.width / canvas.clientWidth;
        const [at, side] = [[(x - r) * scale, (y - r) * scale], 2 * r * scale];
        const { data } = canvas.getContext("2d").getImageData(...at, side, side);
        let found = 0;
        for (let i = 0; i < data.length; i += 4) {
          found += data[i] > 170 && data[i + 1] < 110 && data[i + 2] < 60 && data[i + 3] > 200;
        }
        return found"""
        assert await off(page.wait, painted, "the cross", peer.id) > 30
        await check_quiet(page, url)


@pytest.mark.asyncio
async def test_the_reason_is_shown_when_a_stage_has_nobody(page: Browser) -> None:
    run = fake_run()
    feed = FakeFeed(run)
    async with served(feed) as url:
        await open_page(page, url, run)
        for peer in run.serving(1):
            run.kill(peer)
        run.advance(4.0)
        await off(page.wait, SAYS, "the reason", "The run waits for a peer for stage 1.", timeout_s=DEATH_S)
        assert await off(page.run, SAYS, "It has waited for 3.9 s.")
        assert await off(page.run, SAYS, "gathering peers")
        run.join(1, loaded=True)
        run.advance(1.0)
        await off(page.wait, "return document.getElementById('waiting').hidden", "the end of the wait")
        feed.error = "no trainer answers"
        await off(page.wait, SAYS, "the silence", "No answer from the swarm: no trainer answers")
        assert await off(page.run, SAYS, "The last answer came")
        feed.error = None
        await off(page.wait, "return document.getElementById('silence').hidden", "the end of the silence")
        await check_quiet(page, url)


@pytest.mark.asyncio
async def test_a_server_that_is_gone_is_told_of_and_found_again(page: Browser) -> None:
    run = fake_run()
    async with served(FakeFeed(run)) as url:
        await open_page(page, url, run)
    await off(page.wait, SAYS, "the silence", "No answer from the page's server")
    assert await off(page.run, SAYS, f"Step {run.step}")  # what was known is still there


@pytest.mark.asyncio
async def test_curves_show_values_and_zoom_by_key_drag_and_button(page: Browser) -> None:
    run = fake_run(240.0)
    async with served(FakeFeed(run)) as url:
        await open_page(page, url, run)
        await off(page.wait, "return swarmflow.run.steps.length === arguments[0]", "the steps", run.step)
        last = run.lines[-1]["loss"]
        await off(page.wait, SAYS, "the loss", f"loss {last:.3f}")
        assert await off(page.run, SAYS, "validation ")
        bounds = "return swarmflow.curves.zoom.bounds()"
        whole = await off(page.run, bounds)
        assert whole == [0, run.step - 1]
        press = """
        const canvas = document.querySelector("#curves canvas");
        canvas.dispatchEvent(new KeyboardEvent("keydown", { key: arguments[0], bubbles: true }));
        return swarmflow.curves.zoom.bounds()"""
        first, end = await off(page.run, press, "+")
        assert end - first == pytest.approx(0.6 * (whole[1] - whole[0]))
        assert await off(page.run, press, "0") == whole
        box = await off(page.run, "return document.querySelector('#curves canvas').getBoundingClientRect().toJSON()")
        for kind, part in (("mousePressed", 0.4), ("mouseMoved", 0.6), ("mouseReleased", 0.6)):
            where = {
                "x": box["x"] + part * box["width"],
                "y": box["y"] + 60,
                "button": "left",
                "buttons": 1,
                "clickCount": 1,
            }
            await off(page.command, "Input.dispatchMouseEvent", {"type": kind, **where})
        first, end = await off(page.run, bounds)
        assert 0 < first < end < whole[1]
        await off(page.run, "document.querySelector('[data-zoom=all]').click()")
        assert await off(page.run, bounds) == whole
        await off(page.run, "document.getElementById('steps-details').open = true")
        rows = "return [...document.querySelectorAll('#steps tbody tr')].map((row) => row.innerText)"
        shown = await off(page.wait, rows, "the table of steps")
        assert len(shown) == min(200, run.step)
        assert shown[0].split("\t")[:2] == [str(run.step - 1), f"{last:.3f}"]
        await check_quiet(page, url)


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</td><script>window.hacked=1</script>",
    "\x1b[31mred\x1b[0m\x07",
    "‮drow‬&lt;b&gt;",
]


@pytest.mark.asyncio
async def test_hostile_names_and_reasons_are_text(page: Browser) -> None:
    run = fake_run()
    for name in HOSTILE:
        peer = run.join(0, loaded=True, identity=name, name=name)
        peer.address = peer.reach = name
        run.tell("died", f"{name} is gone", level="warning", peer=name, stage=0)
        run.tell(name, name)
    async with served(FakeFeed(run)) as url:
        await open_page(page, url, run)
        await off(page.wait, "return document.querySelectorAll('#peers tbody tr').length > 10", "the peers")
        text = await off(page.run, "return document.body.innerText")
        assert HOSTILE[0] in text
        assert HOSTILE[1] in text
        assert "␛[31mred␛[0m␇" in text
        assert "�drow�&lt;b&gt;" in text
        assert not any(sign in text for sign in "\x1b\x07‮‬")
        made = "return document.querySelectorAll('img:not(.brand img), td script, b b, [onerror]').length"
        assert await off(page.run, made) == 0
        assert await off(page.run, "return window.hacked === undefined")
        await check_quiet(page, url)


@pytest.mark.asyncio
async def test_a_thousand_peers_are_sorted_and_found_in_a_table_of_few_rows(page: Browser) -> None:
    run = fake_run(3.0, stages=8, peers=1000, microbatches=256)
    async with served(FakeFeed(run)) as url:
        await open_page(page, url, run)
        cells = "[...document.querySelectorAll('#peers tr:not(.space) td:first-child')]"
        rows = f"return {cells}.map((cell) => cell.innerText)"
        shown = await off(page.wait, rows, "the peers")
        assert 10 < len(shown) < 60
        await off(page.run, CLICK, "#peers th button", "Microbatches")
        shown = await off(page.run, rows)
        computed = {peer.id: peer.microbatches for peer in run.peers}
        assert computed[shown[0]] == max(computed.values())
        assert await off(page.run, "return document.querySelectorAll('#peers th[aria-sort=descending]').length") == 1
        await off(page.run, "document.getElementById('peers-scroll').scrollTop = 1e6")
        least = min(computed.values())
        at_end = "return [...document.querySelectorAll('#peers tr:not(.space)')].at(-1).cells[4].innerText"
        await off(page.wait, f"{at_end} === arguments[0]", "the end of the table", str(least))
        await off(page.run, TYPE, "peers-find", run.peers[500].id)
        assert await off(page.run, rows) == [run.peers[500].id]
        assert await off(page.run, SAYS, "1 of 1000 peers")
        await check_quiet(page, url)


@pytest.mark.asyncio
async def test_events_are_filtered_by_kind_and_text(page: Browser) -> None:
    run = fake_run(120.0)
    run.kill(busiest(run, 0))
    async with served(FakeFeed(run)) as url:
        await open_page(page, url, run)
        rows = "return [...document.querySelectorAll('#events li div')].map((row) => row.innerText)"
        assert len(await off(page.wait, rows, "the events")) == len(run.events)
        await off(page.run, CLICK, "#kinds button", "died")
        [died] = await off(page.run, rows)
        assert "is gone" in died
        await off(page.run, CLICK, "#kinds button", "died")
        await off(page.run, TYPE, "events-find", "DISK")
        found = await off(page.run, rows)
        assert len(found) == sum("is on disk" in event["text"] for event in run.events)
        assert all("is on disk" in row for row in found)
        await check_quiet(page, url)


@pytest.mark.asyncio
async def test_a_recording_plays_stands_and_is_set_to_any_time(page: Browser) -> None:
    run = fake_run(20.0)
    whole = record(run, 20.0)
    peer = busiest(run, 1)
    run.kill(peer)
    died = next(event for event in run.events if event["kind"] == "died")
    whole["events"].append({**died, "time": 15.0})
    async with served(Recording(whole)) as url:
        await off(page.open, url)
        moment = "return swarmflow.player?.moment"
        await off(page.wait, f"{moment} === 0", "the recording")
        assert await off(page.run, SAYS, f"Step {whole['frames'][0]['view']['step']}")
        await off(page.run, TYPE, "speed", "16")
        await off(page.run, "document.getElementById('play').click()")
        await off(page.wait, f"{moment} === 20 && document.getElementById('play').innerText === 'Play'", "its end")
        dead = "return swarmflow.pipeline.repairs.dead.has(arguments[0])"
        assert await off(page.run, dead, peer.id)
        assert await off(page.run, SAYS, f"Step {whole['frames'][-1]['view']['step']}")
        await off(page.run, TYPE, "scrub", "500")
        assert await off(page.run, moment) == 10
        view = next(frame["view"] for frame in reversed(whole["frames"]) if frame["t"] <= 10)
        assert await off(page.run, "return swarmflow.run.view.time") == view["time"]
        assert not await off(page.run, dead, peer.id)
        await check_quiet(page, url)


@pytest.mark.asyncio
async def test_the_log_of_a_finished_run_has_its_curves(page: Browser, tmp_path: Path) -> None:
    run = fake_run(200.0)
    file = tmp_path / "steps.json"
    file.write_text("".join(json.dumps(line) + "\n" for line in run.lines), encoding="utf-8")
    async with served(Recording.of_steps(file)) as url:
        await off(page.open, url)
        await off(page.wait, SAYS, "the loss", f"loss {run.lines[-1]['loss']:.3f}")
        shown = "return [...document.querySelectorAll('main section:not([hidden])')].map((each) => each.id)"
        assert await off(page.run, shown) == ["curves-card"]
        await check_quiet(page, url)


@pytest.mark.asyncio
async def test_the_page_is_of_use_without_sight_pointer_or_width(page: Browser, axe: str) -> None:
    """axe-core finds nothing in light, dark and on a phone; the picture is read by arrow keys."""
    run = fake_run(60.0)
    run.kill(busiest(run, 1))
    for peer in run.serving(2):
        run.kill(peer)
    run.join(2)
    run.advance(1.0)
    async with served(FakeFeed(run)) as url:
        for scheme, width in (("dark", 1280), ("light", 360)):
            await off(page.resize, width, 900)
            await off(page.media, prefers_color_scheme=scheme)
            await open_page(page, url, run)
            await off(page.wait, "return document.querySelectorAll('#peers tbody tr').length > 5", "the peers")
            await off(page.run, "for (const each of document.querySelectorAll('details')) each.open = true")
            await off(page.run, axe)
            violations, passes = await off(page.run_async, AXE)
            assert violations == [], f"{scheme}, {width} pixels"
            assert passes > 20
            assert await off(page.run, "return document.documentElement.scrollWidth") <= width
        assert run.trainers[0]["id"] in await off(page.run, PRESS, "ArrowRight")
        assert run.trainers[1]["id"] in await off(page.run, PRESS, "ArrowRight")
        assert "stage 0, serving" in await off(page.run, PRESS, "ArrowRight")
        await check_quiet(page, url)
