"""A plan as text: the strategies as a table, and the machines of each stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table

from swarmflow.clean_text import clean
from swarmflow.plans.comparison import Planned
from swarmflow.plans.fleet import Fleet

PIPELINES_MAX, STAGES_MAX = 24, 12  # of more pipelines or stages the machines are in the file of --json alone
_LEGEND = (
    "cost: seconds of communication in an iteration by DT-FM's model: the exchange of\n"
    "gradients within the stages, and the transfers along the pipelines. No plan\n"
    "costs less than the bound. tried: arrangements whose cost was computed."
)


def summary(fleet: Fleet, found: Sequence[Planned], bound_s: float) -> Iterator[RenderableType]:
    """Yield the parts to print; the machines are those of the first plan."""
    problem = fleet.problem
    yield (
        f"{len(fleet.names)} machines as {problem.pipelines} pipelines of {problem.stages} stages; "
        f"bound {bound_s:.4g} s"
    )
    yield from fleet.notes
    yield _strategies(found, bound_s)
    yield _LEGEND
    spare = [name for device, name in enumerate(fleet.names) if device not in found[0].arrangement.stages]
    if problem.pipelines <= PIPELINES_MAX and problem.stages <= STAGES_MAX:
        yield f"pipelines by {found[0].strategy}, a column a stage:"
        yield _pipelines(fleet, found[0])
    else:
        yield "who serves which stage is written by --json FILE"
    if spare or fleet.spare:
        yield f"in no pipeline: {', '.join(map(clean, [*spare, *fleet.spare]))}"


def _strategies(found: Sequence[Planned], bound_s: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("\nstrategy")
    for heading in ("cost\ns", "gradients\ns", "pipelines\ns", "by the\nbound", "\ntried", "CPU\ns"):
        table.add_column(heading, justify="right")
    for each in found:
        plan = each.arrangement
        table.add_row(
            each.strategy,
            *(f"{seconds:.4g}" for seconds in (plan.cost_s, plan.synchronised_s, plan.pipelined_s)),
            f"{plan.cost_s / bound_s:.3f}" if bound_s > 0 else "",
            f"{each.evaluated:,}",
            f"{each.planning_s:.1f}",
        )
    return table


def _pipelines(fleet: Fleet, found: Planned) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    for stage in range(fleet.problem.stages):
        table.add_column(str(stage))
    for pipeline in found.arrangement.pipelines:
        table.add_row(*(clean(fleet.names[device]) for device in pipeline))
    return table
