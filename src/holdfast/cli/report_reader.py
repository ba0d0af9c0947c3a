"""Reading a run's story for a command."""

from __future__ import annotations

from holdfast.cli.store_access import get_run, open_client
from holdfast.reports.conversations import ConversationMessage
from holdfast.reports.types import RunReport


async def fetch_report(url: str | None, run_id: str) -> RunReport:
    """All that is known of a run now."""
    async with open_client(url) as client:
        await get_run(client, run_id)  # it names runs that are called alike
        return await client.describe(run_id, limit=None, full=True)


async def fetch_conversation(url: str | None, run_id: str) -> tuple[RunReport, list[ConversationMessage]]:
    """A run, and what was said in it."""
    async with open_client(url) as client:
        await get_run(client, run_id)
        return await client.describe(run_id, limit=1), await client.conversation(run_id)
