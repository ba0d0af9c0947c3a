"""What is random to the world, and the same on every replay of a run.

Everything is drawn from the run's seed: ``uuid4()`` and ``random()`` of workflow code, the idempotency keys of steps,
the ids and seeds of the runs it starts. Nothing of it needs a record.

A fork shares the beginning of another run's journal, and so must see the same draws while it replays that beginning,
and others after it. Its seed is therefore a chain: the origin's seed, the ``seq`` of the first record that is the
fork's own, and the seed from there on. A fork of a fork has a longer chain.

A retry takes back what the workflow did because of a failure, and the workflow then comes to the same positions with
other commands. Those must not have the keys and ids of what was there before: whoever saw them would take the new call
for a repetition of the old. So a run keeps the positions that retries have gone back to, and what is drawn at or behind
one of them depends on how often that was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise

SEED = 16
"""Bytes of one seed."""

_SEQ = 8


def fork_seed(origin: bytes, keep: int, fresh: bytes) -> bytes:
    """The seed of a run that shares the records of ``origin``'s run below ``keep``; ``fresh`` are new random bytes."""
    return origin + keep.to_bytes(_SEQ, "big") + fresh


class Chance:
    """Draws from a run's seed."""

    def __init__(self, seed: bytes, rewound: Sequence[int] = ()) -> None:
        self._rewound = rewound
        self._seeds: list[tuple[int, bytes]] = []
        """From which record on, and the seed; the last one first."""
        links, rest = divmod(len(seed) - SEED, _SEQ + SEED)
        if rest or links < 0:
            self._seeds.append((0, seed))
        else:
            cuts = [SEED + at * (_SEQ + SEED) for at in range(links + 1)]
            self._seeds.append((0, seed[:SEED]))
            for start, end in pairwise(cuts):
                self._seeds.insert(0, (int.from_bytes(seed[start : start + _SEQ], "big"), seed[start + _SEQ : end]))

    def draw(self, purpose: str, position: int, seen: int) -> bytes:
        """32 bytes for this purpose, for code that has seen all records up to ``seq`` ``seen``."""
        seed = next((seed for first, seed in self._seeds if seen >= first), self._seeds[-1][1])
        return self._draw(purpose, position, seed, 32)

    def own(self, purpose: str, position: int) -> bytes:
        """16 bytes that belong to this run alone, and not to the one that it was forked from."""
        return self._draw(purpose, position, self._seeds[0][1], 16)

    def idempotency_key(self, position: int, name: str) -> str:
        """A key for the outside world that stays the same over attempts and replays of one step."""
        return self.own(f"step:{position}:{name}", position).hex()

    def times_rewound(self, position: int) -> int:
        """How often a retry has gone back to this position, or behind it."""
        return sum(back_to <= position for back_to in self._rewound)

    def _draw(self, purpose: str, position: int, seed: bytes, size: int) -> bytes:
        if self._rewound and (times := self.times_rewound(position)):
            purpose = f"{purpose}~{times}"
        return hashlib.blake2b(purpose.encode(), key=seed, digest_size=size).digest()
