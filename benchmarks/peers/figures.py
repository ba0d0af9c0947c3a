"""What was measured of one peer, and of all, as it is kept in a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

EACH = 10
"""Steps of each of many runs."""


@dataclass
class Rate:
    """Steps a second."""

    value: float
    of_bare: float
    """The median of the rounds' ratios to the bare database's commits a second."""


@dataclass
class Crash:
    """What happened after SIGKILL in the middle of step 9 of 12, over all rounds."""

    again: list[int]
    """The steps that ran a second time, in any of the rounds."""
    seconds: float | None
    """From the kill to the beginning of the last step; nothing if that was not reached."""


@dataclass
class Figures:
    """One peer."""

    key: str
    title: str
    versions: str
    settings: str
    once: str
    is_named: bool
    no_takeover: str
    sequential: Rate | None = None
    together: Rate | None = None
    bytes: float | None = None
    restart: Crash | None = None
    takeover: Crash | None = None
    beside: list[int] | None = None
    """The steps that were carried out, because a second process came, while the first one was alive and in step 9."""
    failed: dict[str, str] = field(default_factory=dict)
    """What could not be measured, and why; ``installed`` if nothing could."""


@dataclass
class Report:
    """All that one run of the command found."""

    python: str
    cores: int
    rounds: int
    crashes: int
    """Rounds of each crash."""
    steps: int
    """Steps of the one long run."""
    runs: int
    """Runs at once, of ten steps each."""
    bare_sqlite: float
    bare_postgres: float
    """Commits a second, medians of all rounds; 0 if there was none."""
    peers: list[Figures]

    def write(self, path: Path) -> None:
        """Keep it."""
        path.write_text(json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n")


def read(path: Path) -> Report:
    """What was kept."""
    fields: dict[str, Any] = json.loads(path.read_text())
    peers = [_figures(one) for one in fields.pop("peers")]
    return Report(**fields, peers=peers)


def _figures(fields: dict[str, Any]) -> Figures:
    for names, kind in ((("sequential", "together"), Rate), (("restart", "takeover"), Crash)):
        for name in names:
            if fields[name] is not None:
                fields[name] = kind(**fields[name])
    return Figures(**fields)
