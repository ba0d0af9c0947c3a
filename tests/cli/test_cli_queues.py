"""``holdfast queues``: listing queues and changing their limits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from cli_project import Project

from holdfast.admission.queue_limits import PerKey, Queue, QueueLimits
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.operations import NewRun, StartRun
from holdfast.stores.queues import NewQueue
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.workers import NewWorker

LLM = Queue("llm", concurrency=3, rate="100/min", per_key=PerKey(concurrency=2))


def on_store(project: Project, act: Callable[[Store], Awaitable[Any]]) -> Any:
    async def once() -> Any:
        store = SqliteStore(project.database)
        await store.open()
        try:
            return await act(store)
        finally:
            await store.close()

    return asyncio.run(once())


def new(number: int, key: str, queue: str = "llm") -> StartRun:
    seed = number.to_bytes(16, "big")
    return StartRun(NewRun(f"etl-{number}", "etl", b"{}", b"", seed, 0.0, queue=queue, queue_key=key))


@pytest.fixture
def queued(project: Project) -> Project:
    """A queue with three runs that are executed, and three that wait; one that is used up; one that is not."""

    async def fill(store: Store) -> None:
        await store.announce_workflows([WorkflowSpec("etl", ("customer",), queue="llm")])
        hourly = NewQueue("hourly", QueueLimits(rates=Queue("hourly", rate="1/hour").limits.rates))
        await store.queues.declare([NewQueue("llm", LLM.limits), NewQueue("idle", QueueLimits(5)), hourly])
        keys = ["acme", "acme", "acme", "beta", "", "acme"]
        await store.commit([new(number, key) for number, key in enumerate(keys)])
        await store.commit([new(10, "", "hourly"), new(11, "", "hourly")])
        worker = await store.workers.register(NewWorker("w", "elsewhere", 1, ("etl",)), 60)
        assert len(await store.claims.claim(worker, workflows=["etl"], queues=None, limit=9)) == 4

    on_store(project, fill)
    return project


def test_an_empty_list_explains_how_to_give_a_queue_limits(project: Project):
    assert "there is no database" in project.here("queues").err

    async def nothing(_: Store) -> None: ...

    on_store(project, nothing)
    assert project.here("queues").out.startswith('no queue has limits yet: `@workflow(queue=Queue("llm", concurrency=')
    assert project.here("queues", "--json").json == []


def test_the_list_shows_running_and_waiting_counts_and_why_nothing_starts(queued: Project):
    lines = queued.here("queues").out.splitlines()
    assert re.fullmatch(r"queue +limits +running +waiting +now", lines[0])
    assert re.fullmatch(r"hourly +1/hour +1 +1 +rate is used up until \d\d:\d\d:\d\d, in \d+ min", lines[1])
    assert re.fullmatch(r"idle +5 at once +0 +0 +lets runs begin", lines[2])
    llm = r"llm +3 at once, 100/min; each key: 2 at once +3 +3 +full: 3 of 3 running"
    assert re.fullmatch(llm, lines[3])
    assert len(lines) == 4
    hourly, _, one = queued.here("queues", "--json").json
    assert datetime.fromisoformat(hourly["next_start_at"]) > datetime.now(UTC)
    assert "waits until" in hourly["blocked_reason"]
    assert one == queued.here("queues", "show", "llm", "--json").json
    assert (one["concurrency"], one["rate"], one["key_concurrency"], one["key_rate"]) == (3, ["100/min"], 2, [])
    assert (one["running_count"], one["waiting_count"], one["is_overridden"]) == (3, 3, False)
    assert one["declared_limits"] == one["limits_text"]
    assert {"key": "acme", "running_count": 1, "waiting_count": 3} in one["keys"]  # they take turns


def test_one_is_shown_with_its_keys(queued: Project):
    out = queued.here("queues", "show", "llm").out
    assert out.splitlines()[:5] == [
        "queue llm",
        "  limits   3 at once, 100/min; each key: 2 at once",
        "  running  3",
        "  waiting  3",
        "  now      full: 3 of 3 running",
    ]
    assert re.search(r"\n  key +running  waiting\n  acme +1 +3\n", out)
    assert re.search(r"\n  \(none\) +", out)
    assert "key" not in queued.here("queues", "show", "hourly").out
    missing = queued.here("queues", "show", "lm")
    assert (missing.code, missing.out) == (1, "")
    assert "there is no queue 'lm' with limits" in missing.err
    assert "did you mean 'llm'?" in missing.err


def test_limits_are_set_one_by_one_and_taken_back(queued: Project):
    done = queued.here("queues", "set", "llm", "--concurrency", "9", "--rate", "50/min", "--rate", "900 tokens/min")
    assert done.out == (
        "queue 'llm' has these limits now: 9 at once, 50/min, 900 tokens/min; each key: 2 at once; "
        "`holdfast queues reset llm` lets it have those of the code\n"
    )
    again = queued.here("queues", "set", "llm", "--concurrency", "9", "--json").json
    assert (again["changed"], again["name"]) == (False, "llm")
    assert "nothing changed" in again["message"]
    assert "'llm' has limits that were set by hand (code says: 3 at once, 100/min; each key: 2 at once)" in (
        queued.here("queues").out
    )
    none = queued.here("queues", "set", "llm", "--no-rate", "--no-key-concurrency", "--key-rate", "1/s", "--json").json
    assert none["limits_text"] == "9 at once; each key: 1/s"
    back = queued.here("queues", "reset", "llm").out
    assert back.startswith("queue 'llm' is as code says: 3 at once, 100/min; each key: 2 at once; full")
    assert "was as code says before: 3 at once" in queued.here("queues", "reset", "llm").out


def test_a_mistyped_name_is_remarked_on(queued: Project):
    done = queued.here("queues", "set", "lmm", "--concurrency", "1")
    assert "note: no workflow that was announced has a queue 'lmm'" in done.out
    assert queued.here("queues", "reset", "lmm").out == "queue 'lmm' is as code says: no limits\n"
    refused = queued.here("queues", "pause", "lmm")
    assert refused.code == 1
    assert "did you mean 'llm'?" in refused.err
    paused = queued.here("queues", "pause", "lmm", "--allow-unknown")
    assert "note: no workflow that was announced has a queue 'lmm'" in paused.out
    assert queued.here("queues", "resume", "nobody").code == 1


def test_a_queue_is_paused_and_resumed_and_its_runs_and_the_doctor_say_so(queued: Project):
    done = queued.here("queues", "pause", "llm")
    assert done.out == "queue 'llm' is paused; `holdfast queues resume llm` lets its runs begin again\n"
    assert "was paused before: nothing changed" in queued.here("queues", "pause", "llm").out
    assert re.search(r"llm .*  paused\n'llm' was paused .*`holdfast queues resume llm`", queued.here("queues").out)
    assert re.search(r"etl-5 .* queue 'llm' is paused", queued.here("runs").out)
    shown = queued.here("show", "etl-5").out
    assert "etl (queue llm, key acme)" in shown
    assert (
        "run 'etl-5' waits in queue 'llm', which is paused: `holdfast queues resume llm` lets its runs go on" in shown
    )
    doctor = {check["name"]: check for check in queued.here("doctor", "--json").json["checks"]}
    assert doctor["paused"]["message"].endswith("(3 runs wait in it)")
    assert queued.here("queues", "resume", "llm").out == (
        "queue 'llm' is resumed: 3 at once, 100/min; each key: 2 at once; full: 3 of 3 running\n"
    )
    assert "waits for a place in queue 'llm' (3 of 3 running)" in queued.here("runs").out
    assert "was not paused, and nothing changed" in queued.here("queues", "resume", "llm").out
    row = next(one for one in queued.here("runs", "--json").json if one["id"] == "etl-5")
    assert (row["queue"], row["queue_key"]) == ("llm", "acme")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["set", "llm"], 2, "what is to be set? Give --concurrency, --rate, --key-concurrency or --key-rate."),
        (["set", "llm", "--rate", "1/s", "--no-rate"], 2, "--rate and --no-rate say the opposite"),
        (["set", "llm", "--concurrency", "many"], 2, "'many' is not a valid integer"),
        (["set", "llm", "--concurrency", "0"], 1, "concurrency=0 must be a whole number, 1 or more. To let nothing"),
        (["set", "llm", "--rate", "often"], 1, "rate 'often': say how many, and in how much time, as in '100/min'"),
        (["set", "", "--concurrency", "1"], 1, "a queue's name is a text of 1 to 200 printable characters"),
    ],
)
def test_what_cannot_be_meant_is_refused(queued: Project, arguments: list[str], code: int, words: str):
    done = queued.here("queues", *arguments)
    assert done.code == code
    assert words in " ".join(done.err.split())


def test_full_keys_are_reported_for_a_queue_with_free_places(project: Project):
    async def fill(store: Store) -> None:
        await store.queues.declare([NewQueue("llm", QueueLimits(concurrency=9, key_concurrency=1))])
        await store.commit([new(number, "acme") for number in range(3)])
        worker = await store.workers.register(NewWorker("w", "elsewhere", 1, ("etl",)), 60)
        assert len(await store.claims.claim(worker, workflows=["etl"], queues=None, limit=9)) == 1

    on_store(project, fill)
    assert project.here("queues", "show", "llm").out.splitlines()[4] == "  now      keys that wait are full: 1 of each"
    [one] = project.here("queues", "--json").json
    assert one["blocked_reason"] == "all that wait in queue 'llm' are of keys without a place (1 of each)"
    assert "waits for a place in queue 'llm' (key 'acme': 1 of 1 running)" in project.here("runs").out
