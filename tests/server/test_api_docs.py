"""The page about the HTTP API is true: its commands work in the order in which they stand there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgi_server import running_server
from server_worker import running_worker

from holdfast import ask, step, wait_for_signal, workflow
from holdfast.server.endpoints import ENDPOINTS

PAGE = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text()


@step
async def onboarding_account(customer: str) -> str:
    return f"account of {customer}"


@workflow(name="onboarding")
async def onboarding(customer: str) -> str:
    account = await onboarding_account(customer)
    paid = await wait_for_signal("paid")
    discount = await ask(f"A discount for {customer}?")
    return f"{account}, invoice {paid['invoice']}, {'with' if discount else 'without'} a discount"


def commands() -> Iterator[dict[str, Any]]:
    """What the page has curl send, as requests."""
    for block in re.findall(r"^```bash\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = iter(shlex.split(line)[1:])
            request: dict[str, Any] = {"method": "GET", "headers": {}}
            for word in words:
                if word == "-X":
                    request["method"] = next(words)
                elif word == "-H":
                    name, _, value = next(words).partition(": ")
                    request["headers"][name] = value
                elif word == "-d":
                    request["content"] = next(words)
                elif word != "-N":
                    request["url"] = word.replace("localhost:7100", "localhost")
            yield request


@pytest.mark.asyncio
async def test_the_commands_of_the_page_work_as_they_stand_there():
    sent = 0
    async with running_server() as served, running_worker(served):
        caller, approval, last = served.caller(), "", None
        for request in commands():
            if "approvals" in request["url"] and not approval:  # a person comes later than this
                await _wait_for_approval(caller)
            request["url"] = request["url"].replace("$APPROVAL", approval)
            last = await caller.request(**request)
            assert last.status_code < 300, (request, last.text)
            if request["url"].endswith("approvals?run_id=onboarding-acme"):
                approval = last.json()["items"][0]["id"]
            if request["url"].endswith("result?wait=20"):
                assert last.json()["output"] == "account of acme, invoice 17, with a discount"
            sent += 1
    assert sent > 15


async def _wait_for_approval(caller: Any) -> None:
    place, after = "/v1/runs/onboarding-acme/events", {}
    while True:
        page = (await caller.get(place, params={"wait": 20, **after})).json()
        if any(event["kind"] == "approval" for event in page["items"]):
            return
        after = {"after": page["next"]}


def test_the_table_of_the_page_names_every_endpoint_and_its_scope():
    rows = re.findall(r"^\| `([A-Z]+) (/v1/[^`]*)` \| `([^`]+)` \| .+ \|$", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted((one.method, one.path, _scope(one)) for one in ENDPOINTS)


def _scope(one: Any) -> str:
    if one.scope is None:
        return "none"
    return f"listen:{{{one.path_params[0]}}}" if one.is_address_scoped else str(one.scope)
