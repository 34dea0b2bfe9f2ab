"""A live picture at the bottom of a terminal, with lines that scroll above it and stay."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from rich.console import Console, RenderableType
from rich.control import Control
from rich.live import Live
from rich.text import Text

from swarmflow.clean_text import clean

REDRAW_S = 0.5

Draw = Callable[[int, int], RenderableType]  # of the width and the rows of the terminal


class LiveScreen:
    """Redraws a picture from a thread, so that it lives while the process imports or computes.

    Where drawing fails, the picture ends and lines are printed on: no line is lost for it.
    """

    def __init__(self, draw: Draw, stream: TextIO, *, whole: bool = False, every_s: float = REDRAW_S) -> None:
        """stream: of a terminal. whole: use the whole screen, and restore what was there before at the end."""
        self._draw = draw
        self._every_s = every_s
        self._console = Console(file=stream, force_terminal=True, highlight=False, markup=False, emoji=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
            screen=whole,
        )
        self._over = threading.Event()
        self._lock = threading.RLock()  # of the live picture
        self._alive = False
        self._thread = threading.Thread(target=self._redraw, name="screen", daemon=True)
        self._replaced: list[tuple[str, LinesAbove]] = []

    def start(self) -> None:
        """Show the picture; what is printed to the terminal from now on appears above it."""
        self._alive = True
        self._live.start()
        self._console.show_cursor(False)
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None and stream.isatty():
                self._replaced.append((name, LinesAbove(self, stream)))
                setattr(sys, name, self._replaced[-1][1])
        self._thread.start()

    def stop(self) -> None:
        """Remove the picture, and restore the terminal."""
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(2 * REDRAW_S)  # a terminal that is stopped (Ctrl-S) must not keep the process
        for _, above in self._replaced:
            above.close_line()
        self._end()
        for name, above in self._replaced:
            setattr(sys, name, above.stream)
        self._replaced.clear()

    def print_line(self, text: Text) -> None:
        """Print a line above the picture; the terminal wraps it, so that it is copied whole."""
        with self._lock:  # else a picture of another height could come between, and cover the line
            self._console.print(text, soft_wrap=True)

    def print_last(self) -> None:
        """Print the picture as it is, to stay there, once the screen has stopped."""
        self._console.print(self._picture())

    def redraw(self) -> None:
        """Draw the picture anew."""
        with self._lock:
            if self._alive:
                try:
                    self._live.update(self._picture(), refresh=True)
                except (OSError, ValueError):  # the terminal is gone
                    self._end()
                except Exception as error:  # a mistake in a picture must not cost a line of the log
                    self._end()
                    self.print_line(Text(f"the live view ends, the process goes on: {type(error).__name__}: {error}"))

    def _picture(self) -> RenderableType:
        return self._draw(self._console.width, self._console.height)

    def _redraw(self) -> None:
        while not self._over.is_set():
            self.redraw()
            self._over.wait(self._every_s)

    def _end(self) -> None:
        if not self._lock.acquire(timeout=2 * REDRAW_S):
            return  # the thread that draws waits for a terminal that is stopped
        try:
            if self._alive:
                self._alive = False
                with suppress(OSError, ValueError):
                    self._live.stop()
                    self._console.control(Control.show_cursor(True))
        finally:
            self._lock.release()


class LinesAbove(io.TextIOBase):
    """Stands for stdout or stderr while a screen is shown, for what is printed by others than the log."""

    def __init__(self, screen: LiveScreen, stream: TextIO) -> None:
        self._screen = screen
        self.stream = stream
        self._rest = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return self.stream.encoding

    def write(self, text: str, /) -> int:
        """Print the whole lines of the text; a part of a line waits for its end."""
        *lines, self._rest = (self._rest + text).split("\n")
        for each in lines:
            self._print(each)
        return len(text)

    def close_line(self) -> None:
        """Print the part of a line whose end has not come."""
        if self._rest:
            self._print(self._rest)
            self._rest = ""

    def _print(self, text: str) -> None:
        last = text.rsplit("\r", 1)[-1]  # a progress bar returns to the line's start
        self._screen.print_line(Text(clean(Text.from_ansi(last).plain)))

    def flush(self) -> None:
        """Flush the stream; a part of a line goes on waiting."""
        self.stream.flush()

    def isatty(self) -> bool:
        """Return True: it is a terminal."""
        return True

    def fileno(self) -> int:
        """Return the number of the stream."""
        return self.stream.fileno()
