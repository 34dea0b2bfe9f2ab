"""What of the reports to a candidate is believed: some voters may lie, and anybody without a vote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from swarmflow.core.commit.quorum import lies_max
from swarmflow.core.protocol.messages import ElectionReport, OpenStep
from swarmflow.core.protocol.types import Member, Plan, ProcessId


def believed_dead(reports: Mapping[ProcessId, ElectionReport], opened: OpenStep) -> set[ProcessId]:
    """Return the members that were declared dead: a trainer says so, or more voters than may lie."""
    accusers: dict[ProcessId, set[ProcessId]] = {}
    for process, report in reports.items():
        for accused in report.gone:
            accusers.setdefault(accused, set()).add(process)
    return _believed(accusers, reports, opened)


def believed_newcomers(reports: Mapping[ProcessId, ElectionReport], opened: OpenStep) -> dict[ProcessId, Member]:
    """Return the members that came in meanwhile: each says so itself, a trainer says so, or more voters than may lie.

    Whom the OpenStep names is one of them only by what it says, since a newcomer has no vote in it.
    """
    places, members = opened.roster.stage_by_id, dict[ProcessId, Member]()
    namers: dict[ProcessId, set[ProcessId]] = {}
    for process, report in reports.items():
        listed = {member.process: member for member in report.opened.roster.peers}
        shown = [listed[each] for each in report.opened.newcomers if each in listed]
        for member in (*report.newcomers, *shown):
            if member.process in places or member.stage < 0:
                continue
            namers.setdefault(member.process, set()).add(process)
            if process == member.process or member.process not in members:
                members[member.process] = member
    believed = _believed(namers, reports, opened)
    strangers = {process: member for process, member in members.items() if process in believed | namers[process]}
    return strangers | {member.process: member for member in opened.roster.peers if member.process in opened.newcomers}


def _believed(
    witnesses: Mapping[ProcessId, set[ProcessId]], reports: Mapping[ProcessId, ElectionReport], opened: OpenStep
) -> set[ProcessId]:
    """Return the processes of which a trainer has said something, or more voters than may lie."""
    trainers = {process for process, report in reports.items() if report.join.role == "trainer"}
    voters = {process for process, report in reports.items() if report.member.votes}
    most = lies_max(opened.voters)
    return {process for process, by in witnesses.items() if by & trainers or len(by & voters) > most}


def mistaken(reports: Mapping[ProcessId, ElectionReport], dead: set[ProcessId]) -> set[ProcessId]:
    """Return who has taken a member for dead that is not: it would not go on with that one, and has to join again."""
    return {process for process, report in reports.items() if not dead.issuperset(report.gone)}


def of_its_history(report: ElectionReport) -> ElectionReport:
    """Return a report without a decision of another history than its step's.

    Where a trainer has lost what it knew of the run's former life, generations and ballots begin anew: it may have
    signed a commit and a ballot of the same numbers before.
    """
    step = report.opened.epoch, report.opened.lineage
    if report.commit is not None and (report.commit.epoch, report.commit.lineage) != step:
        report = replace(report, commit=None)
    if report.tally is not None and report.tally.lineage != report.opened.lineage:
        report = replace(report, ballot=0, tally=None, results=())
    return report


def of_its_role(report: ElectionReport, plan: Plan) -> ElectionReport:
    """Return a report without what its sender cannot know: microbatches are the trainers'."""
    ahead = report.ahead and plan.delay > 0
    if report.join.role == "trainer":
        return report if ahead == report.ahead else replace(report, ahead=ahead, ahead_indices=())
    return replace(report, ahead=ahead, indices=(), ahead_indices=(), reassignment=0)
