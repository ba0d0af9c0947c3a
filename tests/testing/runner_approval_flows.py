"""Workflows that ask people, for the tests of the testing kit."""

from __future__ import annotations

import itertools

from pydantic import BaseModel, field_validator

from holdfast import ApprovalNotification, ApprovalTimedOut, ask, step, workflow

sent: list[str] = []
times = itertools.count(1)


class Trip(BaseModel):
    days: int

    @field_validator("days")
    @classmethod
    def _is_lucky(cls, days: int) -> int:
        if days == 13:
            raise ValueError("13 brings bad luck")
        return days


@step
async def mail(notice: ApprovalNotification) -> None:
    sent.append(notice.kind)


@step
async def publish(where: str) -> str:
    return f"published in {where}"


@workflow
async def publishing() -> str:
    """Asks in three ways, with reminders and somebody else to be asked."""
    if not await ask("Publish?", to="ann", timeout=60, remind_every=40, escalate_to="bob", notify=mail):
        return "denied"
    where = await ask("Where?", choices=["here", "there"])
    trip = await ask("How long?", form=Trip)
    return f"{await publish(where)} for {trip.days} days"


@workflow
async def patient_publishing() -> str:
    """Goes on when nobody answers."""
    try:
        await ask("Publish?", timeout=60, escalate_to="bob", notify=mail)
    except ApprovalTimedOut:
        return await publish("the drawer")
    return "answered"


@workflow
async def asks_of_chance() -> bool:
    """A question that is another one whenever it is asked."""
    return await ask(f"Publish?\n\nFor the {next(times)}th time.")
