"""The demo's workflow: a research job of twelve plain steps, each with an effect on the world outside the journal.

Worker processes import this module (`holdfast worker holdfast.cli.demo.job:research`). What a step does to the world is
a line in a file, before and after its work; see ``effects``.
"""

from __future__ import annotations

import os
import threading
import time

from holdfast import current_step, step, workflow
from holdfast.cli.demo.effects import FOLDER, PACE, effect

STEPS = (
    "plan",
    "search_1",
    "search_2",
    "search_3",
    "read_1",
    "read_2",
    "read_3",
    "charge_card",
    "summarise",
    "check_facts",
    "write_report",
    "send_report",
)
LONG_STEP = "summarise"
"""The step in whose middle the worker is killed; it takes long enough to be hit."""


def _act() -> None:
    """What every step does: it takes its time, and leaves a trace of its beginning and of its end."""
    name = current_step().name
    pace = float(os.environ[PACE])
    with effect(STEPS.index(name) + 1, name):
        time.sleep(max(0.6, 4 * pace) if name == LONG_STEP else pace)


@step
def plan(topic: str) -> list[str]:
    """What to find out."""
    _act()
    return [f"What causes {topic}?", f"How are {topic} measured?", f"Who depends on {topic}?"]


def search(question: str) -> str:
    """A source for one question."""
    _act()
    return f"https://example.org/{question.split()[0].lower()}"


def read(source: str) -> str:
    """Notes on one source."""
    _act()
    return f"notes on {source}"


search_1, search_2, search_3 = (step(name=f"search_{n}")(search) for n in (1, 2, 3))
read_1, read_2, read_3 = (step(name=f"read_{n}")(read) for n in (1, 2, 3))


@step
def charge_card(cents: int) -> str:
    """A payment: the step that nobody wants to see twice."""
    _act()
    return f"receipt {current_step().idempotency_key[:8]} for {cents / 100:.2f}"


@step
def summarise(notes: list[str]) -> str:
    """A long model call."""
    _act()
    return f"a summary of {len(notes)} notes"


@step
def check_facts(summary: str) -> str:
    """A second look."""
    _act()
    return f"{summary}, checked"


@step
def write_report(summary: str, receipt: str) -> str:
    """The text to send."""
    _act()
    return f"Report: {summary} ({receipt})"


@step
def send_report(report: str) -> str:
    """An e-mail."""
    _act()
    return report


@workflow
async def research(topic: str) -> str:
    """Research a topic, charge for it, and send a report."""
    first, second, third = await plan(topic)
    sources = [await search_1(first), await search_2(second), await search_3(third)]
    notes = [await read_1(sources[0]), await read_2(sources[1]), await read_3(sources[2])]
    receipt = await charge_card(250)
    summary = await summarise(notes)
    checked = await check_facts(summary)
    return await send_report(await write_report(checked, receipt))


def _leave_with_the_demo() -> None:
    """A worker of the demo is of no use without it: end when the demo's process is gone, however it went."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if FOLDER in os.environ:
    threading.Thread(target=_leave_with_the_demo, daemon=True).start()
