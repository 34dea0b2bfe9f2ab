"""The command line of a peer, checked without loading torch, so that a mistake is reported at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarmflow.config_check import FUNCTION
from swarmflow.errors import ConfigError
from swarmflow.quantities import parse_size, parse_upload
from swarmflow.runtime.execution.metrics_server import read_token
from swarmflow.runtime.transport.invite import Invite, read_invite
from swarmflow.suggestions import did_you_mean

_STAGE = re.compile(r"auto|[0-9]{1,9}")
_DEVICES = ("auto", "cpu", "cuda", "mps")
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,4})?")


@dataclass(frozen=True)
class PeerOptions:
    """The command line of a peer."""

    invite: Invite
    stage: int  # -1: any
    device: str
    capacity: int | None
    metrics_port: int | None
    metrics_host: str
    metrics_token: str | None = field(repr=False)  # that a client has to send; None: everybody may read
    state_dir: Path | None
    keep_copies: bool
    listen: str
    announce: tuple[str, ...]
    drain_seconds: float | None
    journal_bytes_max: int | None  # None: 1 GiB, or less under a memory limit
    memory_limit: int | None  # in bytes
    upload_limit: float | None  # in bytes/s
    recompute: bool
    rebalance_period: float
    stay: bool
    trust_module: tuple[str, ...] = ()  # that may be imported, "package:function"
    log_format: str = "auto"
    state: str = "auto"  # where the state of the stage is: auto, device or host
    activations: str = "auto"  # of blocks: auto, keep or recompute
    compile: bool = False  # the blocks, with torch.compile
    of_host: Path | None = None  # the folder in which the peers of one host find each other; None: it runs alone

    @classmethod
    def parse(cls, values: dict[str, Any]) -> PeerOptions:
        """Make them from click's values. Raises ConfigError; NetworkError for the invite, given or of this machine."""
        stage, device, folder = values["stage"], values["device"], values["state_dir"]
        memory, upload = values["memory_limit"], values["upload_limit"]
        if not _STAGE.fullmatch(stage):
            raise ConfigError(
                f"--stage {stage}: must be auto or the number of a stage, from 0{did_you_mean(stage, ['auto'])}"
            )
        if not _DEVICE.fullmatch(device):
            raise ConfigError(
                f"--device {device}: allowed are auto, cpu, cuda:N and mps{did_you_mean(device, _DEVICES)}"
            )
        for name in values["trust_module"]:
            if not FUNCTION.fullmatch(name):
                raise ConfigError(f"--trust-module {name}: must be the run's model.module, PACKAGE:FUNCTION")
        return cls(
            **{
                **values,
                "invite": read_invite(values["invite"]),
                "stage": -1 if stage == "auto" else int(stage),
                "state_dir": Path(folder) if folder else None,
                "of_host": Path(values["of_host"]) if values["of_host"] else None,
                "memory_limit": None if memory is None else parse_size("--memory-limit", memory),
                "upload_limit": None if upload is None else parse_upload("--upload-limit", upload),
                "metrics_token": read_token(Path(values["metrics_token"]) if values["metrics_token"] else None),
            }
        )
