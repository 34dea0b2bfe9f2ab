"""The policies of simulated swarms: swarmflow's own machines, and the baselines that they are compared with."""

from __future__ import annotations

from swarmflow.errors import ConfigError
from swarmflow.policies.baselines import DTFM, GPIPE, GWTF, SWARM, SWARM_RESTART
from swarmflow.policies.policy import Policy
from swarmflow.policies.swarmflow import Swarmflow
from swarmflow.suggestions import did_you_mean

__all__ = ["POLICIES", "Policy", "policy_named"]

POLICIES: dict[str, Policy] = {p.name: p for p in (Swarmflow(), SWARM, SWARM_RESTART, GPIPE, DTFM, GWTF)}


def policy_named(name: str) -> Policy:
    """Return the policy of this name. Raises ConfigError, which lists the names of all."""
    policy = POLICIES.get(name)
    if policy is not None:
        return policy
    raise ConfigError(f"unknown policy {name!r}{did_you_mean(name, POLICIES)}; allowed: {', '.join(POLICIES)}")
