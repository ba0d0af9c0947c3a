"""Waiting for a run that is no child of the one that waits: what the activity is asked, and what it answers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import NamedTuple

from holdfast.core.states import RunState


class FoundRun(NamedTuple):
    """A run that is there."""

    workflow: str
    digest: bytes
    state: RunState
    output: bytes | None
    error: bytes | None


@dataclass(frozen=True, slots=True)
class AwaitedRun:
    """Which run is looked for."""

    run_id: str
    wait: bool
    """Until it has ended; else only whether it is there."""
    reopen: bool = False
    """If it has ended without a result, let it go on: whoever waits was retried, and had started it."""

    def to_json(self) -> bytes:
        """What the activity is asked."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> AwaitedRun:
        """The same, read back."""
        return cls(**json.loads(data))

    @staticmethod
    def found_to_json(found: FoundRun | None) -> bytes:
        """What the activity answers."""
        if found is None:
            return b"null"
        output, error = (None if one is None else one.decode() for one in (found.output, found.error))
        return json.dumps([found.workflow, found.digest.hex(), found.state, output, error]).encode()

    @staticmethod
    def found_from_json(data: bytes) -> FoundRun | None:
        """The same, read back."""
        told = json.loads(data)
        if told is None:
            return None
        workflow, digest, state, output, error = told
        encoded = (None if one is None else one.encode() for one in (output, error))
        return FoundRun(workflow, bytes.fromhex(digest), RunState(state), *encoded)
