"""The scripts of the scripted models. With a real model, nothing of this is used."""

from __future__ import annotations

from typing import Any

from pydantic_ai.exceptions import ModelHTTPError

from holdfast.testing import answer, call

BEES = [
    [call("web_search", query="bees find their way compass"), call("web_search", query="bees measure distance")],
    [call("read_page", name="sun"), call("read_page", name="landmarks")],
    call("read_page", name="dances"),
    answer(
        title="How bees find their way",
        summary=(
            "Bees combine a compass, a map and a measure: the sun and the polarised light around it, landmarks that "
            "they have learnt, and the ground that moves past their eyes. They tell direction and distance by dances."
        ),
        findings=[
            {"claim": "An inner clock corrects for the movement of the sun.", "source": "sun"},
            {"claim": "Distance is measured by how fast the ground moves past the eyes.", "source": "landmarks"},
            {"claim": "The waggle run tells direction by its angle and distance by its duration.", "source": "dances"},
        ],
    ),
]


def make_untidy_orders(number: int) -> list[str]:
    """Orders as they come from an old system."""
    cities = ["oslo", "LIMA ", " Turin", "kyoto", "oslo"]
    return [f" #{n:04} |{cities[n % 5]}| {n * 7 % 50 + 10}.{n % 100:02} €" for n in range(1, number + 1)]


ORDERS = [answer(headline="Oslo leads the week", best_city="Oslo")]

REJECTED = [ModelHTTPError(401, "claude-sonnet-5", {"error": {"message": "invalid x-api-key"}})]
REASON = ["Oslo"]
SYNTHESIZE = ["Yes: it is 14 °C in Oslo, so a light coat will do."]

_NOTES = """\
# Release 2.0

## Breaks

- A date without a year is refused: write the year.

## New

- Exports can be Parquet files, with `--format parquet`.

## Mended

- A file that begins with a byte order mark is read as it is.
"""


def _write_plan(read: str, write: str, publish: str) -> Any:
    tasks = {"Read the changes": read, "Write the notes": write, "Publish them": publish}
    return call("write_plan", items=[{"task": task, "status": status} for task, status in tasks.items()])


RELEASE = [
    [_write_plan("working", "open", "open"), call("list_changes")],
    [call("read_change", number=number) for number in ("a1", "b2", "c3", "d4")],
    [_write_plan("done", "working", "open"), call("load_skill", name="release-notes")],
    call("read_skill_file", skill="release-notes", path="template.md"),
    [_write_plan("done", "done", "working"), call("load_skill", name="publishing")],
    call("publish_notes", text=_NOTES),
    "The notes are published.",  # with a task that is not done: it is sent back
    _write_plan("done", "done", "done"),
    "The notes of release 2.0 are published: one change breaks, one is new, one is mended. c3 is left out.",
]
