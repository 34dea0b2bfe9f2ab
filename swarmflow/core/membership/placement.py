"""Which stage a peer serves: the first one of a newcomer, and moves between the stages."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from statistics import median

from swarmflow.core.membership.levelling import PlacedPeer, best_stage, level
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import IDLE, MemberRecord, Membership
from swarmflow.core.membership.rebalance import Move, StagePeer, rebalance
from swarmflow.core.membership.step_estimate import StagePower, demands, power_of_one, together
from swarmflow.core.protocol.types import Member, Plan

MOVING_PEERS = 20  # of so many one may move in a period
NARROW_PEERS = 2  # a stage of so many peers at most holds up those that have more
SMALL_PEERS = 4  # in a stage of so many at most another one takes a fifth of the work that is left, or more
DONORS_MIN = 2  # of each peer that loads, if the stage has so many
TOGETHER_PEERS = 8  # of so many one may move between the same two steps
DESERTED = "nobody is left there"
RELIEVED = "a peer of it has memory for one where nobody is left"
ALIKE = 0.9  # of the largest stage: who has memory for one of that size has it for both, as a rule
UNKNOWN = power_of_one(1.0, math.inf, 0.0)  # a peer that has stated nothing


def place(
    membership: Membership,
    wish: int,
    newcomer: StagePower = UNKNOWN,
    gains: Sequence[float] = (),
    unfit: Collection[int] = (),
) -> tuple[int, str]:
    """Return the stage for a newcomer, and why: its wish, else an empty stage, else the one that limits the step most.

    Those still loading count too, so that peers that start together spread. As long as no connection's rate is known,
    each stage's load is its share of the computing (each serves the same microbatches) by the sum of its peers' speeds.
    gains: seconds a step that each stage gains by the links of the newcomer, as it has measured them. unfit: stages for
    which its memory has no room, never all of them.
    """
    if wish >= 0:
        return wish, "as asked for"
    powers = [membership.power(stage) for stage in range(membership.plan.stages)]
    if empty := [stage for stage, power in enumerate(powers) if power.peers == 0 and stage not in unfit]:
        return _large(membership.plan, empty), "nobody serves it"
    if any(power.peers == 0 for power in powers):  # of a stage without peers there is no estimate
        served = (stage for stage, power in enumerate(powers) if power.peers and stage not in unfit)
        stage = min(served, key=lambda stage: (powers[stage].peers, stage))
        return stage, "its memory has no room for those that nobody serves"
    if gains:
        usual = usual_rate(entry.power for entry in membership.peers())
        alone = [power.over_paths(usual) for power in powers]
        needs = demands(membership.plan, together(alone))
        return best_stage(needs, alone, newcomer.over_paths(usual), _rooms(membership), gains, unfit)
    rate = mean_rate([*powers, newcomer])
    if rates_are_known(membership.plan, rate):
        powers = [power.assuming(rate) for power in powers]
        needs = demands(membership.plan, together(powers))
        return best_stage(needs, powers, newcomer.assuming(rate), _rooms(membership), unfit=unfit)
    costs = membership.plan.costs or (1.0,) * len(powers)
    loads = ((costs[stage] / power.speed, -stage) for stage, power in enumerate(powers) if stage not in unfit)
    highest = max(loads)
    return -highest[1], f"highest load per capacity ({highest[0]:.3g})"


def _large(plan: Plan, stages: Sequence[int]) -> int:
    """Return the first of the stages that are about as large as the largest: the fewest peers have memory for it."""
    sizes = plan.reduced_bytes or (0,) * plan.stages
    largest = max(sizes[stage] for stage in stages)
    return next(stage for stage in stages if sizes[stage] >= ALIKE * largest)


def _rooms(membership: Membership) -> list[float]:
    """Return how many more peers may load each stage."""
    return [room(membership, stage) for stage in range(membership.plan.stages)]


def room(membership: Membership, stage: int) -> float:
    """Return how many more peers may load a stage: one for each two that serve it, and one at least.

    Each load takes the time of their links: two from the same ones end when the second of two in a row would.
    Infinite where they load from a seed or a disk.
    """
    entries = membership.peers(stage)
    serving = [entry for entry in entries if entry.phase is MemberPhase.READY]
    if not any(entry.version > 0 for entry in serving):
        return math.inf
    return max(1, len(serving) // DONORS_MIN) - sum(entry.phase is MemberPhase.LOADING for entry in entries)


def is_narrow(stages: Sequence[Sequence[Member]], stage: int, peers_max: int = NARROW_PEERS) -> bool:
    """Return whether a stage has so few peers that it holds up the others, which have more.

    A peer knows its own stage and those beside it alone: a stage of one is narrow beside stages of two, too.
    peers_max: of a stage that counts as narrow.
    """
    return 0 < len(stages[stage]) <= peers_max and len(stages[stage]) < max(len(peers) for peers in stages)


def paths_limit(membership: Membership) -> bool:
    """Return whether the paths between peers limit most of them, and not their own connections."""
    peers = [entry for entry in membership.known.values() if entry.role == "peer" and entry.rates is not None]
    return bool(peers) and 2 * sum(entry.uneven for entry in peers) > len(peers)


def rates_are_known(plan: Plan, rate: float) -> bool:
    """Return whether enough is known to estimate a step. rate: of an average connection; 0: none is known."""
    return plan.boundary_bytes > 0 and rate > 0.0


def mean_rate(powers: Sequence[StagePower]) -> float:
    """Return the mean rate of the connections with a known rate, in bytes/s; 0: there are none."""
    total = together(powers)
    measured = total.peers - total.unmeasured
    return total.upload_rate / measured if measured else 0.0


def usual_rate(powers: Iterable[StagePower]) -> float:
    """Return the median rate of single peers' connections, in bytes/s: none of them moves it far; infinite: unknown."""
    known = [power.upload_rate for power in powers if not power.unmeasured]
    return median(known) if known else math.inf


