"""How long the processes of a run wait for one another: one record, the same for all of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

SECONDS_MAX: Final = 100_000.0
JOIN_HOLD_SHARE: Final = 0.05  # of the last step's seconds: a step waits at least so long for a peer that follows
PATIENT_TRIES: Final = 4  # as often a peer may come too late before a step waits longer for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The `[timeouts]` of a run, in seconds; docs/run-toml.md lists them too; a test keeps names and defaults equal.

    The defaults are for the internet: a process that is busy, swapped out or behind a slow line for some seconds is
    not given up, and one that was killed costs its stage no more than a few steps.
    """

    heartbeat_s: float = 1.0
    """Between two heartbeats: of each process to its leader, and of the leader to each process."""

    silence_s: float = 8.0
    """A member from which the leader has received nothing for longer is gone."""

    rejoin_s: float = 5.0
    """Between two Joins of a process that has no answer yet."""

    leader_silence_s: float = 10.0
    """A leader from which a process has received nothing for longer is lost, and an election begins."""

    leader_doubt_s: float = 3.0
    """After so much silence of its leader, a process may follow another trainer that stands for election."""

    election_turn_s: float = 2.0
    """How long each trainer leaves those before it in the roster to stand, after the leader was lost."""

    candidacy_s: float = 8.0
    """After which a candidate that was not elected stands again, in a later term."""

    leaderless_s: float = 25.0
    """After so long without a leader a process expects none any more, and joins the run again."""

    majority_s: float = 30.0
    """A leader or a candidate without a majority waits so long, and goes on as a lineage of its own (a fork)."""

    late_s: float = 15.0
    """A microbatch's holder has at least so long, before the microbatch is given to another peer as well."""

    ballot_s: float = 60.0
    """A ballot (the all-reduce and commit of a step) in which nothing was done for so long is begun anew."""

    stall_s: float = 60.0
    """Who owes the step something has at least so long between two signs of progress, before it is put out."""

    pause_s: float = 30.0
    """How long who was put out for standing still is kept out; twice as long each time, up to an hour."""

    barred_s: float = 60.0
    """How long who gave values that are not finite is kept out; twice as long each time, up to an hour."""

    join_hold_s: float = 1.0
    """A step whose work is done waits so long for a peer that lacks nothing but the last updates, and half as long each
    further time."""

    join_hold_max_s: float = 60.0
    """The longest that a step waits for a peer that has often come too late."""

    copies_s: float = 20.0
    """A leader that starts with an older version than it knows of waits so long for those who have copies of it."""

    memory_s: float = 40.0
    """A leader that starts waits so long for peers that may hold a later version in memory than any disk does."""

    drain_s: float = 30.0
    """How long a peer that was asked to leave takes to hand over, where its command line says nothing else."""

    def hold_s(self, tries: int, step_s: float) -> float:
        """How long a step waits for a peer that was ready so often, each time at a version that was out of date.

        A peer that still loads is not waited for. step_s: what the last step took, without such a wait. Where fetching
        an update takes longer than a step leaves time for it, the peer would never be in time: after PATIENT_TRIES it
        is waited for longer each time, and no more once the longest wait was in vain.
        """
        share_s = JOIN_HOLD_SHARE * step_s * 2.0 ** min(max(0, tries - PATIENT_TRIES), 64)
        if tries == 0 or (tries > PATIENT_TRIES and share_s >= 2 * self.join_hold_max_s):
            return 0.0
        return min(max(self.join_hold_s * 0.5 ** min(tries - 1, 64), share_s), self.join_hold_max_s)

    def problems(self) -> list[str]:
        """What is out of range, or else what cannot hold together, a line each with both names."""
        outside = [
            f"{field.name} = {value:g}: must be above 0 and below {SECONDS_MAX:g}"
            for field in fields(self)
            if not 0 < (value := getattr(self, field.name)) < SECONDS_MAX
        ]
        return outside or [
            f"{name} = {getattr(self, name):g}: must be above {' + '.join(others)} = {least:g}, {why}"
            for name, others, why in _ABOVE
            if not getattr(self, name) > (least := sum(getattr(self, other) for other in others))
        ]


_BLAMED = "or the others are blamed before it is known who died"
_ABOVE: Final = (
    ("silence_s", ("heartbeat_s", "heartbeat_s"), "or one heartbeat that is late puts a member out"),
    ("leader_doubt_s", ("heartbeat_s", "heartbeat_s"), "or one heartbeat that is late brings another leader"),
    ("leader_silence_s", ("leader_doubt_s",), "or a candidate stands whom nobody may follow yet"),
    ("candidacy_s", ("election_turn_s",), "or a candidate stands again before it is the next one's turn"),
    ("leaderless_s", ("candidacy_s",), "or nobody waits for the end of an election"),
    ("majority_s", ("candidacy_s",), "or a candidate forks before its election is over"),
    ("ballot_s", ("silence_s",), _BLAMED),
    ("stall_s", ("silence_s",), _BLAMED),
    ("join_hold_max_s", ("join_hold_s",), "since it is the longest of those"),
    ("memory_s", ("leader_silence_s", "leaderless_s"), "or peers that hold a later version are back too late"),
)
"""Which time has to be above which, or above the sum of which, and why."""
