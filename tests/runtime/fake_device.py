"""A device without hardware: CPU tensors in disguise, events that fire when the test says, and an error for who waits.

The tensors are of torch's device type `lazy`, which nothing else here uses: production code takes the paths of a device
that is not the CPU, and the operators run on the CPU at once. Whatever would make the host wait for a real device
raises BlockingError in the threads that are watched: to read a number, a copy between the device and memory that is not
pinned, or an operator whose result has a length that depends on values.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from swarmflow.compute.device_layer import DeviceEvent, StreamName
from swarmflow.runtime.execution.worker import Worker
from tests.runtime.nodes import DEADLINE_S

DEVICE = torch.device("lazy")
Operator = Callable[..., object]
Arguments = tuple[Any, ...]
Named = dict[str, Any]
_aten = torch.ops.aten
_WAITS = {
    _aten._local_scalar_dense.default,
    _aten.equal.default,
    _aten.is_nonzero.default,
    _aten.masked_select.default,
    _aten.nonzero.default,
    _aten._unique2.default,
}
_INDEXED = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
_thread = threading.local()


class BlockingError(AssertionError):
    """A watched thread waits for the device."""


class DeviceTensor(Tensor):
    """A tensor of the fake device; `host` has its values."""

    host: Tensor

    @staticmethod
    def __new__(cls: type[DeviceTensor], host: Tensor) -> DeviceTensor:
        like = {"strides": host.stride(), "storage_offset": host.storage_offset(), "dtype": host.dtype}
        make: Any = Tensor._make_wrapper_subclass
        made: DeviceTensor = make(cls, host.size(), **like, device=DEVICE)
        return made

    def __init__(self, host: Tensor) -> None:
        self.host = host

    def data_ptr(self) -> int:
        return self.host.data_ptr()

    def tolist(self) -> list[Any]:
        if getattr(_thread, "watched", False):
            raise BlockingError("a list of a tensor's numbers")
        return self.host.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # declared as torch calls it, not as its base class is
        cls, func: Operator, types: Sequence[type], args: Arguments = (), kwargs: Named | None = None
    ) -> object:
        return _run(func, args, kwargs or {})


class FakeDevice(TorchDispatchMode):
    """While active in a thread, torch makes tensors of the fake device there where it is asked for them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Operator, types: Sequence[type], args: Arguments = (), kwargs: Named | None = None
    ) -> object:
        return _run(func, args, kwargs or {})


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Within, this thread may not wait for the device."""
    _thread.watched = True
    try:
        yield
    finally:
        _thread.watched = False


class WatchedWorker(Worker):
    """A worker whose thread computes on the fake device and may not wait for it."""

    def _run(self) -> None:
        with FakeDevice(), watched():
            super()._run()


class WaitingWorker(Worker):
    """A worker whose thread computes on the fake device and may wait for it."""

    def _run(self) -> None:
        with FakeDevice():
            super()._run()


@dataclass
class FakeEvent:
    """An event of a stream of FakeStreams."""

    at_s: float
    fired: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        assert self.fired.wait(DEADLINE_S), "an event that did not fire"

    def seconds_since(self, earlier: DeviceEvent) -> float:
        assert isinstance(earlier, FakeEvent)
        assert self.fired.is_set(), "the time of what is not done"
        return self.at_s - earlier.at_s


class FakeStreams:
    """Streams whose copies to the host are made as their events fire; before, pinned memory holds something else.

    held: whether the compute stream does what is queued only when `fire` is called. launched_max: the most launches
    that were ahead of it. pinned_bytes: of all buffers that were ever allocated. pass_s: the device's time from each
    event to the next.
    """

    def __init__(self, pass_s: float = 1 / 1024) -> None:
        self.pass_s = pass_s
        self.device = DEVICE
        self.held = False
        self.launched_max = 0
        self.pinned_bytes = 0
        self._lock = threading.Condition()
        self._queues: dict[StreamName, list[FakeEvent | tuple[Tensor, Tensor]]] = {name: [] for name in StreamName}
        self._events = 0

    @contextlib.contextmanager
    def on(self, stream: StreamName) -> Iterator[None]:
        _thread.stream = stream
        try:
            yield
        finally:
            _thread.stream = None
            with self._lock:
                if stream is StreamName.COMPUTE:
                    self.launched_max = max(self.launched_max, self._launched())
                if not (self.held and stream is StreamName.COMPUTE):
                    self._do(stream, len(self._queues[stream]))
                self._lock.notify_all()

    def event(self) -> FakeEvent:
        with self._lock:
            self._events += 1
            event = FakeEvent(self._events * self.pass_s)
            self._queues[_thread.stream].append(event)
            return event

    def wait_for_launches(self, count: int) -> None:
        """Return when so many launches are ahead of the compute stream."""
        with self._lock:
            assert self._lock.wait_for(lambda: self._launched() >= count, DEADLINE_S)

    def fire(self) -> None:
        """Let the compute stream do its next launch: up to the second event from here."""
        with self._lock:
            queue = self._queues[StreamName.COMPUTE]
            ends = [place for place, each in enumerate(queue) if isinstance(each, FakeEvent)]
            self._do(StreamName.COMPUTE, ends[1] + 1)

    def pinned(self, size_bytes: int) -> Tensor:
        self.pinned_bytes += size_bytes
        return torch.full((size_bytes,), 0xAA, dtype=torch.uint8)

    def copy_in(self, pinned: Tensor, target: Tensor) -> None:
        assert isinstance(target, DeviceTensor), "a tensor of the device"
        target.host.copy_(pinned)

    def copy_out(self, source: Tensor, pinned: Tensor) -> None:
        assert isinstance(source, DeviceTensor), "a tensor of the device"
        with self._lock:
            self._queues[_thread.stream].append((source.host.clone(), pinned))

    def hand_over(self, tensor: Tensor) -> None:
        assert isinstance(tensor, DeviceTensor), "a tensor of the device"

    def _launched(self) -> int:
        return sum(isinstance(each, FakeEvent) for each in self._queues[StreamName.COMPUTE]) // 2

    def _do(self, stream: StreamName, count: int) -> None:
        done, self._queues[stream] = self._queues[stream][:count], self._queues[stream][count:]
        for each in done:
            if isinstance(each, FakeEvent):
                each.fired.set()
            else:
                source, pinned = each
                pinned.copy_(source)


def on_host(tensor: Tensor) -> Tensor:
    """Return the values of a tensor of either device."""
    return tensor.host if isinstance(tensor, DeviceTensor) else tensor


def _run(func: Operator, args: Arguments, kwargs: Named) -> object:
    """Run an operator on the CPU tensors behind those of the device, unless it would wait."""
    leaves = pytree.tree_leaves((args, kwargs))
    there = any(isinstance(each, DeviceTensor) for each in leaves)
    if getattr(_thread, "watched", False):
        _refuse_to_wait(func, args, kwargs)
    first = leaves[0] if leaves else None
    first_host = first.host if isinstance(first, DeviceTensor) else first
    args, kwargs = pytree.tree_map_only(DeviceTensor, lambda tensor: tensor.host, (args, kwargs))
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == DEVICE.type
        kwargs["device"] = torch.device("cpu")
    found = func(*args, **kwargs)
    if func is _aten._local_scalar_dense.default:
        return found
    if first is not None and found is first_host:  # changed in place
        return first
    return pytree.tree_map_only(Tensor, DeviceTensor, found) if there else found


def _refuse_to_wait(func: Operator, args: Arguments, kwargs: Named) -> None:
    there = bool(args) and isinstance(args[0], DeviceTensor)
    target = kwargs.get("device")
    if func in _WAITS and any(isinstance(each, DeviceTensor) for each in args):
        raise BlockingError(f"{func}")
    if func is _aten._to_copy.default and target is not None and there != (torch.device(target).type == DEVICE.type):
        raise BlockingError("a copy between the device and memory that is not pinned")
    if func is _aten.copy_.default and there != isinstance(args[1], DeviceTensor):
        raise BlockingError("a copy between the device and memory that is not pinned")
    if there and func in _INDEXED and any(isinstance(each, Tensor) and each.dtype is torch.bool for each in args[1]):
        raise BlockingError(f"{func} with a mask")