def homeward(membership: Membership, version: int) -> list[MemberRecord]:
    """Return the peers that may go back to the stage they asked for: others serve the one where they stand in."""
    here = [e for e in membership.peers() if e.stands_in and e.holds(version)]
    found: list[MemberRecord] = []
    for entry in here:
        left = [e for e in membership.ready(entry.member.stage, version) if e not in found]
        if not entry.draining and len(left) > 1:
            found.append(entry)
    return found


def better_placed(membership: Membership, version: int, now: float) -> list[Move]:
    """Return the moves to be made now, if every stage is served and there are peers that have stayed long enough.

    A loading peer counts for the stage that it was granted: where peers come all the time there is no moment at which
    none is loading. The last ready peer of a stage stays. Of MOVING_PEERS peers one may move in a period, and of fewer
    one too, so that many peers are levelled as fast as few. By computing alone one peer moves at a time (Algorithm 2);
    where connections are known, the moves of the periods since the last one may be made together.
    """
    plan = membership.plan
    if not all(membership.served(stage, version) for stage in range(plan.stages)):
        return []
    peers = membership.ready_peers() + len(membership.loading())
    pace = min(1.0, MOVING_PEERS / peers)
    at_once, servers = 0, list[list[PlacedPeer]]()
    for stage in range(plan.stages):
        ready = {e.process for e in membership.ready(stage, version)}
        row: list[PlacedPeer] = []
        for e in membership.peers(stage):
            if e.phase in (MemberPhase.READY, MemberPhase.LOADING) and not e.draining:
                periods = (now - membership.moved_s) / (pace * e.rebalance_s) if e.rebalance_s else 0.0
                movable = e.process in ready and len(ready) > 1 and e.rebalance_s <= now - e.settled_s and periods >= 1
                row.append(PlacedPeer(e.process, e.power, movable, e.unfit))
                at_once = max(at_once, int(periods)) if movable else at_once
        servers.append(row)
    if not at_once:
        return []
    rate = mean_rate([together(peer.power for peer in row) for row in servers])
    if not rates_are_known(plan, rate):
        alike = [
            [StagePeer(peer.process, peer.power.speed, peer.movable, peer.unfit) for peer in row] for row in servers
        ]
        move = rebalance(plan.costs or (1.0,) * plan.stages, alike)
        return [] if move is None else [move]
    links_s = 0.0
    known = [[replace(peer, power=peer.power.assuming(rate)) for peer in row] for row in servers]
    if paths_limit(membership):
        # On the fastest link of a usual peer, there and back: what computing gains has to be seen beside that at least.
        links_s = 2 * plan.boundary_bytes * sum(1 / median(p.power.upload_rate for p in row) for row in known[:-1])
        usual = usual_rate(peer.power for row in known for peer in row)
        known = [[replace(peer, power=peer.power.over_paths(usual)) for peer in row] for row in known]
    needs = demands(plan, together(peer.power for row in known for peer in row))
    return level(needs, known, min(at_once, max(1, peers // TOGETHER_PEERS)), _rooms(membership), links_s)


def spare(membership: Membership, empty: Iterable[int], needed: int) -> Move | None:
    """Return a move of a peer by which the needed stage comes to one: from the largest stage of two or more.

    Where none of those has memory for it, one of them relieves a peer that has, which goes next: the first move of the
    shortest such chain. None: there is no chain, or who is to relieve somebody loads its stage yet. empty: the stages
    without a ready peer, which give none.
    """
    seen, targets = {needed, *empty}, [needed]
    while targets:
        best, best_size, givers, loading = None, 1, list[int](), False
        for target in targets:
            for stage in (stage for stage in range(membership.plan.stages) if stage not in seen):
                here = [e for e in membership.peers(stage) if not e.draining and e.phase not in IDLE]
                able = [e for e in here if e.may_serve(target)]
                spared = [e for e in able if _is_spared(e, here)]
                if spared and len(here) > best_size:
                    reason = DESERTED if target == needed else RELIEVED
                    best, best_size = Move(spared[-1].process, target, reason), len(here)
                loading |= bool(able) and not spared and any(e.phase is MemberPhase.LOADING for e in here)
                givers += [stage] if able else []
        if best is not None or loading:
            return best
        seen.update(givers)
        targets = list(dict.fromkeys(givers))
    return None


def _is_spared(entry: MemberRecord, mates: Sequence[MemberRecord]) -> bool:
    """Return whether a peer can leave its stage: another one holds it, or this one does not hold it yet either."""
    others = [mate for mate in mates if mate is not entry]
    ready = any(mate.phase is MemberPhase.READY for mate in others)
    return ready or (bool(others) and entry.phase is not MemberPhase.READY)


def lacking(membership: Membership, empty: list[int], version: int) -> str:
    """Return what stages without a ready peer that stays wait for, as a person reads it."""
    if deserted := [stage for stage in empty if not membership.peers(stage)]:
        return f"a peer for stage {_listed(deserted)}"
    if leavers := [e for stage in empty for e in membership.peers(stage) if e.holds(version)]:
        stages = _listed(sorted({e.member.stage for e in leavers}))
        return f"a copy of stage {stages}, whose last peers want to leave: {_listed(e.process for e in leavers)}"
    return f"the peers of stage {_listed(empty)}, which are loading"


def _listed(items: Iterable[object]) -> str:
    return ", ".join(map(str, items))
