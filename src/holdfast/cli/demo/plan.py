"""What the demo is about to do: who asks what of whom, and when its worker is killed."""

from __future__ import annotations

from dataclasses import dataclass

AGENT_NAME = "research"
PROMPT = (
    "Write a report on the tides: what causes them, how they are measured, who depends on them, and what they are good "
    "for. Charge the card 250 cents for it, and send it to reader@example.org."
)
TURN_COUNT = 12
"""The turns of the scripted model."""
KILL_TURN = 9
"""The one in whose middle the worker is killed; the model thinks long enough about it to be hit."""
PRICE_MODEL = "openai:gpt-4o"
"""The model whose prices are used for what the scripted one says."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One performance of the demo."""

    think_time_s: float
    """Seconds that the scripted model thinks about a turn."""
    model: str | None = None
    """A real model to be asked instead."""

    @property
    def kill_turn(self) -> int:
        """The turn in whose middle the worker is killed."""
        return KILL_TURN if self.model is None else 3

    @property
    def kill_after_s(self) -> float:
        """Seconds into the model call; nobody knows how long a real model will take."""
        return 0.2 if self.model is None else 0.1

    @property
    def turn_count(self) -> int:
        """How many turns there will be, as far as one can know."""
        return TURN_COUNT if self.model is None else 0
