"""The exact optimum: integer multi-commodity min-cost flow at maximum flow, by HiGHS."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from experiments.flow.instance import Instance

LIMIT_S = 300.0


Hop = tuple[int, int, int, int]  # (data node, layer, from, to); layer 0 leaves the data nodes


def optimum(instance: Instance, relaxed: bool = False) -> float:
    """The least sum of link costs with `instance.flow` flows, each back at its own data node (GWTF, equation 2).

    relaxed: a bound below it, of flows that need not be whole. RuntimeError: HiGHS did not prove it in LIMIT_S.
    """
    return optimal_flows(instance, relaxed)[0]


def optimal_flows(instance: Instance, relaxed: bool = False) -> tuple[float, dict[Hop, int]]:
    """The optimum, and the units on each link."""
    layers = [instance.sources, *instance.stages, instance.sources]
    variables = [
        (s, k, i, j)
        for s in instance.sources
        for k in range(len(layers) - 1)
        for i in (layers[k] if k else (s,))
        for j in (layers[k + 1] if k + 2 < len(layers) else (s,))
    ]
    arriving: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    leaving: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for number, (s, k, i, j) in enumerate(variables):
        leaving[s, k, i].append(number)
        arriving[s, k + 1, j].append(number)
    rows: list[tuple[list[tuple[int, int]], float, float]] = []
    for k, stage in enumerate(instance.stages, 1):
        for node in stage:
            for s in instance.sources:
                rows.append(([(v, 1) for v in arriving[s, k, node]] + [(v, -1) for v in leaving[s, k, node]], 0, 0))
            into = [(v, 1) for s in instance.sources for v in arriving[s, k, node]]
            rows.append((into, 0, instance.capacity[node]))
    for s in instance.sources:
        rows.append(([(v, 1) for v in leaving[s, 0, s]], 0, instance.wanted(s)))
    out = [(v, 1) for s in instance.sources for v in leaving[s, 0, s]]
    rows.append((out, instance.flow, instance.flow))
    entries = [(r, v, sign) for r, (terms, _, _) in enumerate(rows) for v, sign in terms]
    r, v, sign = zip(*entries, strict=True)
    matrix = coo_matrix((sign, (r, v)), shape=(len(rows), len(variables))).tocsc()
    found = milp(
        np.array([instance.cost[i][j] for _, _, i, j in variables]),
        constraints=LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows]),
        # With one data node every corner of the relaxation is whole-numbered.
        integrality=np.full(len(variables), int(len(instance.sources) > 1 and not relaxed)),
        bounds=Bounds(0, np.inf),
        options={"time_limit": LIMIT_S, "mip_rel_gap": 0.0},
    )
    if found.x is None or found.status != 0:
        raise RuntimeError(f"no optimum was proven: {found.message}")
    units = {hop: round(value) for hop, value in zip(variables, found.x, strict=True) if value > 0.5}
    return float(found.fun), units
