"""Copies the state of a stage between processes: listed, read in chunks, verified by its root."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import msgspec
import torch

from swarmflow.compute.checkpoint import Checkpoint
from swarmflow.compute.finite import finite
from swarmflow.compute.state_root import CODES, item_bytes
from swarmflow.compute.tensorfile import TensorFileWriter
from swarmflow.core.protocol.types import Member, ProcessId
from swarmflow.decoding import UNDECODABLE
from swarmflow.errors import NetworkError, SwarmflowError, WrongCopyError
from swarmflow.runtime.transport.requests import Arguments, Requests

CHUNK_ELEMENTS = 1 << 18  # 1 MiB of fp32: a stream is as fast with it as with more
CHUNKS_AHEAD = 4  # requested ahead: hides the round trip at the cost of little memory
LIST_TIMEOUT_S = 60.0
# Of the only donor: its first answer takes until it has read and hashed its file (60 GB at 200 MB/s). With others there
# are, nobody waits so long for one that does not answer.
ONLY_LIST_TIMEOUT_S = 300.0
HELD_POLL_S = 0.25  # how often a copy that is held up looks whether it still is

_Chunk = tuple[str, int, int]
"""(tensor, first element, the one after the last)."""


@dataclass(frozen=True)
class Listing:
    """What a donor has of a stage's version. Tensors of the stage that are not listed are zeros."""

    tensors: dict[str, int]  # name -> elements

    @property
    def total_bytes(self) -> int:
        """Of all tensors together."""
        return sum(item_bytes(name) * count for name, count in self.tensors.items())


Write = Callable[[str, int, memoryview], None]
"""(tensor, first element, bytes)."""

OnProgress = Callable[[ProcessId, int, int], None]
"""(donor, bytes received so far, bytes of all that the donor lists)."""


Hold = Callable[[], bool]
"""Whether nothing may be asked for at the moment."""


def _nothing(donor: ProcessId, received_bytes: int, total_bytes: int) -> None:
    """Ignore progress."""


def never() -> bool:
    """Hold nothing up."""
    return False


ListState = Callable[[int, int, str], Listing]
"""(stage, version, root): of the state that is asked for; empty: any of that version."""

ReadState = Callable[[int, int, str, str, int, int], bytes]
"""(stage, version, root, tensor, first element, the one after the last)."""


