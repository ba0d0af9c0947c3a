"""A tool of a turn that asks a person: the question survives the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import project_key_for_directory
from effects import LEDGER
from provider_server import ProviderServer

from holdfast import Client
from holdfast.integrations.claude_agent import HoldfastSessionStore
from waits import wait_until

APP = Path(__file__).with_name("approval_app.py")
PAY: dict[str, Any] = {"calls": [{"tool": "mcp__bank__pay", "arguments": {"dollars": 5}}]}
SCRIPTS = {"trip": [PAY, PAY, {"text": "It said: {results}"}]}
"""The model makes the call again when it is told that the first one was interrupted."""


@pytest.mark.asyncio
async def test_an_open_approval_survives_the_process_and_is_not_asked_twice(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with ProviderServer(SCRIPTS, tmp_path / "provider.ledger") as provider:
        paths = [str(APP.parents[3] / "src"), str(APP.parent), str(APP.parents[1])]
        environment = {
            **os.environ, **provider.address.environment, "HOLDFAST_URL": url, LEDGER: str(tmp_path / "effects"),
            "PYTHONPATH": os.pathsep.join(paths),
        }  # fmt: skip

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, APP], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
            )

        async with Client(url) as client:
            store = HoldfastSessionStore(client.memory)

            first = start()
            try:
                await wait_until((tmp_path / "runs.db").exists, "the store")
                [approval] = await wait_until(client.approvals, "the question")
                await wait_until(lambda: has_call(store, tmp_path), "the call in the transcript")
            finally:
                first.send_signal(signal.SIGKILL)
                first.communicate()
            second = start()
            await client.approve(approval.id, by="Ada")
            output, _ = second.communicate(timeout=90)
            assert "RESULT: It said: paid" in output
            assert [one.id for one in await client.approvals("payment", all=True)] == [approval.id]
    assert (tmp_path / "effects").read_text() == "start:pay\nend:pay\n"


async def has_call(store: HoldfastSessionStore, folder: Path) -> bool:
    project = project_key_for_directory(str(folder))
    for session in await store.list_sessions(project):
        entries = await store.load({"project_key": project, "session_id": session["session_id"]})
        if "tool_use" in str(entries):
            return True
    return False
