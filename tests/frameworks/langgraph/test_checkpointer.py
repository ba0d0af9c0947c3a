"""``HoldfastSaver``: LangGraph's conformance suite, and what it does not ask for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "server"))

from kill_kit import open_store
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import WRITES_IDX_MAP, Checkpoint, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.conformance.initializer import checkpointer_test
from langgraph.checkpoint.conformance.validate import validate
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from live_server import running_live_server
from typing_extensions import TypedDict

from holdfast import AesEncryption, Client, UsageError
from holdfast.errors import UndecryptableValue, UnreadableRecord, ValueTooLarge
from holdfast.integrations.langgraph_checkpoints import HoldfastSaver
from holdfast.integrations.langgraph_checkpoints.layout import LARGE_VALUE_BYTES, MAX_CHECKPOINT_ID_LENGTH

LARGE = "x" * LARGE_VALUE_BYTES


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with open_store(request.param, tmp_path / "store") as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'agents.db'}"


def config(thread: str = "t", checkpoint_ns: str = "", **more: Any) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": checkpoint_ns, **more}}


def new_checkpoint(version: int = 1, **values: Any) -> Checkpoint:
    versions = dict.fromkeys(values, version)
    return {**empty_checkpoint(), "id": str(uuid6()), "channel_values": values, "channel_versions": versions}


def put(saver: HoldfastSaver, where: dict[str, Any], checkpoint: Checkpoint, **metadata: Any) -> dict[str, Any]:
    return saver.put(where, checkpoint, {"source": "loop", "step": 0, **metadata}, checkpoint["channel_versions"])


def count_entries(url: str) -> int:
    async def count() -> int:
        async with Client(url) as client:
            spaces = await client.memory.namespaces(limit=1000)
            return sum([len(await client.memory.list(space, limit=1000)) for space in spaces])

    return asyncio.run(count())


def list_failures(report: Any) -> list[str]:
    return [failure for result in report.results.values() for failure in result.failures]


# LangGraph's own suite


def test_the_conformance_suite_passes_completely(url: str):
    @checkpointer_test(name="HoldfastSaver")
    async def make_saver() -> AsyncIterator[HoldfastSaver]:
        async with HoldfastSaver(url) as saver:
            yield saver

    report = asyncio.run(validate(make_saver))
    assert list_failures(report) == []
    assert all(result.detected and result.tests_passed for result in report.results.values())
    assert sum(result.tests_passed for result in report.results.values()) >= 81


def test_the_conformance_suite_passes_over_a_server(sqlite_url: str):
    async def check() -> Any:
        async with running_live_server(sqlite_url) as server:

            @checkpointer_test(name="HoldfastSaver")
            async def make_saver() -> AsyncIterator[HoldfastSaver]:
                async with HoldfastSaver(server.address) as saver:
                    yield saver

            return await validate(make_saver)

    report = asyncio.run(check())
    assert list_failures(report) == []


# Graphs


class State(TypedDict, total=False):
    done: Annotated[list[str], lambda before, new: before + new]
    answer: str


def make_graph(saver: Any, fail: bool = False) -> Any:
    def look(state: State) -> State:
        return {"done": ["look"]}

    def ask(state: State) -> State:
        if fail:
            raise RuntimeError("out of paper")
        return {"done": ["ask"], "answer": interrupt("May I?")}

    def book(state: State) -> State:
        return {"done": ["book"]}

    graph = StateGraph(State).add_node(look).add_node(ask).add_node(book)
    graph.add_edge(START, "look").add_edge("look", "ask").add_edge("look", "book").add_edge("ask", END)
    return graph.compile(checkpointer=saver)


def test_a_graph_waits_for_a_person_in_one_process_and_goes_on_in_another(url: str):
    with HoldfastSaver(url) as saver:
        stopped = make_graph(saver).invoke({"done": []}, config())
        assert stopped["__interrupt__"][0].value == "May I?"

    async def resume() -> Any:
        async with HoldfastSaver(url) as saver:
            return await make_graph(saver).ainvoke(Command(resume="yes"), config())

    assert asyncio.run(resume()) == {"done": ["look", "ask", "book"], "answer": "yes"}


def test_what_succeeded_beside_a_node_that_failed_is_not_repeated(url: str):
    with HoldfastSaver(url) as saver:
        with pytest.raises(RuntimeError, match="out of paper"):
            make_graph(saver, fail=True).invoke({"done": []}, config())
        assert [write[1:] for write in saver.get_tuple(config()).pending_writes if write[1] == "done"] == [
            ("done", ["book"])
        ]
        make_graph(saver).invoke(None, config())
        assert make_graph(saver).invoke(Command(resume="yes"), config())["done"] == ["look", "ask", "book"]


def test_the_history_of_a_thread_can_be_read_and_forked(url: str):
    with HoldfastSaver(url) as saver:
        graph = make_graph(saver)
        graph.invoke({"done": []}, config())
        graph.invoke(Command(resume="yes"), config())
        history = [*graph.get_state_history(config())]
        assert [state.metadata["step"] for state in history] == [2, 1, 0, -1]
        assert [*graph.get_state_history(config(), limit=2, before=history[0].config)] == history[1:3]
        fork = graph.update_state(history[1].config, {"done": ["by hand"]}, as_node="look")
        assert graph.get_state(config()).config == fork
        assert graph.get_state(history[0].config).values == history[0].values


def test_a_graph_with_an_event_loop_around_it_may_still_be_invoked(sqlite_url: str):
    """As in a notebook."""

    async def invoke() -> Any:
        with HoldfastSaver(sqlite_url) as saver:
            return make_graph(saver).invoke({"done": []}, config())

    assert asyncio.run(invoke())["done"] == ["look", "book"]


def test_threads_and_event_loops_share_a_saver(sqlite_url: str):
    with HoldfastSaver(sqlite_url) as saver:
        graph = make_graph(saver)
        workers = [
            threading.Thread(target=lambda name=name: graph.invoke({"done": []}, config(name))) for name in "abcdef"
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

        async def read() -> list[Any]:
            return [(await graph.aget_state(config(name))).values["done"] for name in "abcdef"]

        assert asyncio.run(read()) == [["look", "book"]] * 6


def test_subgraphs_have_checkpoints_of_their_own(sqlite_url: str):
    with HoldfastSaver(sqlite_url) as saver:
        inner = make_graph(True)
        outer = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile(checkpointer=saver)
        outer.invoke({"done": []}, config())
        spaces = {
            one.config["configurable"]["checkpoint_ns"] for one in saver.list({"configurable": {"thread_id": "t"}})
        }
        assert len(spaces) == 2
        assert outer.invoke(Command(resume="yes"), config())["done"] == ["look", "ask", "book"]
        saver.delete_thread("t")
    assert count_entries(sqlite_url) == 0


# Values


def test_a_large_value_is_written_once_for_as_long_as_it_does_not_change(url: str):
    with HoldfastSaver(url) as saver:
        where = config()
        for version in (1, 1, 1, 2, 2):
            checkpoint = new_checkpoint(version, text=LARGE + str(version))
            checkpoint["channel_versions"]["n"] = version
            where = put(saver, where, checkpoint)
        found = [one.checkpoint["channel_values"]["text"][-1] for one in saver.list(config())]
        assert found == ["2", "2", "1", "1", "1"]
    assert count_entries(url) == 5 + 2


def test_branches_with_the_same_versions_have_their_own_values(sqlite_url: str):
    with HoldfastSaver(sqlite_url) as saver:
        root = put(saver, config(), new_checkpoint(1, text=LARGE))
        branches = [put(saver, root, new_checkpoint(2, text=LARGE + name)) for name in "ab"]
        leaves = [
            put(saver, branch, new_checkpoint(2, text=LARGE + name))
            for name, branch in zip("ab", branches, strict=True)
        ]
        assert [saver.get_tuple(leaf).checkpoint["channel_values"]["text"][-1] for leaf in leaves] == ["a", "b"]


def test_a_value_that_is_too_large_for_the_store_is_refused(sqlite_url: str):
    async def check() -> None:
        async with Client(sqlite_url, max_value=20_000) as client:
            saver = HoldfastSaver(client)
            kept = await saver.aput(config(), new_checkpoint(text="small"), {}, {})
            with pytest.raises(ValueTooLarge, match="thread 't': the value of channel 'text'"):
                await saver.aput(kept, new_checkpoint(2, text="x" * 30_000), {}, {})
            assert (await saver.aget_tuple(config())).config == kept

    asyncio.run(check())


def test_a_checkpoint_of_many_megabytes_is_kept(sqlite_url: str):
    with HoldfastSaver(sqlite_url) as saver:
        put(saver, config(), new_checkpoint(text="x" * 20_000_000))
        assert len(saver.get(config())["channel_values"]["text"]) == 20_000_000


def test_any_name_of_a_thread_will_do(sqlite_url: str):
    names = ["", "a" * 5000, "ä/ö\n\x00", "../../etc"]
    with HoldfastSaver(sqlite_url) as saver:
        for name in names:
            put(saver, config(name, checkpoint_ns=name), new_checkpoint(text=name))
        for name in names:
            assert saver.get_tuple(config(name, checkpoint_ns=name)).config["configurable"]["thread_id"] == name
        assert len([*saver.list(None)]) == len(names)


def test_a_call_without_a_thread_says_what_is_missing(sqlite_url: str):
    with HoldfastSaver(sqlite_url) as saver, pytest.raises(UsageError, match="thread_id"):
        saver.get_tuple({"configurable": {}})


def test_a_checkpoint_id_that_is_too_long_is_refused(sqlite_url: str):
    with HoldfastSaver(sqlite_url) as saver, pytest.raises(UsageError, match="uuid6"):
        put(saver, config(), {**new_checkpoint(), "id": "x" * (MAX_CHECKPOINT_ID_LENGTH + 1)})


def test_checkpoints_are_in_the_order_of_their_ids(sqlite_url: str):
    ids = ["", "1", "10", "2", "a", "ab", "é", "z" * MAX_CHECKPOINT_ID_LENGTH]
    with HoldfastSaver(sqlite_url) as saver:
        for id in ids:
            put(saver, config(), {**new_checkpoint(), "id": id})
        assert [one.checkpoint["id"] for one in saver.list(config())] == sorted(ids, reverse=True)
        assert [one.checkpoint["id"] for one in saver.list(config(), before=config(checkpoint_id="ab"))] == [
            "a", "2", "10", "1", "",
        ]  # fmt: skip


def test_checkpoints_of_all_threads_are_listed_newest_first(url: str):
    with HoldfastSaver(url) as saver:
        for number in range(50):
            put(saver, config(f"t{number % 3}", checkpoint_ns="ab"[number % 2]), new_checkpoint(n=number))
        assert [one.checkpoint["channel_values"]["n"] for one in saver.list(None)] == [*range(49, -1, -1)]
        assert [one.checkpoint["channel_values"]["n"] for one in saver.list(None, limit=3)] == [49, 48, 47]
        of_thread = saver.list({"configurable": {"thread_id": "t1"}}, limit=3)
        assert [one.checkpoint["channel_values"]["n"] for one in of_thread] == [49, 46, 43]
        assert [*saver.list(None, limit=0)] == []


# Writes


def test_the_first_writes_of_a_task_stay(url: str):
    with HoldfastSaver(url) as saver:
        kept = put(saver, config(), new_checkpoint())
        saver.put_writes(kept, [("a", 1), ("b", 2)], "task")
        saver.put_writes(kept, [("a", "zombie"), ("b", "zombie"), ("c", 3)], "task")
        assert saver.get_tuple(kept).pending_writes == [("task", "a", 1), ("task", "b", 2), ("task", "c", 3)]


def test_the_last_of_a_tasks_special_writes_stays(url: str):
    with HoldfastSaver(url) as saver:
        kept = put(saver, config(), new_checkpoint())
        for value in (1, 2):
            saver.put_writes(kept, [(channel, value) for channel in WRITES_IDX_MAP], "task")
        assert {(channel, value) for _, channel, value in saver.get_tuple(kept).pending_writes} == {
            (channel, 2) for channel in WRITES_IDX_MAP
        }


def test_writes_are_in_the_order_in_which_they_are_applied(url: str):
    with HoldfastSaver(url) as saver:
        kept = put(saver, config(), new_checkpoint())
        for task, path in (("z", "1"), ("a", "2"), ("m", "")):
            saver.put_writes(kept, [("x", task), ("x", task * 2)], task, path)
        assert [value for _, _, value in saver.get_tuple(kept).pending_writes] == ["m", "mm", "z", "zz", "a", "aa"]


# Deleting and copying


def fill(saver: HoldfastSaver, thread: str, run: str = "r") -> list[dict[str, Any]]:
    """A thread of four checkpoints with writes; the second and third share a large value."""
    where, kept = config(thread), []
    for version, text in ((1, "small"), (2, LARGE), (2, LARGE), (3, "small again")):
        where = put(saver, where, new_checkpoint(version, text=text), run_id=f"{run}{version}")
        saver.put_writes(where, [("text", version)], "task")
        kept.append(where)
    return kept


def test_a_deleted_thread_leaves_nothing(url: str):
    with HoldfastSaver(url) as saver:
        fill(saver, "other")
        before = count_entries(url)
        fill(saver, "t", run="x")
        saver.delete_thread("t")
        assert saver.get_tuple(config("t")) is None
        assert len([*saver.list(config("other"))]) == 4
        assert count_entries(url) == before


def test_pruning_keeps_what_the_newest_checkpoint_needs(url: str):
    with HoldfastSaver(url) as saver:
        kept = fill(saver, "t")
        newest = put(saver, kept[2], new_checkpoint(2, text=LARGE))  # a fork, with the value of the second one
        saver.prune(["t"])
        assert [one.config for one in saver.list(config("t"))] == [newest]
        assert saver.get(config("t"))["channel_values"]["text"] == LARGE
        with pytest.raises(UsageError, match="strategy"):
            saver.prune(["t"], strategy="some")
        saver.prune(["t"], strategy="delete")
    assert count_entries(url) == 0


def test_deleting_the_checkpoints_of_a_run_keeps_values_that_others_need(url: str):
    with HoldfastSaver(url) as saver:
        first, second = (put(saver, config(), new_checkpoint(1, text=LARGE), run_id="r1") for _ in range(2))
        last = put(saver, first, new_checkpoint(1, text=LARGE), run_id="r2")
        saver.delete_for_runs(["r1", "none"])
        assert saver.get_tuple(first) is saver.get_tuple(second) is None
        assert saver.get(last)["channel_values"]["text"] == LARGE
    assert count_entries(url) == 3  # the checkpoint, its value, and its entry in the run


def add_all(before: list[str], writes: list[list[str]]) -> list[str]:
    return before + [one for new in writes for one in new]


class DeltaState(TypedDict):
    items: Annotated[list[str], DeltaChannel(add_all, snapshot_frequency=3)]


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 5, 7])
def test_pruning_keeps_what_a_delta_channel_is_put_together_from(turns: int, sqlite_url: str):
    with HoldfastSaver(sqlite_url) as saver:
        builder = StateGraph(DeltaState).add_node("n", lambda state: {"items": ["n"]}).add_edge(START, "n")
        graph = builder.compile(checkpointer=saver)
        for turn in range(turns):
            graph.invoke({"items": [str(turn)]}, config())
        before = graph.get_state(config()).values
        assert len(before["items"]) == 2 * turns
        checkpoints = len([*saver.list(config())])
        saver.prune(["t"])
        assert graph.get_state(config()).values == before
        assert len([*saver.list(config())]) <= min(checkpoints, 7)
        assert graph.invoke({"items": ["more"]}, config())["items"] == [*before["items"], "more", "n"]


def test_a_copied_thread_is_independent_of_its_source(url: str):
    with HoldfastSaver(url) as saver:
        fill(saver, "t")
        saver.copy_thread("t", "copy")
        source = [*saver.list(config("t"))]
        saver.delete_thread("t")
        copies = [*saver.list(config("copy"))]
        assert [(one.checkpoint, one.metadata, one.pending_writes) for one in copies] == [
            (one.checkpoint, one.metadata, one.pending_writes) for one in source
        ]
        saver.delete_for_runs(["r1", "r2", "r3"])
    assert count_entries(url) == 0


def test_a_checkpoint_whose_value_was_deleted_says_so(sqlite_url: str):
    with HoldfastSaver(sqlite_url) as here, HoldfastSaver(sqlite_url) as elsewhere:
        first = put(here, config(), new_checkpoint(1, text=LARGE))
        elsewhere.delete_thread("t")
        put(here, first, new_checkpoint(1, text=LARGE))
        with pytest.raises(UnreadableRecord, match="channel 'text'"):
            elsewhere.get_tuple(config())


# The database


def test_a_saver_shares_the_client_of_its_caller(sqlite_url: str):
    async def check() -> None:
        async with Client(sqlite_url) as client:
            async with HoldfastSaver(client) as saver:
                await saver.aput(config(), new_checkpoint(), {}, {})
            await client.memory.put("still", "open", True)

    asyncio.run(check())


def test_without_a_url_it_is_the_default_database(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_URL", sqlite_url)
    with HoldfastSaver() as saver:
        put(saver, config(), new_checkpoint())
    assert count_entries(sqlite_url) == 1


def test_a_database_that_does_not_exist_has_no_threads(sqlite_url: str, tmp_path: Path):
    with HoldfastSaver(sqlite_url) as saver:
        assert saver.get_tuple(config()) is None
        assert [*saver.list(None)] == []
        saver.delete_thread("t")
        saver.delete_for_runs(["r"])
    assert not (tmp_path / "agents.db").exists()


def test_namespaces_do_not_see_each_others_threads(url: str):
    separator = "&" if "?" in url else "?"
    spaces = [f"{url}{separator}namespace={name}" for name in ("ann", "bob")]
    for space in spaces:
        with HoldfastSaver(space) as saver:
            put(saver, config(), new_checkpoint(space=space))
    for space in spaces:
        with HoldfastSaver(space) as saver:
            assert [one.checkpoint["channel_values"]["space"] for one in saver.list(None)] == [space]


def test_with_a_key_the_database_has_no_state_in_the_clear(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEYS", AesEncryption.new_key())
    with HoldfastSaver(sqlite_url) as saver:
        where = put(saver, config("thread of ann"), new_checkpoint(small="secret", large="secret" * 2000))
        saver.put_writes(where, [("small", "secret")], "task")
        assert saver.get_tuple(config("thread of ann")).checkpoint["channel_values"]["small"] == "secret"
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("agents.db*"))
    assert b"secret" not in stored
    assert b"thread of ann" not in stored
    monkeypatch.delenv("HOLDFAST_ENCRYPTION_KEYS")
    with HoldfastSaver(sqlite_url) as saver, pytest.raises(UndecryptableValue):
        saver.get_tuple(config("thread of ann"))


def test_processes_write_to_the_same_thread_at_the_same_time(sqlite_url: str, tmp_path: Path):
    with open_store("postgres", tmp_path / "postgres") as postgres_url:
        urls = [sqlite_url, postgres_url]
        script = Path(__file__).with_name("concurrent_writer.py")
        writers = [
            subprocess.Popen([sys.executable, script, str(number), *urls], stdout=subprocess.PIPE, text=True)
            for number in range(3)
        ]
        written = sorted(id for writer in writers for id in writer.communicate(timeout=60)[0].split())
        assert [writer.returncode for writer in writers] == [0] * 3
        assert len(written) == 3 * 25
        for url in urls:
            with HoldfastSaver(url) as saver:
                found = [*saver.list(config("shared"))]
                assert sorted(one.checkpoint["id"] for one in found) == written
                for one in found:
                    assert one.checkpoint["channel_values"]["text"].startswith(f"{one.metadata['writer']}:")
                writes = saver.get_tuple(config("common")).pending_writes
                assert len(writes) == 3
                assert len({value.partition(":")[0] for _, _, value in writes}) == 1  # all from one process