def serve_state(requests: Requests, listing: ListState, read: ReadState) -> None:
    """Answer `state/list` and `state/read`; both functions raise NetworkError for a state that is not here.

    Both are called in threads of the event loop's pool. To list a file may be to read all of it, which opens it: who
    asks meanwhile waits for that, and not in a thread.
    """
    opening: WeakValueDictionary[tuple[int, int], asyncio.Lock] = WeakValueDictionary()  # by (stage, version)

    async def on_list(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        stage, version = _number(arguments, "stage"), _number(arguments, "version")
        async with opening.setdefault((stage, version), asyncio.Lock()):
            found = await asyncio.to_thread(listing, stage, version, str(arguments.get("root", "")))
        return [msgspec.json.encode(found)]

    async def on_read(sender: ProcessId, arguments: Arguments) -> Sequence[bytes]:
        stage, version = _number(arguments, "stage"), _number(arguments, "version")
        start, stop = _number(arguments, "start"), _number(arguments, "stop")
        root, tensor = str(arguments.get("root", "")), str(arguments.get("tensor", ""))
        if not 0 <= start < stop or stop - start > CHUNK_ELEMENTS:
            raise NetworkError(f"elements {start} to {stop}: a chunk has 1 to {CHUNK_ELEMENTS}")
        return [await asyncio.to_thread(read, stage, version, root, tensor, start, stop)]

    requests.serve("state/list", on_list)
    requests.serve("state/read", on_read, lane="background")


async def list_state(
    requests: Requests,
    donor: ProcessId,
    stage: int,
    version: int,
    elements: Mapping[str, int],
    root: str = "",
    *,
    only: bool = False,
) -> Listing:
    """Return a donor's listing. Raises NetworkError when it does not fit.

    elements: of the stage's tensors. only: there is no other donor.
    """
    arguments: Arguments = {"stage": stage, "version": version, "root": root}
    timeout_s = ONLY_LIST_TIMEOUT_S if only else LIST_TIMEOUT_S
    answer = await requests.ask(donor, "state/list", arguments, timeout_s=timeout_s)
    try:
        listing = msgspec.json.decode(answer[0], type=Listing)
    except (*UNDECODABLE, IndexError) as error:
        raise NetworkError(f"{donor} lists a state that does not decode: {error}") from error
    wrong = [name for name, count in listing.tensors.items() if elements.get(name) != count]
    if wrong:
        raise NetworkError(f"{donor} lists {wrong[0]!r}, which does not fit stage {stage}")
    if version > 0 and set(listing.tensors) != set(elements):
        raise NetworkError(f"{donor} does not hold the whole state of stage {stage}")
    return listing


@dataclass(slots=True)
class StateCopy:
    """A state that is read chunk by chunk from its donors, from each as fast as it gives."""

    requests: Requests
    stage: int
    version: int
    listing: Listing
    write: Write
    done: set[tuple[str, int]]  # chunks (tensor, first element) that are written; each one that is written is added
    on_progress: OnProgress = _nothing  # called before the first chunk and after each one
    root: str = ""  # of the state to copy; empty: any of that version
    hold: Hold = never
    _chunks: deque[_Chunk] = field(init=False, default_factory=deque)  # that nobody has been asked for
    _received_bytes: int = field(init=False, default=0)
    _failures: dict[ProcessId, str] = field(init=False, default_factory=dict)
    _writes: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)  # a file has one position

    async def run(self, donors: Sequence[ProcessId]) -> None:
        """Read every chunk. Raises NetworkError with the failure of each donor when none is left."""
        for name, count in self.listing.tensors.items():
            starts = (start for start in range(0, count, CHUNK_ELEMENTS) if (name, start) not in self.done)
            self._chunks.extend((name, start, min(start + CHUNK_ELEMENTS, count)) for start in starts)
        lacking = sum(item_bytes(name) * (stop - start) for name, start, stop in self._chunks)
        self._received_bytes = self.listing.total_bytes - lacking
        self.on_progress(donors[0], self._received_bytes, self.listing.total_bytes)
        while self._chunks:
            able = [donor for donor in donors if donor not in self._failures]
            if not able:
                raise NetworkError("; ".join(self._failures.values()))
            await _all_or_none([asyncio.create_task(self._take(donor)) for donor in able])

    async def _take(self, donor: ProcessId) -> None:
        """Read chunks from one donor until there are no more. One that fails is asked for nothing more."""
        ahead: deque[tuple[_Chunk, asyncio.Task[memoryview]]] = deque()
        try:
            while self._chunks or ahead:
                while self._chunks and len(ahead) < CHUNKS_AHEAD and not self.hold():
                    chunk = self._chunks.popleft()
                    ahead.append((chunk, asyncio.create_task(self._fetch(donor, *chunk))))
                if not ahead:
                    await asyncio.sleep(HELD_POLL_S)
                    continue
                (name, start, _), task = ahead[0]
                data = await task
                if not await asyncio.to_thread(all_finite, name, data):
                    raise NetworkError(f"{donor} has a state of stage {self.stage} with values that are not finite")
                async with self._writes:
                    await asyncio.to_thread(self.write, name, start, data)
                ahead.popleft()
                self.done.add((name, start))
                self._received_bytes += len(data)
                self.on_progress(donor, self._received_bytes, self.listing.total_bytes)
        except NetworkError as error:
            self._failures[donor] = str(error)
        finally:
            self._chunks.extend(chunk for chunk, _ in ahead)  # for the others
            await _end([task for _, task in ahead])

    async def _fetch(self, donor: ProcessId, name: str, start: int, stop: int) -> memoryview:
        arguments: Arguments = {"stage": self.stage, "version": self.version, "root": self.root}
        arguments |= {"tensor": name, "start": start, "stop": stop}
        answer = await self.requests.ask(donor, "state/read", arguments, timeout_s=60.0)
        if len(answer) != 1 or len(answer[0]) != item_bytes(name) * (stop - start):
            raise NetworkError(f"{donor} sent a chunk of another size than was asked for")
        return answer[0]


