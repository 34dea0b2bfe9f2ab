"""The log of a process: one line an event, on standard error."""

from __future__ import annotations

import logging
import os
import sys

from swarmflow.clean_text import clean


class _CleanFormatter(logging.Formatter):
    """One line a record, without what could move a terminal's cursor; a traceback, of our own code, keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's own name
        record.message = clean(record.message)
        return super().formatMessage(record)


def set_up_logging() -> None:
    """Lines with the time; `SWARMFLOW_DEBUG=1` shows everything, tracebacks included. Libraries speak from warnings."""
    debug = os.environ.get("SWARMFLOW_DEBUG") == "1"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_CleanFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    root = logging.getLogger("swarmflow")
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(logging.DEBUG if debug else logging.INFO)
    logging.getLogger("hivemind").setLevel(logging.DEBUG if debug else logging.CRITICAL)
    logging.getLogger("transformers").setLevel(logging.ERROR)
