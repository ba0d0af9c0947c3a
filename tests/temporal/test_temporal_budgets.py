"""Budgets on Temporal: what a run and those below it may use, whoever carries them out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from temporalio.client import Client as TemporalClient

from holdfast import Agent, Budget, Client, RunFailed, Runtime, step, tool, wait_for_signal, workflow
from holdfast.admission.usage import BudgetLimits, Usage
from holdfast.engine.step_context import get_step_executor
from holdfast.errors import RunCancelled, RunEnded, UsageError
from holdfast.stores.temporal import budgets, identifiers
from holdfast.stores.temporal.budgets import BudgetAccount, StepRef
from holdfast.stores.temporal.entity_workflows import signal_entity
from holdfast.stores.temporal.run_memo import BudgetOwner
from holdfast.temporal import budget_reservation, entity_workflows
from holdfast.testing import ScriptedModel, call
from waits import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("no_other_workflows")]

PRICED: dict[str, Any] = {"name": "gpt-4o-mini", "provider": "openai", "usage": (1000, 100)}


LONG = "word " * 800
"""About a thousand tokens, as they are estimated before a call."""


@tool
async def weigh(thing: str) -> str:
    """Weighs a thing."""
    return f"{thing}: heavy"


@pytest_asyncio.fixture
async def runtime(temporal_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(temporal_url) as runtime:
        yield runtime


@pytest_asyncio.fixture
async def temporal(temporal_url: str) -> TemporalClient:
    address, _, namespace = temporal_url.removeprefix("temporal://").partition("/")
    return await TemporalClient.connect(address, namespace=namespace)


async def status(temporal: TemporalClient, run_id: str) -> dict[str, Any]:
    """What the account of a run's budget says."""
    return await temporal.get_workflow_handle(identifiers.format_account_id(run_id)).query(identifiers.STATUS_QUERY)


async def spent(temporal: TemporalClient, run_id: str, calls: int) -> None:
    """Wait until so many calls are on the account of a run's budget, and none is in flight."""

    async def is_so() -> bool:
        try:
            account = await status(temporal, run_id)
        except Exception:
            return False  # nobody has asked yet
        return account["used"]["calls"] == calls and not account["in_flight"]

    await wait_until(is_so)


# The account itself


async def test_an_account_grants_what_fits_and_remembers_who_was_refused() -> None:
    account = BudgetAccount("r", BudgetLimits(tokens=100))
    one, two, three = (StepRef("r", "x", position) for position in range(3))
    assert account.reserve(one, Usage(calls=1, input_tokens=60)) is None
    refused = account.reserve(two, Usage(calls=1, input_tokens=60))
    assert refused is not None
    assert refused.is_temporary
    assert account.waiting_steps == []
    account.record_usage(one, Usage(calls=1, input_tokens=50))
    refused = account.reserve(two, Usage(calls=1, input_tokens=60))
    assert refused is not None
    assert not refused.is_temporary
    assert account.reserve(three, Usage(calls=1, input_tokens=50)) is None
    again = BudgetAccount.from_json(account.to_json())
    assert again == account
    assert again.set_limits(BudgetLimits(tokens=200)) == [two]
    assert again.set_limits(BudgetLimits(tokens=300)) == []
    assert again.reserve(two, Usage(calls=1, input_tokens=60)) is None


async def test_an_attempt_that_is_made_again_reserves_in_place_of_the_one_before() -> None:
    account = BudgetAccount("r", BudgetLimits(calls=1))
    for _ in range(3):
        assert account.reserve(StepRef("r", "x", 0), Usage(calls=1)) is None
    other = account.reserve(StepRef("r", "y", 0), Usage(calls=1))
    assert other is not None  # the same position of another execution is another step
    assert other.is_temporary


# With runs


async def test_a_call_that_would_pass_the_budget_waits_for_more(
    runtime: Runtime, temporal_url: str, temporal: TemporalClient
) -> None:
    model = ScriptedModel([call("weigh", thing="a"), call("weigh", thing="b"), "done"], **PRICED)
    agent = Agent(model, name="temporal-budget", tools=[weigh], budget=Budget(turns=2))
    handle = await agent.start("go")
    await wait_until(lambda: _is_short(temporal, handle.run_id))
    assert len(model.calls) == 2
    async with Client(temporal_url) as client:
        assert (await client.usage(handle.run_id)).calls == 2
        with pytest.raises(UsageError, match="Budget"):
            await client.set_budget(handle.run_id, Budget())
        await client.set_budget(handle.run_id, Budget(turns=3))
        result = await handle.result(20)
        assert result.output == "done"
        assert len(model.calls) == 3
        used = await client.usage(handle.run_id)
        assert (used.calls, used.tokens) == (3, 3300)
        assert used.seconds > 0
        with pytest.raises(RunEnded, match="budget"):
            await client.set_budget(handle.run_id, Budget(turns=9))


