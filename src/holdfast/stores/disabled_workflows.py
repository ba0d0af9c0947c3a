"""Disabled workflows: their runs are neither started nor claimed.

``engine.driver`` describes what a worker does with the runs that it holds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple


class DisabledWorkflow(NamedTuple):
    """When a workflow was disabled, by whom, and why."""

    disabled_at: float
    actor: str
    reason: str
    is_temporary: bool


class DisabledWorkflows(ABC):
    """Disabling and enabling workflows."""

    @abstractmethod
    async def disable(self, workflow: str, actor: str = "", reason: str = "", *, is_temporary: bool = False) -> bool:
        """Start and claim no more runs of this workflow. False: it was already disabled.

        A policy disables temporarily, and enables again by itself. A person's disable replaces a temporary one (true),
        and a temporary one does not replace it: what a person has disabled stays disabled.
        """

    @abstractmethod
    async def enable(self, workflow: str, *, only_temporary: bool = False) -> bool:
        """Start and claim runs of this workflow again.

        False: it was not disabled; or, with ``only_temporary``, not temporarily.
        """

    @abstractmethod
    async def get_all(self) -> Mapping[str, DisabledWorkflow]:
        """The disabled workflows, by name."""
