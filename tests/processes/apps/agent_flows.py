"""The agents of the apps. Their models are those of the test's own provider; what they say is its script.

Each agent's instructions name the script with the agent's own name. Tools and model calls write the ledger, and each of
them can be struck before, in the middle of and after what it does (``PLACES``).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kill_points
from flows import pass_gate
from ledger import effect

from holdfast import Agent, Compaction, RunContext, skill, tool
from holdfast.agents import compaction
from holdfast.agents.conversation import Conversation
from holdfast.agents.models import context_limit, model_call
from holdfast.tools import mcp_stdio

asked = model_call.request


async def request(*args: Any, **kwargs: Any) -> Any:
    """Ask the model as ever, and let the ledger know."""
    with effect():
        return await asked(*args, **kwargs)


model_call.request = request


class Outside:
    """What the tools do to the world."""

    @staticmethod
    async def change(label: str) -> None:
        with effect(label):
            await Outside.half_way()

    @staticmethod
    async def half_way() -> None:
        """The effect has begun."""

    @staticmethod
    def change_plain(label: str) -> None:
        with effect(label):
            Outside.half_way_plain()

    @staticmethod
    def half_way_plain() -> None:
        """The effect has begun, in a thread."""


class Script:
    """What a program does between two runs."""

    @staticmethod
    async def go_on() -> None:
        """The first has its result, and the second is not begun."""


kill_points.PLACES |= {
    "request": model_call,  # type: ignore[dict-item]
    "change": Outside,
    "half_way": Outside,
    "change_plain": Outside,
    "half_way_plain": Outside,
    "go_on": Script,
    "find_cut": context_limit,  # type: ignore[dict-item]
    "SummaryTask": compaction,  # type: ignore[dict-item]
    "apply_compaction": Conversation,
}


@dataclass
class Who:
    """Deps: the process that brought them."""

    name: str


@tool
async def look(place: str) -> str:
    """Looks at a place."""
    await Outside.change(place)
    return f"{place} seen"


@tool
def count(things: str) -> int:
    """Counts things, in a thread."""
    Outside.change_plain(things)
    return len(things)


@tool(effect="once")
async def pay(amount: int) -> str:
    """Pays, and not twice."""
    await Outside.change(f"{amount} paid")
    return f"paid {amount}"


@tool(effect="once")
async def pay_at_gate(amount: int) -> str:
    """Pays, and not twice; in flight until the gate opens."""
    with effect(f"{amount} paid"):
        await pass_gate("payment")
        return f"paid {amount}"


@tool(requires_approval=lambda amount: f"more than {amount - 1}")
async def transfer(amount: int) -> str:
    """Transfers money, if somebody approves."""
    await Outside.change(f"{amount} transferred")
    return f"transferred {amount}"


@tool(requires_approval=lambda amount: amount > 1, effect="once")
async def wire(amount: int) -> str:
    """Wires money, and not twice; much of it only if somebody approves."""
    await Outside.change(f"{amount} wired")
    return f"wired {amount}"


@tool
async def ask_who(ctx: RunContext[Who]) -> str:
    """Tells whose deps it was handed."""
    await Outside.change(ctx.deps.name)
    return ctx.deps.name


def agent(name: str, model: str = "openai-chat:gpt-4o", **options: Any) -> Agent[str]:
    return Agent(model, name=name, instructions=f"You are an agent of the tests. script:{name}", **options)


# Twelve turns in four agents, over three protocols, killed at every point

scout = agent("killed-scout", tools=[look, count])
writer = agent("killed-writer", "anthropic:claude-sonnet-5", tools=[look])
checker = agent("killed-checker", "openai:gpt-4o", tools=[count])
chief = agent("killed-chief", tools=[look, count], subagents=[scout, writer, checker])

# One for each of the others

payer = agent("killed-payer", tools=[pay])
slow_payer = agent("killed-slow-payer", tools=[pay_at_gate])
talker = agent("killed-talker", tools=[look])
asker = agent("killed-asker", tools=[ask_who], deps_type=Who)
asking_chief = agent("killed-asking-chief", tools=[ask_who], subagents=[asker], deps_type=Who)

# One that plans, and loads a skill


@skill(tools=[look])
async def looking() -> str:
    """How to look at places."""
    await Outside.change("the skill")
    return "Look twice."


planner = agent("killed-planner", planning=True, skills=[looking])

# A long conversation

long_talker = agent("killed-long-talker", tools=[look], max_turns=200, compaction=Compaction(window=1000))

# One with the tools of an MCP server, which is a process of its own, with a ledger of its own

SERVER = Path(__file__).parents[2] / "tools" / "mcp_servers.py"
clerk = agent("killed-clerk", tools=[mcp_stdio(sys.executable, str(SERVER), "desk", name="desk")])

# One with tools that need an approval

cashier = agent("killed-cashier", tools=[transfer, wire])

# A family with a budget

digger = agent("budget-digger", tools=[look])
foreman = agent("budget-foreman", subagents=[digger])
