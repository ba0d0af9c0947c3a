"""The demo's agent: it researches the tides, charges a card, and sends a report.

Worker processes import this module (``holdfast worker holdfast.cli.demo.research_agent:research``). The model and every
tool append a line to the effect log when they start and when they end; see ``effects``.
"""

from __future__ import annotations

import asyncio
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
from holdfast.cli.demo.effects import FOLDER_VARIABLE, append_event
from holdfast.testing.scripted_model import ScriptedModel, call

THINK_TIME_VARIABLE = "HOLDFAST_DEMO_PACE"
"""The environment variable with the seconds that the scripted model takes for a turn."""
MODEL_VARIABLE = "HOLDFAST_DEMO_MODEL"
"""The environment variable with the name of a real model to use instead."""
PROMPT = (
    "Write a report on the tides: what causes them, how they are measured, who depends on them, and what they are good "
    "for. Charge the card 250 cents for it, and send it to reader@example.org."
)
KILL_TURN = 9
"""The turn in the middle of which the worker is killed. The scripted model takes long enough for it to be hit."""
PRICE_MODEL = "openai:gpt-4o"
"""The model whose prices apply to the scripted one."""


# The tools

PAGES = {
    "https://example.org/causes": (
        "What causes the tides",
        "The gravity of the Moon, and to a lesser degree of the Sun, stretches the ocean into two bulges. As the Earth "
        "turns beneath them, most coasts see two high waters in a lunar day of 24 hours and 50 minutes. At new and "
        "full moon the Sun and the Moon work together and make spring tides; at the quarters they make neap tides.",
    ),
    "https://example.org/measuring": (
        "How the tides are measured",
        "Radar gauges on piers, pressure sensors on the sea bed, and satellites measure the height of the water. A "
        "year of hourly readings is enough to predict the next. The largest constituent is M2, the principal lunar "
        "tide: its period is 12.42 hours.",
    ),
    "https://example.org/people": (
        "Who depends on the tides",
        "Harbor masters time the arrival of deep ships by high water. Pilots, fishers, and rescue crews work by the "
        "tables. Oysters and mussels are gathered between the tide marks. Towns on low coasts close their barriers "
        "when a storm surge meets a spring tide: the one on the Thames has been closed over 200 times.",
    ),
    "https://example.org/power": (
        "Power from the tides",
        "A tidal barrage lets the flood in and holds it back at ebb, so that the water drives turbines on its way out. "
        "The one across the Rance in Brittany has done so since 1966, with a capacity of 240 megawatts.",
    ),
}
"""The web: title and text by URL. It needs no network."""


@contextmanager
def log_call(ctx: RunContext) -> Generator[None]:
    """Append to the effect log before and after a tool's work."""
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
        words = [word for word in query.lower().split() if len(word) > 3 and word != "tides"]
        found = {url: title for url, (title, text) in PAGES.items() if any(word in text.lower() for word in words)}
        return [{"title": title, "url": url} for url, title in found.items()]


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
    """Charge the customer's card, which must not happen twice."""
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

SCRIPT = [
    [
        call("web_search", query="what causes tides gravity"),
        call("web_search", query="tides measured gauges"),
        call("web_search", query="who depends tides harbor"),
    ],
    call("read_page", url="https://example.org/causes"),
    call("read_page", url="https://example.org/measuring"),
    call("read_page", url="https://example.org/people"),
    call("take_note", text="Causes, measuring, and people are covered. What the tides are good for is not."),
    call("web_search", query="power from tides barrage"),
    call("read_page", url="https://example.org/power"),
    call("charge_card", cents=250),
    call(
        "write_report",
        text="The tides follow the Moon, and to a lesser degree the Sun. Radar gauges, pressure sensors, and "
        "satellites measure them. Harbors, fishers, and low-lying towns live by the tables, and barrages such as the "
        "one across the Rance turn the ebb into power.",
    ),
    call("take_note", text="Checked against the pages: 24 h 50 min, M2 at 12.42 h, 240 MW on the Rance."),
    call("send_report", to="reader@example.org"),
    "The report on the tides is written and sent.",
]


class LoggedModel(WrapperModel):
    """A model that appends to the effect log before each request and after each answer."""

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Call the model."""
        turn = 1 + sum(isinstance(message, ModelResponse) for message in messages)
        append_event("started", turn=turn)
        try:
            if isinstance(self.wrapped, ScriptedModel):
                think_time_s = float(os.environ.get(THINK_TIME_VARIABLE, "0.2"))
                await asyncio.sleep(max(0.6, 4 * think_time_s) if turn == KILL_TURN else think_time_s)
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
        )
        return response


def _create_model() -> Model:
    if name := os.environ.get(MODEL_VARIABLE):
        return infer_model(name)
    provider, _, name = PRICE_MODEL.partition(":")
    return ScriptedModel(SCRIPT, name=name, provider=provider)


research = Agent(
    LoggedModel(_create_model()),
    name="research",
    tools=[web_search, read_page, take_note, charge_card, write_report, send_report],
    instructions="You are a research assistant. Take one thing at a time: search, then read each page that matters "
    "with a call of its own, note what is still missing, charge the card, write the report, send it, and only then "
    "answer, in one sentence.",
    max_turns=30,
)


def _exit_with_parent() -> None:
    """End this worker when the demo's process is gone, however it ended."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if FOLDER_VARIABLE in os.environ:
    threading.Thread(target=_exit_with_parent, daemon=True).start()