async def _is_short(temporal: TemporalClient, run_id: str) -> bool:
    """Whether a run waits for more of a budget."""
    waits = await temporal.get_workflow_handle(run_id).query(identifiers.STATUS_QUERY)
    return any("holdfast:budget" in one for one in waits.get("waits_for", ()))


async def test_runs_below_share_the_budget_and_never_pass_it(runtime: Runtime, temporal: TemporalClient) -> None:
    helping = ScriptedModel(["done"], **PRICED)
    helper = Agent(helping, name="temporal-budget-helper")
    calls = [call("temporal-budget-helper", task=str(number)) for number in range(6)]
    agent = Agent(ScriptedModel([calls, "all"], **PRICED), name="temporal-budget-boss", subagents=[helper])
    handle = await agent.options(budget=Budget(turns=4)).start("go")
    await spent(temporal, handle.run_id, 4)
    await asyncio.sleep(0.3)
    assert len(helping.calls) == 3
    await handle.set_budget(Budget(turns=8))
    assert (await handle.result(20)).output == "all"
    assert len(helping.calls) == 6
    assert (await handle.usage()).calls == 8


async def test_a_run_keeps_to_its_own_budget_and_to_those_above_it(runtime: Runtime, temporal: TemporalClient) -> None:
    model = ScriptedModel(["one"], **PRICED)
    agent = Agent(model, name="temporal-budget-inner", budget=Budget(turns=1))

    @workflow
    async def temporal_budget_outer() -> list[str]:
        return [(await agent.run("a")).output, (await agent.run("b")).output]

    handle = await temporal_budget_outer.options(budget=Budget(tokens=2500)).start()
    # The second call would be expected to use 1000 tokens or so: it is made. A third one would not be.
    assert await handle.result(20) == ["one", "one"]
    account = await status(temporal, handle.run_id)
    assert (account["used"]["calls"], account["in_flight"]) == (2, 0)

    handle = await temporal_budget_outer.options(budget=Budget(turns=1)).start()
    await spent(temporal, handle.run_id, 1)
    await handle.set_budget(Budget(turns=2))
    assert await handle.result(20) == ["one", "one"]


async def test_a_call_waits_while_only_the_calls_of_others_are_in_its_way(
    runtime: Runtime, temporal: TemporalClient
) -> None:
    at_once = most = 0

    async def slowly(messages: Any) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.1)
        at_once -= 1
        return "x"

    agent = Agent(ScriptedModel([slowly], usage=(1, 1)), name="temporal-budget-passing")

    @workflow
    async def temporal_budget_passing_all() -> int:
        return len(await asyncio.gather(*(agent.run(LONG) for _ in range(3))))

    # A call is expected to use about a thousand tokens, and uses two: there is room for one at a time.
    assert await temporal_budget_passing_all.options(budget=Budget(tokens=1500))() == 3
    assert most == 1


async def test_a_dollar_budget_needs_a_price_on_temporal(runtime: Runtime) -> None:
    agent = Agent(ScriptedModel(["x"]), name="temporal-budget-unpriced", budget=Budget(usd=1))
    with pytest.raises(RunFailed, match="price"):
        await agent.run("go")


async def test_a_run_without_a_budget_has_no_account(runtime: Runtime, temporal: TemporalClient) -> None:
    result = await Agent(ScriptedModel(["x"]), name="temporal-no-budget").run("go")
    with pytest.raises(Exception, match="not found"):
        await temporal.get_workflow_handle(identifiers.format_account_id(result.run_id)).describe()


