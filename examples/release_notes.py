"""An agent that plans, with skills: it writes the notes of a release, and publishes them.

    python examples/release_notes.py --pace 2

How to write notes is in a folder with a SKILL.md (examples/skills), which the model loads when it needs it; how to
publish them is a skill with its own tool. Kill it midway (Ctrl-C, or kill -9 from another terminal), look at the plan
with `holdfast show release-2.0`, and run the same command again: it continues with the rest of the plan.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from offline import make_parser, model_for
from scripts import RELEASE

from holdfast import Agent, ModelRetry, Plan, skill, tool

SKILLS = Path(__file__).parent / "skills"
CHANGES = {
    "a1": "Parser: refuse dates without a year. Before, this year was assumed.",
    "b2": "Export: write Parquet files, with --format parquet.",
    "c3": "Tests: run in parallel.",
    "d4": "Import: a file with a byte order mark is no longer taken for an empty one.",
}
STATUS_MARKS = {"open": "[ ]", "working": "[>]", "done": "[x]", "dropped": "[-]"}


@tool(effect="read")
async def list_changes() -> list[str]:
    """The numbers of the changes since the last release."""
    return list(CHANGES)


@tool(effect="read")
async def read_change(number: str) -> str:
    """What a change does.

    Args:
        number: as `list_changes` gives it.
    """
    if number not in CHANGES:
        raise ModelRetry(f"There is no change {number!r}.")
    print(f"  reads change {number}", flush=True)
    return CHANGES[number]


@tool
async def publish_notes(text: str) -> str:
    """Publish the notes of a release.

    Args:
        text: all of the notes, in Markdown.
    """
    Path("RELEASE_NOTES.md").write_text(text)
    print("  publishes RELEASE_NOTES.md", flush=True)
    return f"published, {len(text)} characters"


@skill(tools=[publish_notes])
def publishing() -> str:
    """How notes are published. Use it once the notes are written."""
    return "Publish the notes once, as a whole, with `publish_notes`. A heading that has nothing below it is left out."


writer = Agent(
    model_for(RELEASE),
    name="release-writer",
    tools=[list_changes, read_change],
    instructions="You write the notes of our releases.",
    planning=True,
    skills=[SKILLS, publishing],
)


async def main() -> None:
    make_parser(__doc__).parse_args()
    handle = await writer.options(id="release-2.0").start("Write and publish the notes of release 2.0.")
    following = asyncio.create_task(handle.result())
    shown = Plan()
    while not following.done():
        plan = await handle.plan()
        if plan != shown:
            print("\n".join(f"{STATUS_MARKS[item.status]} {item.task}" for item in plan), flush=True)
            shown = plan
        await asyncio.wait([following], timeout=0.1)
    result = following.result()
    print(f"\n{result.output}\n{result.usage}\nholdfast show {result.run_id}")


if __name__ == "__main__":
    asyncio.run(main())
