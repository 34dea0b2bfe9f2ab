"""The output of the demonstration: on a terminal one line that changes, elsewhere a line every few steps."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

PLAIN_LINES = 12


class Screen:
    """Shows a run of `steps` steps: `say` prints events, `show` the last committed step."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        self._console = Console(highlight=False) if console is None else console
        self._steps = steps
        self._live: Live | None = None
        self._shown = -1

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, line: str, style: str = "") -> None:
        """Print a line that stays."""
        self._console.print(line, style=style, markup=False, soft_wrap=True)

    def show(self, step: dict[str, Any]) -> None:
        """Show a committed step, unless it was shown already or is not due in plain mode."""
        done = int(step["step"]) + 1
        if done <= self._shown:
            return
        if self._live is not None:
            self._live.update(self._row(step, done))
        elif done < self._steps and done - max(self._shown, 0) < self._steps / PLAIN_LINES and self._shown > 0:
            return
        else:
            self.say(f"step {done:4d}/{self._steps}  {_figures(step)}")
        self._shown = done

    def _row(self, step: dict[str, Any], done: int) -> Table:
        row = Table.grid(padding=(0, 2))
        row.add_row(f"step {done}/{self._steps}", ProgressBar(self._steps, done, width=30), _figures(step))
        return row


def _figures(step: dict[str, Any]) -> str:
    rate = step["tokens"] / step["seconds"] if step["seconds"] else 0.0
    peers = " + ".join(map(str, step["peers"]))
    return f"loss {step['loss']:.3f}  {rate:6,.0f} tokens/s  peers per stage {peers}"
