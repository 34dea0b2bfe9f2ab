"""The bytes behind the core's Refs: boundary tensors in wire form, kept until they are released."""

from __future__ import annotations

from swarmflow.core.protocol.types import Ref

Buffer = bytes | bytearray | memoryview


class Store:
    """Bytes by reference. Used on the event loop only."""

    def __init__(self) -> None:
        self._buffers: dict[int, Buffer] = {}
        self._next = 0
        self.size_bytes = 0

    def add(self, buffer: Buffer) -> Ref:
        """Keep a buffer, which must not change any more."""
        self._next += 1
        ref = Ref(self._next, len(buffer))
        self._buffers[ref.key] = buffer
        self.size_bytes += ref.size_bytes
        return ref

    def get(self, ref: Ref) -> Buffer:
        """Return the bytes. Raises KeyError after their release."""
        return self._buffers[ref.key]

    def release(self, refs: tuple[Ref, ...]) -> None:
        """Release the bytes; a sender or reader holds the buffer itself."""
        for ref in refs:
            del self._buffers[ref.key]
            self.size_bytes -= ref.size_bytes

    def __len__(self) -> int:
        return len(self._buffers)
