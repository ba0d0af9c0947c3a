"""Writes checkpoints to a thread that other processes write to as well, and prints their ids."""

from __future__ import annotations

import sys

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from holdfast.integrations.langgraph_checkpoints import HoldfastSaver

COMMON_ID = "00000000-0000-6000-8000-000000000000"


def main() -> None:
    _, url, writer = sys.argv
    where = {"configurable": {"thread_id": "shared", "checkpoint_ns": ""}}
    common = {"configurable": {"thread_id": "common", "checkpoint_ns": ""}}
    with HoldfastSaver(url) as saver:
        kept = saver.put(common, {**empty_checkpoint(), "id": COMMON_ID}, {}, {})
        saver.put_writes(kept, [(f"channel-{number}", f"{writer}:{number}") for number in range(3)], "task")
        for number in range(25):
            checkpoint = {
                **empty_checkpoint(),
                "id": str(uuid6()),
                "channel_values": {"text": f"{writer}:" + "x" * 10_000},
                "channel_versions": {"text": number // 5},
            }
            where = saver.put(where, checkpoint, {"writer": writer}, {"text": number // 5})
            print(checkpoint["id"], flush=True)


if __name__ == "__main__":
    main()
