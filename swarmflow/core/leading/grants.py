"""Granting a stage to a peer: which version it loads, and from whom."""

from __future__ import annotations

from swarmflow.core.actions import Action, Connect, Log, Send
from swarmflow.core.leading.membership import Known
from swarmflow.core.leading.reign import Reign
from swarmflow.core.messages import Granted


def grant(reign: Reign, entry: Known, stage: int, reason: str) -> list[Action]:
    """Have a peer load a stage at the run's version. Whatever it answers to an earlier grant is void."""
    donors = reign.membership.donors(stage, reign.version, entry.process)
    entry.hopeful = bool(donors) or reign.version == reign.safe.durable
    if not donors and not (reign.version == 0 and reign.settings.from_seed):
        donors = (reign.me,)
    reign.membership.move(entry, stage)
    reign.membership.mark(entry, "loading")
    entry.version, entry.grants = reign.version, entry.grants + 1
    return [
        Connect((entry.member,)),
        Send(entry.process, Granted(reign.term, stage, reign.version, donors, entry.grants)),
        Log("info", f"peer {entry.process} loads stage {stage}: {reason}"),
    ]
