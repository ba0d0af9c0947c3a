"""A run that consumes many signals, one after the other, from many senders."""

from __future__ import annotations

from holdfast import wait_for_signal, workflow


@workflow(id="collector-{name}")
async def collector(name: str, count: int) -> dict[str, int]:
    """Returns the last number of each sender. Fails if one is missing, doubled, or out of order."""
    latest: dict[str, int] = {}
    for _ in range(count):
        sender, number = await wait_for_signal("number", type=tuple[str, int])
        expected = latest.get(sender, -1) + 1
        if number != expected:
            raise ValueError(f"{sender} sent {number} when {expected} was due")
        latest[sender] = number
    return latest
