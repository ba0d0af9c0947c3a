"""What the scripted model says in its twelve turns: a research job, a payment, a report, an e-mail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast.cli.demo.plan import KILL_TURN, PRICE_MODEL
from holdfast.testing.scripted_model import ScriptedModel, ToolCall, TurnFunction, call

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

REPORT = (
    "The tides follow the Moon, and to a lesser degree the Sun, whose pull differs from one side of the Earth to the "
    "other. Radar gauges, pressure sensors and satellites measure them, and a year of readings is enough to predict "
    "the next. Harbours, fishers and low-lying towns live by the tables, and barrages such as the one across the Rance "
    "turn the ebb into power."
)

TURNS: list[str | list[ToolCall]] = [
    [
        call("web_search", query="what causes tides"),
        call("web_search", query="tides measured gauges"),
        call("web_search", query="who depends tides harbour"),
    ],
    [call("read_page", url="https://example.org/causes")],
    [call("read_page", url="https://example.org/measuring")],
    [call("read_page", url="https://example.org/people")],
    [call("take_note", text="Causes, measuring and people are covered. What the tides are good for is not.")],
    [call("web_search", query="power from tides barrage")],
    [call("read_page", url="https://example.org/power")],
    [call("charge_card", cents=250)],
    [call("write_report", text=REPORT)],
    [call("take_note", text="Checked against the pages: 24 h 50 min, M2 at 12.42 h, 240 MW on the Rance.")],
    [call("send_report", to="reader@example.org")],
    "The report on the tides is written and sent.",
]


def create_scripted_model(think_time_s: float) -> ScriptedModel:
    """A model that takes its time over each turn, and longest over the one in which its process is killed."""

    def thinking(number: int, said: str | list[ToolCall]) -> TurnFunction:
        async def think(_messages: list[ModelMessage]) -> str | list[ToolCall]:
            await asyncio.sleep(max(0.6, 4 * think_time_s) if number == KILL_TURN else think_time_s)
            return said

        return think

    provider, _, name = PRICE_MODEL.partition(":")
    return ScriptedModel(
        [thinking(number, said) for number, said in enumerate(TURNS, 1)],
        name=name,
        provider=provider,
    )
