"""The log of a process on standard error: one line an event, as text, as JSON, or above a live view."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from swarmflow import activity
from swarmflow.clean_text import clean, clean_lines
from swarmflow.errors import ConfigError, SwarmflowError

if TYPE_CHECKING:
    from swarmflow.terminal.process_view import ProcessView
    from swarmflow.terminal.screen import LiveScreen

log = logging.getLogger("swarmflow")

LOOK_S = 0.5
FIRST_S = 2.0  # what takes longer is named; then again each time that it has taken so many times as long
AGAIN = 5.0
_LEVELS = (
    (logging.CRITICAL, "critical"),
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (logging.INFO, "info"),
)
_PLAIN = "%(asctime)s %(message)s"


class LogFormat(StrEnum):
    """How a process logs."""

    AUTO = "auto"  # live on a terminal, else plain
    PLAIN = "plain"
    JSON = "json"
    LIVE = "live"


class PlainFormatter(logging.Formatter):
    """Lines with the time, printable whatever is in them: reasons and names come from other machines."""

    def __init__(self) -> None:
        super().__init__(_PLAIN, "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the time and the message in one printable line."""
        return clean(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: ANN401
        """Return a traceback, indented."""
        return clean_lines(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        """Return a stack, indented."""
        return clean_lines(stack_info)


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, kind (of an event of the run), message, fields. docs/terminal.md describes it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, in ASCII."""
        line: dict[str, object] = {"time": round(record.created, 3), "level": _level(record.levelno)}
        if kind := getattr(record, "kind", ""):
            line["kind"] = str(kind)
        line["message"] = clean(record.getMessage())
        fields: Mapping[str, object] = getattr(record, "fields", {})
        if fields:
            line["fields"] = {key: _clean(value) for key, value in fields.items()}
        if record.exc_info:
            line["traceback"] = [clean(text) for text in self.formatException(record.exc_info).split("\n")]
        return json.dumps(line)


def _level(number: int) -> str:
    """Return the level's name; not that of `logging`, which libraries change."""
    return next((name for least, name in _LEVELS if number >= least), "debug")


def _clean(value: object) -> object:
    return clean(value) if isinstance(value, str) else value


class ScreenHandler(logging.Handler):
    """Prints lines above a live view."""

    def __init__(self, screen: LiveScreen) -> None:
        super().__init__()
        self._screen = screen
        self.setFormatter(PlainFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, with a colour where it is a warning."""
        from rich.text import Text

        try:
            style = "yellow" if record.levelno == logging.WARNING else "red" if record.levelno > logging.WARNING else ""
            text = Text(self.format(record), style=style)
            text.stylize("dim", 0, len("00:00:00"))
            self._screen.print_line(text)
        except Exception:  # as the handlers of the standard library do
            self.handleError(record)

    def close(self) -> None:
        """End the live view: a process that ends at once closes its handlers alone."""
        self._screen.stop()
        super().close()


def chosen(text: str) -> LogFormat:
    """Return the format of `--log-format`. Raises ConfigError for a live view where there is no terminal."""
    wanted = LogFormat(text)
    terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if wanted is LogFormat.AUTO:
        return LogFormat.LIVE if terminal else LogFormat.PLAIN
    if wanted is LogFormat.LIVE and not terminal:
        raise ConfigError("--log-format live: stderr is no terminal that can redraw; choose plain, json or auto")
    return wanted


def run_logged(wanted: str, role: str, work: Callable[[ProcessView | None], int]) -> int:
    """Set up the log, do the work of a process and return its exit code; the live view ends with it.

    work: is given the view that it keeps up to date; None: there is none. Errors of users are the last line of a log in
    JSON; in the other formats they are raised.
    """
    form = chosen(wanted)
    if form is LogFormat.LIVE:
        with _live(role) as view:
            return work(view)
    set_up_logging(JsonFormatter() if form is LogFormat.JSON else PlainFormatter())
    with _waits_logged():
        if form is LogFormat.PLAIN:
            return work(None)
        try:
            return work(None)
        except SwarmflowError as error:
            log.error("%s", error)
            return error.exit_code


def set_up_logging(formatter: logging.Formatter | None = None, handler: logging.Handler | None = None) -> None:
    """Log to standard error. `SWARMFLOW_DEBUG=1` shows everything, tracebacks included.

    Libraries speak from warnings. handler: prints the lines instead.
    """
    debug = os.environ.get("SWARMFLOW_DEBUG") == "1"
    if handler is None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter or PlainFormatter())
    root = logging.getLogger("swarmflow")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    logging.getLogger("hivemind").setLevel(logging.DEBUG if debug else logging.CRITICAL)
    logging.getLogger("transformers").setLevel(logging.ERROR)


@contextmanager
def _live(role: str) -> Iterator[ProcessView]:
    from swarmflow.terminal.process_view import ProcessView
    from swarmflow.terminal.screen import LiveScreen

    view = ProcessView(role)
    screen = LiveScreen(view.draw, sys.stderr)
    handler = ScreenHandler(screen)
    set_up_logging(handler=handler)
    screen.start()
    try:
        yield view
    finally:
        screen.stop()


@contextmanager
def _waits_logged() -> Iterator[None]:
    """Log whatever takes long, from a thread: the event loop may be what is held up."""
    over = threading.Event()
    thread = threading.Thread(target=_log_waits, args=(over,), name="waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _log_waits(over: threading.Event) -> None:
    last: tuple[activity.Activity | None, float] = (None, 0.0)  # what was named last, and when it is named again
    while not over.wait(LOOK_S):
        now = activity.current()
        if now is None:
            continue
        due_s = last[1] if last[0] is now else FIRST_S
        if now.seconds >= due_s:
            after = f", for {now.seconds:.0f} s" if last[0] is now else ""
            with contextlib.suppress(Exception):  # a detail that fails must not end the thread
                log.info("%s%s ...", now.line(), after, extra={"kind": "waiting"})
            last = (now, max(now.seconds, FIRST_S) * AGAIN)
