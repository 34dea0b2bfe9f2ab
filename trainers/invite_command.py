"""`swarmflow invite`: the command line by which the owner of a run invites trainers and peers, and puts them out."""

from __future__ import annotations

import click


@click.command()
@click.argument("run_toml", metavar="RUN.toml", type=click.Path(dir_okay=False))
@click.option("--trainer", "role", flag_value="trainer", help="An invite for a trainer, which may lead the run too.")
@click.option("--peer", "role", flag_value="peer", help="An invite for a peer, with a certificate of its own.")
@click.option("--expires", metavar="TIME", help="Until when the invite lets somebody in: 12h, 30d; default: always.")
@click.option("--revoke", metavar="CERTIFICATE", help="Put out whoever came by this certificate: an invite or its id.")
def invite(run_toml: str, role: str | None, expires: str | None, revoke: str | None) -> int:
    """Print an invite to the run that RUN.toml describes, which was started from here; or revoke one."""
    from pathlib import Path

    from trainers.granting import Granting

    granting = Granting.of(Path(run_toml))
    if revoke is not None:
        if role is not None or expires is not None:
            raise click.UsageError("--revoke goes without other options")
        return granting.revoke(revoke)
    return granting.print_invite(role, expires)
