"""The stage of a peer: granted by the leader, loaded from others; and copies of others' stages on its disk."""

from __future__ import annotations

from swarmflow.core.machines.serving.ballots import revoke
from swarmflow.core.machines.serving.peer_phase import PeerPhase
from swarmflow.core.machines.serving.peer_state import PeerState
from swarmflow.core.pipeline.dispatcher import dispatcher_for
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import (
    Action,
    Connect,
    Count,
    DropCopies,
    ExpectRoot,
    KeepCopies,
    LoadState,
    Log,
    Send,
    WriteStage,
)
from swarmflow.core.protocol.events import CopiesChanged, Received, StageWritten, StateLoaded, StateNotLoaded
from swarmflow.core.protocol.messages import (
    CopiesHeld,
    Granted,
    KeepCopy,
    LoadFailed,
    Ready,
    SnapshotTaken,
    Surplus,
    TakeSnapshot,
    VersionCertified,
)
from swarmflow.core.protocol.types import Snapshot
from swarmflow.core.routing.flow.negotiations import negotiation_of


def on_granted(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Load a stage, whatever was served before."""
    message = event.message
    assert isinstance(message, Granted)
    if message.term < peer.lease.term or not 0 <= message.stage < peer.plan.stages:
        return []
    moved: list[Action] = [Count("moves")] if peer.stage not in (-1, message.stage) else []
    peer.lease.term = message.term
    peer.stage, peer.version, peer.grant = message.stage, -1, message.grant
    journal = peer.hops.clear() if peer.hops is not None else []
    peer.hops = peer.flows = peer.survey = None
    if peer.epoch_view is not None:
        peer.epoch_view.abandoned = True
    peer.move(PeerPhase.LOADING)
    dropped = [*moved, *revoke(peer), *journal]
    resumed = peer.memory.granted(message)
    if resumed is not None:
        log = Log("info", f"granted stage {message.stage}; version {message.version} is here already")
        return [*dropped, resumed, log]
    whence = ", ".join(str(donor.process) for donor in message.donors) or "the seed"
    how = "going on to" if message.follows else "loading"
    return [
        *dropped,
        Connect(tuple(message.donors)),
        LoadState(message.stage, message.version, message.donors, message.follows),
        *expect(peer, message.certified),
        Log("info", f"granted stage {message.stage}; {how} version {message.version} from {whence}"),
    ]


def on_state_loaded(peer: PeerState, event: StateLoaded, now: float) -> list[Action]:
    """Serve the loaded stage from the next step on."""
    if peer.phase is not PeerPhase.LOADING or event.stage != peer.stage:
        return []
    peer.version = event.version
    peer.root, peer.hashes = (event.version, event.root), -1
    peer.memory.loaded(event.version)
    peer.elements, peer.piece = dict(event.group_elements), event.piece
    dispatcher = dispatcher_for(peer.plan, peer.me, peer.stage + 1)
    own = peer.settings.journal_bytes_max, peer.plan.without_graph if peer.settings.recompute else 0
    peer.hops = HopTable(peer.stage, peer.plan.stages, event.capacity, dispatcher, peer.leader, *own)
    plan = peer.plan
    # The last stage holds a microbatch but briefly.
    without_graph = plan.without_graph if peer.settings.recompute or peer.hops.last else 0
    own_time = peer.hops.timer, without_graph
    peer.flows = negotiation_of(peer.me, peer.stage, plan, dispatcher.router, *own_time)
    peer.move(PeerPhase.READY)
    return [
        Send(peer.leader, Ready(peer.stage, peer.version, event.root, event.capacity, peer.grant)),
        Log("info", f"stage {peer.stage} is loaded at version {peer.version}, {event.capacity} microbatches fit"),
    ]


def on_version_certified(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Keep the certificate, which a later leader may ask for, and have what is being loaded verified."""
    message = event.message
    assert isinstance(message, VersionCertified)
    return expect(peer, message.snapshot)


def expect(peer: PeerState, certified: Snapshot | None) -> list[Action]:
    """Take over a certificate of a version of this run."""
    if certified is None or len(certified.roots) != peer.plan.stages:
        return []
    peer.certified = certified
    loads = peer.phase is PeerPhase.LOADING
    return [ExpectRoot(peer.stage, certified.version, certified.roots[peer.stage])] if loads else []


def on_state_not_loaded(peer: PeerState, event: StateNotLoaded, now: float) -> list[Action]:
    """Report that no donor could give the stage."""
    if peer.phase is not PeerPhase.LOADING or event.stage != peer.stage:
        return []
    peer.version, peer.memory.held = -1, None
    failed = LoadFailed(event.stage, event.version, event.reason, peer.grant)
    return [Send(peer.leader, failed), Log("warning", event.reason)]


def on_copies_changed(peer: PeerState, event: CopiesChanged, now: float) -> list[Action]:
    """Report what lies on its disk: it may be all that is left of a stage some day."""
    peer.copies = event.copies
    return [Send(peer.leader, CopiesHeld(event.copies, event.failed))]


def on_take_snapshot(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Write the own stage to the disk, if it is still at the version that is asked for."""
    message = event.message
    assert isinstance(message, TakeSnapshot)
    if peer.stage < 0:
        return []
    if peer.version == message.version and peer.phase in (PeerPhase.READY, PeerPhase.MEMBER):
        return [WriteStage(peer.stage, peer.version)]
    here = f"stage {peer.stage} is at version {peer.version}" if peer.version >= 0 else "it is loading"
    return [Send(peer.leader, SnapshotTaken(peer.stage, message.version, failed=here))]


def on_stage_written(peer: PeerState, event: StageWritten, now: float) -> list[Action]:
    """Report that the own stage is on the disk, or why it is not."""
    taken = SnapshotTaken(event.stage, event.version, event.root, event.failed)
    return [Send(peer.leader, taken)]


def on_keep_copy(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Copy stages of a version, or delete copies. What does not fit the run is left out."""
    message = event.message
    assert isinstance(message, KeepCopy | Surplus)
    if isinstance(message, Surplus):
        return [DropCopies(message.oldest, message.newest, message.whole)]
    if len(message.snapshot.roots) != peer.plan.stages or message.snapshot.version < 1:
        return []
    if not peer.settings.join.keeps and message.stages != (peer.stage,):
        return []  # it has room for what it has written itself, as long as it lives
    others = (holder for holders in message.holders for holder in holders if holder.process != peer.me)
    keep = KeepCopies(message.snapshot, message.stages, message.holders, message.whole)
    return [Connect(tuple(dict.fromkeys(others))), keep]
