"""Writes checkpoints to a thread that other processes write to as well, and prints their ids."""

from __future__ import annotations

import sys

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from holdfast.integrations.langgraph_checkpoints import HoldfastSaver

COMMON_ID = "00000000-0000-6000-8000-000000000000"


def main() -> None:
    _, writer, *urls = sys.argv
    ids = [str(uuid6()) for _ in range(25)]
    for url in urls:
        with HoldfastSaver(url) as saver:
            write(saver, writer, ids)
    print(*ids)


def write(saver: HoldfastSaver, writer: str, ids: list[str]) -> None:
    common = {"configurable": {"thread_id": "common", "checkpoint_ns": ""}}
    kept = saver.put(common, {**empty_checkpoint(), "id": COMMON_ID}, {}, {})
    saver.put_writes(kept, [(f"channel-{number}", f"{writer}:{number}") for number in range(3)], "task")
    where = {"configurable": {"thread_id": "shared", "checkpoint_ns": ""}}
    for number, id in enumerate(ids):
        versions = {"text": number // 5}
        values = {"text": f"{writer}:" + "x" * 10_000}
        checkpoint = {**empty_checkpoint(), "id": id, "channel_values": values, "channel_versions": versions}
        where = saver.put(where, checkpoint, {"writer": writer}, versions)


if __name__ == "__main__":
    main()
