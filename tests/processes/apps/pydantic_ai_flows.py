"""Agents of Pydantic AI for the apps, with the tools and the provider of ``agent_flows``.

One is called outside of workflow code, and the other in a workflow. Their model requests write the ledger, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import kill_points
from agent_flows import Outside, Who
from ledger import effect
from pydantic_ai import Agent, RunContext

from holdfast import workflow
from holdfast.integrations.pydantic_ai import Durable, operations

ask = operations._ask_model  # pyright: ignore[reportPrivateUsage]


class Library:
    """What the agents' steps ask of a provider."""

    @staticmethod
    async def library_request(request: Callable[[], Awaitable[Any]]) -> Any:
        with effect():
            return await request()


async def ask_and_record(question: Any, request: Callable[[], Awaitable[Any]], timeout: float) -> Any:
    """Ask the model as ever, and let the ledger know."""
    return await ask(question, lambda: Library.library_request(request), timeout)


operations._ask_model = ask_and_record  # pyright: ignore[reportPrivateUsage]
kill_points.PLACES["library_request"] = Library  # type: ignore[assignment]


async def look(place: str) -> str:
    """Looks at a place."""
    await Outside.change(place)
    return f"{place} seen"


def count(things: str) -> int:
    """Counts things, in a thread."""
    Outside.change_plain(things)
    return len(things)


async def pay(amount: int) -> str:
    """Pays, and not twice."""
    await Outside.change(f"{amount} paid")
    return f"paid {amount}"


async def ask_who(ctx: RunContext[Who]) -> str:
    """Tells whose deps it was handed."""
    await Outside.change(ctx.deps.name)
    return ctx.deps.name


def agent(name: str, *tools: Any, **options: Any) -> Agent[Any, str]:
    return Agent(
        "openai-chat:gpt-4o",
        name=name,
        instructions=f"You are an agent of the tests. script:{name}",
        tools=tools,
        capabilities=[Durable(tools={"pay": {"effect": "once"}} if pay in tools else {})],
        **options,
    )


own = agent("library-own", look, count)
payer = agent("library-payer", pay)
asker = agent("library-asker", ask_who, deps_type=Who)
scout = agent("library-scout", look, count)
writer = agent("library-writer", look)


@workflow(id="the-run", name="library-journey")
async def journey() -> dict[str, Any]:
    """Two agents, one after the other, in one run."""
    scouted = await scout.run("Scout.")
    written = await writer.run(f"Write of: {scouted.output}", usage=scouted.usage)
    used = written.usage
    return {"output": written.output, "usage": [used.requests, used.input_tokens, used.output_tokens]}
