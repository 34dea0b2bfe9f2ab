"""The device of a peer as a queue of work: streams, events, and a ring of pinned buffers between it and the host.

A stream does its work in order, beside the other streams: `COMPUTE` the passes, `COPY_IN` what is decoded, `COPY_OUT`
what is encoded. A thread that queues work does not wait for it. It gets a `Launched`, whose event fires when the device
is done; then the numbers that the work has read lie in pinned memory. On the CPU there is one stream, the thread
itself, and whatever is queued is done.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarmflow.compute.device_work import AtOnce, DeviceWork, Then, bytes_of

_ALIGNMENT = 16  # of tensors in one pinned buffer, in bytes
_PINNED_BYTES_MIN = 1 << 12

X = TypeVar("X")
T = TypeVar("T")


class StreamName(Enum):
    """What a stream is for."""

    COMPUTE = auto()
    COPY_IN = auto()
    COPY_OUT = auto()


@dataclass(frozen=True)
class Launched(Generic[T]):
    """Work that is queued on a device, or done.

    wait: returns when it is done; None: it is. settle: to be called then, once; returns its result. seconds: that the
    device took.
    """

    wait: Callable[[], None] | None
    settle: Callable[[], T]
    seconds: Callable[[], float]


class DeviceLayer(ABC):
    """Runs work on `device`."""

    device: torch.device

    @abstractmethod
    def run(
        self,
        stream: StreamName,
        body: Callable[[DeviceWork], X],
        done: Callable[[X, float], T],
        failed: Callable[[Exception], T],
    ) -> Launched[T]:
        """Run `body` on a stream; the result is what `done` makes of its value and of the seconds that it took.

        failed: makes a result of an error of the body, or of one that follows from its numbers, or raises it.
        """


class HostLayer(DeviceLayer):
    """A device that the thread waits for, which on the CPU is itself: work is done when `run` returns.

    On a CPU, seconds are the thread's own: a frozen or waiting process does not compute.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self._work = AtOnce(self.device)
        self._clock = time.thread_time if self.device.type == "cpu" else time.monotonic

    def run(
        self,
        stream: StreamName,
        body: Callable[[DeviceWork], X],
        done: Callable[[X, float], T],
        failed: Callable[[Exception], T],
    ) -> Launched[T]:
        """Run it."""
        began_s = self._clock()
        try:
            value = body(self._work)
        except Exception as error:
            result = failed(error)
        else:
            result = done(value, self._clock() - began_s)
        seconds = self._clock() - began_s
        return Launched(None, lambda: result, lambda: seconds)


# --- a device beside the CPU ------------------------------------------------------------------------------------------


class DeviceEvent(Protocol):
    """A place in a stream."""

    def wait(self) -> None:
        """Return when the stream has come to it."""
        ...

    def seconds_since(self, earlier: DeviceEvent) -> float:
        """Return the device's time between two events that have fired."""
        ...


class Streams(Protocol):
    """What `QueuedLayer` needs of a device. Nothing of it waits, but for `DeviceEvent.wait`."""

    device: torch.device

    def on(self, stream: StreamName) -> AbstractContextManager[object]:
        """Queue what the thread does within on this stream."""
        ...

    def event(self) -> DeviceEvent:
        """Return an event behind what is queued on the present stream."""
        ...

    def pinned(self, size_bytes: int) -> Tensor:
        """Return host memory, uint8 [size_bytes], that the device reads and writes itself."""
        ...

    def copy_in(self, pinned: Tensor, target: Tensor) -> None:
        """Queue a copy of pinned memory to the device."""
        ...

    def copy_out(self, source: Tensor, pinned: Tensor) -> None:
        """Queue a copy to pinned memory, which is valid when a later event has fired."""
        ...

    def hand_over(self, tensor: Tensor) -> None:
        """Let the compute stream use a tensor that was made on the present stream, before its memory is used again."""
        ...


class PinnedRing:
    """Pinned buffers, each used again when its work is done: pinning takes as long as copying. Safe in any thread."""

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        self._lock = threading.Lock()
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)

    def take(self, size_bytes: int) -> Tensor:
        """Return a buffer of at least this size; sizes are powers of two, so that like tensors share theirs."""
        size = max(_PINNED_BYTES_MIN, 1 << (size_bytes - 1).bit_length())
        with self._lock:
            if self._free[size]:
                return self._free[size].pop()
        return self._allocate(size)

    def give_back(self, buffer: Tensor) -> None:
        """Return a buffer that neither the device nor the host uses any more."""
        with self._lock:
            self._free[buffer.numel()].append(buffer)


