"""Broken inputs from sound ones: the same edits for `run.py` (by seed) and for hypothesis."""

import random
from collections.abc import Sequence

OPS = ("flip", "set", "delete", "double", "cut", "insert", "word", "number", "splice", "swap")
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
Edit = tuple[str, float, int]
"""What to do, where (share of the length), and a number that the doing makes use of."""


def apply(
    seeds: Sequence[bytes], words: Sequence[bytes], which: int, edits: Sequence[Edit]
) -> bytes:
    """One input; the same arguments give the same bytes.

    Args:
        seeds: sound inputs.
        words: tokens that mean something to the reader.
        which: number of the seed to begin with.
        edits: one after the other.
    """
    data = bytearray(seeds[which % len(seeds)])
    for op, share, number in edits:
        at = min(int(share * (len(data) + 1)), len(data))
        if op == "insert" or not data:
            data[at:at] = bytes((number >> shift) & 0xFF for shift in (0, 8, 16))
        elif op == "flip":
            data[at % len(data)] ^= 1 << (number % 8)
        elif op == "set":
            data[at % len(data)] = number & 0xFF
        elif op == "delete":
            del data[at : at + 1 + number % 64]
        elif op == "double":
            part = data[at : at + 1 + number % 64]
            data[at:at] = part * (1 + number % 5)
        elif op == "cut":
            del data[at:]
        elif op == "word" and words:
            word = words[number % len(words)]
            data[at : at + (len(word) if number & 1024 else 0)] = word
        elif op == "number":
            size = (1, 2, 4, 8)[number % 4]
            value = NUMBERS[number // 4 % len(NUMBERS)] & ((1 << (8 * size)) - 1)
            data[at : at + size] = value.to_bytes(size, "little")
        elif op == "splice":
            other = seeds[number % len(seeds)]
            data[at:] = other[min(at, len(other)) :]
        elif op == "swap":
            there = number % len(data)
            here = at % len(data)
            data[here], data[there] = data[there], data[here]
    return bytes(data[:200_000])


def edits(source: random.Random) -> list[Edit]:
    """A few edits, seldom many, seldom none."""
    count = source.choice((0, 1, 1, 1, 2, 2, 3, 4, 8, 16))
    return [(source.choice(OPS), source.random(), source.getrandbits(32)) for _ in range(count)]
