"""The activity that waits for a run that is not a child of the waiting run: its input and its result."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

from holdfast.core.states import RunState


@dataclass(frozen=True, slots=True)
class AwaitedRun:
    """The input: which run to find."""

    run_id: str
    wait: bool
    """Wait until it has ended; otherwise only find out whether it exists."""
    reopen: bool = False
    """Retry it if it ended without a result: the waiting run had started it, and is itself retried."""

    def to_json(self) -> bytes:
        """The stored form."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> AwaitedRun:
        """Read the stored form."""
        return cls(**json.loads(data))


class FoundRun(NamedTuple):
    """The result: a run that exists."""

    workflow: str
    digest: bytes
    state: RunState
    output: bytes | None
    error: bytes | None


def found_run_to_json(found: FoundRun | None) -> bytes:
    """The stored form of the result; ``None`` if there is no such run."""
    if found is None:
        return b"null"
    output, error = (None if value is None else value.decode() for value in (found.output, found.error))
    return json.dumps([found.workflow, found.digest.hex(), found.state, output, error]).encode()


def found_run_from_json(data: bytes) -> FoundRun | None:
    """Read the stored form of the result."""
    fields = json.loads(data)
    if fields is None:
        return None
    workflow, digest, state, output, error = fields
    encoded = (None if value is None else value.encode() for value in (output, error))
    return FoundRun(workflow, bytes.fromhex(digest), RunState(state), *encoded)