@dataclass
class QueuedWork(DeviceWork):
    """Work in a stream; its numbers are read when the event behind it has fired."""

    streams: Streams
    ring: PinnedRing
    at_once: bool = field(init=False, default=False)
    _buffers: list[Tensor] = field(init=False, default_factory=list)
    _reads: list[tuple[list[Tensor], Then]] = field(init=False, default_factory=list)

    @property
    def device(self) -> torch.device:  # type: ignore[override]  # of the streams
        """The device."""
        return self.streams.device

    def receive(self, data: npt.NDArray[np.uint8], elements: int, dtype: torch.dtype) -> Tensor:
        """Queue a copy through a pinned buffer."""
        [pinned] = self._pinned([(torch.Size((elements,)), dtype)])
        pinned.view(torch.uint8).numpy()[:] = data
        target = torch.empty(elements, dtype=dtype, device=self.device)
        self.streams.copy_in(pinned, target)
        return target

    def copy_in(self, host: Tensor) -> Tensor:
        """Queue a copy through a pinned buffer."""
        return self.receive(bytes_of(host.contiguous().view(-1)), host.numel(), host.dtype).view(host.shape)

    def read(self, values: list[Tensor], then: Then) -> None:
        """Queue copies to a pinned buffer; `then` is called when all of the work is done."""
        found = self._pinned([(value.shape, value.dtype) for value in values])
        for value, pinned in zip(values, found, strict=True):
            self.streams.copy_out(value.detach(), pinned)
        self._reads.append((found, then))

    def hand_over(self, tensor: Tensor) -> Tensor:
        """Return it, for the compute stream."""
        self.streams.hand_over(tensor)
        return tensor

    def settle(self) -> None:
        """Pass on the numbers, in the order in which they were asked for. Raises the first error that follows."""
        for found, then in self._reads:
            then(found)

    def release(self) -> None:
        """Give the pinned buffers back: the event behind the work has fired."""
        for buffer in self._buffers:
            self.ring.give_back(buffer)
        self._buffers, self._reads = [], []

    def _pinned(self, shapes: list[tuple[torch.Size, torch.dtype]]) -> list[Tensor]:
        """Return tensors in one pinned buffer."""
        sizes = [shape.numel() * dtype.itemsize for shape, dtype in shapes]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
        buffer = self.ring.take(max(1, starts[-1]))
        self._buffers.append(buffer)
        return [
            buffer[start : start + size].view(dtype).view(shape)
            for start, size, (shape, dtype) in zip(starts, sizes, shapes, strict=False)
        ]


class QueuedLayer(DeviceLayer):
    """A device that works by itself: work is queued on its streams, and done when the event behind it has fired."""

    def __init__(self, streams: Streams) -> None:
        self.device = streams.device
        self._streams = streams
        self._ring = PinnedRing(streams.pinned)

    def run(
        self,
        stream: StreamName,
        body: Callable[[DeviceWork], X],
        done: Callable[[X, float], T],
        failed: Callable[[Exception], T],
    ) -> Launched[T]:
        """Queue it, and return a handle."""
        work = QueuedWork(self._streams, self._ring)
        value: X | Exception
        with self._streams.on(stream):
            began = self._streams.event()
            try:
                value = body(work)
            except Exception as error:
                value = error  # copies to and from pinned buffers may be under way: they are settled like others
            ended = self._streams.event()

        def settle() -> T:
            try:
                if isinstance(value, Exception):
                    raise value
                work.settle()
            except Exception as error:
                return failed(error)
            else:
                return done(value, ended.seconds_since(began))
            finally:
                work.release()

        return Launched(ended.wait, settle, lambda: ended.seconds_since(began))


class _CudaEvent:
    def __init__(self) -> None:
        # A thread that waits for it sleeps, and leaves its core to the others.
        self.event = torch.cuda.Event(enable_timing=True, blocking=True)
        self.event.record()

    def wait(self) -> None:
        self.event.synchronize()

    def seconds_since(self, earlier: DeviceEvent) -> float:
        assert isinstance(earlier, _CudaEvent), "events of one device"
        return float(earlier.event.elapsed_time(self.event)) / 1e3


class CudaStreams:
    """The streams of a CUDA device.

    Passes are queued on the device's default stream, on which updates, reductions and transfers of state are, too:
    between them nothing has to be ordered by hand.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._streams = {
            StreamName.COMPUTE: torch.cuda.default_stream(device),
            StreamName.COPY_IN: torch.cuda.Stream(device),
            StreamName.COPY_OUT: torch.cuda.Stream(device),
        }

    def on(self, stream: StreamName) -> AbstractContextManager[object]:
        """Queue what the thread does within on this stream."""
        context: AbstractContextManager[object] = torch.cuda.stream(self._streams[stream])
        return context

    def event(self) -> DeviceEvent:
        """Return an event behind what is queued on the present stream."""
        return _CudaEvent()

    def pinned(self, size_bytes: int) -> Tensor:
        """Return pinned memory."""
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def copy_in(self, pinned: Tensor, target: Tensor) -> None:
        """Queue a copy to the device."""
        target.copy_(pinned, non_blocking=True)

    def copy_out(self, source: Tensor, pinned: Tensor) -> None:
        """Queue a copy to pinned memory."""
        pinned.copy_(source, non_blocking=True)

    def hand_over(self, tensor: Tensor) -> None:
        """Keep the tensor's memory until the compute stream has used it."""
        tensor.record_stream(self._streams[StreamName.COMPUTE])


def layer_of(device: torch.device) -> DeviceLayer:
    """Return the layer of a device."""
    return QueuedLayer(CudaStreams(device)) if device.type == "cuda" else HostLayer(device)
