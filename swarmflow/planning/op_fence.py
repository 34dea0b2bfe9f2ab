"""OP-Fence: places that Louvain's algorithm finds in the links serve neighbouring stages (FusionLLM, section 4)."""

from __future__ import annotations

from random import Random

import networkx as nx
import numpy as np

from swarmflow.planning.arrangement import Arrangement, Matrix, Problem
from swarmflow.planning.places import row_of
from swarmflow.planning.stage_order import order_of


def arrange(problem: Problem, random: Random) -> Arrangement:
    """Return the arrangement in which each cluster of devices serves stages that follow each other.

    Clusters are communities of the links by what they carry in a second, so that devices of one have fast links. The
    operators are the stages, of which each cluster gets a connected part, as large as its share of the devices: in the
    order of the shortest path through all clusters (the paper leaves it open), their devices fill one stage after the
    other. Pinned devices serve their stages.
    """
    free = set(problem.free)
    communities = _communities(problem, random)
    chosen = [device for number in order_of(_between(problem, communities)) for device in communities[number]]
    return problem.arrangement(problem.filled([device for device in chosen if device in free]))


def _communities(problem: Problem, random: Random) -> list[list[int]]:
    """Return the clusters, each with neighbours side by side: the largest modularity that Louvain's algorithm finds."""
    count = len(problem.transfer_s)
    graph = nx.Graph()
    graph.add_nodes_from(range(count))
    fastest_s = problem.transfer_s[problem.transfer_s > 0].min(initial=np.inf)
    for one in range(count):
        for other in range(one):
            seconds = problem.transfer_s[one, other]
            graph.add_edge(one, other, weight=float(fastest_s / seconds) if seconds > 0 else 1.0)
    found = nx.community.louvain_communities(graph, weight="weight", seed=random.randrange(1 << 32))
    place = {device: number for number, device in enumerate(row_of(problem))}
    return [sorted(community, key=place.__getitem__) for community in sorted(found, key=min)]


def _between(problem: Problem, communities: list[list[int]]) -> Matrix:
    """Return what an activation takes between two clusters in the mean, `[cluster][cluster]`."""
    links_s: Matrix = np.array([[problem.transfer_s[np.ix_(a, b)].mean() for b in communities] for a in communities])
    np.fill_diagonal(links_s, 0.0)
    return links_s
