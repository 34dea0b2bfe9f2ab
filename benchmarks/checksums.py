"""What a checksum over the bodies of a frame costs: `python -m benchmarks.checksums`. See README.md."""

from __future__ import annotations

import argparse
import sys
import time
import zlib
from collections.abc import Callable

import numpy as np
import xxhash
from blake3 import blake3

PIECES = (1 << 12, 1 << 16, 1 << 18)  # bytes: a frame of a small sum, the longest joined frame, a piece of a tensor
BUFFER_BYTES = 1 << 28  # more than a cache holds, as tensors that arrive are
REPEATS = 5
LINKS_BITS_PER_S = (50e6, 200e6, 1e9)
CANDIDATES: dict[str, Callable[[memoryview], object]] = {
    "zlib.crc32": zlib.crc32,
    "blake3": lambda piece: blake3(piece).digest(),
    "xxh64": xxhash.xxh64_digest,
    "xxh3_64": xxhash.xxh3_64_digest,
    "xxh3_128": xxhash.xxh3_128_digest,
}
CHOSEN = "xxh3_64"
SHARE_MAX = 0.01  # of a core


def ns_per_byte(of: Callable[[memoryview], object], buffer: memoryview, piece_bytes: int) -> float:
    """Return the least of some repeats over a buffer, piece by piece."""
    best_s = float("inf")
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        for start in range(0, len(buffer), piece_bytes):
            of(buffer[start : start + piece_bytes])
        best_s = min(best_s, time.perf_counter() - began_s)
    return best_s * 1e9 / len(buffer)


def added_ns_per_byte(buffer: memoryview, *, before: bool) -> float:
    """Return what the chosen one adds to a copy of each piece, as a sender reads it before, and a receiver after."""
    there, chosen = bytearray(PIECES[-1]), CANDIDATES[CHOSEN]

    def copy(piece: memoryview) -> None:
        there[:] = piece

    def both(piece: memoryview) -> None:
        if before:
            chosen(piece)
        copy(piece)
        if not before:
            chosen(memoryview(there))

    return ns_per_byte(both, buffer, PIECES[-1]) - ns_per_byte(copy, buffer, PIECES[-1])


def main() -> int:
    """0 where the chosen one takes at most SHARE_MAX of a core on a busy link of the fastest kind, else 1."""
    argparse.ArgumentParser(prog="python -m benchmarks.checksums", description=__doc__).parse_args()
    buffer = np.random.default_rng(0).integers(0, 256, BUFFER_BYTES, np.uint8).data
    print("ns/byte, pieces of" + "".join(f"{size >> 10:9d} KiB" for size in PIECES))
    for name, of in CANDIDATES.items():
        print(f"{name:18s}" + "".join(f"{ns_per_byte(of, buffer, size):13.4f}" for size in PIECES))
    added = [added_ns_per_byte(buffer, before=before) for before in (True, False)]
    print(f"\n{CHOSEN} beside the copy of a piece: {added[0]:.4f} ns/byte before it, {added[1]:.4f} after it")
    print("of a core, where a link is busy in both directions all the time:")
    shares = [bits / 8 * sum(added) * 1e-9 for bits in LINKS_BITS_PER_S]
    for bits, share in zip(LINKS_BITS_PER_S, shares, strict=True):
        print(f"{bits / 1e6:6.0f} Mb/s {share:8.3%}")
    return 0 if shares[-1] <= SHARE_MAX else 1


if __name__ == "__main__":
    sys.exit(main())
