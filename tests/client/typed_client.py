"""What type checkers and editors know of a client: read by pyright in ``test_client_typing``, never executed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

from holdfast import Client, Handle, RunInfo
from holdfast.reports.events import Event
from holdfast.reports.tail import TailEvent


async def use(client: Client, handle: Handle[int]) -> None:
    assert_type(await client.wait(handle), int)
    assert_type(await client.wait(handle, timeout="1 min"), int)
    assert_type(await client.wait("run-id"), Any)
    assert_type(await client.get("run-id"), RunInfo)
    assert_type(await client.memory.get("notes", "key", type=int), int | None)


def use_without_loop(client: Client, handle: Handle[int]) -> None:
    assert_type(client.wait_sync(handle), int)
    assert_type(client.wait_sync("run-id"), Any)
    assert_type(client.start_sync("etl", 1, customer="acme"), str)
    assert_type(client.send_sync("reports", 1, deadline="1 h"), str)
    assert_type(client.fork_sync("run-id", at=2), str)
    assert_type(client.events_sync("run-id", follow=False), Iterator[Event])
    assert_type(client.tail_sync(workflow="etl"), Iterator[TailEvent])