async def test_a_budget_survives_a_restart(temporal_url: str, temporal: TemporalClient) -> None:
    model = ScriptedModel([call("weigh", thing="a"), call("weigh", thing="b"), "done"], **PRICED)
    agent = Agent(model, name="temporal-budget-restart", tools=[weigh], budget=Budget(turns=2))
    async with Runtime(temporal_url):
        handle = await agent.start("go")
        await wait_until(lambda: _is_short(temporal, handle.run_id))
    async with Client(temporal_url) as client:
        await client.set_budget(handle.run_id, Budget(turns=3))  # nobody is there who could hear it now
        async with Runtime(temporal_url):
            assert (await client.handle(handle.run_id).result(20)).output == "done"
            assert len(model.calls) == 3
            assert (await status(temporal, handle.run_id))["used"]["calls"] == 3


async def test_a_step_may_reserve_while_its_worker_stops(temporal_url: str, temporal: TemporalClient) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @step
    async def temporal_budget_late() -> str:
        begun.set()
        await gate.wait()
        await get_step_executor().reserve(Usage(calls=1))
        return "reserved"

    @workflow
    async def temporal_budget_stops() -> str:
        return await temporal_budget_late()

    runtime = Runtime(temporal_url)
    async with runtime:
        handle = await temporal_budget_stops.options(budget=Budget(turns=1)).start()
        await begun.wait()
        closing = asyncio.create_task(runtime.close(grace=20))
        await asyncio.sleep(0.3)
        gate.set()
        await closing
    history = await temporal.get_workflow_handle(handle.run_id).fetch_history()
    done = [event.activity_task_completed_event_attributes for event in history.events]
    assert b'"reserved"' in [payload.data for one in done for payload in one.result.payloads]


async def test_what_a_terminated_run_had_reserved_is_given_back(
    runtime: Runtime, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_reservation, "STALE_CHECK_AFTER_S", 0.1)
    begun, never = asyncio.Event(), asyncio.Event()

    async def hangs(messages: Any) -> str:
        begun.set()
        await never.wait()
        return "never"

    hanging = Agent(ScriptedModel([hangs]), name="temporal-budget-hangs")
    agent = Agent(ScriptedModel(["after"]), name="temporal-budget-after")

    @workflow
    async def temporal_budget_terminated() -> str:
        await hanging.start("go")
        await wait_for_signal("hangs")  # the turn is its own, and not the other's
        return (await agent.run("go")).output

    handle = await temporal_budget_terminated.options(budget=Budget(turns=1)).start()
    await begun.wait()
    await handle.signal("hangs", True)

    async def child(name: str) -> str:
        query = f"ParentWorkflowId = '{handle.run_id}' AND WorkflowType = '{name}'"
        return "".join([one.id async for one in temporal.list_workflows(query)])

    await wait_until(partial(child, "temporal-budget-after"))
    await temporal.get_workflow_handle(await wait_until(partial(child, "temporal-budget-hangs"))).terminate()
    assert await handle.result(20) == "after"
    never.set()


async def test_a_call_that_is_called_off_gives_back_what_it_had_reserved(
    runtime: Runtime, temporal: TemporalClient
) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def hangs(messages: Any) -> str:
        begun.set()
        await never.wait()
        return "never"

    hanging = Agent(ScriptedModel([hangs]), name="temporal-budget-called-off")
    agent = Agent(ScriptedModel(["after"]), name="temporal-budget-after-that")

    @workflow
    async def temporal_budget_calls_off() -> str:
        lost = await hanging.start("go")
        await wait_for_signal("stop")
        await lost.cancel()
        return (await agent.run("go")).output

    handle = await temporal_budget_calls_off.options(budget=Budget(turns=1)).start()
    await begun.wait()
    await handle.signal("stop", True)
    # It would take longer if the next call had to find out by itself.
    assert await handle.result(budget_reservation.STALE_CHECK_AFTER_S - 1) == "after"


async def test_an_account_ends_with_its_run_and_goes_on_if_it_is_needed_again(
    runtime: Runtime, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entity_workflows, "FIRST_CHECK_S", 0.1)
    agent = Agent(ScriptedModel(["x"], **PRICED), name="temporal-budget-over", budget=Budget(turns=2))
    result = await agent.run("go")
    kept = await asyncio.wait_for(
        temporal.get_workflow_handle(identifiers.format_account_id(result.run_id)).result(), 10
    )
    assert kept["used"]["calls"] == 1
    owner, asker = BudgetOwner(result.run_id, BudgetLimits(calls=2)), StepRef("below", "x", 0)
    assert await budgets.reserve_usage(temporal, [owner], asker, Usage(calls=1)) is None
    await budgets.report_usage(temporal, [owner], asker, Usage(calls=1))
    refused = await budgets.reserve_usage(temporal, [owner], asker, Usage(calls=1))
    assert refused is not None
    assert (refused.used, refused.is_exhausted) == (2, True)


