"""What the figures of all scenarios say: is the best router ahead of every baseline, and the default near it?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from experiments.held_out.policies import BASELINES, DEFAULT, OURS, PolicyResult

NEAR = 1.03  # the most that the default may take of the best router's time

Results = Mapping[str, PolicyResult]  # of one scenario, by policy


@dataclass(frozen=True, slots=True)
class HeldOutVerdict:
    """The facts of so many scenarios.

    ahead: in how many the best router takes less time than every baseline. deficit: the most by which it is behind
    one, as a share of that one's time; below 0 where it is ahead everywhere. near: in how many the default router
    takes at most NEAR of the best one's time.
    """

    scenarios: int
    ahead: int
    deficit: float
    near: int

    def lines(self) -> tuple[str, ...]:
        """One sentence a fact."""
        of = f"of {self.scenarios} scenarios"
        behind = f"{self.deficit:.1%} more time" if self.deficit > 0 else f"{-self.deficit:.1%} less time"
        return (
            f"swarmflow's best router is ahead of every baseline in {self.ahead} {of}.",
            f"Where it compares worst, it takes {behind} than the best baseline.",
            f"The default router is within {NEAR - 1:.0%} of the best one in {self.near} {of}.",
        )


def best_of(results: Results, policies: Iterable[str]) -> str:
    """The policy that takes the least time, of those that were measured."""
    return min((policy for policy in policies if policy in results), key=lambda policy: results[policy].mean_s)


def ratios(results: Results) -> dict[str, float]:
    """The time of each policy by that of swarmflow's best router; infinite where it did not get to its end."""
    least_s = results[best_of(results, OURS)].mean_s
    return {policy: result.mean_s / least_s for policy, result in results.items()}


def counted(results: Results) -> Results:
    """The same where gradients that died with a peer count as learnt."""
    return {policy: result.counted for policy, result in results.items()}


def verdict(found: Iterable[Results]) -> HeldOutVerdict:
    """The facts of some scenarios, at least one. Raises ValueError where no router got to its end in one of them."""
    ahead, near, deficits = 0, 0, []
    for results in found:
        if not results[best_of(results, OURS)].seconds:
            raise ValueError("no router of swarmflow has a figure in a scenario")
        by = ratios(results)
        strongest = by[best_of(results, BASELINES)]
        ahead += strongest > 1
        near += by[f"swarmflow {DEFAULT}"] <= NEAR
        deficits.append(1 / strongest - 1)
    return HeldOutVerdict(len(deficits), ahead, max(deficits), near)
