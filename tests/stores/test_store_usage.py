"""What runs have used, budgets, and reservations: what a store must do, whatever its kind."""

from __future__ import annotations

import json

import pytest
from store_values import (
    DONE,
    FENCED,
    REFUSED,
    append,
    claim_run,
    commit_ops,
    finish,
    get_state,
    list_signals,
    new_run,
    new_worker,
    park,
    read_run,
    release,
    reserve,
    rewind,
    start_child,
    start_claimed_run,
    start_run,
)

from holdfast.admission.usage import BUDGET_SIGNAL, NANO_PER_USD, BudgetLimits, BudgetShortage, Usage
from holdfast.core.records import RecordKind
from holdfast.core.states import RunState
from holdfast.stores.contract import RunUsage, Store, WorkflowSpec
from holdfast.stores.operations import (
    CancelRun,
    ForkRun,
    OpStatus,
    PauseRun,
    ReopenRun,
    ReserveUsage,
    Run,
    SetBudget,
    StartRun,
)

pytestmark = pytest.mark.asyncio

CALL = Usage(calls=1, input_tokens=100, output_tokens=20, cached_tokens=40, nano_usd=NANO_PER_USD // 4, seconds=1.5)
TWICE = Usage(calls=2, input_tokens=200, output_tokens=40, cached_tokens=80, nano_usd=NANO_PER_USD // 2, seconds=3.0)


async def used(store: Store, run_id: str = "r") -> Usage:
    told = (await store.get_usages([run_id])).get(run_id)
    return Usage() if told is None else told.used


async def below(store: Store, parent: Run, run_id: str, position: int = 0, **fields) -> Run:
    """A held run that another one has started."""
    [answer] = await commit_ops(store, start_child(parent, run_id, position, claim_as=parent.owner, **fields))
    return answer.run


async def three_levels(store: Store, **fields) -> tuple[Run, Run, Run]:
    top = await start_claimed_run(store, "top", **fields)
    middle = await below(store, top, "middle")
    return top, middle, await below(store, middle, "bottom")


async def fits(store: Store, run: Run, position: int, tokens: int) -> bool:
    [answer] = await commit_ops(store, reserve(run, position, tokens))
    return answer is DONE


async def list_mailbox(store: Store, run: Run) -> list[tuple[str, bytes, float]]:
    return [(signal.name, signal.payload, signal.sent_at) for signal in await list_signals(store, run)]


# Usage


async def test_the_usage_of_steps_is_added_up(store: Store):
    run = await start_claimed_run(store)
    assert await store.get_usages(["r", "nobody"]) == {}
    assert await commit_ops(store, append(run, 0), append(run, 1, used=CALL)) == [DONE, DONE]
    assert await commit_ops(store, append(run, 2, used=CALL)) == [DONE]
    assert await store.get_usages(["r", "nobody"]) == {"r": RunUsage(TWICE)}
    assert (await read_run(store)).has_budget is False


async def test_a_step_that_has_used_nothing_leaves_no_trace(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, append(run, 0, used=Usage())) == [DONE]
    assert await store.get_usages(["r"]) == {}


async def test_usage_counts_for_every_ancestor(store: Store):
    top, middle, bottom = await three_levels(store)
    other = await below(store, top, "other", 1)
    await commit_ops(store, append(bottom, 0, used=CALL), append(other, 0, used=CALL))
    await commit_ops(store, append(middle, 0, used=CALL))
    told = await store.get_usages(["top", "middle", "bottom", "other"])
    assert {run_id: usage.used.calls for run_id, usage in told.items()} == {
        "top": 3, "middle": 2, "bottom": 1, "other": 1,
    }  # fmt: skip
    assert told["top"].used == TWICE + CALL


async def test_sums_are_exact_however_many_there_are(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, *[append(run, seq, used=Usage(calls=1, nano_usd=100_000_001)) for seq in range(1000)])
    assert await used(store) == Usage(calls=1000, nano_usd=100_000_001_000)


async def test_an_append_that_is_repeated_adds_once(store: Store, second_store: Store):
    run = await start_claimed_run(store)
    other = append(run, 1, used=CALL)
    assert await commit_ops(store, append(run, 0, used=CALL)) == [DONE]
    assert await commit_ops(second_store, append(run, 0, used=CALL), other) == [DONE, DONE]
    assert await commit_ops(store, append(run, 0, used=CALL), other) == [DONE, DONE]
    await commit_ops(store, finish(run))
    assert await commit_ops(store, other) == [DONE]
    assert await used(store) == TWICE


async def test_a_fenced_append_adds_nothing(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, release(run))
    assert await commit_ops(store, append(run, 0, used=CALL)) == [FENCED]
    assert await store.get_usages(["r"]) == {}


async def test_a_retry_that_removes_records_keeps_their_usage(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(calls=9))
    await commit_ops(store, append(run, 0, used=CALL), append(run, 1, ok=False, used=CALL))
    await commit_ops(store, finish(run, RunState.FAILED, rewind=rewind(1)))
    assert await commit_ops(store, ReopenRun("r", 1.0)) == [DONE]
    assert await store.get_usages(["r"]) == {"r": RunUsage(TWICE, BudgetLimits(calls=9))}
    again = await claim_run(store)
    await commit_ops(store, append(again, 1, used=CALL))
    assert await used(store) == TWICE + CALL


async def test_a_fork_has_the_budget_that_it_is_given_and_has_used_nothing(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(calls=1))
    await commit_ops(store, append(run, 0, used=CALL))
    [answer] = await commit_ops(
        store, ForkRun("r", new_run("f", forked_from="r", budget=BudgetLimits(calls=1)), before_seq=1)
    )
    assert answer.run.has_budget
    assert await store.get_usages(["r", "f"]) == {
        "r": RunUsage(CALL, BudgetLimits(calls=1)),
        "f": RunUsage(budget=BudgetLimits(calls=1)),
    }
    [answer] = await commit_ops(store, ForkRun("r", new_run("g", forked_from="r"), before_seq=1))
    assert not answer.run.has_budget
    assert await store.get_usages(["g"]) == {}


# Budgets


async def test_runs_respect_their_own_budget_and_those_of_their_ancestors(store: Store):
    top, middle, bottom = await three_levels(store, budget=BudgetLimits(tokens=1, seconds=0.5))
    assert [run.has_budget for run in (top, middle, bottom)] == [True, True, True]
    free = await start_claimed_run(store, "free")
    inner = await below(store, free, "inner", budget=BudgetLimits(calls=1))
    innermost = await below(store, inner, "innermost")
    assert [(await read_run(store, run.id)).has_budget for run in (free, inner, innermost)] == [False, True, True]
    ids = ["top", "middle", "free", "inner", "innermost"]
    assert await store.get_usages(ids) == {
        "top": RunUsage(budget=BudgetLimits(tokens=1, seconds=0.5)), "inner": RunUsage(budget=BudgetLimits(calls=1)),
    }  # fmt: skip


async def test_a_start_that_finds_a_run_does_not_give_it_a_budget(store: Store):
    await start_run(store)
    [answer] = await commit_ops(store, StartRun(new_run(budget=BudgetLimits(calls=1))))
    assert (answer.is_new, answer.run.has_budget) == (True, False)
    assert await store.get_usages(["r"]) == {}


async def test_a_run_without_a_budget_may_use_what_it_likes(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, reserve(run, 0, 10**12)) == [DONE]
    assert await store.get_usages(["r"]) == {}


async def test_a_call_that_would_pass_the_budget_is_refused_with_all_there_is_to_know(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(nano_usd=NANO_PER_USD))
    await commit_ops(store, append(run, 0, used=CALL))
    assert await commit_ops(store, reserve(run, 1, nano_usd=NANO_PER_USD // 2)) == [DONE]
    assert await commit_ops(store, reserve(run, 2, nano_usd=NANO_PER_USD // 2)) == [
        BudgetShortage("r", "usd", max_amount=1.0, used=0.25, reserved=0.5, expected=0.5, is_temporary=True)
    ]
    assert await commit_ops(store, reserve(run, 3, nano_usd=NANO_PER_USD)) == [
        BudgetShortage("r", "usd", max_amount=1.0, used=0.25, reserved=0.5, expected=1.0, is_temporary=False)
    ]


async def test_time_is_not_reserved_but_a_call_may_begin_while_there_is_some_left(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(seconds=2.0))
    await commit_ops(store, append(run, 0, used=CALL))
    assert await commit_ops(store, reserve(run, 1, seconds=60.0), reserve(run, 2, seconds=60.0)) == [DONE, DONE]
    await commit_ops(store, append(run, 1, used=CALL))
    assert await commit_ops(store, reserve(run, 2)) == [
        BudgetShortage("r", "seconds", 2.0, 3.0, 0.0, 0.0, is_temporary=False)
    ]


async def test_children_side_by_side_cannot_pass_a_budget_together(store: Store, second_store: Store):
    parent = await start_claimed_run(store, "p", budget=BudgetLimits(tokens=100))
    children = [await below(store, parent, f"c{at}", at) for at in range(8)]
    answers = await commit_ops(store, *[reserve(child, 0, 30) for child in children[:4]])
    answers += [(await commit_ops(second_store, reserve(child, 0, 30)))[0] for child in children[4:]]
    refused = BudgetShortage("p", "tokens", 100.0, 0.0, 90.0, 30.0, is_temporary=True)
    assert answers == [DONE] * 3 + [refused] * 5
    # What was expected too high is there for others as soon as the outcome is known.
    await commit_ops(store, append(children[0], 0, used=Usage(calls=1, input_tokens=5, output_tokens=5)))
    assert await commit_ops(second_store, reserve(children[7], 0, 30)) == [DONE]
    assert await commit_ops(store, reserve(children[6], 0, 30)) == [
        BudgetShortage("p", "tokens", 100.0, 10.0, 90.0, 30.0, True)
    ]


async def test_every_budget_on_the_way_up_must_allow_a_call(store: Store):
    top = await start_claimed_run(store, "top", budget=BudgetLimits(tokens=100))
    narrow = await below(store, top, "narrow", 0, budget=BudgetLimits(tokens=50))
    wide = await below(store, top, "wide", 1, budget=BudgetLimits(tokens=500))
    assert await commit_ops(store, reserve(narrow, 0, 60)) == [
        BudgetShortage("narrow", "tokens", 50.0, 0.0, 0.0, 60.0, False)
    ]
    assert await commit_ops(store, reserve(narrow, 0, 50)) == [DONE]
    assert await commit_ops(store, reserve(wide, 0, 60)) == [
        BudgetShortage("top", "tokens", 100.0, 0.0, 50.0, 60.0, True)
    ]
    await commit_ops(store, append(narrow, 0, used=Usage(calls=1, input_tokens=41)))
    assert await commit_ops(store, reserve(wide, 0, 60)) == [
        BudgetShortage("top", "tokens", 100.0, 41.0, 0.0, 60.0, False)
    ]
    assert await commit_ops(store, reserve(wide, 0, 59)) == [DONE]


async def test_a_permanent_shortage_is_reported_before_a_temporary_one(store: Store):
    top = await start_claimed_run(store, "top", budget=BudgetLimits(tokens=10))
    child = await below(store, top, "child", budget=BudgetLimits(tokens=15, calls=9))
    assert await fits(store, child, 0, 10)
    refused = BudgetShortage("top", "tokens", 10.0, 0.0, 10.0, 11.0, is_temporary=False)
    assert await commit_ops(store, reserve(child, 1, 11)) == [refused]


async def test_a_call_whose_price_is_not_known_needs_a_budget_without_dollars(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(nano_usd=NANO_PER_USD))
    assert await commit_ops(store, reserve(run, 0, unpriced=1)) == [
        BudgetShortage("r", "price", 1.0, 0.0, 0.0, 0.0, is_temporary=False)
    ]
    await commit_ops(store, SetBudget("r", BudgetLimits(nano_usd=2 * NANO_PER_USD), 1.0))
    assert await list_signals(store, run) == []  # more money would not help, so it did not wait
    await commit_ops(store, SetBudget("r", BudgetLimits(tokens=5), 1.0))
    assert await commit_ops(store, reserve(run, 0, unpriced=1)) == [DONE]


# Reservations


async def test_a_reservation_is_replaced_by_the_next_for_the_same_step(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100))
    assert await commit_ops(store, reserve(run, 0, 60), reserve(run, 0, 60)) == [DONE, DONE]
    assert await commit_ops(store, reserve(run, 0, 60)) == [DONE]
    assert await commit_ops(store, reserve(run, 0, 100)) == [DONE]
    assert not await fits(store, run, 1, 1)
    assert await commit_ops(store, reserve(run, 0, 101)) == [
        BudgetShortage("r", "tokens", 100.0, 0.0, 0.0, 101.0, False)
    ]
    assert await fits(store, run, 1, 100)


@pytest.mark.parametrize("ok", [True, False])
async def test_a_reservation_is_given_back_with_the_outcome_of_its_step(store: Store, ok: bool):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100))
    assert await commit_ops(store, reserve(run, 3, 100)) == [DONE]
    await commit_ops(store, append(run, 0, position=2), append(run, 1, position=3, kind=RecordKind.TIMER))
    assert not await fits(store, run, 4, 100)
    await commit_ops(store, append(run, 2, position=3, ok=ok))
    assert await fits(store, run, 4, 100)


async def test_an_append_that_is_repeated_with_its_reservation_gives_it_back_again(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100))
    ops = [reserve(run, 0, 50), append(run, 0, used=Usage(calls=1, input_tokens=40))]
    assert await commit_ops(store, *ops) == [DONE, DONE]
    assert await commit_ops(store, *ops) == [DONE, DONE]
    assert await fits(store, run, 1, 60)


async def test_reservations_are_released_when_no_worker_holds_the_run(store: Store, kill_worker):
    parent = await start_claimed_run(store, "p", budget=BudgetLimits(tokens=100))
    child = await below(store, parent, "c", max_deliveries=9)
    worker = await store.workers.register(new_worker(), 100.0)
    for leave in ("park", "release", "die", "retire"):
        if leave != "park":
            child = await claim_run(store, worker)
        assert await fits(store, child, 0, 100), leave
        assert not await fits(store, parent, 0, 1), leave
        match leave:
            case "park":
                await commit_ops(store, park(child, 0.0))
            case "release":
                await commit_ops(store, release(child))
            case "die":
                kill_worker(worker)
                assert (await store.workers.reap_dead()).released_count == 1
                worker = await store.workers.register(new_worker(), 100.0)
            case _:
                await store.workers.retire(worker)
        assert await fits(store, parent, 0, 100), leave
        await commit_ops(store, append(parent, 0))  # which gives it back


@pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED])
async def test_the_reservations_of_a_run_are_released_when_it_ends(store: Store, state: RunState):
    parent = await start_claimed_run(store, "p", budget=BudgetLimits(tokens=100))
    child = await below(store, parent, "c", budget=BudgetLimits(tokens=100))
    assert await commit_ops(store, reserve(child, 0, 40), reserve(child, 1, 60)) == [DONE, DONE]
    assert not await fits(store, parent, 0, 1)
    await commit_ops(store, finish(child, state))
    assert await fits(store, parent, 0, 100)


