"""What a run's story tells in words, and what it advises, in each kind of situation."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.admission.usage import BudgetLimits, Usage
from holdfast.codec import AesEncryption, codec_for, encode_error
from holdfast.core.records import Record, RecordKind, Rewind
from holdfast.core.states import RunState
from holdfast.errors import BudgetExceeded, RunNotFound, StepOutcomeUnknown
from holdfast.reports.conversation_reader import read_conversation
from holdfast.reports.conversations import ConversationMessage, message_from_json, message_to_json
from holdfast.reports.recorded_reply import ModelCallReport
from holdfast.reports.report_reader import read_entry, read_report
from holdfast.reports.run_tree import read_run_tree
from holdfast.reports.types import RunReport
from holdfast.services.approvals import ApprovalInfo
from holdfast.services.json_form import UnreadableValue, from_json, to_json, to_json_bytes
from holdfast.services.settlement import settle_step
from holdfast.stores.approvals import ApprovalRequest, RequestApproval
from holdfast.stores.encrypted import EncryptedStore
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import (
    AppendRecord,
    FinishRun,
    NewRun,
    ParkRun,
    PauseRun,
    ReleaseRun,
    ReopenRun,
    Run,
    SendSignal,
    StartResult,
    StartRun,
)
from holdfast.stores.workers import NewWorker

pytestmark = pytest.mark.asyncio

FLOW = "story_flow"


@dataclass
class World:
    """A store, in which a test lets a run take its course, a second for each thing that happens."""

    now: float = 1_000_000.0
    store: MemoryStore = field(init=False)
    seq: int = 0

    def __post_init__(self) -> None:
        self.store = MemoryStore(clock=lambda: self.now)

    async def worker(self, name: str = "worker-1", lease: float = 60.0) -> int:
        return await self.store.workers.register(NewWorker(name, "elsewhere", 1, (FLOW,)), lease)

    async def start(self, id: str = "r", **fields: Any) -> Run:
        new = NewRun(id=id, workflow=FLOW, inputs=b"{}", digest=b"d", seed=id.encode(), created_at=self.now, **fields)
        [answer] = await self.store.commit([StartRun(new)])
        assert isinstance(answer, StartResult)
        return answer.run

    async def claim(self, worker: int) -> Run:
        [run] = await self.store.claims.claim(worker, workflows=[FLOW], queues=None, limit=1)
        return run

    async def record(self, run: Run, *, used: Usage | None = None, **fields: Any) -> Record:
        """A record that took a second, unless it says otherwise."""
        begun, self.now = self.now, self.now + 1
        given: dict[str, Any] = {
            "kind": RecordKind.STEP,
            "name": "work",
            "ok": True,
            "payload": b"1",
            "position": self.seq,
        }
        given |= {"at": self.now, "started_at": begun, "worker": run.owner, "epoch": run.epoch, **fields}
        made = Record(seq=self.seq, **given)
        self.seq += 1
        await self.store.commit([AppendRecord(run.key, made, used=used)])
        return made

    async def finish(self, run: Run, state: RunState, error: Exception | None = None, **fields: Any) -> None:
        data = None if error is None else encode_error(error)
        output = b'"done"' if state is RunState.COMPLETED else None
        await self.store.commit([FinishRun(run.key, run.epoch, state, output, data, self.now, **fields)])

    async def dies(self) -> None:
        """Nobody hears of a worker any more, until its lease is over and somebody notices."""
        self.now += 100
        await self.store.workers.reap_dead()

    async def report(self, **how: Any) -> RunReport:
        return await read_report(self.store, "r", **how)

    async def summary_text(self) -> str:
        """The same, whether the journal is read as a whole or only its first record."""
        whole, page = await self.report(), await self.report(limit=1, brief=True)
        assert whole.summary == page.summary
        assert whole.advice == page.advice
        return whole.summary

    async def advised(self) -> list[str | None]:
        return [advice.action for advice in (await self.report()).advice]


@pytest.fixture
def world() -> World:
    return World()


# What it did


async def test_the_summary_of_a_completed_run_has_its_time_and_its_steps(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    assert await world.summary_text() == "Running, started 0.0 ms ago."
    for _ in range(3):
        await world.record(run)
    await world.finish(run, RunState.COMPLETED)
    assert await world.summary_text() == "Completed in 3.00 s with 3 steps."
    assert (await world.report()).advice == ()


async def test_the_summary_has_tokens_and_cost_of_model_calls(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    await world.record(run, name="model call", used=Usage(1, 1_000, 200, nano_usd=13_000_000))
    await world.finish(run, RunState.COMPLETED)
    assert await world.summary_text() == "Completed in 1.00 s with 1 step, 1 model call, 1,200 tokens, $0.013."


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (RunState.FAILED, "Failed after 1.00 s with 1 step: ValueError: no."),
        (RunState.CANCELLED, "Cancelled after 1.00 s with 1 step: ValueError: no."),
        (RunState.DEAD, "Dead after 1.00 s with 1 step: ValueError: no."),
    ],
)
async def test_the_summary_of_a_run_without_a_result_has_the_reason(world: World, state: RunState, words: str):
    await world.start()
    run = await world.claim(await world.worker())
    await world.record(run)
    await world.finish(run, state, ValueError("no"))
    assert await world.summary_text() == words


async def test_the_summary_of_an_unfinished_run(world: World):
    await world.start()
    world.now += 5
    assert await world.summary_text() == "Not begun yet, started 5.00 s ago."
    run = await world.claim(await world.worker())
    await world.record(run)
    await world.store.commit([ParkRun(run.key, run.epoch, None, ("go",), "signal 'go'")])
    assert await world.summary_text() == "Waiting, started 6.00 s ago, 1 step so far."
    await world.store.commit([PauseRun("r", world.now)])
    assert await world.summary_text() == "Paused, started 6.00 s ago, 1 step so far."


async def test_a_worker_death_is_reported_with_its_successor_and_repeated_steps(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    for _ in range(16):
        await world.record(run)
    await world.dies()
    heir = await world.claim(await world.worker("worker-2"))
    await world.record(heir)
    await world.record(heir)
    await world.finish(heir, RunState.COMPLETED)
    assert (await world.summary_text()).endswith(
        " with 18 steps. worker-1 died in step 17; worker-2 took over, replayed 16 steps and repeated 1."
    )
    report = await read_report(world.store, "r")
    assert (report.takeover_epochs, [one.replay_count for one in report.journal]) == ((2,), [1] * 16 + [0] * 2)
    for seq, replays in ((0, 1), (17, 0)):
        entry = await read_entry(world.store, "r", seq)
        assert entry is not None
        assert entry.replay_count == replays


async def test_a_worker_without_a_name_is_called_by_its_location(world: World):
    await world.start()
    await world.claim(await world.worker("elsewhere:1"))
    world.now += 100
    assert (await world.summary_text()).endswith("Worker elsewhere:1, which holds it, is dead.")


async def test_steps_side_by_side_are_all_repeated(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    await world.record(run)
    await world.dies()
    heir = await world.claim(await world.worker("worker-2"))
    begun = world.now
    for _ in range(3):
        await world.record(heir, started_at=begun)
    await world.record(heir)
    assert "worker-1 died in step 2; worker-2 took over, replayed 1 step and repeated 3." in await world.summary_text()


async def test_several_worker_deaths_are_reported_together(world: World):
    await world.start()
    for name in ("worker-1", "worker-2", "worker-3"):
        run = await world.claim(await world.worker(name))
        await world.record(run)
        if name != "worker-3":
            await world.dies()
    assert (await world.summary_text()).endswith(
        "worker-1 died in step 2 and worker-2 died in step 3; worker-3 took over last and replayed 2 steps; 2 steps "
        "repeated in all."
    )


async def test_a_worker_death_in_a_call_of_a_program_is_reported(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    log: dict[str, Any] = {"kind": RecordKind.CALL, "name": "model call", "payload": b"{}"}
    await world.record(run, **log, position=0)
    await world.record(run, position=0)
    await world.dies()
    heir = await world.claim(await world.worker("worker-2"))
    begun = world.now  # both calls were in flight, and their log is written with the first outcome
    await world.record(heir, **log, position=1)
    await world.record(heir, **log, position=2)
    await world.record(heir, position=1, started_at=begun)
    await world.record(heir, position=2, started_at=begun)
    assert "worker-1 died in step 2; worker-2 took over, replayed 1 step and repeated 2." in await world.summary_text()
    assert [one.replay_count for one in (await world.report()).journal if one.kind == "step"] == [1, 0, 0]


async def test_a_running_program_waits_for_an_answer(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    for number, question in enumerate(["Which color?", "Which size?"]):
        request = ApprovalRequest(question)
        await world.store.commit([RequestApproval(run.key, run.epoch, number, f"a-{number}", request, world.now)])
        expected = ["It waits for an answer to “Which color?”.", "It waits for 2 answers."][number]
        assert await world.summary_text() == f"Running, started 0.0 ms ago. {expected}"


async def test_a_new_worker_after_a_wait_is_no_worker_death(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    await world.record(run)
    await world.store.commit([ParkRun(run.key, run.epoch, world.now + 500, (), "a timer")])
    await world.dies()
    world.now += 500
    heir = await world.claim(await world.worker("worker-2"))
    await world.record(heir, kind=RecordKind.TIMER, name="500 s", payload=None, position=0)
    await world.record(heir)
    assert "died" not in await world.summary_text()


async def test_a_released_run_is_no_worker_death(world: World):
    await world.start()
    first = await world.worker()
    run = await world.claim(first)
    await world.record(run)
    await world.store.commit([ReleaseRun(run.key, run.epoch)])
    heir = await world.claim(await world.worker("worker-2", 10_000))
    await world.record(heir)
    world.now += 30
    assert world.store.workers.renew_lease(first, 60)
    await world.dies()
    assert "died" not in await world.summary_text()


async def test_a_once_step_is_not_repeated(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    await world.record(run)
    await world.dies()
    heir = await world.claim(await world.worker("worker-2"))
    await world.record(heir, name="pay", ok=False, payload=encode_error(StepOutcomeUnknown("?", "pay")))
    assert "replayed 1 step and repeated none." in await world.summary_text()
    entry = (await world.report()).journal[-1]
    assert (entry.has_unknown_outcome, entry.outcome) == (True, "unknown")


async def test_a_worker_that_died_when_the_run_had_ended_did_not_die_over_it(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    await world.record(run)
    await world.finish(run, RunState.FAILED, ValueError("no"), rewind=Rewind((), 1, 0))
    await world.dies()
    reopened = world.now
    await world.store.commit([ReopenRun("r", reopened)])
    heir = await world.claim(await world.worker("worker-2", 10_000))
    await world.record(heir)
    assert (await world.summary_text()).endswith("2 steps so far. It had ended, and somebody let it go on.")
    assert (await world.report()).reopened_at == (datetime.fromtimestamp(reopened, UTC),)
    await world.finish(heir, RunState.FAILED, ValueError("no"), rewind=Rewind((), 2, 0))
    await world.store.commit([ReopenRun("r", world.now)])
    last = await world.claim(await world.worker("worker-3", 10_000))
    await world.record(last)
    await world.dies()
    assert (await world.summary_text()).endswith("It had ended, and was let go on 2 times.")


async def test_a_settled_step_still_shows_the_worker_death(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    await world.record(run)
    await world.dies()
    heir = await world.claim(await world.worker("worker-2"))
    unknown = await world.record(heir, name="pay", ok=False, payload=encode_error(StepOutcomeUnknown("?", "pay")))
    await world.finish(heir, RunState.FAILED, ValueError("no"), rewind=Rewind((unknown.seq,), 2, 0))
    await settle_step(world.store, "r", 2, output="receipt")
    assert (
        "worker-1 died in step 2; another worker took over, replayed 1 step and repeated none."
        in await world.summary_text()
    )


async def test_the_summary_of_a_run_that_a_dead_worker_holds(world: World):
    await world.start()
    await world.claim(await world.worker())
    world.now += 100  # nobody has noticed yet
    assert await world.summary_text() == "Running, started 1 min 40 s ago. worker-1, which holds it, is dead."


# What to do


async def test_a_failed_run_is_to_be_retried_or_forked(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    await world.record(run)
    failed = await world.record(run, ok=False, payload=encode_error(ValueError("no")))
    await world.finish(run, RunState.FAILED, ValueError("no"), rewind=Rewind((failed.seq,), 2, 0))
    retry, fork = (await world.report()).advice
    assert (retry.action, retry.text) == ("retry", "`holdfast retry r` takes back step 2 (work)")
    assert (fork.action, fork.text) == (
        "fork",
        "`holdfast fork r --at STEP` goes on from one of its steps in a new run",
    )
    assert await world.summary_text()  # which also reads it page by page


async def test_a_compensated_run_cannot_be_retried(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    await world.record(run)
    await world.finish(run, RunState.FAILED, ValueError("no"), rewind=Rewind((), 1, 0, is_compensated=True))
    refused, fork = (await world.report()).advice
    assert refused.action is None
    assert refused.text == "a retry is not possible: its compensations have undone what it had done"
    assert fork.action == "fork"


async def test_a_once_step_of_unknown_outcome_is_to_be_settled_first(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    await world.record(run)
    error = StepOutcomeUnknown("it may or may not have happened", "pay")
    failed = await world.record(run, name="pay", ok=False, payload=encode_error(error))
    await world.finish(run, RunState.FAILED, error, rewind=Rewind((failed.seq,), 2, 0, once_seqs=True))
    assert await world.advised() == ["settle", "run_again", "fork"]
    settle = (await world.report()).advice[0].text
    assert "whether step 2 (pay) happened" in settle
    assert "`holdfast settle r 2 --did-not-happen`" in settle
    assert await world.summary_text()


async def test_a_stalled_run_has_advice(world: World):
    await world.start()
    assert await world.advised() == ["worker"]
    await world.store.disabled_workflows.disable(FLOW)
    assert await world.advised() == ["enable"]
    await world.store.commit([PauseRun("r", world.now)])
    [advice] = (await world.report()).advice
    assert (advice.action, advice.text) == ("resume", "run 'r' is paused: `holdfast resume r` lets it go on")
    assert advice.text == (await world.report()).stall_reason


async def test_an_isolated_run_says_what_it_waits_for(world: World):
    for id in ("r", "other"):
        await world.start(id)
    for _ in range(2):
        worker = await world.worker()
        for _ in range(2):
            await world.claim(worker)
        await world.dies()
    await world.worker()
    assert "a worker that holds nothing else takes it first" in ((await world.report()).stall_reason or "")


async def test_a_question_is_to_be_answered(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    question = ApprovalRequest("May I go on?")
    await world.store.commit([RequestApproval(run.key, run.epoch, 0, "a-1", question, world.now)])
    [advice] = (await world.report()).advice
    assert (advice.action, advice.text) == (
        "approve",
        "it waits for an answer to “May I go on?”: `holdfast approvals r`",
    )
    [asked] = (await world.report()).approvals
    assert from_json(ApprovalInfo, to_json(asked)) == asked


async def test_a_run_whose_budget_is_used_up_is_to_be_given_more(world: World):
    await world.start(budget=BudgetLimits(calls=3))
    run = await world.claim(await world.worker())
    await world.record(run, used=Usage(3, 100, 10))
    refused = BudgetExceeded("the call was not made: 3 of 3 turns are used. The run waits: raise it", "r", "turns")
    await world.record(run, name="model call", ok=False, payload=encode_error(refused))
    await world.store.commit([ParkRun(run.key, run.epoch, None, ("holdfast:budget",), "a higher budget")])
    report = await world.report()
    [advice] = report.advice
    assert advice.action == "budget"
    assert "`holdfast budget r --turns 6` gives it more" in advice.text
    assert report.budget_refusal is not None
    assert (report.budget_refusal.run_id, report.budget_refusal.limit) == ("r", "turns")
    assert (report.budget, report.budget_remaining) == ({"turns": 3}, {"turns": 0})
    assert (report.journal[-1].outcome, report.journal[-1].reason) == ("refused", "3 of 3 turns are used")
    assert await world.summary_text()
    await world.start("above")
    assert [one.run_id for one in report.budgets] == ["r"]


async def test_a_child_that_waits_for_a_higher_budget_is_named(world: World):
    await world.start()
    worker = await world.worker()
    await world.claim(worker)
    await world.start("child", parent="r")
    child = await world.claim(worker)
    await world.store.commit([ParkRun(child.key, child.epoch, None, ("holdfast:budget",), "a higher budget")])
    [advice] = (await world.report()).advice
    assert advice.action is None
    assert advice.text.startswith("run 'child' waits for a higher budget")


# As data


async def test_a_report_survives_its_json_form(world: World):
    from holdfast.client.http.decoders import decode
    from holdfast.services.wire_values import to_wire

    await world.start(budget=BudgetLimits(nano_usd=5_000_000_000))
    run = await world.claim(await world.worker())
    await world.record(run, payload=b'{"a": [1, 2]}', used=Usage(1, 10, 2, nano_usd=123_456_789))
    await world.store.commit([SendSignal("r", "other", b'"x"', None, world.now)])
    await world.store.commit([RequestApproval(run.key, run.epoch, 7, "a-1", ApprovalRequest("Well?"), world.now)])
    report = await world.report()
    assert decode(RunReport, json.loads(to_json_bytes(report, to_wire))) == report
    assert report.budgets[0].run_usage.used == Usage(1, 10, 2, nano_usd=123_456_789)


async def test_values_without_a_json_form_become_text(world: World):
    await world.start()
    run = await world.claim(await world.worker())
    odd = {"far": float("inf"), "none": float("nan"), "raw": b"\xff", "long": 1 << 20_000}
    await world.record(run, payload=codec_for(Any).encode(odd, "it"))
    [entry] = to_json(await world.report())["journal"]
    output = json.loads(json.dumps(entry["output"], allow_nan=False))
    assert {**output, "long": output["long"][:4]} == {
        "far": "Infinity",
        "none": "NaN",
        "raw": "_w==",
        "long": "0x10",
    }


async def test_texts_for_unreadable_values_are_sent_as_text(world: World):
    from holdfast.services.wire_values import to_wire

    await world.start()
    run = await world.claim(await world.worker())
    await world.record(run, payload=b"\xff no value")
    [entry] = (await world.report()).journal
    assert isinstance(entry.output, UnreadableValue)
    assert type(to_json(entry, to_wire)["output"]) is str


async def test_values_encrypted_with_an_unknown_key_become_text(world: World):
    sealed = EncryptedStore(world.store, AesEncryption(bytes(32)))
    new = NewRun(id="r", workflow=FLOW, inputs=b'"secret"', digest=b"d", seed=b"s", created_at=world.now)
    [answer] = await sealed.commit([StartRun(new)])
    assert isinstance(answer, StartResult)
    run = await world.claim(await world.worker())
    step = Record(
        0, RecordKind.STEP, 0, "pay", True, b'"secret"', world.now, world.now, 1, run.owner or 0, run.epoch, "secret"
    )
    failed = step._replace(seq=1, position=1, ok=False, payload=encode_error(ValueError("secret")))
    error = encode_error(ValueError("secret"))
    finish = FinishRun(run.key, run.epoch, RunState.FAILED, None, error, world.now, rewind=Rewind((1,), 2, 0))
    await sealed.commit([AppendRecord(run.key, step), AppendRecord(run.key, failed), finish])
    known = await read_report(sealed, "r")
    assert (known.inputs, known.journal[0].output, known.journal[0].arguments) == ("secret", "secret", "secret")
    report = await world.report()
    assert "secret" not in json.dumps(to_json(report))
    assert "sealed" in report.journal[0].output
    assert report.journal[0].arguments.startswith("(sealed")
    assert report.summary.startswith("Failed after ")
    assert [one.action for one in report.advice] == ["retry", "fork"]
    assert "secret" not in json.dumps([message_to_json(one) for one in await read_conversation(world.store, "r")])


async def test_a_record_that_was_not_replayed_is_read_without_the_workers(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    await world.start()
    await world.record(await world.claim(await world.worker()))
    monkeypatch.setattr(world.store, "list_workers", None)
    entry = await read_entry(world.store, "r", 0)
    assert entry is not None
    assert entry.replay_count == 0


async def test_a_missing_run_and_a_missing_record_differ(world: World):
    for reading in (read_report, read_run_tree):
        with pytest.raises(RunNotFound, match="there is no run 'nobody'"):
            await reading(world.store, "nobody")
    await world.start()
    assert await read_entry(world.store, "r", 0) is None


@pytest.mark.parametrize(
    "message",
    [
        ConversationMessage("user", "Hello", is_history=True),
        ConversationMessage("note", "no answer", 3, ok=False),
        ConversationMessage("tool", "found", 2, "look", ok=False, child_run_id="child", content="found"),
        ConversationMessage("model", "As I said", name="m", tool_calls=[("look", {"word": "x"})], is_history=True),
    ],
    ids=lambda message: message.role,
)
async def test_a_conversation_message_survives_its_json_form(message: ConversationMessage):
    data = json.loads(json.dumps(message_to_json(message)))
    assert message_from_json(data, _no_call) == message


def _no_call(_: Any) -> ModelCallReport:
    raise AssertionError("there is no answer of a model in it")


# Families


async def test_a_family_is_cut_but_for_those_above_the_run(world: World):
    await world.start()
    for number in range(6):
        await world.start(f"child-{number}", parent="r")
    await world.start("grandchild", parent="child-0")
    family = await read_run_tree(world.store, "grandchild", max_runs=4)
    assert (family.root, family.has_more, len(family)) == ("r", True, 4)
    assert {"r", "child-0", "grandchild"} <= {one.id for one in family}
    whole = await read_run_tree(world.store, "r")
    assert [one.id for one in whole] == ["r", *(f"child-{number}" for number in range(6)), "grandchild"]
    assert not whole.has_more
    assert whole.items[0].created_at == datetime.fromtimestamp(1_000_000, UTC)
    assert "no live worker serves" in (whole.items[0].stall_reason or "")
