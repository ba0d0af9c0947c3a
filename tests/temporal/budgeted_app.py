"""A worker that can be killed: an agent under a budget, whose model writes down each call before it answers.

``python budgeted_app.py URL LEDGER GATE``: the first call of a run waits until the file GATE is there.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from holdfast import Agent, Budget, tool
from holdfast.testing import ScriptedModel, call

LEASE = 2.0


def make(ledger: Path, gate: Path) -> Agent[Any]:
    """The agent."""

    async def first(messages: Any) -> Any:
        _write(ledger, "first")
        while not gate.exists():  # noqa: ASYNC110 - it is another process that opens it
            await asyncio.sleep(0.02)
        return call("note", text="noted")

    def second(messages: Any) -> str:
        _write(ledger, "second")
        return "done"

    @tool
    async def note(text: str) -> str:
        """Notes something."""
        _write(ledger, "tool")
        return text

    model = ScriptedModel([first, second], usage=(100, 10))
    return Agent(model, name="temporal-budget-killed", tools=[note], budget=Budget(turns=2))


def _write(ledger: Path, line: str) -> None:
    with ledger.open("a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    asyncio.run(make(Path(sys.argv[2]), Path(sys.argv[3])).run_worker(sys.argv[1], lease=LEASE))