async def test_the_reservations_of_a_dead_run_are_released(store: Store, kill_worker):
    parent = await start_claimed_run(store, "p", budget=BudgetLimits(tokens=100))
    doomed = await store.workers.register(new_worker(), 100.0)
    [answer] = await commit_ops(store, start_child(parent, "c", claim_as=doomed, max_deliveries=1))
    assert await fits(store, answer.run, 0, 100)
    kill_worker(doomed)
    assert (await store.workers.reap_dead()).dead_run_ids == ("c",)
    assert await fits(store, parent, 0, 100)


async def test_a_cancel_before_the_first_claim_uses_nothing_of_the_budget(store: Store):
    parent = await start_claimed_run(store, "p", budget=BudgetLimits(tokens=100))
    await commit_ops(store, start_child(parent, "c"))
    assert await commit_ops(store, CancelRun("c", 1.0)) == [DONE]
    assert await get_state(store, "c") is RunState.CANCELLED
    assert await fits(store, parent, 0, 100)


async def test_a_finish_that_is_refused_gives_nothing_back(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100))
    assert await fits(store, run, 0, 100)
    assert await commit_ops(store, CancelRun("r", 1.0), finish(run)) == [DONE, REFUSED]
    assert not await fits(store, run, 1, 1)


async def test_only_the_holder_of_a_run_can_reserve(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100))
    await commit_ops(store, release(run))
    again = await claim_run(store)
    assert await commit_ops(store, reserve(run, 0, 60), reserve(run, 1, 1000)) == [FENCED, FENCED]
    assert await fits(store, again, 0, 100)
    await commit_ops(store, finish(again))
    assert await commit_ops(store, reserve(again, 1, 1)) == [FENCED]
    assert await commit_ops(store, ReserveUsage(99, 1, 1, Usage())) == [FENCED]


