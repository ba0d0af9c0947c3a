"""A folder with an app whose runs ask people, and a database with such runs in it."""

from __future__ import annotations

from pathlib import Path

from cli_project import Project, seed

APP = """
from datetime import timedelta
from typing import Literal

from pydantic import BaseModel, Field

from holdfast import ApprovalPolicy, ask, step, workflow
from holdfast.authoring.approval_requests import request_approval
from holdfast.core.execution import get_current_execution
from holdfast.stores.approvals import ApprovalRequest


class Parcel(BaseModel):
    weight: float = Field(description="in kilograms")
    colour: Literal["red", "blue"] = "red"


@step
async def ship(how: str) -> str:
    return f"shipped {how}"


@workflow(id="shipping-{name}")
async def shipping(name: str) -> str:
    if not await ask(f"Ship {name}?\\nIt is \\x1b[31mfragile.", to="ann", timeout=timedelta(days=2), escalate_to="bob"):
        return "kept"
    how = await ask("How?", choices=["by sea", "by air"], to="bob")
    parcel = await ask("What is in it?", form=Parcel)
    return f"{await ship(how)}, {parcel.weight} kg"


@workflow(id="mailing")
async def mailing() -> object:
    execution = get_current_execution()
    question = ApprovalRequest(
        "Send the mail?",
        tool="send_mail",
        arguments=b'{"to": "customer@example.org", "text": "first line\\\\nsecond line"}',
        form_schema=b'{"properties": {"to": {"type": "string"}}, "required": ["to"]}',
        reason="it leaves the house",
    )
    decided = await request_approval(execution, question, ApprovalPolicy())
    return decided.answer.arguments
"""

SEED = """
import asyncio
from app import mailing, shipping
from holdfast import Client

async def main():
    await shipping.start("vase")
    await asyncio.sleep(0.01)
    await mailing.start()
    async with Client() as client:
        while len(await client.approvals()) < 2 or len(await client.list(state="waiting")) < 2:
            await asyncio.sleep(0.02)

asyncio.run(main())
"""

GO_ON = """
import asyncio
import app
from holdfast import Client, Runtime

async def main():
    async with Runtime(), Client() as client:
        while (await client.get({run!r})).state not in ("completed", "failed"):
            if len(await client.approvals({run!r}, all=True)) >= {asked}:
                break
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


def make_office(folder: Path) -> Project:
    """Two runs that wait for people."""
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(APP)
    project = Project(folder)
    seed(project, SEED)
    return project


def run_until_asked(project: Project, run: str, question_count: int) -> None:
    """Let a worker continue a run until it has asked this many questions, or has ended."""
    seed(project, GO_ON.format(run=run, asked=question_count))
