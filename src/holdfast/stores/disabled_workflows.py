"""Disabled workflows: their runs are neither started nor claimed.

``engine.driver`` says what a worker does with those that it holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple


class DisabledWorkflow(NamedTuple):
    """Since when a workflow is disabled, who did that, and why."""

    disabled_at: float
    actor: str
    reason: str
    is_temporary: bool


class DisabledWorkflows(ABC):
    """The workflows that are disabled, and the switch."""

    @abstractmethod
    async def disable(self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False) -> bool:
        """Start and claim no more runs of this workflow. False: it was off already.

        A temporary switch is one that a policy turns on again by itself. A lasting one takes its place (true), and is
        not replaced by a temporary one: what a person has disabled stays disabled.
        """

    @abstractmethod
    async def enable(self, workflow: str, *, only_temporary: bool = False) -> bool:
        """Start and claim runs of this workflow again. False: it was on already, or is off for good and
        ``only_temporary`` was asked for."""

    @abstractmethod
    async def get_all(self) -> Mapping[str, DisabledWorkflow]:
        """Those that are disabled, by name."""