# Another budget


async def test_a_run_can_be_given_another_budget(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100, calls=1))
    await commit_ops(store, append(run, 0, used=CALL))
    assert not await fits(store, run, 1, 1)
    assert await commit_ops(store, SetBudget("r", BudgetLimits(tokens=130), 1.0)) == [DONE]
    assert await store.get_usages(["r"]) == {"r": RunUsage(CALL, BudgetLimits(tokens=130))}
    assert await fits(store, run, 1, 10)
    assert await commit_ops(store, SetBudget("r", BudgetLimits(tokens=10), 1.0)) == [DONE]
    assert await commit_ops(store, reserve(run, 1, 0)) == [
        BudgetShortage("r", "tokens", 10.0, 120.0, 0.0, 0.0, is_temporary=False)
    ]


async def test_only_a_run_with_a_budget_of_its_own_can_be_given_another(store: Store):
    _, middle, _ = await three_levels(store, budget=BudgetLimits(tokens=1))
    free = await start_claimed_run(store, "free")
    ops = [SetBudget(run_id, BudgetLimits(tokens=9), 1.0) for run_id in ("middle", "free", "nobody")]
    assert await commit_ops(store, *ops) == [REFUSED, REFUSED, OpStatus.UNKNOWN_RUN]
    assert await store.get_usages(["middle", "free"]) == {}
    await commit_ops(store, finish(middle), finish(free))
    top = await read_run(store, "top")
    await commit_ops(store, finish(top))
    assert await commit_ops(store, SetBudget("top", BudgetLimits(tokens=9), 1.0), ops[0]) == [
        OpStatus.ENDED,
        OpStatus.ENDED,
    ]
    assert (await store.get_usages(["top"]))["top"].budget == BudgetLimits(tokens=1)