async def _all_or_none(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for tasks; when one fails, none of them goes on."""
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def first_donor(
    requests: Requests,
    donors: Sequence[Member],
    stage: int,
    version: int,
    elements: Mapping[str, int],
    write: Write,
    on_progress: OnProgress = _nothing,
) -> Listing:
    """Copy a stage's version from one donor, or what it has not given from the next one; no chunk is requested twice.

    Returns what the last one has listed. Raises NetworkError with the failure of each donor.
    """
    failures: list[str] = []
    done: set[tuple[str, int]] = set()
    for donor in donors:
        try:
            listing = await list_state(requests, donor.process, stage, version, elements, only=len(donors) == 1)
            await StateCopy(requests, stage, version, listing, write, done, on_progress).run([donor.process])
        except NetworkError as error:
            failures.append(str(error))
        else:
            return listing
    raise NetworkError(f"stage {stage} at version {version} could not be loaded: {'; '.join(failures)}")


async def _parts(
    requests: Requests,
    donors: Sequence[Member],
    checkpoint: Checkpoint,
    stage: int,
    elements: Mapping[str, int],
    root: str,
    on_progress: OnProgress,
    hold: Hold,
) -> None:
    """Copy a stage's file from all donors that have it, a part from each.

    Raises NetworkError if none is left, WrongCopyError if the parts are not those of the state with this root.
    """
    what, only = (stage, checkpoint.version, elements, root), len(donors) == 1
    asked = (list_state(requests, member.process, *what, only=only) for member in donors)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    listings: dict[ProcessId, Listing] = {}
    failures: list[str] = []
    for donor, answer in zip(donors, answers, strict=True):
        if isinstance(answer, Listing):
            listings[donor.process] = answer
        elif isinstance(answer, NetworkError):
            failures.append(str(answer))
        else:
            raise answer
    if not listings:
        raise NetworkError(f"stage {stage} at version {checkpoint.version} could not be copied: {'; '.join(failures)}")
    first = next(iter(listings.values()))
    with _writing(checkpoint, stage, elements) as writer:
        copy = StateCopy(requests, stage, checkpoint.version, first, writer.write, set(), on_progress, root, hold)
        await copy.run(tuple(listings))
        await asyncio.to_thread(checkpoint.add, stage, writer, root)


@contextmanager
def _writing(checkpoint: Checkpoint, stage: int, elements: Mapping[str, int]) -> Iterator[TensorFileWriter]:
    """A file of a stage that is dropped unless it was added to the checkpoint."""
    writer = checkpoint.writer(stage, elements)
    try:
        yield writer
    finally:
        writer.abandon()


async def copy_stage(
    requests: Requests,
    checkpoint: Checkpoint,
    stage: int,
    donors: Sequence[Member],
    elements: Mapping[str, int],
    root: str | None = None,
    on_progress: OnProgress = _nothing,
    hold: Hold = never,
) -> None:
    """Copy a stage's file to disk. root: of the state, where known: then each donor gives a part of it.

    hold: called before each chunk of it; while it is true none is asked for.

    Where the parts are not those of one file, the first donor is asked for all of it that sends the right one; and the
    first that has one, where the root is not known. Raises NetworkError or WrongCopyError when no donor does,
    CheckpointError when the own disk refuses.
    """
    version = checkpoint.version
    if not donors:
        raise NetworkError(f"nobody was named who has stage {stage} at version {version}")
    if root is None:
        with _writing(checkpoint, stage, elements) as writer:
            await first_donor(requests, donors, stage, version, elements, writer.write, on_progress)
            await asyncio.to_thread(checkpoint.add, stage, writer)
        return
    failure: SwarmflowError | None = None
    for group in (tuple(donors), *((donor,) for donor in donors if len(donors) > 1)):
        try:
            await _parts(requests, group, checkpoint, stage, elements, root, on_progress, hold)
        except (NetworkError, WrongCopyError) as error:
            failure = error
            if isinstance(error, NetworkError) and len(group) == len(donors):
                break  # nobody is left to be asked alone
        else:
            return
    assert failure is not None
    raise failure


def all_finite(tensor: str, data: bytearray | memoryview) -> bool:
    """Return whether a part of a tensor of a stage's state is finite, as all 8-bit numbers are."""
    return bool(tensor.endswith(CODES)) or finite(torch.frombuffer(data, dtype=torch.float32))


def _number(arguments: Arguments, name: str) -> int:
    value = arguments.get(name)
    if not isinstance(value, int):
        raise NetworkError(f"{name} must be a number")
    return value