async def test_an_account_continues_as_new_and_loses_nothing(
    runtime: Runtime, temporal: TemporalClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entity_workflows, "CONTINUE_AS_NEW_AFTER", 60)
    await Agent(ScriptedModel(["x"]), name="temporal-budget-serves").run("go")  # somebody has to serve accounts
    owner = BudgetOwner("long", BudgetLimits(calls=20))

    async def call_once(number: int) -> bool:
        asker = StepRef("below", "x", number)
        refused = await budgets.reserve_usage(temporal, [owner], asker, Usage(calls=1))
        if refused is None:
            await budgets.report_usage(temporal, [owner], asker, Usage(calls=1))
        return refused is None

    granted = [await call_once(number) for number in range(10)]
    granted += await asyncio.gather(*(call_once(number) for number in range(10, 15)))
    assert all(granted)

    async def has_all() -> bool:
        return (await status(temporal, "long"))["used"]["calls"] == 15

    await wait_until(has_all)
    last = await temporal.get_workflow_handle(identifiers.format_account_id("long")).describe()
    assert last.raw_description.workflow_execution_info.first_run_id != last.run_id
    await signal_entity(
        temporal, budgets.get_account_entity(owner), identifiers.SET_BUDGET_SIGNAL, [None, None, 15, None]
    )
    assert not await call_once(15)
    assert await budgets.read_current_budget(temporal, "long", owner.limits) == BudgetLimits(calls=15)


async def test_what_a_run_has_used_is_known_after_it_has_continued_as_new(
    runtime: Runtime, temporal: TemporalClient
) -> None:
    site = runtime._engine.context  # pyright: ignore[reportAttributeAccessIssue]
    site.settings = replace(site.settings, continue_as_new_after=35)
    script = [*(call("weigh", thing=str(number)) for number in range(4)), "done"]
    agent = Agent(ScriptedModel(script, **PRICED), name="temporal-budget-continues", tools=[weigh])
    handle = await agent.options(budget=Budget(turns=5)).start("go")
    assert (await handle.result(20)).output == "done"
    last = await temporal.get_workflow_handle(handle.run_id).describe()
    assert last.raw_description.workflow_execution_info.first_run_id != last.run_id
    used = await handle.usage()
    assert (used.calls, used.tokens) == (5, 5500)
    assert (await status(temporal, handle.run_id))["used"]["calls"] == 5


async def test_a_retry_asks_again_and_what_was_used_before_counts(
    runtime: Runtime, temporal_url: str, temporal: TemporalClient
) -> None:
    model = ScriptedModel([call("weigh", thing="a"), "done"], **PRICED)
    agent = Agent(model, name="temporal-budget-retry", tools=[weigh], budget=Budget(turns=1))
    handle = await agent.start("go")
    await wait_until(lambda: _is_short(temporal, handle.run_id))
    async with Client(temporal_url) as client:
        await client.cancel(handle.run_id)
        with pytest.raises(RunCancelled):
            await handle.result(20)
        await client.retry(handle.run_id)
        await wait_until(lambda: _is_short(temporal, handle.run_id))
        assert len(model.calls) == 1
        await client.set_budget(handle.run_id, Budget(turns=2))
        assert (await handle.result(20)).output == "done"
        assert len(model.calls) == 2
        assert (await client.usage(handle.run_id)).calls == 2
        assert (await status(temporal, handle.run_id))["used"]["calls"] == 2


async def test_a_fork_may_use_as_much_as_its_origin_might(
    runtime: Runtime, temporal_url: str, temporal: TemporalClient
) -> None:
    model = ScriptedModel([call("weigh", thing="a"), "done"], **PRICED)
    agent = Agent(model, name="temporal-budget-fork", tools=[weigh], budget=Budget(turns=1))
    handle = await agent.start("go")
    await wait_until(lambda: _is_short(temporal, handle.run_id))
    async with Client(temporal_url) as client:
        fork = await client.fork(handle.run_id)
        assert (await fork.result(20)).output == "done"
        assert (await status(temporal, fork.run_id))["used"]["calls"] == 1
        await client.cancel(handle.run_id)
