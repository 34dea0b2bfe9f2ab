"""`swarmflow export`: a run's model as a Hugging Face checkpoint."""

from __future__ import annotations

import click


@click.command()
@click.option("--join", "invite", help="The invite of a run that is alive.")
@click.option("--state-dir", type=click.Path(file_okay=False), help="A trainer's state folder, of any run.")
@click.option("--out", required=True, type=click.Path(file_okay=False), help="The folder to write.")
@click.option(
    "--dtype",
    type=click.Choice(("float32", "bfloat16", "float16")),
    help="Of the numbers; not given: as [run] export_dtype of the run says.",
)
@click.option(
    "--merge",
    "base",
    type=click.Path(exists=True, file_okay=False),
    help="Of a run that trains adapters: the folder of its base model, to whose weights they are added.",
)
def export(invite: str | None, state_dir: str | None, out: str, dtype: str | None, base: str | None) -> int:
    """Write a run's newest version for plain transformers, or its adapters for peft."""
    from pathlib import Path

    from swarmflow.errors import ConfigError
    from swarmflow.runtime.transport.invite import read_invite

    if invite is not None and state_dir is not None:
        raise ConfigError("give either --join or --state-dir, not both")
    # Checked before the imports that take seconds.
    whence = Path(state_dir) if state_dir is not None else read_invite(invite)
    if isinstance(whence, Path) and not any((whence / name).is_file() for name in ("run.json", "run.json.copy")):
        raise ConfigError(f"--state-dir {whence} is not a trainer's state folder: it has no run.json")

    from swarmflow.runtime.operations.export_command import main

    return main(whence, Path(out), dtype, None if base is None else Path(base))
