"""Paths in RUN.toml, which are relative to its folder."""

import os
from pathlib import Path
from typing import Any

from swarmflow import config_check as check
from swarmflow.errors import ConfigError


def make_absolute(values: dict[str, dict[str, Any]], folder: Path) -> None:
    """Turns what names files into absolute paths, in place; a hub name stays unless a file of that name is there."""
    run, model, data = values["run"], values["model"], values["data"]
    run["output"] = _absolute(folder, run.get("output", "out"))
    if "path" in model:
        model["path"] = _absolute(folder, model["path"])
    for name in ("path", "validation_path"):
        if name in data:
            data[name] = str(_absolute(folder, data[name]))
    for name in ("dataset", "tokenizer"):
        value = data.get(name, "bytes")
        local = _absolute(folder, value)
        looks_local = value.startswith((".", "/", "~")) or value.endswith(".json")
        # os.path.exists, unlike Path.exists, takes a name that is too long for a file as one that is not there.
        if value != "bytes" and (looks_local or os.path.exists(local)):
            data[name] = str(local)


def _absolute(folder: Path, value: str) -> Path:
    # Path.absolute() keeps "..", which a glob and a link to a folder need; only "~" is expanded.
    try:
        return (folder / Path(value).expanduser()).absolute()
    except RuntimeError as error:
        raise ConfigError(f"{check.shown(value)} names the home folder of a user that is not there") from error
