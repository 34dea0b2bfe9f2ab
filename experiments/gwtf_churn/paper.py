"""What GWTF reports in Tables II and III (means), by model, metric and column."""

from __future__ import annotations

TIME = "Time per microbatch (min)"
THROUGHPUT = "Throughput (#microb/iteration)"
COMMUNICATION = "Communication time"
WASTED = "Wasted GPU time"
LOST = "Lost with the dead"

_COLUMNS = [f"{kind} {chance}%" for kind in ("Homogeneous", "Heterogeneous") for chance in (0, 10, 20)]
_SWARM = {
    ("LLaMA-like", TIME): (0.53, 1.26, 1.76, 1.59, 4.53, 5.36),
    ("LLaMA-like", THROUGHPUT): (8.0, 4.64, 6.1, 2.96, 1.56, 1.72),
    ("LLaMA-like", COMMUNICATION): (6.07, 12.23, 17.74, 10.55, 3.95, 7.18),
    ("LLaMA-like", WASTED): (0.27, 0.75, 1.75, 0.57, 0.33, 0.33),
    ("GPT-like", TIME): (0.68, 1.77, 1.92, 1.4, 3.5, 5.3),
    ("GPT-like", THROUGHPUT): (8.0, 4.52, 4.35, 2.96, 1.78, 1.83),
}
_GWTF = {
    ("LLaMA-like", TIME): (0.58, 1.01, 1.17, 1.15, 2.45, 3.47),
    ("LLaMA-like", THROUGHPUT): (7.16, 5.8, 5.72, 3.6, 2.08, 2.12),
    ("LLaMA-like", COMMUNICATION): (4.2, 7.76, 4.57, 3.65, 2.62, 4.28),
    ("LLaMA-like", WASTED): (0.03, 0.2, 0.0, 0.0, 0.1, 0.03),
    ("GPT-like", TIME): (0.37, 0.99, 1.32, 1.18, 2.63, 3.16),
    ("GPT-like", THROUGHPUT): (8.0, 6.39, 6.04, 4.0, 2.26, 2.39),
}
# GWTF describes the SWARM that it compares with as starting a microbatch over: our swarm-restart.
_TABLES = {"swarm-restart": _SWARM, "gwtf": _GWTF}


def reported(policy: str, model: str, metric: str, column: str) -> float | None:
    """The mean that the paper gives, if it gives one for what this policy is."""
    values = _TABLES.get(policy, {}).get((model, metric))
    return None if values is None else values[_COLUMNS.index(column)]
