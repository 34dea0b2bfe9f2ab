"""`swarmflow status --watch`: a run as text that changes in place on a terminal, and line by line elsewhere."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from swarmflow.clean_text import clean
from swarmflow.runtime.operations.watching import LiveFeed, asking
from swarmflow.runtime.transport.invite import Invite
from swarmflow.view.timeline import Event

ASK_EVERY_S = 1.0
PEERS_MAX = 40  # of a larger swarm the stages are shown, not the peers
EVENTS_SHOWN = 8
SPARKS = "▁▂▃▄▅▆▇█"
SPARK_STEPS = 40


def main(invite: Invite) -> int:
    """Show the run until Ctrl-C; the exit code."""
    asyncio.run(_watch(invite, Console(highlight=False)))
    return 0


async def _watch(invite: Invite, console: Console) -> None:
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with asking(invite) as ask:
        feed = LiveFeed(ask)
        if console.is_terminal:
            with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
                while not over.is_set():
                    await feed.refresh()
                    live.update(screen(feed, console.height), refresh=True)
                    await _pause(over)
        else:
            shown = 0
            while not over.is_set():
                await feed.refresh()
                shown = _print_news(console, feed, shown)
                await _pause(over)


async def _pause(over: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(over.wait(), ASK_EVERY_S)
    except TimeoutError:
        return


def _print_news(console: Console, feed: LiveFeed, shown: int) -> int:
    """Print the events after this one, and return the number of the last."""
    for event in feed.mirror.own.events_after(shown):
        console.print(Text(_sentence(event)), soft_wrap=True)
        shown = event["seq"]
    return shown


def screen(feed: LiveFeed, height: int) -> RenderableType:
    """Return what a terminal of so many lines shows."""
    view = feed.mirror.view
    parts: list[RenderableType] = []
    if feed.error is not None:
        parts.append(Text(f"no answer: {clean(feed.error)}", style="bold red"))
    if view is None:
        return Group(*parts) if parts else Text("asking the run ...")
    parts.append(_headline(view))
    parts.append(Text(f"loss {sparkline([line.get('loss') for line in feed.mirror.own.steps[-SPARK_STEPS:]])}"))
    if view["phase"] != "running" and view["waiting_for"]:
        reason = f"waiting for {clean(view['waiting_for'])}, for {view['waiting_s']:.0f} s"
        parts.append(Text(reason, style="bold yellow"))
    peers = sum(len(stage["peers"]) for stage in view["stages"])
    parts.append(_peer_table(view) if peers <= min(PEERS_MAX, height - EVENTS_SHOWN - 8) else _stage_table(view))
    parts += [Text(_sentence(event), style=_style(event)) for event in list(feed.mirror.own.events)[-EVENTS_SHOWN:]]
    return Group(*parts)


def _headline(view: Mapping[str, Any]) -> Text:
    left = "" if view["left_s"] is None else f", {duration(view['left_s'])} left"
    loss = "-" if view["loss"] is None else f"{view['loss']:.4f}"
    speed = "-" if view["tokens_per_s"] is None else f"{view['tokens_per_s']:,.0f}"
    text = Text(clean(view["run"]), style="bold")
    rest = f": {view['phase']}, step {view['step']} of {view['steps']}, loss {loss}, {speed} tokens/s{left}"
    return text.append(rest, style="not bold")


def _peer_table(view: Mapping[str, Any]) -> Table:
    table = Table("stage", "peer", "state", "held", "microbatches", "share", "wasted", "memory", "reached")
    tokens = sum(_summary(peer).get("tokens", 0) for stage in view["stages"] for peer in stage["peers"])
    for stage in view["stages"]:
        for peer in stage["peers"]:
            own = _summary(peer)
            row = [str(stage["stage"]), clean(peer["id"]), _state(peer), f"{peer['held']}/{peer['capacity']}"]
            share = f"{own.get('tokens', 0) / tokens:.0%}" if tokens else "-"
            work = [str(own.get("microbatches", "-")), share, f"{own.get('wasted_s', 0):.1f} s"]
            uses = [f"{own.get('memory_bytes', 0) / 1e6:.0f} MB", clean(own.get("reach", "-"))]
            table.add_row(*(Text(cell) for cell in (*row, *work, *uses)))
        if not stage["peers"]:
            table.add_row(str(stage["stage"]), Text("nobody", style="bold red"))
    return table


def _stage_table(view: Mapping[str, Any]) -> Table:
    table = Table("stage", "peers", "serving", "loading", "held", "microbatches", "wasted", "memory")
    for stage in view["stages"]:
        peers = stage["peers"]
        own = [_summary(peer) for peer in peers]
        table.add_row(
            str(stage["stage"]),
            Text(str(len(peers)), style="" if peers else "bold red"),
            str(sum(peer["phase"] == "serving" for peer in peers)),
            str(sum(peer["phase"] == "loading" for peer in peers)),
            str(sum(peer["held"] for peer in peers)),
            str(sum(each.get("microbatches", 0) for each in own)),
            f"{sum(each.get('wasted_s', 0) for each in own):.1f} s",
            f"{sum(each.get('memory_bytes', 0) for each in own) / 1e9:.1f} GB",
        )
    return table


def _summary(peer: Mapping[str, Any]) -> Mapping[str, Any]:
    summary: Mapping[str, Any] = peer.get("summary") or {}
    return summary


def _state(peer: Mapping[str, Any]) -> str:
    own = _summary(peer)
    if total := own.get("loading_total_bytes"):
        return f"{peer['phase']} {own['loading_bytes'] / total:.0%}"
    return clean(str(peer["phase"]))


def _sentence(event: Event) -> str:
    return f"{clean(str(event['kind'])):>11s}  {clean(event['text'])}"


def _style(event: Event) -> str:
    return "yellow" if event["level"] == "warning" else "green" if event["kind"] == "repaired" else "dim"


def sparkline(values: Sequence[float | None]) -> str:
    """Return a curve of one line; gaps where a value is missing."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    low, span = min(known), (max(known) - min(known)) or 1.0
    return "".join(" " if v is None else SPARKS[round((v - low) / span * (len(SPARKS) - 1))] for v in values)


def duration(seconds: float) -> str:
    """Return a time as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