async def test_a_parked_run_that_is_short_is_woken_by_another_budget(store: Store, clock):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100))
    assert not await fits(store, run, 0, 101)
    assert await commit_ops(store, park(run, None, BUDGET_SIGNAL)) == [DONE]
    clock.advance(5.0)
    limits = BudgetLimits(nano_usd=NANO_PER_USD, tokens=200, seconds=0.5)
    assert await commit_ops(store, SetBudget("r", limits, 77.0)) == [DONE]
    [(name, payload, at)] = await list_mailbox(store, run)
    assert (name, json.loads(payload), at) == (BUDGET_SIGNAL, limits._asdict(), 77.0)
    assert (await read_run(store)).wake_at == clock.now
    again = await claim_run(store)
    assert await fits(store, again, 0, 101)
    # It is told once.
    await commit_ops(store, SetBudget("r", limits, 78.0), SetBudget("r", limits, 79.0))
    assert len(await list_signals(store, run)) == 1


async def test_a_budget_that_comes_before_the_run_has_parked_is_not_missed(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100))
    [refused, done, parked] = await commit_ops(
        store, reserve(run, 0, 101), SetBudget("r", BudgetLimits(tokens=200), 1.0), park(run, None, BUDGET_SIGNAL)
    )
    assert (refused.is_temporary, done, parked) == (False, DONE, REFUSED)


