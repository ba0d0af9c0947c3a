"""The demo's agent: it looks things up, charges for it, and sends a report.

Worker processes import this module (``holdfast worker holdfast.cli.demo.research_agent:research``). The model and every
tool leave a trace in a file when they begin and when they end; see ``effect_log``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from holdfast import Agent, ModelRetry, RunContext, tool
from holdfast.agents.models.prices import compute_cost
from holdfast.cli.demo.effect_log import FOLDER_VARIABLE, MODEL_VARIABLE, THINK_TIME_VARIABLE, append_event
from holdfast.cli.demo.plan import AGENT_NAME
from holdfast.cli.demo.web_pages import PAGES, search

INSTRUCTIONS = (
    "You are a research assistant. Take one thing at a time: search, then read each page that matters with a call of "
    "its own, note what is still missing, charge the card, write the report, send it, and only then answer, in one "
    "sentence."
)


# What the agent can do


@contextmanager
def log_call(ctx: RunContext) -> Generator[None]:
    """Leave a trace before and after a tool's work."""
    append_event("started", tool=ctx.tool_name, call_id=ctx.tool_call_id)
    try:
        yield
    except Exception:
        append_event("failed", tool=ctx.tool_name, call_id=ctx.tool_call_id)
        raise
    append_event("finished", tool=ctx.tool_name, call_id=ctx.tool_call_id)


@tool(effect="read")
def web_search(ctx: RunContext, query: str) -> list[dict[str, str]]:
    """Search the web.

    Args:
        query: a few words.
    """
    with log_call(ctx):
        return search(query)


@tool(effect="read")
def read_page(ctx: RunContext, url: str) -> str:
    """Read a page that a search has found."""
    with log_call(ctx):
        if url not in PAGES:
            raise ModelRetry(f"There is no page {url}: read one that a search has found.")
        return PAGES[url][1]


@tool
def take_note(ctx: RunContext, text: str) -> str:
    """Note what is known, or what is still missing."""
    with log_call(ctx):
        return "noted"


@tool(effect="once")
def charge_card(ctx: RunContext, cents: int) -> str:
    """Charge the customer's card: what nobody wants to see twice."""
    with log_call(ctx):
        return f"receipt {ctx.idempotency_key[:8]} for ${cents / 100:.2f}"


@tool
def write_report(ctx: RunContext, text: str) -> str:
    """Write the report."""
    with log_call(ctx):
        (Path(os.environ[FOLDER_VARIABLE]) / "report.md").write_text(text + "\n")
        return "written"


@tool(effect="once")
def send_report(ctx: RunContext, to: str) -> str:
    """Send the report by e-mail."""
    with log_call(ctx):
        return f"sent to {to}"


# The model


class LoggedModel(WrapperModel):
    """A model that leaves a trace whenever it is asked and whenever it answers, in whatever process."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Ask the model."""
        turn = 1 + sum(isinstance(message, ModelResponse) for message in messages)
        append_event("started", turn=turn)
        try:
            response = await self.wrapped.request(messages, model_settings, model_request_parameters)
        except Exception:
            append_event("failed", turn=turn)
            raise
        append_event(
            "finished",
            turn=turn,
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            nano_usd=-1 if (cost := compute_cost(response)) is None else cost,
            requested_tools=[part.tool_name for part in response.tool_calls],
        )
        return response


def _create_model() -> Model:
    name = os.environ.get(MODEL_VARIABLE)
    if name:
        return infer_model(name)
    from holdfast.cli.demo.model_script import create_scripted_model

    return create_scripted_model(float(os.environ.get(THINK_TIME_VARIABLE, "0.2")))


research = Agent(
    LoggedModel(_create_model()),
    name=AGENT_NAME,
    tools=[web_search, read_page, take_note, charge_card, write_report, send_report],
    instructions=INSTRUCTIONS,
    max_turns=30,
)


def _exit_with_parent() -> None:
    """A worker of the demo is of no use without it: end when the demo's process is gone, however it went."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if FOLDER_VARIABLE in os.environ:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
