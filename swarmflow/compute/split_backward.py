"""A backward pass in two parts: the gradient of the input first, which others wait for, then those of the parameters.

Autograd computes both in the same nodes. The first part runs the graph for the input alone and keeps what enters each
node that parameters hang on; the second one runs these nodes once more, for their parameters alone. Neither computes
what the other one has, so both together give the bits of one backward pass (zero bubble: Qi et al., 2023, section 2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

Gradients = tuple[Tensor | None, ...]  # of the outputs of a node


@dataclass(frozen=True, slots=True)
class _Joint:
    """A node of which the input of the stage is one argument, and what parameters give another."""

    node: Node
    parameters: list[Tensor]


@dataclass(slots=True)
class SplitBackward:
    """The second part of a backward pass whose first part is done; it keeps the graph, and a gradient for each node."""

    _joints: list[_Joint]
    _entered: dict[Node, Gradients] = field(default_factory=dict)  # in the order in which they were reached

    def accumulate(self) -> None:
        """Accumulate the gradients of the parameters, as a backward pass does, and free the graph."""
        joints = {joint.node: joint.parameters for joint in self._joints}
        for node, gradients in self._entered.items():
            given = [(n, gradient) for n, gradient in enumerate(gradients) if gradient is not None]
            edges = [GradientEdge(node, n) for n, _ in given]
            torch.autograd.backward(edges, [gradient for _, gradient in given], inputs=joints[node])
        self._joints, self._entered = [], {}


def split(edge: GradientEdge, gradient: Tensor, leaf: Tensor) -> SplitBackward | None:
    """Compute `leaf.grad` from the gradient of the graph's output; return what is left, None: nothing was computed.

    It cannot be split where a parameter is used twice: its gradients would be added up in another order.
    """
    joints = list(_joints_of(edge.node, leaf))
    parameters = [id(parameter) for joint in joints for parameter in joint.parameters]
    if not joints or len(set(parameters)) < len(parameters):
        return None
    rest = SplitBackward(joints)
    handles = [joint.node.register_prehook(_keeping(rest._entered, joint.node)) for joint in joints]
    try:
        torch.autograd.backward([edge], [gradient], inputs=[leaf], retain_graph=True)
    finally:
        for handle in handles:
            handle.remove()
    return rest


def _keeping(entered: dict[Node, Gradients], node: Node) -> Callable[[Gradients], None]:
    def keep(gradients: Gradients) -> None:
        entered[node] = gradients

    return keep


def _joints_of(root: Node, leaf: Tensor) -> Iterator[_Joint]:
    """Find the nodes at which parameters join the path from the leaf to the root."""
    leads_to_leaf: dict[Node, bool] = {}
    parameters: dict[Node, list[Tensor]] = {}  # that a node leads to, if it does not lead to the leaf
    for node in _postorder(root):
        after = [each for each, _ in node.next_functions if each is not None]
        variable = getattr(node, "variable", None)  # of the node that accumulates the gradient of a tensor
        leads_to_leaf[node] = variable is leaf or any(leads_to_leaf[each] for each in after)
        parameters[node] = [] if variable is None else [variable]
        # Once each, however many paths lead there: their number grows exponentially with the depth.
        aside = list({id(p): p for each in after if not leads_to_leaf[each] for p in parameters[each]}.values())
        if not leads_to_leaf[node]:
            parameters[node] += aside
        elif aside:
            yield _Joint(node, aside)


def _postorder(root: Node) -> Iterator[Node]:
    """Each node once, after all that it leads to. The graph of a deep stage is deeper than Python's stack."""
    seen = {root}
    stack = [(root, iter(root.next_functions))]
    while stack:
        node, following = stack[-1]
        for after, _ in following:
            if after is not None and after not in seen:
                seen.add(after)
                stack.append((after, iter(after.next_functions)))
                break
        else:
            stack.pop()
            yield node
