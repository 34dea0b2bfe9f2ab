"""The stages of a run and their peers as a table that fits: every peer, or each stage and the peers to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from swarmflow.terminal.formats import count, size
from swarmflow.terminal.overview import MARKS, UNKNOWN_MARK, line
from swarmflow.terminal.shown_run import WORKS, ShownPeer, ShownRun, ShownStage, ShownSummary

_TOP_MIN = 3  # a list of peers beside the stages is worth its rows from this length on
_REACHES = {"public": "public", "punched": "punched", "relay": "relayed", "local": "local"}


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A peer, and what is counted of its stage."""

    stage: int
    peer: ShownPeer
    stage_tokens: int  # of all peers of the stage

    @property
    def done(self) -> int:
        """Microbatches that it has computed."""
        return self.peer.summary.microbatches if self.peer.summary is not None else 0


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TableColumn(Generic[T]):
    """A column of peers or stages. width: of the terminal, from which on it is shown."""

    title: str
    cell: Callable[[T], Text | str]
    right: bool = False
    width: int = 0


def rows_of(stages: Sequence[ShownStage]) -> list[PeerRow]:
    """Return all peers, stage by stage."""
    found = []
    for stage in stages:
        tokens = sum(peer.summary.tokens for peer in stage.peers if peer.summary is not None)
        found += [PeerRow(stage.stage, peer, tokens) for peer in stage.peers]
    return found


def peers_table(run: ShownRun, width: int, rows: int) -> list[RenderableType]:
    """Return the stages and their peers in so many rows at most."""
    peers = rows_of(run.stages)
    empty = sum(not stage.peers for stage in run.stages)
    if len(peers) + empty + 1 <= rows:
        return [_peers(run.stages, peers, width)]
    left = rows - 2 - len(run.stages)  # for a title and a list of peers, under a line for each stage and its title
    if left < _TOP_MIN:
        return [_stages(run.stages, width, max(1, rows - 1))]
    number = left - 1
    title = line(
        Text(f"{number} of {count(len(peers))} peers: first those that do not serve, then who did most", "dim")
    )
    return [_stages(run.stages, width, len(run.stages)), title, _listed(_to_look_at(peers)[:number], width)]


def _to_look_at(peers: Sequence[PeerRow]) -> list[PeerRow]:
    return sorted(peers, key=lambda row: (row.peer.phase in WORKS and row.peer.phase != "draining", -row.done))


def _peers(stages: Sequence[ShownStage], peers: Sequence[PeerRow], width: int) -> Table:
    """Return a table of all peers; a stage without any has a row of its own."""
    columns = _columns(width)
    table = _table([("stage", True), *((column.title, column.right) for column in columns)])
    by_stage: dict[int, list[PeerRow]] = {}
    for row in peers:
        by_stage.setdefault(row.stage, []).append(row)
    for stage in stages:
        rows = by_stage.get(stage.stage, [])
        if not rows:
            table.add_row(str(stage.stage), Text("nobody", style="bold red"))
        for place, row in enumerate(rows):
            table.add_row(str(stage.stage) if place == 0 else "", *_cells(columns, row))
    return table


def _listed(peers: Sequence[PeerRow], width: int) -> Table:
    columns = _columns(width)
    table = _table([("stage", True), *((column.title, column.right) for column in columns)])
    for row in peers:
        table.add_row(str(row.stage), *_cells(columns, row))
    return table


def _stages(stages: Sequence[ShownStage], width: int, rows: int) -> Table:
    """Return a table of the stages; where they are too many, of those with the fewest peers."""
    columns = [column for column in _STAGE_COLUMNS if width >= column.width]
    table = _table([("stage", True), *((column.title, column.right) for column in columns)])
    shown = list(stages)
    if len(stages) > rows:
        shown = sorted(stages, key=lambda stage: (stage.working, stage.stage))[: max(1, rows - 1)]
    for stage in shown:
        table.add_row(str(stage.stage), *(column.cell(stage) for column in columns))
    if len(shown) < len(stages):
        table.caption = Text(f"and {len(stages) - len(shown)} stages with no fewer peers", style="dim")
        table.caption_justify = "left"
    return table


