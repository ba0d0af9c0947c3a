"""Runs the workflows of ``replayed_flows`` on Temporal's development server, and keeps their histories.

    python tests/temporal/record_histories.py NAME ...            # new workflows
    python tests/temporal/record_histories.py --all-unreleased    # all, as long as no release can run on Temporal

A history that a release could have written is never recorded again: that it was written by the code of its day is all
that it is good for.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import replayed_flows as flows  # noqa: E402
from google.protobuf.message import Message  # noqa: E402
from recorded_histories import FOLDER, RecordedHistory, rebuild  # noqa: E402
from temporal_engines import client_of, serving  # noqa: E402
from temporalio.api.enums.v1 import EventType  # noqa: E402
from temporalio.api.failure.v1 import Failure  # noqa: E402
from temporalio.api.taskqueue.v1 import TaskQueue  # noqa: E402
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle  # noqa: E402
from temporalio.common import RawValue, WorkflowIDReusePolicy  # noqa: E402

import temporal_server  # noqa: E402
from holdfast import Runtime  # noqa: E402
from holdfast.core.records import Record, Rewind  # noqa: E402
from holdfast.services.approvals import Answer  # noqa: E402
from holdfast.stores.temporal import identifiers  # noqa: E402
from holdfast.stores.temporal.carried_records import pack_records, unpack  # noqa: E402
from holdfast.stores.temporal.history import _iter_messages, iter_payloads  # noqa: E402
from holdfast.stores.temporal.payloads import to_raw_value  # noqa: E402
from holdfast.stores.temporal.run_events import ChildStarted, StepEnded, read_batches  # noqa: E402
from holdfast.stores.temporal.run_memo import APPROVALS_KEY, RUN_MEMO_KEY  # noqa: E402

PATIENCE = 60.0
CONTINUE_AFTER = 60
"""For the long one."""
INPUTS: dict[str, dict[str, Any]] = {
    "replayed_steps": {"upto": 3},
    "replayed_waiting": {"days": 3650},
    "replayed_child": {"number": 5},
    "replayed_class": {"count": 3},
    "replayed_long": {"upto": 20},
    "replayed_program": {"upto": 2},
    "replayed_retried": {"number": 7},
    "replayed_agent": {"prompt": "Do what is to be done."},
    "replayed_helper": {"prompt": "What is kelp?"},
    "replayed_budgeted": {"prompt": "What is kelp?"},
}
OPEN = {"replayed_waiting"}
"""Kept while they are under way."""
ELSEWHERE = {"replayed_listener", "replayed_named"}
"""Kept as runs of others only."""


class Recorder:
    """One server, one worker, and one run of each workflow."""

    def __init__(self, runtime: Runtime, client: Client) -> None:
        self._runtime = runtime
        self._client = client
        self._failures = 1
        self._sent = 0
        self._reached = asyncio.Event()
        flows.hooks.update(
            early=self._early, ready=self._ready, busy=self._busy, never=self._never, named=self._named,
            pause=self._pause, asked=self._asked, more=self._more, unsure=self._unsure, go=self._go,
        )  # fmt: skip

    # What is done to runs from inside their steps

    def handle(self, run_id: str) -> WorkflowHandle[Any, Any]:
        """A run."""
        return self._client.get_workflow_handle(run_id)

    async def send(self, run_id: str, name: str, value: Any) -> None:
        """A signal."""
        await self.handle(run_id).signal(name, args=[to_raw_value(json.dumps(value).encode())])

    async def _early(self, run_id: str) -> None:
        await self.send(run_id, "early", [1, 2, 3])

    async def _ready(self, run_id: str) -> None:
        for name, value in (("go", "one"), ("when", 3), ("go", {"two": 2})):
            await self.send(run_id, name, value)

    async def _go(self, run_id: str) -> None:
        await self.send(run_id, "go", "on")

    async def _busy(self, run_id: str) -> None:
        asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(self.send(run_id, "go", "now")))

    async def _never(self, run_id: str) -> None:
        self._reached.set()
        await asyncio.Event().wait()

    async def _named(self, run_id: str) -> None:
        await self._runtime.start(flows.replayed_named, "one")

    async def _pause(self, run_id: str) -> None:
        await self.handle(run_id).signal(identifiers.PAUSE_SIGNAL)
        asyncio.get_running_loop().call_later(0.3, lambda: asyncio.ensure_future(self._resume(run_id)))

    async def _resume(self, run_id: str) -> None:
        await self.handle(run_id).signal(identifiers.RESUME_SIGNAL)

    async def _asked(self, run_id: str) -> None:
        await self._question(run_id, "Never mind?")

    async def _more(self, run_id: str) -> None:
        self._sent += 1
        await self.send(run_id, "more", self._sent)

    async def _unsure(self, run_id: str) -> None:
        if self._failures:
            self._failures -= 1
            raise flows.Declined("not yet")

    # What is done to them from outside

    async def _question(self, run_id: str, text: str, *, reminded: bool = False) -> str:
        async with asyncio.timeout(PATIENCE):
            while True:
                memo = await (await self.handle(run_id).describe()).memo()
                for one in memo.get(APPROVALS_KEY, []):
                    if one["question"] == text and (one.get("reminder_count") or not reminded):
                        return one["id"]
                await asyncio.sleep(0.02)

    async def _answer(self, run_id: str, text: str, answer: Answer, *, reminded: bool = False) -> None:
        id = await self._question(run_id, text, reminded=reminded)
        await self.handle(run_id).signal(identifiers.ANSWER_SIGNAL, args=[id, to_raw_value(answer.encode())])

    async def _while_it_runs(self, name: str) -> None:
        if name == "replayed_asks":
            await self._answer(name, "First?", Answer(True, answered_by="ada", answered_at=1.0))
            await self._answer(name, "Which?", Answer(True, "blue", answered_by="ada", answered_at=2.0), reminded=True)
        elif name == "replayed_cancelled":
            async with asyncio.timeout(PATIENCE):
                while "signal never" not in (await self.handle(name).query(identifiers.STATUS_QUERY))["waits_for"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await self.handle(name).cancel()
        elif name == "replayed_waiting":
            await self._reached.wait()
            await self.send(name, "unknown", "nobody waits for this")
            await self._settled(name)

    async def _settled(self, run_id: str) -> None:
        """Until the last workflow task is completed."""
        async with asyncio.timeout(PATIENCE):
            while True:
                events = (await self.handle(run_id).fetch_history()).events
                kinds = [event.event_type for event in events]
                task = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
                signal = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
                if task in kinds and signal in kinds and task in kinds[kinds.index(signal) :]:
                    return
                await asyncio.sleep(0.02)

    # Keeping

    async def run_through(self, name: str) -> None:
        """Run it, and keep its history, or its histories if it goes through several executions."""
        flow = flows.FLOWS[name]
        await self._runtime.start(flow.options(id=name), **INPUTS.get(name, {}))
        await self._while_it_runs(name)
        if name == "replayed_started":
            return await self._until_together(name)
        if name not in OPEN:
            await self.ended(name)
        await self.keep(name)
        if name == "replayed_retried":
            await self._again(name)

    async def _until_together(self, name: str) -> None:
        """What comes when is a matter of milliseconds, so it takes some tries."""
        for number in range(200):
            run_id = f"{name}-try-{number}"
            await self._runtime.start(flows.FLOWS[name].options(id=run_id))
            await self.ended(run_id)
            recorded = await self._history(run_id, (await self.handle(run_id).describe()).run_id)
            for batch in read_batches(recorded.events):
                kinds = {type(one) for one in batch.events}
                if {ChildStarted, StepEnded} <= kinds:
                    return await self.keep(run_id, name)
        raise SystemExit(f"{name}: a run was never started in the moment in which a step ended")

    async def ended(self, run_id: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self.handle(run_id).result()
        except WorkflowFailureError:
            pass

    async def _again(self, name: str) -> None:
        """A retry, and a fork: each a new execution that brings records along."""
        path = FOLDER / f"{name}.json"
        recorded = RecordedHistory.read(path)
        run = rebuild(recorded)
        assert run.end is not None
        assert run.end.rewind is not None
        _, records, _ = unpack(run.carried_records.to_chunks())
        rewind: Rewind = run.end.rewind
        head = await (await self.handle(name).describe()).memo_value(RUN_MEMO_KEY)
        retried = {**head, "rewind_points": [list(rewind.point)]}
        await self._begin(name, name, retried, [one for one in records if not rewind.should_remove(one)])
        await self.keep(name, f"{name}_again")
        forked = {**head, "forked_from": name, "seed": "5f" * 16}
        await self._begin(name, f"{name}_forked", forked, records[:1])
        await self.keep(f"{name}_forked")

    async def _begin(self, name: str, run_id: str, head: dict[str, Any], records: list[Record]) -> None:
        flow = flows.FLOWS[name]
        inputs = flow.definition.inputs_codec.encode((), INPUTS[name])
        await self._client.start_workflow(
            name,
            args=[to_raw_value(inputs), *map(RawValue, pack_records(records))],
            id=run_id,
            task_queue=identifiers.format_task_queue(head["queue"], name, ""),
            memo={RUN_MEMO_KEY: head},
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        )
        await self.ended(run_id)

    async def keep(self, run_id: str, name: str | None = None) -> None:
        """The history of the newest execution, and of those that it continues."""
        executions = [(await self.handle(run_id).describe()).run_id]
        while True:
            recorded = await self._history(run_id, executions[0])
            before = recorded.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
            if not before:
                break
            executions.insert(0, before)
        for number, execution in enumerate(executions, 1):
            recorded = await self._history(run_id, execution)
            file = (name or run_id) + (f"_{number}" if len(executions) > 1 else "")
            recorded.write(FOLDER / f"{file}.json")
            print(f"{file}: {len(recorded.events)} events")

    async def _history(self, run_id: str, execution: str) -> RecordedHistory:
        history = await self._client.get_workflow_handle(run_id, run_id=execution).fetch_history()
        for event in history.events:
            _without_this_machine(event)
        limit = CONTINUE_AFTER if run_id == "replayed_long" else None
        return RecordedHistory(run_id, execution, limit, history)


_PATHS = re.compile(rb"(?:/[\w.+-]+)+/(?=(?:src|tests|site-packages|lib)/)")


def _without_this_machine(message: Any) -> None:
    """Leave out where it was recorded."""
    for payload in iter_payloads(message):
        if payload.metadata.get("encoding") == b"json/plain":
            payload.data = _PATHS.sub(b"", payload.data)
    _clean(message)


def _clean(message: Message) -> None:
    if isinstance(message, Failure):
        message.stack_trace = ""
    for field, _ in message.ListFields():
        if field.name == "identity":
            message.identity = "worker"  # type: ignore[attr-defined]
        elif field.name == "build_id":
            message.build_id = ""  # type: ignore[attr-defined]
    if isinstance(message, TaskQueue) and message.normal_name:
        message.name = "sticky"  # its own name tells the host
    for part in _iter_messages(message):
        _clean(part)


def _kill_in_once(url: str) -> None:
    """Another process takes the step up, and dies in it."""
    code = (
        "import asyncio, replayed_flows as f\n"
        "from temporal_engines import serving\n"
        "async def main():\n"
        f"    async with serving({url!r}, f.replayed_once, lease_s=2.0):\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())"
    )
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, flows.VICTIM: "1", "PYTHONPATH": path}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 9


async def record(names: list[str]) -> None:
    """Record these."""
    url = temporal_server.fresh_url()
    client = await client_of(url)
    if "replayed_once" in names:  # first the one that kills its worker, while nobody else serves it
        queue = identifiers.format_task_queue("default", "replayed_once", "")
        await client.start_workflow("replayed_once", args=[to_raw_value(b"{}")], id="replayed_once", task_queue=queue)
        _kill_in_once(url)
    others = [flow for name, flow in flows.FLOWS.items() if name != "replayed_long"]
    async with serving(url, *others, lease_s=2.0) as runtime:
        recorder = Recorder(runtime, client)
        for name in names:
            if name == "replayed_once":
                await recorder.ended(name)
                await recorder.keep(name)
            elif name != "replayed_long":
                await recorder.run_through(name)
    if "replayed_long" in names:
        async with serving(url, flows.replayed_long, continue_as_new_after=CONTINUE_AFTER) as runtime:
            await Recorder(runtime, client).run_through("replayed_long")


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description="Record histories of workflows on Temporal.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="workflows that have no history yet")
    parser.add_argument("--all-unreleased", action="store_true", help="record all again, as no release wrote them")
    given = parser.parse_args()
    names = [name for name in flows.FLOWS if name not in ELSEWHERE] if given.all_unreleased else given.names
    for name in names:
        if list(FOLDER.glob(f"{name}.json")) and not given.all_unreleased:
            sys.exit(f"there is a history of {name} already, and it is not recorded again: make a new workflow")
    FOLDER.mkdir(exist_ok=True)
    asyncio.run(record(names))


if __name__ == "__main__":
    main()
