"""Whether a stage fits into the memory that a peer may use, and how many of its microbatches do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from swarmflow.compute.demands import TEMPORARY, StageMemory, stage_memory
from swarmflow.compute.device import free_memory_bytes
from swarmflow.errors import ConfigError
from swarmflow.files import readable_size
from swarmflow.manifest import Manifest
from swarmflow.peer_memory import JOURNAL_BYTES, journal_bytes, limit_for

log = logging.getLogger("swarmflow")

_MEMORY_SHARE = 0.5  # of the free memory that measured capacity may use: other processes need some too
_CPU_BYTES = 200_000_000  # modules that are imported with the first stage, and buffers of messages and of the codec


class NoMemoryError(ConfigError):
    """The limit has no room for a stage. stage: its number."""

    def __init__(self, line: str, stage: int) -> None:
        super().__init__(line)
        self.stage = stage


@dataclass(frozen=True)
class MicrobatchMemory:
    """The memory of the microbatches of a stage."""

    held_bytes: int  # of each one that is held
    passes_bytes: int  # that passes take beside these

    @classmethod
    def kept(cls, graph_bytes: int) -> MicrobatchMemory:
        """Return that of microbatches whose graphs are kept whole. graph_bytes: of one."""
        return cls(graph_bytes, TEMPORARY * graph_bytes)

    @classmethod
    def recomputed(cls, inputs_bytes: int, largest_bytes: int) -> MicrobatchMemory:
        """Return that of microbatches whose blocks are computed again, one at a time, in the backward pass.

        inputs_bytes: of what one keeps. largest_bytes: of what the largest block does while it is computed again. A
        pass has that, and the microbatch itself; the gradients of parameters are not left for later.
        """
        return cls(inputs_bytes, inputs_bytes + largest_bytes)


@dataclass
class MemoryBudget:
    """The memory that a peer may use: of its device, which for the CPU is the memory of its processes.

    used_bytes: returns the memory in use before a stage is built, on the CPU. free_bytes: returns what is free.
    """

    device: torch.device
    limit_bytes: int | None = None  # of --memory-limit; None: what is free
    capacity: int | None = None  # of --capacity; None: it is measured
    journal_given_bytes: int | None = None  # of --journal-bytes-max
    used_bytes: Callable[[], int] = lambda: 0
    state: str = "auto"  # of --state: where the state of a stage is, "device" or "host"
    activations: str = "auto"  # of --activations: "keep" those of blocks, or "recompute" them
    compiled: bool = False  # of --compile: whether blocks are compiled, which changes what they keep
    free_bytes: Callable[[torch.device], int] = free_memory_bytes
    # Stages of a run, by its fingerprint, beside which not one microbatch has room.
    full: set[tuple[str, int]] = field(init=False, default_factory=set)
    _base_bytes: int | None = field(init=False, default=None)
    _free_at_start_bytes: int | None = field(init=False, default=None)  # where there is no limit

    @property
    def layouts(self) -> tuple[bool, ...]:
        """Whether a stage's state is in the memory of the host: what may be tried, in this order.

        A CPU has no other memory, and the copies would take more of it.
        """
        if self.state == "auto":
            return (False, True) if self.device.type == "cuda" else (False,)
        return (self.state == "host",)

    @property
    def journal_bytes(self) -> int:
        """The bound of what is kept for repairs."""
        if self.journal_given_bytes is not None:
            return self.journal_given_bytes
        if self.limit_bytes is None or self.device.type == "cuda":
            return JOURNAL_BYTES
        return journal_bytes(self.limit_bytes)

    def begin(self) -> None:
        """Measure what the process uses without a stage, once; on CUDA, have the limit enforced.

        Without a limit, what is free decides: on CUDA where states are, else which stages have room at all.
        """
        measures = len(self.layouts) > 1 or self.device.type != "cuda"
        if self.limit_bytes is None and measures and self._free_at_start_bytes is None:
            self._base_bytes, self._free_at_start_bytes = 0, self.free_bytes(self.device)
        if self.limit_bytes is None or self._base_bytes is not None:
            return
        if self.device.type != "cuda":
            self._base_bytes = self.used_bytes() + _CPU_BYTES
            return
        self._base_bytes = 0
        total_bytes = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, self.limit_bytes / total_bytes), self.device)

    def unfit(self, manifest: Manifest) -> tuple[int, ...]:
        """Return the stages for which the limit has no room, as far as is known before one is built.

        Raises NoMemoryError for the smallest one where it has room for none.
        """
        full = {stage for run, stage in self.full if run == manifest.fingerprint}
        if self.limit_bytes is None and len(full) == manifest.stages:
            raise NoMemoryError("no stage of this run has room here", min(full))
        if self._most_bytes is None:
            return tuple(sorted(full))
        left = {stage: self._most_left_bytes(manifest, stage) for stage in range(manifest.stages)}
        lacking = tuple(stage for stage, free in left.items() if free <= 0 or stage in full)
        if len(lacking) == manifest.stages:
            raise self._refusal(manifest, max(left, key=lambda stage: left[stage]), None)
        return lacking

    def has_room(self, manifest: Manifest) -> bool:
        """Return whether there may be room for any stage of a run."""
        try:
            self.unfit(manifest)
        except NoMemoryError:
            return False
        return True

    def check_stage(self, manifest: Manifest, stage: int) -> None:
        """Raise NoMemoryError where there is no room for a stage, before memory is allocated for it."""
        if self._most_bytes is not None and self._most_left_bytes(manifest, stage) <= 0:
            raise self._refusal(manifest, stage, None)

    def check_layout(self, manifest: Manifest, stage: int, *, in_host_memory: bool) -> None:
        """Raise NoMemoryError as `check_stage` does, for a state in one of both memories."""
        if self._most_bytes is not None and self._left_bytes(manifest, stage, in_host_memory) <= 0:
            raise self._refusal(manifest, stage, None, in_host_memory=in_host_memory)
        if not in_host_memory or self.device.type != "cuda":
            return
        needed_bytes = stage_memory(manifest, stage, in_host_memory=True).host_bytes
        free_bytes = self.free_bytes(torch.device("cpu"))
        if needed_bytes > free_bytes:
            raise NoMemoryError(
                f"the state of stage {stage} takes {readable_size(needed_bytes)} in the memory of the host, of which "
                f"{readable_size(free_bytes)} are free; serve a smaller stage, or use a device that holds the state",
                stage,
            )

    def fitting(self, manifest: Manifest, stage: int, one: MicrobatchMemory, *, in_host_memory: bool = False) -> int:
        """Return how many microbatches fit, at most as many as fill a pipeline of this depth.

        in_host_memory: where the stage's state is. Raises NoMemoryError where there is no room for one, or for
        --capacity.
        """
        allowed = self.check_microbatches(manifest, stage, one, in_host_memory=in_host_memory)
        if self.capacity is not None:
            return self.capacity
        fits = self._comfortable(one)
        if fits < 1:
            log.warning("not even one microbatch fits comfortably (%.1f GB); trying with one", one.held_bytes / 1e9)
        return max(1, min(_most(manifest), fits, allowed))

    def check_microbatches(
        self, manifest: Manifest, stage: int, one: MicrobatchMemory, *, in_host_memory: bool = False
    ) -> int:
        """Return how many microbatches there is room for beside a stage; without a limit any number.

        in_host_memory: where the stage's state is. Raises NoMemoryError where there is no room for one, or for
        --capacity.
        """
        allowed = self._allowed(manifest, stage, one, in_host_memory=in_host_memory)
        if allowed < (self.capacity or 1):
            raise self._refusal(manifest, stage, one, in_host_memory=in_host_memory)
        return allowed

    def has_enough(
        self, manifest: Manifest, stage: int, one: MicrobatchMemory, *, in_host_memory: bool = False
    ) -> bool:
        """Return whether there is room for as many microbatches as a peer should hold: --capacity, or a pipeline full.

        in_host_memory: where the stage's state is, which takes no memory yet.
        """
        allowed = self._allowed(manifest, stage, one, in_host_memory=in_host_memory)
        if self.capacity is not None:
            return allowed >= self.capacity
        return min(allowed, self._comfortable(one)) >= _most(manifest)

    def _allowed(self, manifest: Manifest, stage: int, one: MicrobatchMemory, *, in_host_memory: bool) -> int:
        """Return how many microbatches have room within the limit; less than one: none. Without a limit any number.

        What one takes is an estimate, by which nobody is refused who shares the machine's memory and has set no limit.
        """
        if self._most_bytes is None or (self.limit_bytes is None and self.device.type != "cuda"):
            return manifest.microbatches
        left_bytes = self._left_bytes(manifest, stage, in_host_memory) - one.passes_bytes
        return left_bytes // one.held_bytes

    def _comfortable(self, one: MicrobatchMemory) -> int:
        return int(self.free_bytes(self.device) * _MEMORY_SHARE) // one.held_bytes

    @property
    def _most_bytes(self) -> int | None:
        """What stage, microbatches and process may take together; None: as much as they need."""
        self.begin()
        return self._free_at_start_bytes if self.limit_bytes is None else self.limit_bytes

    def _most_left_bytes(self, manifest: Manifest, stage: int) -> int:
        return max(self._left_bytes(manifest, stage, in_host) for in_host in self.layouts)

    def _left_bytes(self, manifest: Manifest, stage: int, in_host_memory: bool) -> int:
        """Return the bytes that are left for microbatches."""
        assert self._most_bytes is not None, "there is a limit"
        taken_bytes = self._taken_bytes(stage_memory(manifest, stage, in_host_memory=in_host_memory))
        return self._most_bytes - self._without_stage_bytes() - taken_bytes

    def _taken_bytes(self, memory: StageMemory) -> int:
        """Return what a stage takes of the memory that is limited."""
        return memory.device_bytes if self.device.type == "cuda" else memory.all_bytes

    def _without_stage_bytes(self) -> int:
        self.begin()
        assert self._base_bytes is not None, "there is a limit"
        # Without a limit the bound for repairs does not count: a small machine is not refused for what it never keeps.
        return self._base_bytes + (0 if self.device.type == "cuda" or self.limit_bytes is None else self.journal_bytes)

    def _limit_for(self, rest_bytes: int) -> int:
        """Return the least limit for so much beside what is kept for repairs, which grows with the limit."""
        if self.device.type == "cuda" or self.limit_bytes is None:
            return rest_bytes
        given = self.journal_given_bytes
        return limit_for(rest_bytes) if given is None else rest_bytes + given

    def _refusal(
        self, manifest: Manifest, stage: int, one: MicrobatchMemory | None, *, in_host_memory: bool | None = None
    ) -> NoMemoryError:
        held, in_host = self.capacity or 1, self.layouts[-1] if in_host_memory is None else in_host_memory
        served_bytes = self._taken_bytes(stage_memory(manifest, stage, in_host_memory=in_host))
        where = ", its state in the memory of the host" if in_host else ""
        parts = [f"{readable_size(served_bytes)} for the stage{where}"]
        microbatches_bytes = 0 if one is None else held * one.held_bytes + one.passes_bytes
        if one is not None:
            what = "a microbatch" if held == 1 else f"{held} microbatches (--capacity)"
            parts.append(f"{readable_size(microbatches_bytes)} for {what}")
        rest_bytes = (self._base_bytes or 0) + served_bytes + microbatches_bytes
        needed_bytes = self._limit_for(rest_bytes)
        if needed_bytes > served_bytes + microbatches_bytes:
            base_bytes = needed_bytes - served_bytes - microbatches_bytes
            journal = f" with {readable_size(needed_bytes - rest_bytes)} for repairs (--journal-bytes-max)"
            parts.append(f"{readable_size(base_bytes)} for the process{journal}")
        least = "" if one is not None else "more than "
        raise_it = f"needs {least}{readable_size(needed_bytes, up=True)}: {', '.join(parts)}"
        advice = "raise the limit, or serve a smaller stage (swarmflow plan --cut finds a cut for given machines)"
        assert self._most_bytes is not None, "there is a limit"
        limit = readable_size(self._most_bytes)
        if self.limit_bytes is None:
            advice = advice.removeprefix("raise the limit, or ")
            where = str(self.device) if self.device.type == "cuda" else "this machine"
            return NoMemoryError(f"{where} has {limit} free: stage {stage} {raise_it}; {advice}", stage)
        return NoMemoryError(f"--memory-limit {limit}: stage {stage} {raise_it}; {advice}", stage)


def _most(manifest: Manifest) -> int:
    """Return how many microbatches fill a pipeline of this depth."""
    return min(manifest.microbatches, 2 * manifest.stages + 2)
