"""Loads the state of the stage that a peer was granted, and serves it to other peers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peers.building import build, initialize
from peers.copies import CopyKeeper
from peers.fitting import MemoryBudget, MicrobatchMemory, NoMemoryError
from peers.frozen import FrozenLoader
from peers.kept import BetweenLives, KeptStage
from peers.left import LeftState
from swarmflow.activity import doing
from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.layout import FROZEN, OWN
from swarmflow.core.protocol.actions import ExpectRoot, LoadState, Rejoin, Resume, StoreState, WriteStage
from swarmflow.core.protocol.events import (
    Progressed,
    StageWritten,
    StateDamaged,
    StateLoaded,
    StateNotLoaded,
    StateStored,
)
from swarmflow.core.protocol.messages import Held
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import CheckpointError, NetworkError, SwarmflowError
from swarmflow.manifest import Manifest
from swarmflow.runtime.execution.load_progress import LoadMeter, under_donors_name
from swarmflow.runtime.execution.piece_donor import serve_pieces
from swarmflow.runtime.execution.piece_loading import PieceLoad
from swarmflow.runtime.execution.served import Served
from swarmflow.runtime.execution.session import Session
from swarmflow.runtime.execution.stage_host import StageHost
from swarmflow.runtime.execution.state_transfer import Listing, first_donor, serve_state
from swarmflow.runtime.execution.worker import Worker

log = logging.getLogger("swarmflow")

_FIRST = (0.0,)
_RETRY_S = 1.0
_LOOK_S = 0.5


@dataclass
class _Loaded:
    """A stage that is loaded, or was loaded and follows the updates of its donors when it is granted again."""

    served: Served
    load: PieceLoad
    one: MicrobatchMemory
    pending: bool = True  # the machine has not got the result of the last grant


class StageLoader:
    """Performs LoadState. A newer grant ends the loading of an older one, or has it go on from other donors."""

    def __init__(
        self,
        manifest: Manifest,
        session: Session,
        host: StageHost,
        compute: Worker,
        budget: MemoryBudget,
        meter: LoadMeter,
        copies: CopyKeeper,
        left: LeftState,
        between: BetweenLives,
        wish: int,
    ) -> None:
        """wish: the stage that it was started for, -1: any. Where another one has no room, it joins again."""
        self._manifest = manifest
        self._session = session
        self._host = host
        self._compute = compute
        self._budget = budget
        self._meter = meter
        self._copies = copies
        self._left = left
        self._loading: asyncio.Task[Any] | None = None
        self._loaded: _Loaded | None = None
        self._between = between
        self._wish = wish
        self._fits = 0
        self._near: Callable[[], frozenset[str]] = frozenset
        self.frozen = FrozenLoader(manifest, session, lambda: host.served, lambda: self._near())

    def load(self, action: LoadState) -> None:
        """Begin to load, or follow what was loaded; the machine gets the result as an event."""
        self._between.kept = None  # it frees memory
        loaded = self._loaded
        if loaded is not None and _goes_on(loaded.load, action):
            loaded.load.set_donors(action.donors, action.version)
            if loaded.pending:
                return
            loaded.pending = True
            self._host.unload()
            loaded.served.version = -1
            work, what = self._follow(action, loaded), "following a stage"
        else:
            self._loaded = None
            work, what = self._load(action), "loading a stage"
        if self._loading is not None:
            self._loading.cancel()  # or a failure that it has not reported yet would answer this grant
        self._loading = self._session.spawn(work, what)

    def expect(self, action: ExpectRoot) -> None:
        """Have what is loaded verified."""
        if self._loaded is not None and self._loaded.load.stage == action.stage:
            self._loaded.load.expect(action.version, action.root)

    def resume(self, action: Resume) -> None:
        """Serve the state of an earlier incarnation, from memory or the folder; the machine gets the result."""
        if self._loading is not None:
            self._loading.cancel()
        self._loaded = None
        self._loading = self._session.spawn(self._resume(action, self._between.kept), "resuming a stage")

    async def keep(self, held: Held | None) -> KeptStage | None:
        """Return the state for the next incarnation, after a running update."""
        kept, served = self._between.kept, self._host.served
        if held is None or (kept is None and served is None):
            return None
        if kept is None and served is not None:
            kept = KeptStage(held, served, self._manifest.fingerprint, self._fits)
        assert kept is not None, "one of both is there"
        await self._compute.call(_FIRST, kept.settle)
        if not await self._compute.call(_FIRST, kept.served.is_intact):
            log.warning("stage %d at version %d is damaged in memory: it is not kept", held.stage, held.version)
            return None
        found = kept.served.version
        if found != held.version:
            log.warning("stage %d is at version %d, not %d: it is not kept", held.stage, found, held.version)
            return None
        return kept

    def store(self, action: StoreState) -> None:
        """Write the state of this process into its folder; the machine gets the result as an event."""
        self._session.spawn(self._store(action.held), "writing a stage to the state folder")

    def write(self, action: WriteStage) -> None:
        """Perform WriteStage: the present version stays in memory until it is on the disk."""
        served = self._host.served if self._serves(action.stage, action.version) else None
        reader = served.begin_reading(action.version) if served is not None else None
        if served is None or reader is None:
            failed = f"stage {action.stage} at version {action.version} is not in memory"
            self._session.driver.post(StageWritten(action.stage, action.version, failed=failed))
            return
        self._copies.write(action.stage, action.version, served.state_of(action.version), reader)

    async def _store(self, held: Held) -> None:
        failed = ""
        try:
            if held != self._left.held:  # it is there already
                kept = await self.keep(held)
                if kept is None:
                    raise CheckpointError(f"stage {held.stage} at version {held.version} is not in memory")
                await asyncio.to_thread(self._left.write, kept)
        except (SwarmflowError, OSError) as error:
            failed = str(error)
        self._session.driver.post(StateStored(failed))

    def serve(
        self,
        share: Callable[[bool], float],
        trainers: Callable[[], Sequence[ProcessId]],
        near: Callable[[], frozenset[str]],
    ) -> None:
        """Serve the state of the own stage at its current version, and copies of other stages.

        share: of what this process sends, for those who load its stage, however much else there is to send. It is
        called with whether they ask for updates. trainers: returns those that are known, the leader first. near: the
        names of the peers of this host.
        """
        serve_state(self._session.requests, self._listing, self._read)
        self.frozen.serve()
        self.frozen.trainers, self._near = trainers, near

        def serving(stage: int) -> Served:
            served = self._host.served
            if served is None or served.stage.layout.stage != stage:
                raise NetworkError(f"stage {stage} is not here (any more)")
            return served

        def damaged() -> None:
            self._session.driver.post(StateDamaged())

        serve_pieces(self._session.requests, serving, lambda updates: self._session.links.give(share(updates)), damaged)

    async def _load(self, action: LoadState) -> None:
        self._host.unload()  # the stage that was served before is freed
        with doing(f"loading stage {action.stage} at version {action.version}", self._far):
            await self._host.warm_up()
            self._progressed()
            try:
                served, one = await self._compute.call(
                    _FIRST, lambda: build(self._manifest, self._budget, action.stage)
                )
            except NoMemoryError as error:
                self._look_elsewhere(error)
                return
            self._progressed()
            loaded = self._loaded = _Loaded(served, self._pieces(action.stage, served), one)
            loaded.load.set_donors(action.donors, action.version)
            try:
                await self._fill_frozen(action, served)
                if not _from_peers(action):
                    await self._fill(action, served)
                    loaded.load.set_version(action.version)
            except NetworkError as error:
                self._loaded = None
                await self._fail(action, error)
                return
            await self._follow(action, loaded)

    async def _fill_frozen(self, action: LoadState | Resume, served: Served) -> None:
        """Load the frozen weights of a stage, if it has some. Raises NetworkError."""
        if served.stage.base is None:
            return
        donors = action.donors if isinstance(action, LoadState) else ()
        peers = [donor.process for donor in donors if donor.stage == action.stage]
        with self._meter.loading(action.stage, action.version) as measure:

            def progressed(donor: ProcessId | str, received_bytes: int, total_bytes: int) -> None:
                measure(donor, received_bytes, total_bytes)
                self._progressed()

            await self.frozen.fill(served, peers, progressed)

    async def _follow(self, action: LoadState, loaded: _Loaded) -> None:
        """Bring a stage to the newest version of its donors, if it has some, and serve it."""
        served, load = loaded.served, loaded.load
        try:
            if _from_peers(action):
                with self._meter.loading(action.stage, action.version) as measure:
                    load.on_progress = under_donors_name(measure)
                    served.version = await load.run()
                root = await self._compute.call(_FIRST, lambda: served.keep_leaves(*load.leaves))
            else:
                served.version = load.target
                root = await self._compute.call(_FIRST, lambda: served.hash(served.version))
        except NetworkError as error:
            loaded.pending = False
            await self._fail(action, error)
            return
        for runner in served.runners:
            runner.weights_written()
        loaded.pending = False
        in_host_memory = served.stage.in_host_memory
        capacity = self._budget.fitting(self._manifest, action.stage, loaded.one, in_host_memory=in_host_memory)
        self._serve(served, root, capacity)
        await asyncio.to_thread(self._left.remove)

    def _look_elsewhere(self, error: NoMemoryError) -> None:
        """Join again without a stage for which there is no room. Raises the error where no other one may do."""
        self._budget.full.add((self._manifest.fingerprint, error.stage))
        if error.stage == self._wish or not self._budget.has_room(self._manifest):
            raise error
        self._session.end(Rejoin(str(error)))

    async def _fail(self, action: LoadState, error: NetworkError) -> None:
        await asyncio.sleep(_RETRY_S)  # the leader grants again at once: limit the rate
        self._session.driver.post(StateNotLoaded(action.stage, action.version, str(error)))

    def _pieces(self, stage: int, served: Served) -> PieceLoad:
        async def compute(work: Callable[[], None]) -> None:
            await self._compute.call(_FIRST, work)
            self._progressed()

        return PieceLoad(self._session.requests, stage, served.pieces, compute, lambda *_: None, near=self._near)

    async def _resume(self, action: Resume, kept: KeptStage | None) -> None:
        post, update = self._session.driver.post, action.update
        try:
            kept = kept if kept is not None else await self._compute.call(_FIRST, lambda: self._restore(action.stage))
            await self._fill_frozen(action, kept.served)
        except NoMemoryError as error:
            self._look_elsewhere(error)
            return
        except (CheckpointError, NetworkError) as error:
            post(StateNotLoaded(action.stage, action.version, f"stage {action.stage} is not here any more: {error}"))
            return
        served = kept.served

        def update_once() -> str:
            if update is not None and served.version == update.epoch.step:  # else an earlier grant has applied it
                intact = served.update(update.epoch.step, update.scale, update.learning_rate)
            else:
                intact = served.is_intact()
            if not intact:
                raise CheckpointError("it is damaged in memory")
            for runner in served.runners:
                runner.clear()
            return served.hash(served.version)

        await self._host.warm_up()
        try:
            root = await self._compute.call(_FIRST, update_once)
        except (NotFiniteError, CheckpointError) as error:
            self._between.kept = None
            post(StateNotLoaded(action.stage, action.version, f"stage {action.stage} cannot be resumed: {error}"))
            return
        self._between.kept = None
        served.reduced.clear()  # without an update a gradient is left, in whatever form it was stored
        self._serve(served, root, kept.capacity)
        at = served.version
        while served.version <= at:  # until a step is committed, a crash would lose the state
            await asyncio.sleep(_LOOK_S)
        await asyncio.to_thread(self._left.remove)

    def _restore(self, number: int) -> KeptStage:
        """Return the state that an earlier life has left in the folder. Raises CheckpointError, NoMemoryError."""
        served, one = build(self._manifest, self._budget, number)
        in_host_memory = served.stage.in_host_memory
        allowed = self._budget.fitting(self._manifest, number, one, in_host_memory=in_host_memory)
        kept = self._left.fill(served)
        return replace(kept, capacity=min(kept.capacity, allowed))

    def _serve(self, served: Served, root: str, capacity: int) -> None:
        self._host.served, self._fits = served, capacity
        stage, groups = served.stage.layout.stage, served.stage.groups
        elements = tuple(
            (f"stage-{stage}" if name == OWN else name, group.params.numel())
            for name, group in groups.items()
            if name != FROZEN
        )
        loaded = StateLoaded(stage, served.version, root, capacity, elements, self._manifest.piece)
        self._session.driver.post(loaded)

    def _far(self) -> str:
        """Return how far the loading is; empty: nothing comes from another process yet."""
        progress = self._meter.progress
        return "" if progress is None else progress.amounts()

    def _progressed(self) -> None:
        self._session.driver.post(Progressed("load"))

    async def _fill(self, action: LoadState, served: Served) -> None:
        if not action.donors:
            await self._compute.call(_FIRST, lambda: initialize(served, self._manifest))
            return
        state = served.state_of(action.version)
        args = action.donors, action.stage, action.version, state.elements(), state.write
        with self._meter.loading(action.stage, action.version) as measure:

            def progressed(donor: ProcessId | str, received_bytes: int, total_bytes: int) -> None:
                measure(donor, received_bytes, total_bytes)
                self._progressed()

            await first_donor(self._session.requests, *args, progressed)
        if action.version == 0:
            await self._compute.call(_FIRST, served.begin)

    def _listing(self, stage: int, version: int, root: str) -> Listing:
        served = self._serving(stage, version, root)
        return self._copies.listing(stage, version, root) if served is None else Listing(served.state.elements())

    def _read(self, stage: int, version: int, root: str, tensor: str, start: int, stop: int) -> bytes:
        served = self._serving(stage, version, root)
        if served is None:
            return self._copies.read(stage, version, root, tensor, start, stop)
        try:
            data = served.state.read(tensor, start, stop)
        except (KeyError, ValueError) as error:
            raise NetworkError(f"there is no such part of the state: {error}") from None
        if not self._serves(stage, version):  # an update while it was read would have mixed two versions
            raise NetworkError(f"version {version} of stage {stage} is not here (any more)")
        return data

    def _serves(self, stage: int, version: int) -> bool:
        served = self._host.served
        return served is not None and (served.stage.layout.stage, served.version) == (stage, version)

    def _serving(self, stage: int, version: int, root: str) -> Served | None:
        """Return the stage, where it is at this version and has this root (empty: any); None: a copy may have it."""
        served = self._host.served if self._serves(stage, version) else None
        return served if served is not None and root in ("", served.roots.get(version)) else None


def _goes_on(load: PieceLoad, action: LoadState) -> bool:
    """Return whether a grant goes on with what is here of a stage.

    Where no peer serves the stage any more, only what is whole: the rest comes from whoever keeps the version.
    """
    stays = action.follows and load.stage == action.stage
    return stays and (_from_peers(action) or load.whole_at(action.version))


def _from_peers(action: LoadState) -> bool:
    """Return whether peers of the stage give it, and not a trainer's disk or the seed."""
    return any(donor.stage == action.stage for donor in action.donors)
