"""Under which names of memory a checkpoint is kept, and what the entries have.

A *place* is a thread and a checkpoint namespace (the graph itself, or one of its subgraphs). Threads and checkpoint
namespaces have any names, so digests of them make the names of memory. In each place:

- ``checkpoints``: a ``CheckpointRecord`` for each checkpoint. Keys are in reverse order of the checkpoints' ids, so
  that the newest comes first.
- ``values``: the large values of channels. The checkpoint in which a value was new owns it; later ones refer to it.
  They are written before the checkpoint: a checkpoint that can be read is complete.
- ``writes/<checkpoint>``: what tasks of the next super-step have written already, an entry for each task, and one for
  each of its special writes, such as an interrupt.

``runs`` has, for each run id in the metadata of a checkpoint, the checkpoints with it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from holdfast.errors import UsageError
from holdfast.services.memories import MAX_NAME_LENGTH

ROOT: Final = "langgraph"
CHECKPOINTS, VALUES, WRITES = "checkpoints", "values", "writes"
KINDS: Final = (VALUES, WRITES, CHECKPOINTS)
MAX_CHECKPOINT_ID_LENGTH: Final = 50
"""In bytes; LangGraph's own have 36."""

LARGE_VALUE_BYTES: Final = 8192
"""A serialized value of this size or more is an entry of its own, which is written only when it has changed."""

Typed = tuple[str, bytes]
"""What a serializer makes of a value: the name of a format, and the data."""


class Place(NamedTuple):
    """A thread and a checkpoint namespace, by their digests."""

    thread: str
    namespace: str

    @classmethod
    def of(cls, thread_id: str, checkpoint_ns: str) -> Self:
        """The place of a thread and a checkpoint namespace."""
        return cls(digest(thread_id), digest(checkpoint_ns))

    @classmethod
    def parse(cls, memory_namespace: str) -> Self:
        """The place in the name of a namespace of memory."""
        return cls(*memory_namespace.split("/")[2:4])

    @property
    def checkpoints(self) -> str:
        """The namespace of the checkpoints."""
        return f"{ROOT}/{CHECKPOINTS}/{self.thread}/{self.namespace}"

    @property
    def values(self) -> str:
        """The namespace of the large values."""
        return f"{ROOT}/{VALUES}/{self.thread}/{self.namespace}"

    def writes(self, checkpoint_id: str) -> str:
        """The namespace of a checkpoint's writes."""
        return f"{ROOT}/{WRITES}/{self.thread}/{self.namespace}/{checkpoint_key(checkpoint_id)}"

    def run_key(self, checkpoint_id: str) -> str:
        """The key of a checkpoint among those of a run."""
        return f"{self.thread}/{self.namespace}/{checkpoint_key(checkpoint_id)}"


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint. Its large values are elsewhere."""

    thread_id: str
    checkpoint_ns: str
    id: str
    parent_id: str | None
    run_id: str | None
    checkpoint: Typed
    """Without the values of its channels."""
    metadata: Typed
    values: dict[str, Typed] = field(default_factory=dict[str, Typed])
    """The small values, by channel."""
    owners: dict[str, str] = field(default_factory=dict[str, str])
    """The ids of the checkpoints that own the large values, by channel."""

    @property
    def place(self) -> Place:
        """Where it is."""
        return Place.of(self.thread_id, self.checkpoint_ns)

    def list_value_keys(self) -> set[str]:
        """The keys of its large values."""
        return {value_key(owner, channel) for channel, owner in self.owners.items()}

    def to_plain(self) -> dict[str, Any]:
        """What is written."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class TaskWrites:
    """Writes of a task, each with its index, its channel, and its value."""

    task_id: str
    task_path: str
    writes: list[tuple[int, str, Typed]] = field(default_factory=list[tuple[int, str, Typed]])

    def to_plain(self) -> dict[str, Any]:
        """What is written."""
        return {name: getattr(self, name) for name in self.__slots__}


def checkpoint_key(checkpoint_id: str) -> str:
    """The key of a checkpoint: a later id has a smaller key. Raises ``UsageError`` for an id that is too long."""
    data = checkpoint_id.encode()
    if len(data) > MAX_CHECKPOINT_ID_LENGTH:
        raise UsageError(
            f"the checkpoint id {checkpoint_id[:80]!r}... has more than {MAX_CHECKPOINT_ID_LENGTH} bytes. LangGraph "
            f"makes ids of 36: use `langgraph.checkpoint.base.id.uuid6`"
        )
    return bytes(255 - byte for byte in data).hex() + "~"  # an id comes before those that it is the beginning of


def value_key(owner_id: str, channel: str) -> str:
    """The key of a large value."""
    return f"{checkpoint_key(owner_id)}:{digest(channel)}"


def run_namespace(run_id: str) -> str:
    """The namespace of the checkpoints of a run."""
    return f"{ROOT}/runs/{digest(run_id)}"


def digest(name: str) -> str:
    """A short stand-in for any name."""
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()


assert 2 * MAX_CHECKPOINT_ID_LENGTH + 1 + 2 * 33 + len(f"{ROOT}/{CHECKPOINTS}/") <= MAX_NAME_LENGTH
