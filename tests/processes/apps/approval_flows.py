"""Workflows that ask people."""

from __future__ import annotations

from flows import pass_gate
from ledger import effect

from holdfast import ApprovalNotification, ApprovalTimedOut, ask, step, workflow


def tell(notice: ApprovalNotification) -> None:
    """What people are told, as an effect on the world."""
    with effect(f"{notice.kind} {notice.assignee} {notice.reminder_count}"):
        pass


@step
async def tell_at_gate(notice: ApprovalNotification) -> None:
    """The same; a reminder is in flight until its gate opens."""
    with effect(f"{notice.kind} {notice.reminder_count}"):
        if notice.kind == "reminder":
            await pass_gate(f"reminder {notice.reminder_count}")


@step
async def paint(colour: str) -> str:
    with effect(colour):
        return f"painted {colour}"


@step
async def give_up(name: str) -> str:
    """In flight until the gate opens."""
    with effect(name):
        await pass_gate(name)
        return f"gave {name} up"


@workflow(id="painting-{name}")
async def painting(name: str) -> str:
    colour = await ask(f"Which colour for {name}?", choices=["red", "green", "blue"], to="ann", notify=tell)
    return await paint(colour)


@workflow(id="reminding-{name}")
async def reminding(name: str) -> bool:
    return await ask(f"And {name}?", remind_every=0.3, notify=tell_at_gate)


@workflow(id="giving-up-{name}")
async def giving_up(name: str) -> str:
    try:
        await ask(f"Anybody for {name}?", to="ann", timeout=1.5, escalate_to="bob", notify=tell)
    except ApprovalTimedOut:
        return await give_up(name)
    return "answered"
