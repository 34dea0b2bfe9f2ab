"""Loads a stage piece by piece from all of its donors at a time, while they go on training.

A piece is taken at whatever version its donor is at. Pieces that are here follow the updates that the donors give, or
are taken anew; the load ends when all of them are at the newest version that any donor has.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from swarmflow.compute.finite import NotFiniteError
from swarmflow.compute.stage_pieces import SpanUpdate, StagePieces
from swarmflow.compute.state_root import LEAF_BYTES, Span, root_of
from swarmflow.core.protocol.messages.checks import COUNT_MAX
from swarmflow.core.protocol.types import Member, ProcessId
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import FrameError, NetworkError
from swarmflow.runtime.execution.piece_donor import LEAVES, TOPIC, PieceAnswer
from swarmflow.runtime.execution.piece_requests import APART_MAX, REQUESTS_MIN, PieceGiver, PieceRequest, credible
from swarmflow.runtime.execution.piece_table import MISSING, PieceTable
from swarmflow.runtime.transport.requests import Arguments, BusyError, Requests

BUSY_S = 5.0  # so long a load waits for a donor that is busy
AHEAD_S = 5.0  # after so long, a version that is later than all that others show is not believed
ROOT_S = 1.0  # the longest wait for the root of a version that a commit has just made
_POLL_S = 0.1  # after which a donor that had nothing newer is asked again
_TIMEOUT_S = 60.0

log = logging.getLogger("swarmflow")

Compute = Callable[[Callable[[], None]], Awaitable[None]]
OnProgress = Callable[[Sequence[ProcessId], int, int], None]
"""(donors, bytes received so far, bytes in all, as far as is known)."""


@dataclass(eq=False)
class PieceLoad:
    """The load of a stage, over any number of grants; `run` takes it to the newest version of the donors.

    compute: runs a function in the thread that the stage belongs to. least: the earliest version of a donor. near: the
    names of processes of this host: where donors are among them, others are asked only once none of these is left.
    """

    requests: Requests
    stage: int
    pieces: StagePieces
    compute: Compute
    on_progress: OnProgress
    least: int = 0
    near: Callable[[], frozenset[str]] = frozenset
    received_bytes: int = field(init=False, default=0)
    failures: list[str] = field(init=False, default_factory=list)
    leaves: tuple[int, bytes] = field(init=False, default=(-1, b""))  # the version that was loaded, and its hashes
    _table: PieceTable = field(init=False)
    _donors: dict[ProcessId, PieceGiver] = field(init=False, default_factory=dict)
    _far: dict[ProcessId, Member] = field(init=False, default_factory=dict)  # not asked as long as there are near ones
    _tasks: dict[ProcessId, asyncio.Task[None]] = field(init=False, default_factory=dict)
    _refused: set[ProcessId] = field(init=False, default_factory=set)  # what they gave was not what most others have
    _ahead: dict[ProcessId, int] = field(init=False, default_factory=dict)  # dropped, for the version that they claimed
    _writing: set[asyncio.Task[None]] = field(init=False, default_factory=set)
    _ahead_since_s: float = field(init=False, default=math.inf)  # since when pieces are at a later version than donors
    _changed: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _root: tuple[int, str] = field(init=False, default=(-1, ""))  # the last one that the leader has sent
    _rooted: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _verifying: bool = field(init=False, default=False)
    _givers: dict[int, set[ProcessId]] = field(init=False, default_factory=dict)  # by piece, since it was fetched anew

    def __post_init__(self) -> None:
        self._table = PieceTable(self.pieces.all())

    def set_version(self, version: int) -> None:
        """Record that all pieces are at a version: they were made or copied here."""
        self._table.set_version(version)

    def expect(self, version: int, root: str) -> None:
        """Have the state verified at a version."""
        self._root = version, root
        self._rooted.set()

    def set_donors(self, donors: Iterable[Member], least: int) -> None:
        """Load from these donors, which are at this version or a later one."""
        self.least = least
        reached = max(least, self._root[0]) + APART_MAX
        self._ahead = {process: claim for process, claim in self._ahead.items() if claim > reached}
        refused = self._refused | self._ahead.keys()
        named = {donor.process: donor for donor in donors if donor.stage == self.stage and donor.process not in refused}
        beside = self.near()
        near = {process: donor for process, donor in named.items() if process.name in beside}
        self._far = {process: donor for process, donor in named.items() if process not in near} if near else {}
        named = near or named
        self._add(named)  # before others are dropped: with the last one, those afar would be asked
        for process in [process for process in self._donors if process not in named]:
            self._drop(process)
        self.failures.clear()
        self._changed.set()

    @property
    def target(self) -> int:
        """The newest version that a donor has, or that a piece is at, or that the last grant has named."""
        return max(self._newest, self.least, self._table.newest if self._table.newest <= self._limit else MISSING)

    @property
    def _newest(self) -> int:
        limit = self._limit
        return max((donor.version for donor in self._donors.values() if donor.version <= limit), default=-1)

    @property
    def _limit(self) -> int:
        """The latest version that is believed."""
        late = self._table.late(time.monotonic())
        return max(self.least, credible(self._donors.values(), late, self._root[0]))

    def whole_at(self, version: int) -> bool:
        """Return whether all pieces are at a version."""
        return self._table.all_at(version)

    async def run(self) -> int:
        """Load until all pieces are at one version, and return it. Raises NetworkError when no donor is left."""
        for donor in self._donors.values():
            donor.version, donor.busy_since_s = -1, math.inf  # each is asked at least once for what it has
        fresh = set(self._donors.values())
        self.received_bytes, self._ahead_since_s = 0, math.inf
        try:
            while True:
                self._changed.clear()
                self._begin()
                fresh = {donor for donor in fresh if donor in self._donors.values() and self._may_tell(donor)}
                if not self._donors:
                    reason = "; ".join(self.failures[-4:]) or "nobody was named who has it"
                    raise NetworkError(f"stage {self.stage} could not be loaded: {reason}")
                if not fresh:
                    version = self.target
                    if self._table.all_at(version) and await self._verified(version) and version >= self.least:
                        return version  # no grant has named a later one meanwhile
                    self._give_up_later()
                with suppress(TimeoutError):
                    async with asyncio.timeout(AHEAD_S):
                        await self._changed.wait()
        finally:
            tasks = list(self._tasks.values())
            self._tasks.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, *self._writing, return_exceptions=True)

    def _may_tell(self, donor: PieceGiver) -> bool:
        """Return whether a donor has not told its version yet, and is not late with that either.

        One that is busy answers each time, and may be so for ever.
        """
        now = time.monotonic()
        return donor.version < 0 and now - donor.busy_since_s < BUSY_S and donor not in self._table.late(now)

    def _give_up_later(self) -> None:
        """Fetch pieces anew whose version no donor has reached for a while, and drop who alone still claims it."""
        now, limit = time.monotonic(), self._limit
        for process, donor in list(self._donors.items()):
            if donor.claim <= limit:
                donor.claim, donor.claimed_s = donor.version, now
            elif now - donor.claimed_s > AHEAD_S:
                self.failures.append(f"{process}: it claims version {donor.claim}, others have {limit - APART_MAX}")
                self._ahead[process] = donor.claim
                self._drop(process)
        newest = self._newest
        if newest < 0 or max(self._table.newest, self.least) <= newest:
            self._ahead_since_s = math.inf
            return
        self._ahead_since_s = min(self._ahead_since_s, now)
        if now - self._ahead_since_s > AHEAD_S:
            self._table.fetch_anew(self._table.later_than(newest))

    # --- requests -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Ask donors that are asked nothing yet."""
        for process, donor in self._donors.items():
            if process not in self._tasks:
                self._tasks[process] = asyncio.create_task(self._ask_on(donor))

    def _drop(self, process: ProcessId) -> None:
        """Ask a donor nothing any more; what it was asked for goes to others."""
        self._donors.pop(process, None)
        if (task := self._tasks.pop(process, None)) is not None:
            task.cancel()
        if not self._donors:
            far, self._far = self._far, {}
            self._add(far)
        self._changed.set()

    def _add(self, donors: Mapping[ProcessId, Member]) -> None:
        self._donors |= {process: PieceGiver(donor) for process, donor in donors.items() if process not in self._donors}

    async def _ask_on(self, donor: PieceGiver) -> None:
        """Ask a donor for one thing after the other, as many at a time as its window allows, while it is one."""
        running: set[asyncio.Task[None]] = set()
        try:
            while donor.member.process in self._donors:
                while len(running) < int(donor.window) and (request := self._next(donor)) is not None:
                    running.add(asyncio.create_task(self._ask(request)))
                if running:
                    _, running = await asyncio.wait(running, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(_POLL_S)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _ask(self, request: PieceRequest) -> None:
        """Ask for something and take the answer; a donor that gives a wrong one, or none, is asked for nothing more."""
        donor = request.donor
        try:
            answer, data = await self._fetch(request)
            await self._take(request, answer, data)
        except BusyError:
            now = time.monotonic()
            donor.window = REQUESTS_MIN
            donor.idle_until_s = now + _POLL_S
            donor.busy_since_s = min(donor.busy_since_s, now)
            if now - donor.busy_since_s > BUSY_S:
                donor.version = -1  # whatever it has told, it gives nothing of it
        except Exception as error:  # of any kind: a donor that stays is asked for the same again, for ever
            if not isinstance(error, NetworkError | FrameError | NotFiniteError):
                log.exception("what %s gave of stage %d could not be used", donor.member.process, self.stage)
            self.failures.append(f"{donor.member.process}: {error}")
            self._drop(donor.member.process)
        finally:
            self._table.ended(request)
            self._changed.set()

    def _next(self, donor: PieceGiver) -> PieceRequest | None:
        """Return what to ask a donor for now."""
        now = time.monotonic()
        if self._verifying or now < donor.idle_until_s:
            return None
        claimed = max(self._table.newest, *(other.version for other in self._donors.values()))
        if donor.version < 0 or donor.version <= self._limit < claimed:
            # It may bring even what is newest to a later version, or has no such version: then it replaces that.
            return self._table.next(donor, COUNT_MAX, now)
        return self._table.next(donor, self.target, now)

    # --- answers ------------------------------------------------------------------------------------------------------

    async def _fetch(self, request: PieceRequest) -> tuple[PieceAnswer, memoryview]:
        donor, span = request.donor.member.process, self._table.span_of(request)
        where: Arguments = {"stage": self.stage, "group": span.group, "start": span.start, "stop": span.stop}
        least = self.least  # a grant meanwhile may name a later version
        bodies = await self.requests.ask(donor, TOPIC, where | {"have": request.have}, timeout_s=_TIMEOUT_S)
        if len(bodies) != 2:
            raise NetworkError("it sent no piece")
        try:
            answer = msgspec.json.decode(bodies[0], type=PieceAnswer)
        except UNDECODABLE as error:
            raise NetworkError(f"it sent an answer that does not decode: {error}") from None
        first = self._table.spans[request.places[0]]
        if not least <= answer.version <= COUNT_MAX or not answer.fits(request.have, first.stop, len(bodies[1])):
            steps = [update.step for update in answer.updates[:4]]
            raise NetworkError(f"it sent what cannot be: version {answer.version}, stop {answer.stop}, updates {steps}")
        return answer, bodies[1]

    async def _take(self, request: PieceRequest, answer: PieceAnswer, data: memoryview) -> None:
        """Write or update the pieces of an answer, where another one was not faster."""
        donor, span = request.donor, self._table.span_of(request)
        donor.version, donor.busy_since_s = answer.version, math.inf
        self.received_bytes += len(data)
        donor.idle_until_s = 0.0
        if self._verifying:
            return
        places = self._table.lacking(request)
        if not answer.updates and not len(data):
            donor.idle_until_s = time.monotonic() + _POLL_S
            return
        if len(places) < len(request.places) and answer.updates:
            return  # stolen: the others of them are fetched anew
        if not answer.updates:
            donor.answered(time.monotonic() - request.sent_s)
            places = [place for place in places if place == request.places[0]]
            if not places:
                return  # stolen, too
        self._table.begin_change(places)  # at once: the answer of another donor may be taken before the task begins
        writing = asyncio.create_task(self._change(donor.member.process, places, span, answer, data))
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        await asyncio.shield(writing)  # its end has to be known, whoever is not asked any more
        self._report()

    async def _change(
        self, giver: ProcessId, places: list[int], span: Span, answer: PieceAnswer, data: memoryview
    ) -> None:
        """Write or update pieces that are marked as changing. What fails is lost, and fetched anew."""
        for place in places:
            if not answer.updates:
                self._givers[place] = set()
            self._givers.setdefault(place, set()).add(giver)
        version = MISSING
        try:
            await self.compute(lambda: _write(self.pieces, span, answer, data))
            version = answer.version
        finally:
            self._table.end_change(places, version)
            self._changed.set()

    # --- verification -------------------------------------------------------------------------------------------------

    async def _verified(self, version: int) -> bool:
        """Hash all pieces, and compare them with the root of their version where it is known. Wrong ones are missing.

        Meanwhile they do not follow later updates: who is ready at a version that is over is waited for.
        """
        self._verifying = True
        try:
            leaves: list[bytes] = []
            await self.compute(lambda: leaves.extend(self.pieces.leaves(version)))
            self.leaves = version, b"".join(leaves)
            return await self._equal_to_root(version, leaves)
        finally:
            self._verifying = False

    async def _equal_to_root(self, version: int, leaves: list[bytes]) -> bool:
        """Wait for the root, which follows a commit by as long as the members hash, and compare the pieces with it.

        Where none has come yet, the leader compares.
        """
        if 0 <= self._root[0] < version:
            with suppress(TimeoutError):
                async with asyncio.timeout(ROOT_S):
                    while self._root[0] < version:
                        self._rooted.clear()
                        await self._rooted.wait()
        if self._root[0] != version or root_of(leaves) == self._root[1]:
            return True
        right = await self._leaves(*self._root)
        if right is None:
            self._table.fetch_anew(range(len(leaves)))
        else:
            self._refuse([place for place, leaf in enumerate(leaves) if leaf != right[place]])
        return False

    async def _leaves(self, version: int, root: str) -> list[bytes] | None:
        """Return the hashes of all pieces that belong to a root; None: no donor has them."""
        for process in list(self._donors):
            where: Arguments = {"stage": self.stage, "version": version}
            try:
                [data] = await self.requests.ask(process, LEAVES, where, timeout_s=_TIMEOUT_S)
            except (NetworkError, ValueError) as error:
                log.info("%s gives no hashes of stage %d: %s", process, self.stage, error)
                continue
            leaves = [bytes(data[at : at + LEAF_BYTES]) for at in range(0, len(data), LEAF_BYTES)]
            if len(leaves) == len(self._table.spans) and root_of(leaves) == root:
                return leaves
            log.warning("%s has another state of stage %d at version %d than most", process, self.stage, version)
            self._refused.add(process)
            self._drop(process)
        return None

    def _refuse(self, wrong: list[int]) -> None:
        """Fetch wrong pieces anew, and ask nothing more of a donor that alone has given one."""
        for place in wrong:
            givers = self._givers.pop(place, set())
            if len(givers) == 1:
                [process] = givers
                log.warning("%s gave a wrong piece of stage %d: it is asked for nothing more", process, self.stage)
                self.failures.append(f"{process}: it gave a wrong piece")
                self._refused.add(process)
                self._drop(process)
        self._table.fetch_anew(wrong)
        log.warning("%d pieces of stage %d are not what most of its peers have: fetched anew", len(wrong), self.stage)

    def _report(self) -> None:
        """Report how much has arrived, and how much that and the updates of what is here will be together."""
        first = self._table.spans[0]
        state, update = (
            of(first) / (first.stop - first.start) for of in (self.pieces.state_bytes, self.pieces.update_bytes)
        )
        left_bytes = round(self._table.elements_missing() * state + self._table.elements_behind(self.target) * update)
        self.on_progress(list(self._donors), self.received_bytes, self.received_bytes + left_bytes)


def _write(pieces: StagePieces, span: Span, answer: PieceAnswer, data: memoryview) -> None:
    """Set the first piece of a span, or update all of them."""
    if not answer.updates:
        pieces.write(Span(span.group, span.start, answer.stop), answer.version, data)
        return
    at = 0
    for each in answer.updates:
        sums = data[at : at + each.size_bytes]
        at += each.size_bytes
        pieces.follow(span, SpanUpdate(each.step, each.scale, each.learning_rate, each.ratios, sums))
