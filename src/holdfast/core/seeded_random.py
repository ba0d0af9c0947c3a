"""Seeded random values: they look random to the world, and are the same on every replay of a run.

Everything is drawn from the run's seed: ``uuid4()`` and ``random()`` of workflow code, the idempotency keys of steps,
and the ids and seeds of the runs it starts. None of it needs a record.

A fork shares the beginning of another run's journal. So it must see the same draws while it replays that beginning, and
others after it. Its seed is therefore a chain: the origin's seed, the ``seq`` of the first record that is the fork's
own, and the seed from there on. A fork of a fork has a longer chain. Idempotency keys and the seeds of child runs are
the fork's own from the beginning (``draw_own_bytes``).

A retry takes back what the workflow did because of a failure, and the workflow then reaches the same positions with
other commands. Those must not have the keys and ids of the earlier ones: a receiver would take the new call for a
repeat of the old one. So a run keeps the points that retries have gone back to, and a draw after such a point depends
on how many there are. An idempotency key also contains the step's name, because changed code may issue another step at
the same position. What workflow code drew before the failure stays the same, even if it has issued no command since: a
timer may depend on it, and the timer's record is kept.
"""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Sequence
from itertools import pairwise

from holdfast.core.records import RewindPoint

SEED_BYTES = 16
"""Bytes of one seed."""

_SEQ_BYTES = 8


def make_fork_seed(origin: bytes, kept_seq: int, fresh: bytes) -> bytes:
    """The seed of a run that shares the records of ``origin``'s run below ``kept_seq``.

    ``fresh`` are new random bytes.
    """
    return origin + kept_seq.to_bytes(_SEQ_BYTES, "big") + fresh


class SeededRandom:
    """Draws from a run's seed."""

    def __init__(self, seed: bytes, rewind_points: Sequence[RewindPoint] = ()) -> None:
        self._rewind_points = rewind_points
        self._seeds: list[tuple[int, bytes]] = []
        """Each seed with the ``seq`` from which it is used; the last one first."""
        links, rest = divmod(len(seed) - SEED_BYTES, _SEQ_BYTES + SEED_BYTES)
        if rest or links < 0:
            self._seeds.append((0, seed))
        else:
            cuts = [SEED_BYTES + at * (_SEQ_BYTES + SEED_BYTES) for at in range(links + 1)]
            self._seeds.append((0, seed[:SEED_BYTES]))
            for start, end in pairwise(cuts):
                self._seeds.insert(
                    0, (int.from_bytes(seed[start : start + _SEQ_BYTES], "big"), seed[start + _SEQ_BYTES : end])
                )

    def draw_bytes(self, purpose: str, position: int, last_seq: int) -> bytes:
        """32 bytes for this purpose, for code that has seen all records up to ``seq`` ``last_seq``."""
        seed = next((seed for first, seed in self._seeds if last_seq >= first), self._seeds[-1][1])
        rewinds = sum(point.position <= position and point.seq <= last_seq for point in self._rewind_points)
        return _derive_bytes(purpose, rewinds, seed, 32)

    def draw_own_bytes(self, purpose: str, position: int) -> bytes:
        """16 bytes that belong to this run alone, and not to the one that it was forked from."""
        return _derive_bytes(purpose, self.count_rewinds(position), self._seeds[0][1], 16)

    def derive_idempotency_key(self, position: int, name: str) -> str:
        """A key for the outside world that stays the same over attempts and replays of one step."""
        return self.draw_own_bytes(f"step:{position}:{name}", position).hex()

    def derive_child_seed(self, position: int) -> bytes:
        """The seed of a run that the command at this position starts: a repeated start is the same run."""
        return self.draw_own_bytes(f"child:{position}", position)

    def make_child_id_suffix(self, position: int) -> str:
        """The suffix of the generated id of such a run: its position in the parent."""
        times = self.count_rewinds(position)
        return f"{position + 1}.{times}" if times else f"{position + 1}"

    def derive_approval_id(self, position: int, content: str) -> str:
        """The id of the approval that the command at this position requests: requesting it again has the same id.

        ``content`` is a digest of the question: another question has another id, so that it never gets the answer to
        this one.
        """
        return b32encode(self.draw_own_bytes(f"approval:{position}:{content}", position)[:10]).decode().lower()[:12]

    def count_rewinds(self, position: int) -> int:
        """How often a retry has rewound to this position, or to one before it."""
        return sum(point.position <= position for point in self._rewind_points)


def _derive_bytes(purpose: str, rewinds: int, seed: bytes, size: int) -> bytes:
    salted = f"{purpose}~{rewinds}" if rewinds else purpose
    return hashlib.blake2b(salted.encode(), key=seed, digest_size=size).digest()
