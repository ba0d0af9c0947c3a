"""Code without an event loop: it can ask a client for all that code with one can."""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast import Client, UsageError
from holdfast.client.resources import (
    ClientAddresses,
    ClientKeys,
    ClientMemory,
    ClientPolicies,
    ClientQueues,
    ClientSchedules,
)
from holdfast.services.api_keys import UnknownApiKey
from holdfast.services.policies import Policy
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import create_store

PARTS = [Client, ClientMemory, ClientSchedules, ClientQueues, ClientAddresses, ClientPolicies, ClientKeys]
WITHOUT_SYNC_FORM = {"open": "the first call connects by itself", "serve": "listen_sync"}


@pytest.mark.parametrize("part", PARTS)
def test_every_async_method_has_a_sync_form_with_its_signature(part: Any):
    methods = dict(inspect.getmembers(part, inspect.isfunction))
    awaited = {name for name, one in methods.items() if inspect.iscoroutinefunction(one) and not name.startswith("_")}
    followed = {"events", "tail", "listen"} & methods.keys()
    names = (awaited | followed) - WITHOUT_SYNC_FORM.keys()
    assert {f"{name}_sync" for name in names} <= methods.keys()
    for name in names:
        plain = inspect.signature(methods[f"{name}_sync"]).parameters
        assert [*plain] == [*inspect.signature(methods[name]).parameters], name


