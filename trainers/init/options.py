"""The command line of `swarmflow init`, checked without loading torch, so that a mistake is reported at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmflow.config_check import Disallowed
from swarmflow.config_check import name as checked_name
from swarmflow.errors import ConfigError, ForeignFileError


@dataclass(frozen=True)
class InitOptions:
    """The command line of `swarmflow init`. None: to be chosen."""

    folder: Path  # with the text, unless `data` names another place
    out: Path  # the file to write; absolute
    model: str
    data: str | None
    name: str | None
    steps: int | None
    stages: int | None
    seq_len: int | None
    tokenizer: str | None
    text_field: str

    @classmethod
    def parse(cls, values: dict[str, Any]) -> InitOptions:
        """Make them from click's values. Raises ConfigError; ForeignFileError where the file exists."""
        folder, name = Path(values["folder"]).expanduser(), values["name"]
        out = Path(values["out"]).expanduser() if values["out"] else folder / "RUN.toml"
        if out.exists() or out.is_symlink():
            raise exists_already(out)
        if name is not None:
            try:
                checked_name(name)
            except Disallowed as error:
                raise ConfigError(f"--name {name}: must be {error}") from None
        return cls(**{**values, "folder": folder, "out": out.absolute()})


def exists_already(out: Path) -> ForeignFileError:
    """Return the error of a file that is in the way."""
    return ForeignFileError(f"{out} exists already and stays as it is: remove it, or give another file with --out")
