"""`swarmflow doctor`: the command line of an examination."""

from __future__ import annotations

import click


@click.command()
@click.argument("invite", required=False, envvar="SWARMFLOW_JOIN")
@click.option("--device", default="auto", show_default=True, help="As of the peer: auto, cpu, cuda:N or mps.")
@click.option("--listen", default="0.0.0.0:0", show_default=True, help="As of the peer: HOST:PORT.")
@click.option("--announce", multiple=True, help="As of the peer: HOST:PORT or multiaddr.")
@click.option("--state-dir", type=click.Path(), default=".", show_default=True, help="As of the peer: a folder.")
@click.option("--memory-limit", help="As of the peer: memory that it may use, such as 8GB.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: ok, and the list of checks.")
def doctor(
    invite: str | None,
    device: str,
    listen: str,
    announce: tuple[str, ...],
    state_dir: str,
    memory_limit: str | None,
    as_json: bool,
) -> int:
    """Examine whether this machine can be a peer: Python, torch, device, memory, disk, network, and the run of INVITE.

    Each line says what to do about it. Exit code 1: something fails.
    """
    from pathlib import Path

    from swarmflow.doctor.examination import Checkup, main
    from swarmflow.quantities import parse_size
    from swarmflow.runtime.transport.invite import Invite

    examined = Checkup(
        # As it is, on whatever machine: who sends it to others wants to know what it is good for there.
        invite=None if invite is None else Invite.parse(invite),
        device=device,
        listen=listen,
        announce=announce,
        state_dir=Path(state_dir),
        memory_limit_bytes=None if memory_limit is None else parse_size("--memory-limit", memory_limit),
    )
    return main(examined, json=as_json)
