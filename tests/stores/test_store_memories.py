"""What outlives runs: kept with the record of the step that keeps it, and found by its words."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_values import DONE, FENCED, Clock, append, claim_run, commit_ops, finish, release, rewind, start_claimed_run

from holdfast.core.states import RunState
from holdfast.errors import UsageError
from holdfast.stores.contract import MAX_INLINE_BYTES, Store
from holdfast.stores.memories import DeleteMemory, Memory, MemoryChange, PutMemory
from holdfast.stores.memory import MemoryStore
from holdfast.stores.operations import AppendRecord, ReopenRun, Run
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.text_search import MAX_QUERY_WORDS, tokenize


def put(key: str = "likes", text: str = "green tea", *, space: str = "ann", **fields: Any) -> PutMemory:
    return PutMemory(space, key, text=text, **{"value": b"1", "at": 1_000_001.0, **fields})


def step(run: Run, seq: int, change: MemoryChange) -> AppendRecord:
    return append(run, seq)._replace(memory=change)


async def found(store: Store, text: str, space: str = "ann", **options: int) -> list[str]:
    return [memory.key for memory in await store.memories.search(space, text, **options)]


async def keys(store: Store, space: str = "ann", **options: Any) -> list[str]:
    return [memory.key for memory in await store.memories.list(space, **options)]


# Keeping


@pytest.mark.asyncio
async def test_a_memory_is_stored_read_and_deleted(store: Store, second_store: Store):
    assert await commit_ops(store, put(value=b'{"a":1}')) == [DONE]
    kept = Memory("ann", "likes", b'{"a":1}', "green tea", 1_000_001.0, 1_000_001.0)
    assert await second_store.memories.get("ann", "likes") == kept
    assert await second_store.memories.list("ann") == await second_store.memories.search("ann", "tea") == [kept]
    assert await commit_ops(second_store, DeleteMemory("ann", "likes"), DeleteMemory("ann", "likes")) == [DONE, DONE]
    assert await store.memories.get("ann", "likes") is None
    assert await store.memories.list("ann") == await store.memories.search("ann", "tea") == []


@pytest.mark.asyncio
async def test_a_new_value_replaces_the_old_one_and_its_words(store: Store):
    await commit_ops(store, put(text="green tea"), put(value=b"2", text="black coffee", at=1_000_009.0))
    assert await store.memories.get("ann", "likes") == Memory(
        "ann", "likes", b"2", "black coffee", 1_000_001.0, 1_000_009.0
    )
    assert (await found(store, "tea"), await found(store, "coffee")) == ([], ["likes"])


@pytest.mark.asyncio
async def test_namespaces_and_keys_are_apart_and_exact(store: Store):
    await commit_ops(
        store, put("a", space="ann"), put("a", space="Ann"), put("a", space="ann/x"), put("A", space="ann")
    )
    assert await keys(store) == ["A", "a"]
    assert [await keys(store, space) for space in ("Ann", "ann/x", "ann%", "an", "")] == [["a"], ["a"], [], [], []]
    assert [await found(store, "tea", space) for space in ("ann", "Ann", "an")] == [["A", "a"], ["a"], []]
    assert await store.memories.get("ann", "b") is None


@pytest.mark.asyncio
async def test_namespaces_with_memories_are_listed_by_prefix_page_by_page(store: Store):
    spaces = ["user/ann", "user/Ann", "user/ann/x", "user", "users", "z", "é", "user/\U0001f600"]
    await commit_ops(store, *[put(key, space=space) for space in spaces for key in ("a", "b", "c")])
    await commit_ops(store, *[DeleteMemory("z", key) for key in ("a", "b", "c")])
    known = sorted(set(spaces) - {"z"})
    namespaces = store.memories.namespaces
    assert await namespaces() == known
    assert await namespaces("user/") == [space for space in known if space.startswith("user/")]
    assert await namespaces("user/", after="a", limit=2) == ["user/Ann", "user/ann"]
    assert await namespaces("user/", after="user/ann") == ["user/ann/x", "user/\U0001f600"]
    assert await namespaces(after="é") == await namespaces("none") == await namespaces("\ud800") == []


@pytest.mark.asyncio
async def test_memories_are_listed_by_key_page_by_page(store: Store):
    names = ["z", "a b", "é", "a", "Z", "\U0001f600", "0", "a\x00b"]
    await commit_ops(store, *[put(name) for name in names])
    assert await keys(store) == sorted(names)
    assert await keys(store, limit=3) == sorted(names)[:3]
    assert await keys(store, after=sorted(names)[2], limit=3) == sorted(names)[3:6]
    assert await keys(store, after="\U0010ffff") == []


# With the record of a step


@pytest.mark.asyncio
async def test_a_memory_of_a_step_exists_exactly_if_its_record_does(store: Store):
    run = await start_claimed_run(store)
    assert await commit_ops(store, step(run, 0, put()), step(run, 1, DeleteMemory("ann", "none"))) == [DONE, DONE]
    assert await keys(store) == ["likes"]
    await commit_ops(store, release(run))
    await claim_run(store)
    assert await commit_ops(store, step(run, 2, put("other")), step(run, 3, DeleteMemory("ann", "likes"))) == [
        FENCED,
        FENCED,
    ]
    assert await keys(store) == ["likes"]


@pytest.mark.asyncio
async def test_a_repeated_record_does_not_change_the_memory_again(store: Store, second_store: Store):
    run = await start_claimed_run(store)
    ops = [step(run, 0, put(text="tea")), step(run, 1, DeleteMemory("ann", "gone"))]
    assert await commit_ops(store, *ops) == [DONE, DONE]
    await commit_ops(second_store, put(text="coffee"), put("gone"))
    assert await commit_ops(store, *ops) == [DONE, DONE]
    kept = await store.memories.get("ann", "likes")
    assert kept is not None
    assert kept.text == "coffee"
    assert await keys(store) == ["gone", "likes"]


@pytest.mark.asyncio
async def test_a_record_that_another_holder_has_written_changes_no_memory(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, append(run, 0), release(run))
    taken = await claim_run(store)
    assert await commit_ops(store, append(taken, 0, epoch=taken.epoch)._replace(memory=put())) == [FENCED]
    assert await keys(store) == []


@pytest.mark.asyncio
async def test_a_retry_leaves_memories_as_they_are(store: Store):
    run = await start_claimed_run(store)
    await commit_ops(store, step(run, 0, put()), finish(run, RunState.FAILED, rewind=rewind(0, command_count=0)))
    assert await commit_ops(store, ReopenRun("r", 1.0)) == [DONE]
    assert await keys(store) == ["likes"]


# Searching


@pytest.mark.asyncio
async def test_words_are_found_in_key_and_text_whatever_their_case_and_accents(store: Store):
    await commit_ops(store, put("Fav-Drink", "Crème BRÛLÉE, e\u0301clair; \ufb01ne Straße"), put("z", "nothing of it"))
    for text in ("fav", "DRINK", "creme", "Crème", "bru\u0302lee", "ÉCLAIR", "fine", "STRASSE"):
        assert await found(store, text) == ["Fav-Drink"], text
    for text in ("fa", "drinks", "cr", "brulees", "eclai"):
        assert await found(store, text) == [], f"{text!r} is only part of a word"


@pytest.mark.asyncio
async def test_one_of_the_words_is_enough_and_better_matches_come_first(store: Store):
    await commit_ops(
        store,
        put("a", "the tea is green and there is a lot more to be said about where it grows"),
        put("b", "green tea, green tea"),
        put("c", "black tea"),
        put("d", "black coffee"),
        put("e", "something else"),
    )
    assert await found(store, "green tea") == ["b", "a", "c"]
    assert await found(store, "green tea", limit=2) == ["b", "a"]
    assert await found(store, "coffee unheard") == ["d"]


@pytest.mark.asyncio
async def test_equal_matches_come_in_the_order_of_their_keys(store: Store):
    await commit_ops(store, *[put(key, "tea") for key in ("c1", "a1", "b1")], put("d1", "tea", space="bob"))
    assert await found(store, "tea") == ["a1", "b1", "c1"]


@pytest.mark.asyncio
@pytest.mark.parametrize("text", ["", "   ", "!?", '"', "''", "*", "\x00", "\udc80", "()", "-", "^:{}", "—"])
async def test_without_a_word_nothing_is_found(store: Store, text: str):
    await commit_ops(store, put())
    assert await found(store, text) == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "text",
    ['"tea', 'tea"', "tea*", "NOT tea", "tea AND unheard", "tea NEAR(x", "words:tea", "tea OR", "(tea", "t'ea tea",
     "tea; DROP TABLE memories", "^tea", "tea\x00x", "\udc80tea", "-tea", "{space} : tea"],
)  # fmt: skip
async def test_a_search_is_text_and_not_a_query(store: Store, text: str):
    await commit_ops(store, put("likes", "green tea"))
    assert await found(store, text) == ["likes"]


@pytest.mark.asyncio
async def test_words_of_the_query_language_are_words(store: Store):
    await commit_ops(store, put("a", "this or that"), put("b", "near and far"), put("c", "space words"))
    assert [await found(store, text) for text in ("OR", "NEAR", "AND", "NOT", "space", "words")] == [
        ["a"], ["b"], ["b"], [], ["c"], ["c"],
    ]  # fmt: skip


@pytest.mark.asyncio
async def test_scripts_without_spaces_are_found_by_their_characters(store: Store):
    await commit_ops(store, put("a", "東京タワーに行きたい"), put("b", "Москва́ — столица"), put("c", "हिन्दी में"))
    assert await found(store, "東京") == ["a"]
    assert await found(store, "москва") == ["b"]
    assert await found(store, "हिन्दी") == ["c"]


@pytest.mark.asyncio
async def test_huge_values_texts_and_questions_are_no_trouble(store: Store):
    value, text = b"x" * (3 * MAX_INLINE_BYTES), "word " * 50_000 + "needle"
    await commit_ops(store, put("big", text, value=value), put("small", "needle"))
    kept = await store.memories.get("ann", "big")
    assert kept is not None
    assert (kept.value, kept.text) == (value, text)
    assert await found(store, "needle") == ["small", "big"]
    assert await found(store, " ".join(f"w{n}" for n in range(MAX_QUERY_WORDS - 1)) + " needle") == ["small", "big"]
    assert await found(store, " ".join(f"w{n}" for n in range(20_000)) + " needle") == [], "only the first count"
    run = await start_claimed_run(store)
    await commit_ops(store, step(run, 0, put("with a step", value=value, text=text)))
    assert await found(store, "step") == ["with a step"]


@pytest.mark.asyncio
async def test_unusual_keys_are_refused_or_stored_exactly(store: Store):
    odd = "a'b\"c\x00d\U0001f600\n"
    await commit_ops(store, put(odd, "x\x00y \udc80z", space=odd))
    kept = await store.memories.get(odd, odd)
    assert kept is not None
    assert kept.text == "x\x00y ?z"
    assert await found(store, "z", odd) == [odd]
    assert await store.memories.get("\udc80", "a") is None
    assert await store.memories.get("a", "\udc80") is None
    assert await store.memories.list("\udc80") == await store.memories.search("\udc80", "x") == []


@pytest.mark.parametrize("make", [put, lambda key="k", space="s": DeleteMemory(space, key)])
def test_a_key_that_cannot_be_stored_is_refused_when_the_change_is_made(make: Any):
    for place in ({"key": "a\udc80"}, {"space": "a\udc80"}):
        with pytest.raises(UsageError, match=r"contains half of a character"):
            make(**place)
    with pytest.raises(UsageError, match="not empty"):
        make(key="")


# All stores find the same


LETTERS = st.sampled_from("aAbBéÉ\u0301 -_.'\"ßſıİ1²東京カ̈हिन्ﬁΩ\x00\u00a0")
TEXTS = st.text(LETTERS, max_size=12) | st.text(max_size=8).filter(lambda text: text.isprintable())


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["k1", "é k", "b"]), TEXTS), min_size=1, max_size=5), st.lists(TEXTS, max_size=4)
)
def test_the_stores_find_the_same_in_the_same_order(kept: list[tuple[str, str]], wanted: list[str]):
    async def search(store: Any) -> list[list[str]]:
        await store.open()
        await commit_ops(store, *[put(key, text) for key, text in kept], put("elsewhere", "a b 1", space="bob"))
        told = [await found(store, text) for text in (*wanted, *[text for _, text in kept])]
        await store.close()
        return told

    with tempfile.TemporaryDirectory() as folder:
        in_a_file = asyncio.run(search(SqliteStore(Path(folder) / "runs.db", clock=Clock())))
    assert in_a_file == asyncio.run(search(MemoryStore(clock=Clock())))


def test_the_stores_rank_alike_among_many():
    chance = random.Random(7)
    vocabulary = [f"word{number}" for number in range(12)]
    kept = [
        put(f"k{number}", " ".join(chance.choices(vocabulary, k=chance.randint(0, 25))), space=chance.choice("abcd"))
        for number in range(120)
    ]

    async def search(store: Any) -> list[list[str]]:
        await store.open()
        await commit_ops(store, *kept)
        questions = [" ".join(vocabulary[at : at + most]) for at in range(12) for most in (1, 2, 5)]
        told = [await found(store, question, space, limit=50) for question in questions for space in "ab"]
        await store.close()
        return told

    with tempfile.TemporaryDirectory() as folder:
        in_a_file = asyncio.run(search(SqliteStore(Path(folder) / "runs.db", clock=Clock())))
    assert in_a_file == asyncio.run(search(MemoryStore(clock=Clock())))


@given(st.text())
def test_words_are_found_by_themselves_and_contain_nothing_that_separates(text: str):
    made = tokenize(text)
    assert tokenize(" ".join(made)) == made
    assert not any(character in word for word in made for character in " \"'*():^-\x00")
