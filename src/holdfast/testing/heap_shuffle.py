"""Shuffled object addresses, to expose code that depends on the order of ``id()``."""

from __future__ import annotations

import random
from functools import cache

MIN_SIZE, MAX_SIZE, SIZE_STEP = 1, 480, 16
BLOCKS_PER_SIZE = 100
"""Enough blocks of each size to serve a workflow's next allocations."""


def shuffle_heap(seed: int) -> None:
    """Give the next allocated objects addresses in random order.

    CPython reuses blocks of a size in the reverse of the order in which they were freed, so freeing many of them in a
    random order is enough.
    """
    order = _draw_order(seed % 16)
    for size in range(MIN_SIZE, MAX_SIZE, SIZE_STEP):
        blocks: list[bytes | None] = [bytes(size) for _ in range(BLOCKS_PER_SIZE)]
        for at in order:
            blocks[at] = None


@cache
def _draw_order(seed: int) -> list[int]:
    return random.Random(seed).sample(range(BLOCKS_PER_SIZE), BLOCKS_PER_SIZE)