def _in(*phases: str) -> Callable[[ShownStage], Text]:
    """Return the cell with the number of peers in these phases."""

    def cell(stage: ShownStage) -> Text:
        counts = stage.counts()
        number = sum(counts.get(phase, 0) for phase in phases)
        if "serving" in phases and not number:
            return Text("nobody", style="bold red")
        return Text(count(number) if number else "", style=MARKS[phases[0]][1])

    return cell


def _reported(stage: ShownStage) -> list[ShownSummary]:
    return [peer.summary for peer in stage.peers if peer.summary is not None]


def _cells(columns: Sequence[TableColumn[PeerRow]], row: PeerRow) -> Iterator[Text | str]:
    # Texts and not markup: the id and the address are another machine's.
    return (cell if isinstance(cell := column.cell(row), Text) else Text(cell) for column in columns)


def _columns(width: int) -> list[TableColumn[PeerRow]]:
    return [column for column in _COLUMNS if width >= column.width]


def _table(titles: Sequence[tuple[str, bool]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title, right in titles:
        table.add_column(title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    return table


def _phase(row: PeerRow) -> Text:
    mark, style = MARKS.get(row.peer.phase, UNKNOWN_MARK)
    text = Text.assemble((f"{mark} ", style), row.peer.phase)
    summary = row.peer.summary
    if row.peer.phase == "loading" and summary is not None and summary.loading_total_bytes > 0:
        share = min(1.0, summary.loading_bytes / summary.loading_total_bytes)
        text.append(f" {100 * share:.0f}% of {size(summary.loading_total_bytes)}")
    return text


def _share(row: PeerRow) -> str:
    summary = row.peer.summary
    return f"{100 * summary.tokens / row.stage_tokens:.0f}%" if summary is not None and row.stage_tokens > 0 else ""


def _wasted(row: PeerRow) -> str:
    summary = row.peer.summary
    return f"{100 * summary.wasted_s / summary.compute_s:.0f}%" if summary is not None and summary.compute_s > 0 else ""


def _memory(row: PeerRow) -> str:
    summary = row.peer.summary
    return size(summary.memory_bytes) if summary is not None and summary.memory_bytes > 0 else ""


def _traffic(row: PeerRow) -> str:
    summary = row.peer.summary
    return f"↑{size(summary.sent_bytes)} ↓{size(summary.received_bytes)}" if summary is not None else ""


def _reach(row: PeerRow) -> str:
    return _REACHES.get(row.peer.summary.reach, "") if row.peer.summary is not None else ""


_COLUMNS: tuple[TableColumn[PeerRow], ...] = (
    TableColumn("peer", lambda row: row.peer.id),
    TableColumn("phase", _phase),
    TableColumn("held", lambda row: f"{row.peer.held}/{row.peer.capacity}", right=True),
    TableColumn("queued", lambda row: str(row.peer.queued), right=True, width=60),
    TableColumn("microbatches", lambda row: count(row.done), right=True, width=70),
    TableColumn("share", _share, right=True, width=78),
    TableColumn("wasted", _wasted, right=True, width=112),
    TableColumn("memory", _memory, right=True, width=90),
    TableColumn("traffic", _traffic, width=132),
    TableColumn("reach", _reach, width=100),
    TableColumn("address", lambda row: row.peer.address, width=124),
)
_STAGE_COLUMNS: tuple[TableColumn[ShownStage], ...] = (
    TableColumn("peers", lambda stage: count(sum(stage.counts().values())), right=True),
    TableColumn("serving", _in("serving", "ready"), right=True),
    TableColumn("loading", _in("loading"), right=True),
    TableColumn("waiting", _in("waiting"), right=True),
    TableColumn("failed", _in("failed", "barred"), right=True),
    TableColumn("draining", _in("draining"), right=True, width=80),
    TableColumn(
        "held",
        lambda stage: f"{count(sum(p.held for p in stage.peers))}/{count(sum(p.capacity for p in stage.peers))}",
        right=True,
        width=70,
    ),
    TableColumn("queued", lambda stage: count(sum(p.queued for p in stage.peers)), right=True, width=90),
    TableColumn("microbatches", lambda stage: count(sum(s.microbatches for s in _reported(stage))), True, 104),
    TableColumn("memory", lambda stage: size(sum(s.memory_bytes for s in _reported(stage))), right=True, width=116),
)
