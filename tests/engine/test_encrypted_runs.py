"""Runs on a sealed file: all that a run can do works as ever, and none of what it says is found on the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AesEncryption,
    Agent,
    Client,
    RunFailed,
    Runtime,
    UndecryptableValue,
    UsageError,
    ask,
    current_step,
    memory,
    step,
    tool,
    wait_for_signal,
    workflow,
)
from holdfast.core.states import RunState
from holdfast.testing import ScriptedModel, call
from waits import wait_until

pytestmark = pytest.mark.asyncio

WORD = "xylophone"
KEYS = "HOLDFAST_ENCRYPTION_KEYS"


@pytest.fixture(autouse=True)
def _no_keys_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS, raising=False)


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def declare() -> tuple[Any, Any]:
    """A workflow that does everything, and an agent."""

    @step
    async def look_up(word: str) -> str:
        current_step().heartbeat({"word": word})
        return f"{word} found"

    @step(retries=1, backoff=0.001)
    async def stumble(word: str) -> str:
        if current_step().attempt == 1:
            raise ValueError(f"{word} is out of tune")
        return word

    @step
    async def fail(word: str) -> None:
        raise ValueError(f"{word} is broken")

    @step(transaction=True)
    def buy(word: str) -> str:
        current_step().connection.execute("CREATE TABLE IF NOT EXISTS bought (n int)")
        return f"bought {word}"

    @workflow
    async def tune(word: str) -> str:
        if word == f"bad {WORD}":
            raise RuntimeError(f"{word} cannot be tuned")
        return f"tuned {word}"

    @workflow(id="do-everything")
    async def everything(word: str) -> list[str]:
        said = [await look_up(word), await stumble(word), await buy(word), await tune(word)]
        for failing in (fail(word), tune(f"bad {word}")):
            try:
                await failing
            except (ValueError, RunFailed) as error:
                said.append(str(error))
        await memory.put("things", "best", {"word": word})
        said.append((await memory.get("things", "best"))["word"])
        said.append(await wait_for_signal("go"))
        said.append(str(await ask(f"Play the {word}?")))
        said.append(str(await ask(f"Sell the {word}?")))
        said.append(await ask("Which?", choices=[word, "drum"]))
        return said

    @tool
    async def play(instrument: str) -> str:
        """Play it."""
        return f"the {instrument} sounds"

    model = ScriptedModel([call("play", instrument=WORD), call("remember", key="k", text=WORD), f"I love the {WORD}."])
    return everything, Agent(
        model, name="sealed-musician", instructions=f"You play the {WORD}.", tools=[play], memory="m"
    )


async def answer(client: Client, run_id: str) -> None:
    """Say yes, no and a choice, as the questions come."""
    for question, say in (
        ("Play", lambda one: client.approve(one.id, reason=WORD)),
        ("Sell", lambda one: client.deny(one.id, reason=f"never the {WORD}")),
        ("Which", lambda one: client.approve(one.id, WORD)),
    ):
        [asked] = await wait_until(lambda: client.approvals(run_id))
        assert asked.question.startswith(question)
        await say(asked)
        await wait_until(lambda id=asked.id: _is_closed(client, run_id, id))


async def _is_closed(client: Client, run_id: str, approval: str) -> bool:
    return all(one.id != approval for one in await client.approvals(run_id))


async def test_a_run_that_does_everything_leaves_no_word_of_it_on_the_disk(tmp_path: Path):
    everything, musician = declare()
    url, encryption = f"sqlite:///{tmp_path / 'runs.db'}", AesEncryption(AesEncryption.new_key())
    async with Runtime(url, encryption=encryption) as runtime, Client(url, encryption=encryption) as client:
        handle = await runtime.start(everything, WORD)
        await client.signal("do-everything", "go", f"{WORD} now")
        await answer(client, "do-everything")
        said = await handle.result()
        assert len(said) == 11
        assert [one for one in said if WORD not in one] == ["True", "False"]
        result = await musician.run(f"Play the {WORD}")
        assert result.output == f"I love the {WORD}."
        events = [event async for event in client.events("do-everything", follow=False)]
        assert WORD in str(events)
        with pytest.raises(RunFailed, match=f"the {WORD} is lost"):
            await (await runtime.start(declare_failing(), WORD)).result()
        found = on_disk(tmp_path)
        assert b"look_up" in found
        assert WORD.encode() not in found
    assert WORD.encode() not in on_disk(tmp_path)


def declare_failing() -> Any:
    @workflow(id="failing-for-good")
    async def failing(word: str) -> None:
        raise RuntimeError(f"the {word} is lost")

    return failing


async def test_a_run_continues_in_another_process_that_has_the_key_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    @step
    async def first(word: str) -> str:
        return f"first {word}"

    @workflow(id="taken-over")
    async def long(word: str) -> list[str]:
        return [await first(word), await wait_for_signal("go")]

    url = f"sqlite:///{tmp_path / 'runs.db'}"
    monkeypatch.setenv(KEYS, AesEncryption.new_key())
    async with Runtime(url) as runtime:
        await runtime.start(long, WORD)
        async with Client(url) as client:
            await wait_until(lambda: _has_recorded(runtime))
            await client.signal("taken-over", "go", WORD)
    async with Runtime(url), Client(url) as client:
        assert await client.wait("taken-over") == [f"first {WORD}", WORD]
    assert WORD.encode() not in on_disk(tmp_path)


async def _has_recorded(runtime: Runtime) -> bool:
    run = await runtime.store_provider.read("taken-over")
    [history] = await runtime._engine.store.get_histories([run.key])
    return bool(history.records)


@pytest.mark.parametrize("keys", ["none", "others"])
async def test_a_worker_without_the_key_fails_that_run_alone_and_a_retry_with_the_key_continues(
    tmp_path: Path, keys: str
):
    times: list[str] = []

    @step
    async def note(word: str) -> str:
        times.append(word)
        return word

    @workflow(id="{word}")
    async def flow(word: str) -> list[str]:
        return [await note(word), await wait_for_signal("go")]

    url, key = f"sqlite:///{tmp_path / 'runs.db'}", AesEncryption.new_key()
    other = None if keys == "none" else AesEncryption(AesEncryption.new_key())
    async with Runtime(url, encryption=AesEncryption(key)) as runtime:
        await runtime.start(flow, "sealed")
        await wait_until(lambda: times)
        await asyncio.sleep(0)
    async with Client(url, encryption=AesEncryption(key)) as client:
        await client.signal("sealed", "go", WORD)
    async with Runtime(url, encryption=other) as runtime, Client(url, encryption=other) as client:
        with pytest.raises(RunFailed) as caught:
            await client.wait("sealed")
        assert isinstance(caught.value.__cause__, UndecryptableValue)
        assert caught.value.__cause__.key_id == AesEncryption(key).key_ids[0]
        mine = await runtime.start(flow, "ours")
        await client.signal("ours", "go", "on")
        assert await mine.result() == ["ours", "on"]
        assert {run.id: run.state for run in await client.list()} == {
            "sealed": RunState.FAILED,
            "ours": RunState.COMPLETED,
        }
    async with Runtime(url, encryption=AesEncryption(key)), Client(url, encryption=AesEncryption(key)) as client:
        await client.retry("sealed")
        assert await client.wait("sealed") == ["sealed", WORD]
    assert times.count("sealed") == 1


async def test_people_are_not_asked_questions_they_cannot_read(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    @workflow(id="asking")
    async def asking() -> Any:
        return await ask(f"Play the {WORD}?")

    url, key = f"sqlite:///{tmp_path / 'runs.db'}", AesEncryption.new_key()
    async with Runtime(url, encryption=AesEncryption(key)) as runtime:
        handle = await runtime.start(asking)
        async with Client(url, encryption=AesEncryption(key)) as client, Client(url) as blind:
            [asked] = await wait_until(lambda: client.approvals("asking"))
            assert await blind.approvals() == []
            assert "an approval is left out of a list" in caplog.text
            for trying in (blind.approvals("asking"), blind.approve(asked.id), blind.deny(asked.id)):
                with pytest.raises(UndecryptableValue, match=f"Approval '{asked.id}' of run 'asking' is sealed"):
                    await trying
            await client.approve(asked.id)
            assert await handle.result() is True
            with pytest.raises(UndecryptableValue, match="of run 'asking' is sealed"):
                [event async for event in blind.events("asking", follow=False)]


async def test_a_model_that_cannot_search_gets_the_keys(tmp_path: Path):
    model = ScriptedModel(
        [
            call("search_memory", words="tea"),
            call("recall", key="drink"),
            lambda messages: str(messages[-1].parts[0].content),
        ]
    )
    butler = Agent(model, name="sealed-butler", instructions="You serve.", memory="ada")
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Runtime(url, encryption=AesEncryption(AesEncryption.new_key())):
        await memory.put("ada", "drink", "green tea")
        assert (await butler.run("My usual")).output == "green tea"
        with pytest.raises(UsageError, match="they are encrypted"):
            await memory.search("ada", "tea")
    assert "Recall one of its keys: ['drink']" in str(model.calls[1])


async def test_an_encryption_for_a_server_is_refused():
    with pytest.raises(UsageError, match="seals what it keeps with keys of its own"):
        Client("https://holdfast.example", encryption=AesEncryption(AesEncryption.new_key()))
