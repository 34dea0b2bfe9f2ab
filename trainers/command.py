"""`swarmflow trainer`: the command line of the trainer role."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from swarmflow.terminal.process_view import ProcessView


@click.command()
@click.argument("run_toml", metavar="RUN.toml", type=click.Path(dir_okay=False))
@click.option("--join", "invite", help="Join a run that another trainer started: its invite.")
@click.option("--state-dir", type=click.Path(file_okay=False), help="Identity and checkpoints; default: under output.")
@click.option("--invite-file", type=click.Path(dir_okay=False), help="Write the invite here once peers may join.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Append one JSON object a step here.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics here (0: any port).")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address to serve metrics on.")
@click.option("--metrics-token", metavar="FILE", help="Metrics are for clients that send the token in this file.")
@click.option("--page", "page_port", type=click.IntRange(0, 65535), help="Serve a page of the run here (0: any port).")
@click.option("--page-host", default="127.0.0.1", show_default=True, help="The address to serve the page on.")
@click.option("--listen", help="HOST:PORT to take connections on; PORT 0, the default: any, kept across restarts.")
@click.option("--announce", multiple=True, help="HOST:PORT or multiaddr at which others reach this machine.")
@click.option(
    "--log-format",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "plain", "json", "live"]),
    help="Lines, one JSON object a line, or a live view with the lines above it; auto: live on a terminal, else plain.",
)
def trainer(**options: object) -> int:
    """Start the run that RUN.toml describes, resume it, or join it as another trainer."""
    from swarmflow.runtime.operations.logs import run_logged

    return run_logged(str(options["log_format"]), "trainer", lambda view: _train(options, view))


def _train(options: dict[str, object], view: ProcessView | None) -> int:
    from contextlib import ExitStack

    from swarmflow.activity import doing

    with ExitStack() as stack:
        with doing("loading the libraries for data and tokenizers"):
            from trainers.options import TrainerOptions
            from trainers.run import Run
        run = Run.open(stack, TrainerOptions.parse(options))
        with doing("looking at what the output holds of the run"):
            earlier = run.earlier() if run.try_to_lead() else None
            finished = earlier is not None and run.is_finished(earlier)
        if finished:
            text = f"the run is finished: {run.config.train.steps} steps, the model is in {run.output / 'final'}"
            if options["log_format"] == "json":
                logging.getLogger("swarmflow").info("%s", text, extra={"kind": "finished"})
            else:
                print(text)
            return 0

        with doing("loading the libraries (torch, hivemind)"):  # after all that can be checked without them
            from trainers.process import main

        return main(run, view)
