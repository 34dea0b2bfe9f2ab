"""The command line of a trainer, checked without loading torch, so that a mistake is reported at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarmflow.runtime.execution.metrics_server import read_token
from swarmflow.runtime.transport.invite import Invite, read_invite


@dataclass(frozen=True)
class TrainerOptions:
    """The command line of a trainer."""

    run_toml: Path
    invite: Invite | None
    state_dir: Path | None
    invite_file: Path | None
    json_file: Path | None
    metrics_port: int | None
    metrics_host: str
    metrics_token: str | None = field(repr=False)  # that a client has to send; None: everybody may read
    page_port: int | None
    page_host: str
    listen: str | None
    announce: tuple[str, ...]
    log_format: str = "auto"

    @classmethod
    def parse(cls, values: dict[str, Any]) -> TrainerOptions:
        """Make them from click's values. Raises NetworkError for an invalid invite, ConfigError for a bad token."""
        invite = values["invite"]
        paths = {name: Path(values[name]) for name in ("state_dir", "invite_file", "json_file") if values[name]}
        return cls(
            **{
                **values,
                **paths,
                "run_toml": Path(values["run_toml"]),
                "metrics_token": read_token(Path(values["metrics_token"]) if values["metrics_token"] else None),
                "invite": read_invite(invite) if invite else None,
            }
        )
