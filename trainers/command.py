"""`swarmflow trainer`: the command line of the trainer role."""

from __future__ import annotations

import click


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
def trainer(**options: object) -> int:
    """Start the run that RUN.toml describes, resume it, or join it as another trainer."""
    from contextlib import ExitStack

    from swarmflow.runtime.operations.logs import set_up_logging
    from trainers.options import TrainerOptions
    from trainers.run import Run

    set_up_logging()
    with ExitStack() as stack:
        run = Run.open(stack, TrainerOptions.parse(options))
        earlier = run.earlier() if run.try_to_lead() else None
        if earlier is not None and run.is_finished(earlier):
            print(f"the run is finished: {run.config.train.steps} steps, the model is in {run.output / 'final'}")
            return 0

        from trainers.process import main  # after all that can be checked without the seconds that its imports take

        return main(run)
