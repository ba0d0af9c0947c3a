"""The measured figures of one peer, and of all peers, as stored in a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STEPS_EACH = 10
"""Steps of each of many runs."""


@dataclass
class Rate:
    """Steps a second."""

    steps_per_s: float
    baseline_ratio: float
    """The median of the rounds' ratios to the bare database's commits a second."""


@dataclass
class CrashFigures:
    """What happened after SIGKILL in the middle of step 9 of 12, over all rounds."""

    repeated_steps: list[int]
    """The steps that ran a second time, in any of the rounds."""
    recovery_s: float | None
    """From the kill to the beginning of the last step; nothing if that was not reached."""


@dataclass
class PeerFigures:
    """One peer."""

    key: str
    title: str
    versions: str
    settings: str
    once_support: str
    needs_explicit_resume: bool
    no_takeover_reason: str
    sequential: Rate | None = None
    concurrent: Rate | None = None
    bytes_per_step: float | None = None
    restart: CrashFigures | None = None
    takeover: CrashFigures | None = None
    overlap_repeats: list[int] | None = None
    """The steps that were carried out, because a second process came, while the first one was alive and in step 9."""
    failures: dict[str, str] = field(default_factory=dict)
    """What could not be measured, and why; ``installed`` if nothing could."""


@dataclass
class PeerReport:
    """All that one run of the command found."""

    python: str
    core_count: int
    round_count: int
    crash_round_count: int
    """Rounds of each crash."""
    sequential_step_count: int
    """Steps of the one long run."""
    concurrent_run_count: int
    """Runs at once, of ten steps each."""
    sqlite_baseline: float
    postgres_baseline: float
    """Commits a second, medians of all rounds; 0 if there was none."""
    peers: list[PeerFigures]

    def write(self, path: Path) -> None:
        """Keep it."""
        path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")


def read_report(path: Path) -> PeerReport:
    """Read a stored report."""
    fields: dict[str, Any] = json.loads(path.read_text())
    peers = [_figures_from_json(one) for one in fields.pop("peers")]
    return PeerReport(**fields, peers=peers)


def _figures_from_json(fields: dict[str, Any]) -> PeerFigures:
    for names, kind in ((("sequential", "concurrent"), Rate), (("restart", "takeover"), CrashFigures)):
        for name in names:
            if fields[name] is not None:
                fields[name] = kind(**fields[name])
    return PeerFigures(**fields)
