"""Which sequences a microbatch holds: the data rule's arithmetic, the same on every machine and for ever."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_ROUNDS = 8


@dataclass(frozen=True)
class SequenceOrder:
    """The order of the sequences, of which each microbatch takes the next `microbatch_sequences`."""

    sequences: int  # S
    microbatches: int  # N, a step
    microbatch_sequences: int  # B
    seed: int | None = None  # of the permutation; None: the sequential order

    def of_microbatch(self, step: int, index: int) -> list[int]:
        """Return the sequences ((step*N + index)*B + b) mod S for b = 0 ... B-1, each passed through the permutation.

        Raises ValueError for a microbatch that no step has.
        """
        if step < 0 or not 0 <= index < self.microbatches:
            raise ValueError(f"no microbatch {index} in step {step}: a step has {self.microbatches}")
        first = (step * self.microbatches + index) * self.microbatch_sequences
        places = [(first + offset) % self.sequences for offset in range(self.microbatch_sequences)]
        if self.seed is None:
            return places
        return [permuted(place, self.sequences, self.seed) for place in places]


def permuted(place: int, size: int, seed: int) -> int:
    """Where a fixed pseudorandom permutation of 0 ... size-1 sends `place`; it needs no memory, however large size is.

    A balanced Feistel network on 2h bits, h = max(1, ceil(bit_length(size - 1) / 2)), walked until the result is below
    `size` (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002, section 4 "cycle walking"; as the domain
    is at most 4 times as large, 4 walks are expected at most, for size > 1). x = left * 2^h + right; each of the
    rounds r = 0 ... 7 sets (left, right) = (right, left XOR F), where F is the low h bits of the first 8 bytes, taken
    as a little-endian number, of BLAKE2b (8-byte digest) over seed, r and right as three 8-byte little-endian numbers.
    """
    if not 0 <= place < size:
        raise ValueError(f"place {place} is not below {size}")
    if size == 1:
        return 0
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    value = _feistel(place, half_bits, seed)
    while value >= size:
        value = _feistel(value, half_bits, seed)
    return value


def _feistel(value: int, half_bits: int, seed: int) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for round_number in range(_ROUNDS):
        message = b"".join(part.to_bytes(8, "little") for part in (seed, round_number, right))
        mixed = int.from_bytes(hashlib.blake2b(message, digest_size=8).digest(), "little")
        left, right = right, left ^ (mixed & mask)
    return left << half_bits | right
