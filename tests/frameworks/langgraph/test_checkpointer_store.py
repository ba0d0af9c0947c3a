"""``HoldfastStore``: LangGraph's store interface over a client's memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kill_kit import open_store
from langgraph.graph import START, StateGraph
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore
from typing_extensions import TypedDict

from holdfast import AesEncryption, Client, InputError, UsageError
from holdfast.errors import UnrecordableValue
from holdfast.integrations.langgraph_checkpoints import HoldfastStore

ITEMS: dict[tuple[tuple[str, ...], str], dict[str, Any]] = {
    (("users", "ada"), "prefs"): {"drink": "tea", "cups": 3, "at": {"home": True, "tags": ["a", "b"]}},
    (("users", "ada"), "visit"): {"text": "She likes the harbour", "cups": 1.5},
    (("users", "ada", "old"), "prefs"): {"drink": "milk", "cups": 4, "at": {"home": False}},
    (("users", "bob"), "prefs"): {"drink": "coffee", "cups": 4, "at": {"home": False, "tags": []}},
    (("users-of-old",), "prefs"): {"drink": "tea", "cups": 0},
    (("docs",), "a/b c"): {"drink": None, "cups": 9},
}
PREFIXES: list[tuple[str, ...]] = [(), ("users",), ("users", "ada"), ("docs",), ("none",), ("user",)]
FILTERS: list[dict[str, Any]] = [
    {"drink": "tea"},
    {"cups": 4},
    {"cups": {"$gt": 1.5, "$lt": 4}},
    {"cups": {"$gte": 3}, "drink": {"$ne": "tea"}},
    {"cups": {"$lte": 1.5}},
    {"drink": {"$eq": "milk"}},
    {"at": {"home": False}},
    {"at": {"tags": ["a", "b"]}},
    {"none": None},
]
CONDITIONS: list[dict[str, Any]] = [
    {},
    {"prefix": ("users",)},
    {"prefix": ("*", "ada")},
    {"suffix": ("ada",)},
    {"suffix": ("*", "ada")},
    {"prefix": ("users",), "suffix": ("old",)},
    {"max_depth": 1},
    {"prefix": ("users",), "max_depth": 2},
    {"limit": 2, "offset": 1},
]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with open_store(request.param, tmp_path / "store") as url:
        yield url


@pytest.fixture
def store(url: str) -> Iterator[HoldfastStore]:
    with HoldfastStore(url) as store:
        yield store


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[HoldfastStore]:
    with HoldfastStore(f"sqlite:///{tmp_path / 'agents.db'}") as store:
        yield store


def fill(store: BaseStore) -> None:
    for (namespace, key), value in ITEMS.items():
        store.put(namespace, key, value)


def names(items: Any) -> list[tuple[tuple[str, ...], str]]:
    return [(item.namespace, item.key) for item in items]


def test_it_finds_what_langgraphs_own_store_finds(store: HoldfastStore):
    own = InMemoryStore()
    fill(own)
    fill(store)
    for prefix in PREFIXES:
        for wanted in [None, *FILTERS]:
            expected = sorted(names(own.search(prefix, filter=wanted, limit=100)))
            assert names(store.search(prefix, filter=wanted, limit=100)) == expected, (prefix, wanted)
    for conditions in CONDITIONS:
        assert store.list_namespaces(**conditions) == own.list_namespaces(**conditions), conditions
    for namespace, key in ITEMS:
        assert store.get(namespace, key).value == own.get(namespace, key).value
    assert store.get(("users", "ada"), "none") is None


def test_items_are_replaced_and_deleted(store: HoldfastStore):
    store.put(("users", "ada"), "prefs", {"drink": "tea"})
    first = store.get(("users", "ada"), "prefs")
    store.put(("users", "ada"), "prefs", {"drink": "milk"})
    second = store.get(("users", "ada"), "prefs")
    assert (second.value, second.created_at) == ({"drink": "milk"}, first.created_at)
    assert second.updated_at > first.updated_at == first.created_at
    store.delete(("users", "ada"), "prefs")
    store.delete(("users", "ada"), "prefs")
    assert store.get(("users", "ada"), "prefs") is None
    assert store.list_namespaces() == store.search(()) == []


def test_results_come_page_by_page(store: HoldfastStore):
    for number in range(45):
        store.put(("docs", str(number % 2)), f"{number:02}", {"n": number})
    everything = store.search(("docs",), limit=100)
    assert len(everything) == 45
    pages = [store.search(("docs",), limit=10, offset=offset) for offset in range(0, 50, 10)]
    assert [item for page in pages for item in page] == everything
    assert store.search(("docs",), limit=0) == []


def test_a_query_finds_words(store: HoldfastStore):
    fill(store)
    assert names(store.search(("users",), query="the HARBOUR")) == [(("users", "ada"), "visit")]
    assert names(store.search(("users",), query="milk coffee")) == [
        (("users", "ada", "old"), "prefs"),
        (("users", "bob"), "prefs"),
    ]
    assert names(store.search(("users",), query="milk coffee", offset=1)) == [(("users", "bob"), "prefs")]
    assert names(store.search(("users",), query="milk coffee", filter={"drink": "coffee"})) == [
        (("users", "bob"), "prefs")
    ]
    assert store.search(("docs",), query="tea") == []


def test_an_item_says_by_what_it_is_found(sqlite_store: HoldfastStore):
    value = {"title": "harbour", "parts": [{"text": "boats"}, {"text": "ropes"}], "note": "hidden"}
    sqlite_store.put(("docs",), "1", value, index=["title", "parts[*].text"])
    sqlite_store.put(("docs",), "2", value, index=False)
    for word, found in (("harbour", ["1"]), ("ropes", ["1"]), ("hidden", [])):
        assert [item.key for item in sqlite_store.search(("docs",), query=word)] == found
    assert len(sqlite_store.search(("docs",))) == 2


def test_a_batch_reads_before_it_writes(store: HoldfastStore):
    store.put(("docs",), "a", {"n": 1})
    ops = [
        PutOp(("docs",), "a", {"n": 2}),
        GetOp(("docs",), "a"),
        PutOp(("docs",), "a", {"n": 3}),
        SearchOp(("docs",)),
        PutOp(("docs",), "b", {"n": 4}),
        ListNamespacesOp((MatchCondition("prefix", ("docs",)),)),
    ]
    results = store.batch(ops)
    assert [results[0], results[2], results[4]] == [None] * 3
    assert results[1].value == results[3][0].value == {"n": 1}
    assert results[5] == [("docs",)]
    assert [item.value for item in store.search(("docs",))] == [{"n": 3}, {"n": 4}]


def test_it_serves_async_code(url: str):
    async def check() -> None:
        async with HoldfastStore(url) as store:
            await store.aput(("docs",), "a", {"n": 1})
            assert (await store.aget(("docs",), "a")).value == {"n": 1}
            assert names(await store.asearch(("docs",))) == [(("docs",), "a")]
            assert await store.alist_namespaces() == [("docs",)]
            assert store.get(("docs",), "a").value == {"n": 1}  # which blocks, as with any other store
            await store.adelete(("docs",), "a")
            assert await store.aget(("docs",), "a") is None

    asyncio.run(check())


def test_nodes_of_a_graph_remember_across_threads(store: HoldfastStore):
    class State(TypedDict):
        seen: int

    def count(state: State, *, store: BaseStore) -> State:
        item = store.get(("visits",), "ada")
        seen = (item.value["seen"] if item else 0) + 1
        store.put(("visits",), "ada", {"seen": seen})
        return {"seen": seen}

    graph = StateGraph(State).add_node(count).add_edge(START, "count").compile(store=store)
    assert [graph.invoke({"seen": 0})["seen"] for _ in range(3)] == [1, 2, 3]


def test_what_the_database_does_not_have_is_refused(sqlite_store: HoldfastStore, tmp_path: Path):
    with pytest.raises(UsageError, match="no vector search"):
        HoldfastStore(index={"dims": 3, "embed": lambda texts: [[0.0] * 3 for _ in texts]})
    with pytest.raises(NotImplementedError, match="TTL is not supported by HoldfastStore"):
        sqlite_store.put(("docs",), "a", {}, ttl=5)
    with pytest.raises(UsageError, match="do not expire"):
        sqlite_store.batch([PutOp(("docs",), "a", {}, ttl=5)])
    with pytest.raises(UsageError, match=r"'\$in' is not one of"):
        sqlite_store.put(("docs",), "a", {"n": 1})
        sqlite_store.search(("docs",), filter={"n": {"$in": [1]}})
    with pytest.raises(InvalidNamespaceError):
        sqlite_store.batch([GetOp(("a.b",), "key")])
    with pytest.raises(InputError, match="1 to 200 characters"):
        sqlite_store.put(("docs",), "a" * 201, {})
    with pytest.raises(UnrecordableValue, match=r"item 'a' of \('docs',\)"):
        sqlite_store.put(("docs",), "a", {"what": object()})
    encrypted = HoldfastStore(
        Client(f"sqlite:///{tmp_path / 'secret.db'}", encryption=AesEncryption(AesEncryption.new_key()))
    )
    with encrypted:
        encrypted.put(("docs",), "a", {"text": "harbour"})
        assert encrypted.get(("docs",), "a").value == {"text": "harbour"}
        with pytest.raises(UsageError, match="encrypted"):
            encrypted.search(("docs",), query="harbour")
    assert b"harbour" not in b"".join(path.read_bytes() for path in tmp_path.glob("secret.db*"))


def test_a_store_that_does_not_exist_is_empty(sqlite_store: HoldfastStore, tmp_path: Path):
    assert sqlite_store.get(("docs",), "a") is None
    assert sqlite_store.search((), query="tea") == sqlite_store.search(()) == sqlite_store.list_namespaces() == []
    assert not (tmp_path / "agents.db").exists()