async def test_each_refused_call_gets_its_own_signal(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100))
    for position in (0, 1, 2, 1):  # the second one asks again, as it does after a crash
        assert not await fits(store, run, position, 101)
    assert await fits(store, run, 0, 1)  # and this one has what it wanted, after all
    await commit_ops(store, SetBudget("r", BudgetLimits(tokens=500), 1.0))
    assert [name for name, _, _ in await list_mailbox(store, run)] == [BUDGET_SIGNAL] * 2


async def test_a_temporary_refusal_makes_no_run_short(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100))
    assert await commit_ops(store, reserve(run, 0, 60)) == [DONE]
    [refused] = await commit_ops(store, reserve(run, 1, 60))
    assert refused.is_temporary
    await commit_ops(store, SetBudget("r", BudgetLimits(tokens=200), 1.0))
    assert await list_signals(store, run) == []


async def test_a_call_that_is_granted_does_not_let_the_refused_one_be_forgotten(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100))
    assert not await fits(store, run, 0, 101)
    assert await fits(store, run, 1, 5)
    await commit_ops(store, SetBudget("r", BudgetLimits(tokens=200), 1.0))
    assert [name for name, _, _ in await list_mailbox(store, run)] == [BUDGET_SIGNAL]


async def test_a_new_budget_wakes_short_runs_at_or_below_it_and_no_others(store: Store):
    top = await start_claimed_run(store, "top", budget=BudgetLimits(tokens=100))
    left = await below(store, top, "left", 0, budget=BudgetLimits(tokens=50))
    right = await below(store, top, "right", 1)
    deep = await below(store, left, "deep", 0)
    calm = await below(store, left, "calm", 1)
    family = [top, left, right, deep, calm]
    stranger = await start_claimed_run(store, "stranger", budget=BudgetLimits(tokens=1))

    async def woken() -> set[str]:
        return {run.id for run in [*family, stranger] if await list_signals(store, run)}

    for run, tokens in ((deep, 60), (right, 101), (stranger, 2)):
        assert not await fits(store, run, 0, tokens)
        assert await commit_ops(store, park(run, None, BUDGET_SIGNAL)) == [DONE]
    assert await commit_ops(store, SetBudget("left", BudgetLimits(tokens=55), 1.0)) == [DONE]
    assert await woken() == {"deep"}
    deep = await claim_run(store, deep.owner)
    assert not await fits(store, deep, 0, 60)  # it asks again, and is short again
    assert await commit_ops(store, SetBudget("top", BudgetLimits(tokens=500), 2.0)) == [DONE]
    assert await woken() == {"deep", "right"}
    assert [len(await list_signals(store, run)) for run in (deep, right)] == [2, 1]
    assert (await read_run(store, "stranger")).wake_at is None


