"""Reading a run's story for a command."""

from __future__ import annotations

from holdfast.cli.store_access import get_run, reached
from holdfast.reports.conversations import Said
from holdfast.reports.types import Story


async def whole_story(url: str | None, run_id: str) -> Story:
    """All that is known of a run now."""
    async with reached(url) as client:
        await get_run(client, run_id)  # it names runs that are called alike
        return await client.story(run_id, limit=None, full=True)


async def whole_conversation(url: str | None, run_id: str) -> tuple[Story, list[Said]]:
    """A run, and what was said in it."""
    async with reached(url) as client:
        await get_run(client, run_id)
        return await client.story(run_id, limit=1), await client.conversation(run_id)
