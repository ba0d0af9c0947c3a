"""Your workflows and agents: replace this one."""

from __future__ import annotations

from holdfast import step, workflow


@step
async def fetch(customer: str) -> int:
    return len(customer)


@workflow
async def report(customer: str) -> str:
    return f"{customer}: {await fetch(customer)}"
