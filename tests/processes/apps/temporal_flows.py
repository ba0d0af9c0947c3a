"""Workflows for what is only so on Temporal: who counts attempts, who says that a worker lives, who waits for a run."""

from __future__ import annotations

import os
import time

from flows import call, call_plain, held, hold, pass_gate
from ledger import effect

from holdfast import current_step, step, workflow


@step(retries=3, backoff=0.01)
async def stumble(gate: str) -> None:
    """Fails each time. The second attempt is in flight until the gate opens."""
    with effect(gate):
        attempt = current_step().attempt
        if attempt == 2:
            await pass_gate(gate)
        raise ConnectionError(f"attempt {attempt} fails")


@workflow(id="stumbling-{name}")
async def stumbling(name: str) -> str:
    try:
        await stumble(name)
    except ConnectionError as error:
        return str(error)
    return "never"


@step(retries=5, backoff=0.01, give_up_on=ValueError)
async def give_up_at_once(label: str) -> None:
    with effect(label):
        raise ValueError(f"{label} is wrong")


@step(retries=5, backoff=0.01, retry_on=lambda error: "later" in str(error))
async def refuse_twice(label: str) -> None:
    """Asks for another attempt once, and then for none."""
    with effect(label):
        raise RuntimeError("later" if current_step().attempt == 1 else "never")


@workflow(id="hopeless-{name}")
async def hopeless(name: str) -> list[str]:
    told: list[str] = []
    for attempt in (give_up_at_once, refuse_twice):
        try:
            await attempt(name)
        except (ValueError, RuntimeError) as error:
            told.append(str(error))
    return told


@step
async def block(seconds: float) -> float:
    """Keeps its event loop from everything else, first asleep and then at work."""
    with effect():
        began = time.monotonic()
        time.sleep(seconds / 2)
        while time.monotonic() < began + seconds:
            pass
        return seconds


@workflow(id="blocking-{name}")
async def blocking(name: str, seconds: float) -> float:
    return await block(seconds)


@workflow(id="joining-{name}")
async def joining(name: str) -> list[str]:
    """Waits for a run that somebody else has started."""
    return await held(name)


@workflow(id="stairs-{name}")
async def stairs(name: str) -> list[str]:
    """Five steps, of which a gate holds the third one back."""
    below = [await call(f"{name} 1"), await call_plain(f"{name} 2")]
    return [*below, await hold(name), await call(f"{name} 4"), await call_plain(f"{name} 5")]


@workflow(id="deployed-{name}")
async def deployed(name: str) -> str:
    """In a process with ``CODE=new``, it has another step in the same place."""
    return await (call(name) if os.environ.get("CODE") == "new" else hold(name))
