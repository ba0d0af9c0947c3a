"""A workflow for fleets under load: steps, timers, a signal, a child, and a ``once`` step.

It uses only the public API, so that an earlier release can execute it, too.
"""

from __future__ import annotations

import asyncio
import time

from ledger import effect

from holdfast import StepOutcomeUnknown, step, wait_for_signal, workflow


@step
async def pack(label: str) -> str:
    with effect(label):
        await asyncio.sleep(0.02)
        return label


@step
def weigh(label: str) -> str:
    """In a thread."""
    with effect(label):
        time.sleep(0.01)
        return label


@step(effect="once")
async def charge(name: str) -> str:
    with effect(name):
        await asyncio.sleep(0.02)
        return f"{name} charged"


@workflow(id="label-{name}")
async def label(name: str) -> str:
    return await pack(f"{name} label")


@workflow(id="parcel-{name}")
async def parcel(name: str) -> list[str]:
    seen = [await pack(f"{name} packed"), await weigh(f"{name} weighed")]
    await asyncio.sleep(0.05)
    seen.append(await wait_for_signal("address", type=str))
    seen.append(await label(name))
    try:
        seen.append(await charge(name))
    except StepOutcomeUnknown:
        seen.append("unknown")
    await asyncio.sleep(1.2)  # longer than a run stays in memory
    return [*seen, *await asyncio.gather(pack(f"{name} a"), weigh(f"{name} b"), pack(f"{name} c"))]