async def test_an_ended_run_is_notified_of_a_budget_only_when_it_is_reopened(store: Store):
    top = await start_claimed_run(store, "top", budget=BudgetLimits(tokens=100))
    child = await below(store, top, "child")
    assert not await fits(store, child, 0, 101)
    await commit_ops(store, finish(child, RunState.FAILED))
    assert await commit_ops(store, SetBudget("top", BudgetLimits(tokens=200), 1.0)) == [DONE]
    assert await list_signals(store, child) == []
    assert await commit_ops(store, ReopenRun("child", 2.0)) == [DONE]
    assert await list_mailbox(store, child) == [(BUDGET_SIGNAL, b"null", 2.0)]
    await commit_ops(store, SetBudget("top", BudgetLimits(tokens=300), 3.0))
    assert len(await list_signals(store, child)) == 1


async def test_a_paused_short_run_is_notified_and_stays_paused(store: Store):
    run = await start_claimed_run(store, budget=BudgetLimits(tokens=100))
    assert not await fits(store, run, 0, 101)
    await commit_ops(store, park(run, None, BUDGET_SIGNAL), PauseRun("r", 1.0))
    await commit_ops(store, SetBudget("r", BudgetLimits(tokens=200), 1.0))
    assert (len(await list_signals(store, run)), (await read_run(store)).wake_at) == (1, None)


# Workflows


async def test_a_workflow_is_announced_with_its_budget(store: Store, second_store: Store):
    specs = [
        WorkflowSpec("plain", ()),
        WorkflowSpec("helper", ("prompt",), budget=BudgetLimits(NANO_PER_USD, 7, None, 0.5), is_agent=True),
    ]
    await store.announce_workflows(specs)
    assert await second_store.get_workflow_specs() == {spec.name: spec for spec in specs}
    await store.announce_workflows([WorkflowSpec("helper", ("prompt",))])
    assert (await second_store.get_workflow_specs())["helper"] == WorkflowSpec("helper", ("prompt",))
