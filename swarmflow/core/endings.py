"""What a leader tells everybody when the run is over, or when it gives its own history up for another leader's."""

from __future__ import annotations

from collections.abc import Iterable

from swarmflow.core.actions import Action, Count, Exit, Log, Rejoin, Send
from swarmflow.core.events import Rival
from swarmflow.core.messages import Evicted, Finished
from swarmflow.core.types import ProcessId


def goodbye(others: Iterable[ProcessId], version: int) -> list[Action]:
    """The run is finished at this version."""
    told = [Send(process, Finished(version)) for process in others]
    return [*told, Exit(f"the run is finished at version {version}")]


def given_up(others: Iterable[ProcessId], version: int, rival: Rival) -> list[Action]:
    """The run goes on from the rival's version: who followed this leader joins there."""
    reason = f"{rival.leader} leads this run too, and is at version {rival.version}"
    return [
        Count("lineages_given_up"),
        Log("warning", f"giving up version {version}: {reason}"),
        *(Send(process, Evicted(reason)) for process in others),
        Rejoin(reason),
    ]
