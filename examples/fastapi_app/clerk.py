"""The agent: a clerk who looks orders up, and refunds them if a person agrees."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from offline import model_for
from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart

from holdfast import Agent, ModelRetry, tool
from holdfast.testing import call

ORDERS = {17: ("a kettle", 39), 18: ("two chairs", 240)}
REFUNDS = Path("refunds.txt")


@tool(effect="read")
async def find_order(number: int) -> str:
    """What was ordered, and what it cost.

    Args:
        number: of the order.
    """
    if number not in ORDERS:
        raise ModelRetry(f"There is no order {number}.")
    what, price = ORDERS[number]
    return f"{what}, {price} dollars"


@tool(effect="once", requires_approval=True)
async def refund(number: int, dollars: int) -> str:
    """Give the money for an order back.

    Args:
        number: of the order.
        dollars: how much.
    """
    with REFUNDS.open("a") as file:
        file.write(f"order {number}: {dollars}\n")
    return f"refunded {dollars} dollars"


def respond(messages: list[ModelMessage]) -> Any:
    """What the scripted model says: it looks at the newest message only."""
    newest = messages[-1].parts[-1]
    if isinstance(newest, ToolReturnPart):
        return _respond_to_tool(newest.tool_name, str(newest.content), _find_number(messages))
    number = _find_number(messages)
    if number is None:
        return "Tell me the number of your order, and I look what I can do for you."
    return [f"Let me look at order {number}.", call("find_order", number=number)]


def _respond_to_tool(name: str, result: str, number: int | None) -> Any:
    if name == "find_order" and (price := re.search(r"(\d+) dollars", result)):
        return [f"You ordered {result}.", call("refund", number=number, dollars=int(price[1]))]
    if result.startswith("refunded"):
        return f"I have {result} for order {number}. The money is in your account within three working days."
    return f"I am sorry, I cannot do that: {result}"


def _find_number(messages: list[ModelMessage]) -> int | None:
    """The number in what the person said last."""
    said = [part.content for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
    numbers = re.findall(r"\d+", str(said[-1]))
    return int(numbers[0]) if numbers else None


clerk = Agent(
    model_for([respond] * 500, word_delay=True),
    name="clerk",
    instructions="You are the clerk of a shop. Look an order up before you refund it.",
    tools=[find_order, refund],
)
