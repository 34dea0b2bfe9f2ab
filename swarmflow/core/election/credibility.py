"""What of the reports to a candidate is believed: some voters may lie, and anybody without a vote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from swarmflow.core.commit.quorum import lies_max
from swarmflow.core.protocol.messages import ElectionReport, OpenStep
from swarmflow.core.protocol.types import Plan, ProcessId


def believed_dead(reports: Mapping[ProcessId, ElectionReport], opened: OpenStep) -> set[ProcessId]:
    """Return the members that were declared dead: a trainer says so, or more voters than may lie."""
    accusers: dict[ProcessId, set[ProcessId]] = {}
    for process, report in reports.items():
        for accused in report.gone:
            accusers.setdefault(accused, set()).add(process)
    trainers = {process for process, report in reports.items() if report.join.role == "trainer"}
    voters = {process for process, report in reports.items() if report.member.votes}
    most = lies_max(opened.voters)
    return {accused for accused, by in accusers.items() if by & trainers or len(by & voters) > most}


def mistaken(reports: Mapping[ProcessId, ElectionReport], dead: set[ProcessId]) -> set[ProcessId]:
    """Return who has taken a member for dead that is not: it would not go on with that one, and has to join again."""
    return {process for process, report in reports.items() if not dead.issuperset(report.gone)}


def of_its_role(report: ElectionReport, plan: Plan) -> ElectionReport:
    """Return a report without what its sender cannot know: microbatches are the trainers'."""
    ahead = report.ahead and plan.delay > 0
    if report.join.role == "trainer":
        return report if ahead == report.ahead else replace(report, ahead=ahead, ahead_indices=())
    return replace(report, ahead=ahead, indices=(), ahead_indices=(), reassignment=0)
