"""Asks a process of this machine for its metrics, and says whether it makes progress."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from swarmflow.errors import NetworkError, SwarmflowError
from swarmflow.runtime.execution.metrics_server import read_token

_TIMEOUT_S = 5.0
_ANSWER_BYTES_MAX = 16 << 20
_WANTED = ("swarmflow_stalled_seconds", "swarmflow_version")


class StalledError(SwarmflowError):
    """A process has work to do and makes no progress."""


def main(host: str, port: int, token_file: Path | None, stalled_max_s: float) -> int:
    """Print the state of a healthy process and return 0.

    token_file: it holds the token of the metrics; None: SWARMFLOW_METRICS_TOKEN does, or they have none.
    Raises StalledError where it makes no progress for more than `stalled_max_s`, NetworkError where it does not answer.
    """
    values = _values(_read(host, port, read_token(token_file)), f"{host}:{port}")
    stalled_s = values["swarmflow_stalled_seconds"]
    version = f"version {values['swarmflow_version']:.0f}"
    if stalled_s > stalled_max_s:
        raise StalledError(
            f"no progress for {stalled_s:.0f} s at {version}, although there is work (limit {stalled_max_s:.0f} s): "
            "restart the process, and look at its log"
        )
    print(f"healthy at {version}" + (f"; working for {stalled_s:.0f} s" if stalled_s else ""))
    return 0


def _read(host: str, port: int, token: str | None) -> str:
    request = urllib.request.Request(
        f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics",
        headers={"Authorization": f"Bearer {token}"} if token else {},
    )
    # A proxy of the environment cannot reach this machine's own addresses.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_S) as answer:
            return str(answer.read(_ANSWER_BYTES_MAX), "utf-8", "replace")
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise NetworkError(
            f"no metrics at {host}:{port} ({reason}): is the process running, with this --metrics-port?"
        ) from None


def _values(text: str, where: str) -> Mapping[str, float]:
    """Return the wanted values. Raises NetworkError where these are no metrics of a swarmflow process."""
    try:
        found = {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name in _WANTED
        }
    except ValueError:
        found = {}
    if found.keys() != set(_WANTED):
        raise NetworkError(f"{where} answers, but not with the metrics of a swarmflow process: give its --metrics-port")
    return found