@pytest.fixture
def client(tmp_path: Path) -> Client:
    """A client of an existing database."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"

    async def create() -> None:
        store = create_store(url)
        await store.open()
        await store.close()

    asyncio.run(create())
    return Client(url)


def test_the_parts_of_a_client_work_without_an_event_loop(client: Client):
    client.memory.put_sync("notes", "colour", {"is": "blue"})
    assert client.memory.get_sync("notes", "colour") == {"is": "blue"}
    assert [one.key for one in client.memory.search_sync("notes", "blue")] == ["colour"]
    assert client.memory.namespaces_sync("no") == ["notes"]
    client.memory.delete_sync("notes", "colour")
    assert client.memory.list_sync("notes") == []

    assert client.addresses.set_sync("reports", max_deliveries=5, deadline="1 h").deadline == 3600.0
    assert [one.max_deliveries for one in client.addresses.list_sync()] == [5]
    assert client.addresses.delete_sync("reports")

    client.policies.set_sync("helper", Policy(runs_per_day=3))
    assert [(one.name, one.policy.runs_per_day) for one in client.policies.list_sync()] == [("helper", 3)]
    assert client.policies.delete_sync("helper")

    key = client.keys.create_sync("ci", ["read"])
    assert [one.id for one in client.keys.list_sync()] == [key.id]
    assert client.keys.revoke_sync(key.id)
    with pytest.raises(UnknownApiKey):
        client.keys.revoke_sync("nobody")

    assert client.queues.set_sync("narrow", concurrency=1)
    assert "narrow" in client.queues.names_sync()


def test_runs_are_listed_without_an_event_loop(client: Client):
    run = client.send_sync("reports", 1)
    assert [one.id for one in client.list_sync(state="pending")] == [run]
    assert client.export_sync(run).run.id == run
    assert client.budget_sync(run).run_id == run
    assert (client.workers_sync(), client.disabled_workflows_sync(), client.audit_sync()) == ([], {}, [])
    with pytest.raises(UsageError, match="the states are pending, running"):
        client.list_sync(state="asleep")


async def _follow(client: Client) -> None:
    client.tail_sync()


def test_following_all_runs_without_an_event_loop_is_refused_where_one_runs(client: Client):
    from holdfast.sync_methods import run_sync

    with pytest.raises(UsageError, match="use `async for event in client"):
        run_sync(_follow(client))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"max_deliveries": "3"}, "max_deliveries='3' must be a whole number, 1 or more"),
        ({"max_deliveries": None}, "max_deliveries=None must be a whole number, 1 or more"),
        ({"max_deliveries": 0}, "max_deliveries=0 must be a whole number, 1 or more"),
        ({"deadline": [1]}, "is not a duration: use seconds, a timedelta, or text such as '15 min'"),
        ({"deadline": "soon"}, "'soon' is not a duration"),
        ({"lease": None}, "lease=None must be from 1 to 86400 seconds"),
        ({"lease": 0.5}, "lease=0.5 must be from 1 to 86400 seconds"),
        ({"patience": 1}, "has no setting 'patience'"),
    ],
)
def test_invalid_address_settings_are_refused(client: Client, settings: dict[str, Any], why: str):
    with pytest.raises(UsageError, match=why):
        client.addresses.set_sync("reports", **settings)


@pytest.mark.parametrize("limits", [{"runs_per_day": "3"}, {"usd_per_day": -1}, {"usd_per_day": True}])
def test_invalid_policy_limits_are_refused(client: Client, limits: dict[str, Any]):
    with pytest.raises(UsageError, match="must be a number, not below 0"):
        client.policies.set_sync("helper", Policy(**limits))


@pytest.mark.parametrize("age", ["long ago", [7], None, True, -1])
def test_an_invalid_age_is_refused(client: Client, age: Any):
    with pytest.raises(UsageError, match="older_than"):
        client.prune_sync(age)


def test_prune_accepts_a_duration_as_text(client: Client):
    assert client.prune_sync("30 days").run_count == 0


# The event loop of sync calls


def _list_client_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-client"]


def test_sync_calls_share_one_connection_and_close_sync_ends_it(client: Client, monkeypatch: pytest.MonkeyPatch):
    opened: list[SqliteStore] = []
    open_store = SqliteStore.open

    async def count_open(self: SqliteStore) -> None:
        opened.append(self)
        await open_store(self)

    monkeypatch.setattr(SqliteStore, "open", count_open)
    before = _list_client_threads()
    run = client.send_sync("reports", 1)
    with ThreadPoolExecutor(4) as pool:
        assert [info.id for info in pool.map(client.get_sync, [run] * 20)] == [run] * 20
    assert len(opened) == 1
    [thread] = set(_list_client_threads()) - set(before)
    client.close_sync()
    assert not thread.is_alive()
    assert client.get_sync(run).id == run
    assert len(opened) == 2
    client.close_sync()


def test_the_thread_of_sync_calls_ends_with_its_client(client: Client):
    before = _list_client_threads()
    url = client.connections.url
    other = Client(url)
    other.list_sync()
    [thread] = set(_list_client_threads()) - set(before)
    del other
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_a_sync_call_is_refused_where_an_event_loop_runs(client: Client):
    async def call() -> None:
        client.list_sync()

    with pytest.raises(UsageError, match="use the async form and `await` it"):
        asyncio.run(call())


def test_events_that_are_not_read_to_their_end_leave_the_client_usable(client: Client):
    run = client.send_sync("reports", 1)
    client.cancel_sync(run)
    for event in client.events_sync(run):
        assert event.kind
        break
    assert client.get_sync(run).id == run


PROGRAM = """
import os, sys, time
from holdfast import Client

client = Client(sys.argv[1])
run = client.send_sync("reports", 1)
"""


def _run_program(client: Client, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM + code, client.connections.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_program_that_does_not_close_its_client_ends_cleanly(client: Client, tmp_path: Path):
    done = _run_program(client, "print(client.get_sync(run).state)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "pending\n", "")
    assert not list(tmp_path.glob("*-wal"))  # SQLite removes it when the last connection is closed


def test_a_forked_process_connects_on_its_own(client: Client):
    done = _run_program(
        client,
        "import warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"  # since Python 3.12, a fork with other threads warns
        "if os.fork() == 0:\n"
        "    assert client.get_sync(run).id == run\n"
        "    client.signal_sync(run, 'go')\n"
        "    sys.exit(7)\n"
        "status = os.wait()[1]\n"
        "print(os.waitstatus_to_exitcode(status), client.get_sync(run).state)\n",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "7 pending\n", "")


def test_ctrl_c_ends_a_sync_call(client: Client):
    command = [sys.executable, "-c", PROGRAM + "print('waits', flush=True)\nclient.wait_sync(run)"]
    with subprocess.Popen(
        [*command, client.connections.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert stderr.splitlines()[-1] == "KeyboardInterrupt"
