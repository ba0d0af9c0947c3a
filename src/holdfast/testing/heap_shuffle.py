"""Addresses that differ from one run to the next, so that code that orders by ``id()`` shows it."""

from __future__ import annotations

import random
from functools import cache

MIN_SIZE, MAX_SIZE, SIZE_STEP = 1, 480, 16
BLOCKS_PER_SIZE = 100
"""Blocks of each size: enough that what a workflow makes next comes from among them."""


def shuffle_heap(seed: int) -> None:
    """Make the next objects that are allocated lie in another order than the order of their making.

    CPython hands out blocks of a size in the reverse of the order in which they were freed, so freeing a heap of them
    in a random order is enough.
    """
    order = _draw_order(seed % 16)
    for size in range(MIN_SIZE, MAX_SIZE, SIZE_STEP):
        blocks: list[bytes | None] = [bytes(size) for _ in range(BLOCKS_PER_SIZE)]
        for at in order:
            blocks[at] = None


@cache
def _draw_order(seed: int) -> list[int]:
    return random.Random(seed).sample(range(BLOCKS_PER_SIZE), BLOCKS_PER_SIZE)
