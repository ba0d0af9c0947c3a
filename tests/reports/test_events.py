"""Events: what is told of a run, in which order, and that a reader may come, go and come back at any moment."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from base64 import urlsafe_b64encode
from collections import Counter
from contextlib import aclosing, contextmanager
from typing import Any

import pytest

from holdfast import (
    Client,
    RunFailed,
    RunNotFound,
    Runtime,
    UsageError,
    ask,
    step,
    wait_for_signal,
    workflow,
)
from holdfast.codec import encode_error
from holdfast.core.records import Record, RecordKind, Rewind
from holdfast.core.states import RunState
from holdfast.errors import StoreCorrupt, StoreUnavailable
from holdfast.reports.events import PAGE_SIZE, Event, read_events
from holdfast.stores.change_feed import ChangeFeed
from holdfast.stores.contract import Store
from holdfast.stores.live_events import STARTED, TEXT
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import (
    AppendLiveEvents,
    AppendRecord,
    FinishRun,
    LiveEvent,
    NewRun,
    OpStatus,
    ReopenRun,
    Run,
    StartResult,
    StartRun,
)
from holdfast.stores.workers import NewWorker

URL = "sqlite:///runs.db"


class Scene:
    """A run in a store whose holder is the test: it tells, records, dies and goes on as the test says."""

    def __init__(self) -> None:
        self._store = MemoryStore(clock=lambda: self.now)
        self.now = 1000.0
        self.news = ChangeFeed()
        self.run: Run
        self.seq = 0
        self._worker = 0

    async def open(self) -> Scene:
        await self._store.open()
        self._worker = await self._store.workers.register(NewWorker("w", "h", 1, ("scene",)), 1e9)
        new = NewRun("the-scene", "scene", b"{}", b"d", b"s" * 16, self.now, max_deliveries=1000)
        [started] = await self._store.commit([StartRun(new, claim_as=self._worker)])
        assert isinstance(started, StartResult)
        self.run = started.run
        return self

    # What a reader asks for (see `reports.events.Source`)

    async def store(self) -> Store:
        return self._store

    @contextmanager
    def subscribe(self, run_id: str) -> Any:
        with self.news.subscribe(run_id) as subscription:
            yield subscription

    async def read(self, after: str | None = None) -> list[Event]:
        return [event async for event in read_events(self, self.run.id, after, follow=False)]

    # What a holder does

    async def _commit(self, op: Any) -> None:
        self.now += 1.0
        assert await self._store.commit([op]) == [OpStatus.DONE]

    async def begin(self, position: int, attempt: int = 1, name: str = "model call") -> None:
        data = json.dumps({"name": name, "kind": "step"}).encode()
        await self._append_live_event(LiveEvent(position, f"{self.run.epoch}.{attempt}.0", -1, STARTED, data, self.now))

    async def publish_text(self, position: int, text: str, before: int, attempt: int = 1, request: int = 0) -> None:
        part = f"{self.run.epoch}.{attempt}.{request}"
        await self._append_live_event(LiveEvent(position, part, before, TEXT, json.dumps(text).encode(), self.now))

    async def _append_live_event(self, notice: LiveEvent) -> None:
        await self._commit(AppendLiveEvents(self.run.key, self.run.epoch, (notice,)))

    async def record(
        self,
        position: int,
        name: str,
        payload: Any,
        *,
        kind: RecordKind = RecordKind.STEP,
        ok: bool = True,
        attempts: int = 1,
        preview: str = "",
    ) -> None:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        record = Record(
            self.seq, kind, position, name, ok, data, self.now, self.now, attempts, 1, self.run.epoch, preview
        )
        await self._commit(AppendRecord(self.run.key, record, clear_live_events=True))
        self.seq += 1

    async def answer(self, position: int, *texts: str, attempts: int = 1, failed: int = 0, calls: Any = ()) -> None:
        parts = [{"text": text} for text in texts] + [
            {"call": name, "args": args, "tool_call_id": f"call-{name}"} for name, args in calls
        ]
        envelope = {
            "$model": 1,
            "library": "1",
            "model": "openai:gpt-4o",
            "message": {"parts": parts},
            "usage": {"calls": 1, "input_tokens": 10, "output_tokens": 5},
            "failed_models": [{"model": "m", "error": "no", "attempts": 1}] * failed,
        }
        payload = json.dumps(envelope, separators=(",", ":")).encode()
        await self.record(position, "model call", payload, attempts=attempts)

    async def die(self) -> None:
        """The worker dies, and another has the run."""
        self._store.simulate_worker_death(self._worker)
        await self._store.workers.reap_dead()
        self._worker = await self._store.workers.register(NewWorker("w", "h", 1, ("scene",)), 1e9)
        [self.run] = await self._store.claims.claim(self._worker, workflows=["scene"], queues=None, limit=1)

    async def finish(self, state: RunState = RunState.COMPLETED, rewind: Rewind | None = None) -> None:
        ok = state is RunState.COMPLETED
        error = None if ok else encode_error(ValueError("no luck"))
        output = b'"done"' if ok else None
        heed_cancel = state is not RunState.CANCELLED
        await self._commit(FinishRun(self.run.key, self.run.epoch, state, output, error, self.now, rewind, heed_cancel))

    async def retry(self) -> None:
        await self._commit(ReopenRun(self.run.id, self.now))
        [self.run] = await self._store.claims.claim(self._worker, workflows=["scene"], queues=None, limit=1)
        [history] = await self._store.get_histories([self.run.key])
        self.seq = 1 + max((record.seq for record in history.records), default=-1)


def outline(events: list[Event]) -> list[Any]:
    return [(event.kind, event.step, event.text) if event.text else (event.kind, event.step) for event in events]


# What a reader is told


@pytest.mark.asyncio
async def test_a_late_reader_gets_everything_recorded():
    scene = await Scene().open()
    await scene.answer(0, "Let me look.", calls=[("look", '{"place": "Oslo"}')])
    await scene.record(1, "look", "nice", preview="place='Oslo'")
    await scene.record(2, "pay", encode_error(ValueError("no money")), ok=False, attempts=3)
    await scene.record(3, "go", {"by": "ann"}, kind=RecordKind.SIGNAL)
    await scene.record(0, "timer", b"null", kind=RecordKind.TIMER)
    await scene.record(4, "scout", '"found"', kind=RecordKind.CHILD, preview="the-child")
    await scene.record(5, "write_plan", [{"task": "look", "status": "done"}])
    answer = {
        "approved": True,
        "value": None,
        "arguments": None,
        "reason": "fine",
        "answered_by": "ann",
        "answered_at": 1.0,
    }
    await scene.record(8, "approval start", {})  # as in `holdfast show`, the approval is what people see
    await scene.record(6, "approval", answer, kind=RecordKind.APPROVAL, preview="ap-1")
    await scene.record(7, "pay", "undone", kind=RecordKind.COMPENSATION)
    await scene.record(0, "cancel", b"null", kind=RecordKind.CANCEL)
    await scene.finish(RunState.CANCELLED)
    events = await scene.read()
    assert outline(events) == [
        ("text", 1, "Let me look."),
        ("answered", 1, "Let me look."),
        ("step", 2),
        ("step", 3),
        ("signal", 4),
        ("timer", None),
        ("child", 5),
        ("plan", 6),
        ("approval", 7),
        ("compensation", 8),
        ("cancel", None),
        ("ended", None),
    ]
    data = [event.data for event in events]
    assert data[1]["tool_calls"] == [{"id": "call-look", "name": "look", "arguments": {"place": "Oslo"}}]
    assert (data[1]["model"], data[1]["usage"]["input_tokens"]) == ("openai:gpt-4o", 10)
    assert data[2] == {"ok": True, "arguments": "place='Oslo'", "attempts": 1, "value": "nice"}
    assert data[3]["error"] == {"type": "builtins.ValueError", "message": "no money"}
    assert (data[3]["ok"], data[3]["attempts"]) == (False, 3)
    assert data[4] == {"value": {"by": "ann"}}
    assert data[6]["run_id"] == "the-child"
    assert data[7] == {"plan": [{"task": "look", "status": "done"}]}
    expected = {"approved": True, "value": None, "arguments": None, "reason": "fine", "answered_by": "ann"}
    assert data[8] == {"state": "answered", "id": "ap-1", "answered_at": 1.0, **expected}
    assert data[11] == {"state": "cancelled", "error": {"type": "builtins.ValueError", "message": "no luck"}}
    assert json.loads(json.dumps([event.to_json() for event in events]))[2]["name"] == "look"


@pytest.mark.asyncio
async def test_a_reader_that_has_seen_a_part_of_an_answer_is_given_the_rest():
    scene = await Scene().open()
    await scene.begin(0)
    await scene.publish_text(0, "It may ", 0)
    seen = await scene.read()
    assert outline(seen) == [("started", 1), ("text", 1, "It may ")]
    await scene.publish_text(0, "rain ", 7)
    await scene.answer(0, "It may rain soon.")
    assert outline(await scene.read(seen[-1].offset)) == [
        ("text", 1, "rain soon."),
        ("answered", 1, "It may rain soon."),
    ]
    assert outline(await scene.read()) == [("text", 1, "It may rain soon."), ("answered", 1, "It may rain soon.")]


@pytest.mark.asyncio
async def test_text_of_a_dead_process_is_retracted_when_another_one_starts():
    scene = await Scene().open()
    await scene.publish_text(0, "It may ", 0)
    [seen] = await scene.read()
    await scene.die()
    assert await scene.read(seen.offset) == []
    await scene.begin(0)
    retracted, begun = await scene.read(seen.offset)
    assert (retracted.kind, retracted.step, retracted.data) == ("retracted", 1, {"char_count": 7})
    await scene.publish_text(0, "It may not", 0)
    assert outline(await scene.read(retracted.offset)) == [("started", 1), ("text", 1, "It may not")]
    assert outline(await scene.read(begun.offset)) == [("text", 1, "It may not")]


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["another epoch", "another attempt", "another model", "another text"])
async def test_text_that_is_not_a_prefix_of_the_record_is_retracted(way: str):
    scene = await Scene().open()
    await scene.publish_text(0, "It may ", 0)
    [seen] = await scene.read()
    if way == "another epoch":
        await scene.die()
    text = "It was" if way == "another text" else "It may rain"
    await scene.answer(0, text, attempts=1 + (way == "another attempt"), failed=int(way == "another model"))
    rest = await scene.read(seen.offset)
    assert outline(rest) == [("retracted", 1), ("text", 1, text), ("answered", 1, text)]
    assert outline(await scene.read(rest[0].offset)) == outline(rest[1:])
    assert outline(await scene.read(rest[1].offset)) == outline(rest[2:])
    assert await scene.read(rest[2].offset) == []


@pytest.mark.asyncio
async def test_an_answer_that_never_came_is_retracted_at_the_end():
    scene = await Scene().open()
    await scene.publish_text(0, "It may ", 0)
    await scene.publish_text(1, "Or ", 0)
    seen = await scene.read()
    await scene.finish(RunState.FAILED)
    assert outline(await scene.read(seen[-1].offset)) == [("retracted", 1), ("retracted", 2), ("ended", None)]
    assert outline(await scene.read()) == [("ended", None)]


@pytest.mark.asyncio
async def test_a_failed_model_call_retracts_its_text_and_a_successful_step_does_not():
    scene = await Scene().open()
    await scene.publish_text(0, "It may ", 0)
    await scene.publish_text(1, "half way", 0)
    seen = await scene.read()
    await scene.record(0, "model call", encode_error(ValueError("no")), ok=False)
    await scene.record(1, "copy", "copied")
    assert outline(await scene.read(seen[-1].offset)) == [("retracted", 1), ("step", 1), ("step", 2)]


@pytest.mark.asyncio
async def test_text_parts_are_joined_as_the_model_library_joins_them():
    scene = await Scene().open()
    await scene.answer(0, "One,", " two")
    assert outline(await scene.read())[0] == ("text", 1, "One, two")


# Retries


@pytest.mark.asyncio
async def test_a_reader_continues_after_the_records_that_a_retry_kept():
    scene = await Scene().open()
    await scene.record(0, "one", 1)
    await scene.record(1, "two", encode_error(ValueError("no")), ok=False)
    await scene.finish(RunState.FAILED, Rewind((1,), 1, 0))
    seen = await scene.read()
    assert outline(seen) == [("step", 1), ("step", 2), ("ended", None)]
    assert await scene.read(seen[-1].offset) == []
    await scene.retry()
    await scene.record(1, "two", 2)
    await scene.finish()
    after = [("reopened", None), ("step", 2), ("ended", None)]
    for at, before in enumerate(seen):
        known = [("step", 1)][at + 1 :]
        assert outline(await scene.read(before.offset)) == [*known, *after]
    assert outline(await scene.read()) == [("step", 1), *after]


@pytest.mark.asyncio
async def test_several_retries_are_reported_in_order_and_nothing_twice():
    scene = await Scene().open()
    await scene.record(0, "one", 1)
    await scene.record(1, "two", 2)
    await scene.record(2, "three", encode_error(ValueError("no")), ok=False)
    await scene.finish(RunState.FAILED, Rewind((2,), 2, 0))
    await scene.retry()
    await scene.record(2, "three", encode_error(ValueError("no")), ok=False)
    await scene.finish(RunState.FAILED, Rewind((1, 2), 1, 0))
    await scene.retry()
    await scene.record(1, "two", 22)
    await scene.finish()
    events = await scene.read()
    assert outline(events) == [("step", 1), ("reopened", None), ("reopened", None), ("step", 2), ("ended", None)]
    for at, event in enumerate(events):
        assert outline(await scene.read(event.offset)) == outline(events[at + 1 :])


# Coming and going


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(25))
async def test_a_reader_that_comes_and_goes_misses_nothing_and_sees_nothing_twice(seed: int):
    chance = random.Random(seed)
    scene = await Scene().open()
    seen: list[Event] = []
    texts: dict[int, str] = {}

    async def read() -> None:
        """Some of what there is, in a process that begins with the last offset."""
        after = seen[-1].offset if seen else None
        async with aclosing(read_events(scene, scene.run.id, after, follow=False)) as events:
            async for event in events:
                seen.append(event)
                if chance.random() < 0.3:
                    return

    position = 0
    for _ in range(30):
        text = "".join(chance.choice("abcäß€ ") for _ in range(chance.randrange(30)))
        attempt, heard = 1, 0
        while chance.random() < 0.8 and heard < len(text):
            piece = text[heard : heard + chance.randrange(1, 9)]
            await scene.publish_text(position, piece, heard, attempt)
            heard += len(piece)
            if chance.random() < 0.4:
                await read()
            if chance.random() < 0.2:
                heard = 0
                if chance.random() < 0.5:
                    await scene.die()
                else:
                    attempt += 1
                if chance.random() < 0.5:
                    text = text[::-1]
        if chance.random() < 0.3:
            position += 1
            await scene.record(position, "step", position)
            await scene.answer(position - 1, text, attempts=attempt)
            texts[position] = text
        elif chance.random() < 0.15:
            await scene.record(position, "model call", encode_error(ValueError("no")), ok=False)
            await scene.finish(RunState.FAILED, Rewind((scene.seq - 1,), position, 0))
            await read()
            await scene.retry()
            continue
        else:
            await scene.answer(position, text, attempts=attempt)
            texts[position + 1] = text
        position += 1
        if chance.random() < 0.3:
            await read()
    await scene.finish()
    while not seen or seen[-1].kind != "ended" or seen[-1].data["state"] != "completed":
        await read()
    await read()
    spoken: Counter[int] = Counter()
    so_far: dict[int, str] = {}
    for event in seen:
        if event.step is None:
            continue
        if event.kind == "text":
            so_far[event.step] = so_far.get(event.step, "") + event.text
        elif event.kind == "retracted":
            assert len(so_far.pop(event.step)) == event.data["char_count"]
        elif event.kind == "answered":
            assert so_far.pop(event.step, "") == event.text == texts[event.step]
            spoken[event.step] += 1
    assert not so_far
    assert spoken == Counter(dict.fromkeys(texts, 1))
    assert len({event.offset for event in seen}) == len(seen)
    late = [(one.kind, one.step) for one in await scene.read() if one.kind in ("answered", "step", "reopened")]
    went = [(one.kind, one.step) for one in seen if one.kind in ("answered", "reopened")]
    assert [one for one in late if one[0] != "step"] == went


@pytest.mark.asyncio
async def test_a_long_journal_is_read_page_by_page():
    scene = await Scene().open()
    for position in range(2 * PAGE_SIZE + 1):
        await scene.record(position, "step", position)
    for number in range(PAGE_SIZE + 1):
        await scene.publish_text(2 * PAGE_SIZE + 1, "x", number)
    events = await scene.read()
    steps = [event.step for event in events if event.kind == "step"]
    assert steps == list(range(1, 2 * PAGE_SIZE + 2))
    assert [event.kind for event in events[2 * PAGE_SIZE + 1 :]] == ["text"] * (PAGE_SIZE + 1)
    assert outline(await scene.read(events[PAGE_SIZE].offset)) == outline(events[PAGE_SIZE + 1 :])


@pytest.mark.asyncio
async def test_live_events_and_records_are_in_order_across_pages():
    scene = await Scene().open()
    for number in range(PAGE_SIZE + 1):
        await scene.publish_text(0, "x", number)
    await scene.record(1, "step", 1)
    assert [event.kind for event in await scene.read()] == ["text"] * (PAGE_SIZE + 1) + ["step"]


# Offsets


@pytest.mark.asyncio
@pytest.mark.parametrize("offset", ["", "7", "nonsense!", "WzEsMjE4", "ä", 7, b"x"])
async def test_an_invalid_offset_is_refused(offset: Any):
    scene = await Scene().open()
    with pytest.raises(UsageError, match=r"is not an offset\. Pass the `offset` of the last event"):
        await scene.read(offset)


@pytest.mark.asyncio
async def test_an_offset_that_was_changed_is_refused():
    scene = await Scene().open()
    await scene.record(0, "one", 1)
    [event] = await scene.read()
    for at in range(len(event.offset)):
        other = "A" if event.offset[at] != "A" else "B"
        changed = event.offset[:at] + other + event.offset[at + 1 :]
        with pytest.raises(UsageError):
            assert await scene.read(changed) != []


@pytest.mark.asyncio
async def test_an_offset_of_a_newer_version_is_refused_whatever_is_in_it():
    scene = await Scene().open()
    data = json.dumps([2, 7, "something else", {}]).encode()
    newer = urlsafe_b64encode(data + zlib.crc32(data).to_bytes(4)).decode().rstrip("=")
    with pytest.raises(UsageError, match="was given out by a newer version of Holdfast"):
        await scene.read(newer)


# What failed


@pytest.mark.asyncio
async def test_a_failed_start_of_a_run_is_reported_with_its_error():
    scene = await Scene().open()
    refused = encode_error(UsageError("its workflow is switched off"))
    await scene.record(0, "billing", refused, kind=RecordKind.START, ok=False, preview="billing-1")
    await scene.record(1, "billing", "billing-2", kind=RecordKind.START, preview="billing-2")
    refusal, started = await scene.read()
    error = {"type": "holdfast.errors.UsageError", "message": "its workflow is switched off"}
    assert (refusal.kind, refusal.data) == ("start", {"ok": False, "run_id": "billing-1", "error": error})
    assert started.data == {"ok": True, "run_id": "billing-2"}


@pytest.mark.asyncio
async def test_the_end_of_a_child_is_reported_as_in_a_run_report():
    scene = await Scene().open()
    cancelled = {"child": "c", "state": "cancelled", "error": None}
    failed = {"child": "f", "state": "failed", "error": encode_error(ValueError("no luck")).decode()}
    await scene.record(0, "part", cancelled, kind=RecordKind.CHILD, ok=False, preview="c")
    await scene.record(1, "part", failed, kind=RecordKind.CHILD, ok=False, preview="f")
    assert [event.data["error"] for event in await scene.read()] == [
        {"type": "holdfast.errors.RunCancelled", "message": "run 'c' ended cancelled"},
        {"type": "builtins.ValueError", "message": "no luck"},
    ]


# Through the public ways


@step
async def double(n: int) -> int:
    return n * 2


@workflow(name="events-doubling")
async def doubling(n: int) -> int:
    return await double(n)


@workflow(name="events-waiting")
async def waiting() -> str:
    return await wait_for_signal("go")


@workflow(name="events-following")
async def following(way: str) -> None:
    if way == "client":
        events = Client(URL).events("whatever")
    else:
        events = (await waiting.start()).events()
    async for _ in events:
        pass


@pytest.mark.asyncio
@pytest.mark.parametrize("who", ["a handle of the runtime", "a handle of a client", "a client"])
async def test_a_run_is_followed_until_it_ends(who: str):
    async with Runtime(URL) as runtime, Client(URL) as client:
        handle = await runtime.start(waiting)
        ways = {"a handle of the runtime": handle.events, "a handle of a client": client.handle(handle.run_id).events}
        events = ways[who]() if who in ways else client.events(handle.run_id)
        first = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.05)
        await handle.signal("go", "now")
        event = await asyncio.wait_for(first, 10)
        assert (event.kind, event.name, event.data) == ("signal", "go", {"value": "now"})
        rest = [event async for event in events]
        assert [(one.kind, one.data) for one in rest] == [("ended", {"state": "completed", "output": "now"})]
        assert [one async for one in client.events(handle.run_id, rest[-1].offset)] == []
        assert await handle.result() == "now"


@workflow(name="events-asking")
async def asking() -> bool:
    return await ask("Really?", to="ann")


@pytest.mark.asyncio
async def test_approvals_are_reported_with_the_question_and_the_answer():
    async with Runtime(URL) as runtime, Client(URL) as client:
        handle = await runtime.start(asking)
        outline: list[tuple[str, dict[str, Any]]] = []
        async with asyncio.timeout(20):
            async for event in client.events(handle.run_id):
                if event.kind == "approval":
                    outline.append((event.data["state"], event.data))
                    if event.data["state"] == "requested":
                        await client.approve(event.data["id"], by="ann", reason="why not")
        assert [state for state, _ in outline] == ["requested", "answered"]
        asked, answered = (data for _, data in outline)
        assert (asked["question"], asked["assignee"], asked["id"]) == ("Really?", "ann", answered["id"])
        assert (answered["approved"], answered["answered_by"], answered["reason"]) == (True, "ann", "why not")
        assert await handle.result()


@pytest.mark.asyncio
async def test_many_readers_of_many_runs_share_one_watcher():
    async with Runtime(URL), Client(URL) as client:
        handles = [await client.start("events-waiting") for _ in range(3)]

        async def kinds(run_id: str) -> list[str]:
            return [event.kind async for event in client.events(run_id)]

        reading = [asyncio.ensure_future(kinds(handle.run_id)) for handle in handles for _ in range(5)]
        await asyncio.sleep(0.05)
        watchers = [task for task in asyncio.all_tasks() if task.get_name() == "holdfast-watcher"]
        assert len(watchers) == 1
        for handle in handles:
            await handle.signal("go")
        assert await asyncio.gather(*reading) == [["signal", "ended"]] * 15


@pytest.mark.asyncio
async def test_reading_without_follow_ends_with_the_events_so_far():
    async with Runtime(URL), Client(URL) as client:
        handle = await client.start("events-waiting")
        assert [event async for event in client.events(handle.run_id, follow=False)] == []
        assert [event async for event in handle.events(follow=False)] == []


@pytest.mark.asyncio
async def test_closing_the_client_ends_its_readers_with_an_error():
    async with Runtime(URL):
        client = Client(URL)
        handle = await client.start("events-waiting")
        first = asyncio.ensure_future(anext(client.events(handle.run_id)))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(UsageError, match="the client was closed; the run goes on without it"):
            await asyncio.wait_for(first, 10)


@pytest.mark.asyncio
async def test_closing_the_runtime_ends_its_readers_with_an_error():
    async with Runtime(URL) as runtime:
        handle = await runtime.start(waiting)
        first = asyncio.ensure_future(anext(handle.events()))
        await asyncio.sleep(0.05)
    with pytest.raises(UsageError, match="the runtime was closed"):
        await asyncio.wait_for(first, 10)


@pytest.mark.asyncio
async def test_a_run_that_is_not_there_and_an_offset_of_another_run_are_refused():
    async with Runtime(URL) as runtime, Client(URL) as client:
        one, two = [await runtime.start(doubling, n) for n in (1, 2)]
        [first, *_] = [event async for event in one.events()]
        offset = first.offset
        with pytest.raises(UsageError, match=f"is that of another run than '{two.run_id}'"):
            await anext(two.events(offset))
        with pytest.raises(RunNotFound, match="there is no run 'nobody'"):
            await anext(client.events("nobody"))


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["client", "handle"])
async def test_workflow_code_cannot_follow_a_run(way: str):
    async with Runtime(URL) as runtime:
        handle = await runtime.start(following, way)
        with pytest.raises(RunFailed) as raised:
            await handle.result()
        assert "asked for in workflow code, where they would differ on replay" in str(raised.value)


def test_events_are_read_without_an_event_loop():
    async def run() -> str:
        async with Runtime(URL) as runtime:
            handle = await runtime.start(doubling, 21)
            await handle.result()
            return handle.run_id

    run_id = asyncio.run(run())
    client = Client(URL)
    events = list(client.events_sync(run_id))
    assert [(event.kind, event.name) for event in events] == [("step", "double"), ("ended", "")]
    assert [event.kind for event in client.events_sync(run_id, events[0].offset)] == ["ended"]
    for event in client.events_sync(run_id):
        assert event.kind == "step"
        break


@pytest.mark.asyncio
async def test_the_plain_form_is_refused_where_a_loop_runs():
    with pytest.raises(UsageError, match="an event loop is running in this thread"):
        Client(URL).events_sync("whatever")


class Failing(MemoryStore):
    """A store that cannot be read for a while."""

    faults: list[Exception]

    async def get_run_updates(self, *args: Any, **kwargs: Any) -> Any:
        if self.faults:
            raise self.faults.pop(0)
        return await super().get_run_updates(*args, **kwargs)


@pytest.mark.asyncio
async def test_a_reader_outlasts_an_unreachable_store_and_raises_for_a_broken_one():
    scene = await Scene().open()
    await scene.record(0, "one", 1)
    await scene.finish()
    scene._store.__class__ = Failing
    store: Any = scene._store
    store.faults = [StoreUnavailable("not now")]

    assert [event.kind async for event in read_events(scene, scene.run.id)] == ["step", "ended"]
    store.faults = [StoreCorrupt("page 7 is torn")]
    with pytest.raises(StoreCorrupt):
        await anext(read_events(scene, scene.run.id))
    store.faults = [StoreUnavailable("not now")]
    with pytest.raises(StoreUnavailable):
        await scene.read()
