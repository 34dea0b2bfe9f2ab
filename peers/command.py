"""`swarmflow peer`: the command line of the peer role."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from swarmflow.terminal.process_view import ProcessView

log = logging.getLogger("swarmflow")

# Larger numbers of a peer that joins are refused by the leader (core/protocol/messages/checks.py).
NUMBER_MAX = 10**9


@click.command()
@click.option("--join", "invite", envvar="SWARMFLOW_JOIN", help="The invite that a trainer printed.")
@click.option("--stage", default="auto", show_default=True, help="A stage's number, or auto: where help is needed.")
@click.option(
    "--device",
    default="auto",
    show_default=True,
    help="auto, cpu, cuda:N or mps; or several, as cuda:0,cuda:1, or all CUDA devices: a peer for each.",
)
@click.option(
    "--capacity", type=click.IntRange(1, NUMBER_MAX), help="Microbatches in memory at a time; measured by default."
)
@click.option("--metrics-port", type=click.IntRange(0, 65535), help="Serve Prometheus metrics here (0: any port).")
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="The address to serve metrics on.")
@click.option("--metrics-token", metavar="FILE", help="Metrics are for clients that send the token in this file.")
@click.option("--state-dir", type=click.Path(file_okay=False), help="Keep identity and copies here.")
@click.option(
    "--keep-copies/--no-copies",
    default=True,
    show_default=True,
    help="Keep copies of other stages' states in --state-dir, against their loss.",
)
@click.option("--listen", default="0.0.0.0:0", show_default=True, help="HOST:PORT to take connections on.")
@click.option("--announce", multiple=True, help="HOST:PORT or multiaddr at which others reach this machine.")
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0),
    help="How long Ctrl-C or SIGTERM waits for the step to be committed; by default as long as the run says, 30 s.",
)
@click.option(
    "--journal-bytes-max",
    show_default="1 GiB, or an eighth of --memory-limit",
    type=click.IntRange(min=0),
    help="Bytes kept for repairs; above it the death of a peer has live ones compute again.",
)
@click.option("--memory-limit", help="Memory that it may use, such as 8GB: the device's, or its own on a CPU.")
@click.option(
    "--state",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "device", "host"]),
    help="Where fp32 weights and moments are: host is the RAM beside a GPU; auto: there if the GPU is too small.",
)
@click.option(
    "--activations",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "keep", "recompute"]),
    help="recompute: blocks keep their input, and are computed twice; auto: if too few microbatches fit into memory.",
)
@click.option(
    "--compile",
    is_flag=True,
    help="Compile the blocks with torch.compile: passes are faster, and a stage takes up to some minutes to build.",
)
@click.option("--upload-limit", help="Bytes or bits a second that it may send, such as 20Mbit/s or 2.5MB/s.")
@click.option(
    "--recompute/--no-recompute",
    default=True,
    show_default=True,
    help="When idle, take microbatches beyond the capacity, and do their forward pass twice.",
)
@click.option(
    "--rebalance-period",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0, NUMBER_MAX),
    help="Seconds after which it may be moved to a stage that needs it more; 0: it stays.",
)
@click.option(
    "--trust-module",
    multiple=True,
    metavar="PACKAGE:FUNCTION",
    help="Import this function if the run trains the module that it makes: it is code of the run's owner.",
)
@click.option("--stay", is_flag=True, help="Go on when the run is finished, and wait for it to be prolonged.")
@click.option(
    "--log-format",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "plain", "json", "live"]),
    help="Lines, one JSON object a line, or a live view with the lines above it; auto: live on a terminal, else plain.",
)
@click.option("--of-host", metavar="FOLDER", hidden=True, help="It is one of several, and leaves with their parent.")
@click.pass_context
def peer(context: click.Context, /, **options: object) -> int:
    """Serve a stage of a model that is being trained."""
    from peers.devices import several
    from peers.options import PeerOptions

    if several(str(options["device"])):
        PeerOptions.parse({**options, "device": "auto"})  # once, not by each of them
        from peers.host import main as serve_host

        return serve_host(context)

    checked = PeerOptions.parse(options)  # before the imports that take seconds
    if checked.device == "mps":
        # Operations that torch has not for Metal run on the CPU; torch reads this when it is loaded.
        os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")

    from swarmflow.runtime.execution.heap import restart_with_heap_settings

    restart_with_heap_settings()
    if checked.of_host is not None:
        from peers.host import leave_with_parent

        leave_with_parent()

    from swarmflow.activity import doing
    from swarmflow.runtime.operations.logs import run_logged

    def serve(view: ProcessView | None) -> int:
        if options["invite"] is None:
            log.info("joining run %s, which is alive on this machine; --join INVITE joins another", checked.invite.name)
        with doing("loading the libraries (torch, hivemind)"):
            from peers.process import main
        return main(checked, view)

    return run_logged(checked.log_format, "peer", serve)
