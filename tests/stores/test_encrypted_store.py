"""A sealed store on a SQLite file: what is in the file, and what becomes of it with other keys, or with none."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from store_values import (
    CLAIM_FILTER,
    DONE,
    FLOW,
    append,
    claim_run,
    commit_ops,
    finish,
    list_signals,
    new_run,
    new_worker,
    read_run,
    release,
    save_attempt,
    signal,
    start_claimed_run,
    start_run,
)

from holdfast.codec import AesEncryption, is_encrypted_value
from holdfast.core.records import Attempt
from holdfast.core.states import RunState
from holdfast.errors import StoreUnavailable, UndecryptableValue, UsageError
from holdfast.services import webhook_settings
from holdfast.stores.approvals import ApprovalFilter, ApprovalRequest, RequestApproval
from holdfast.stores.contract import MAX_INLINE_BYTES, RunFilter, Store
from holdfast.stores.encrypted import EncryptedStore, unwrap_store
from holdfast.stores.live_events import DELIVERED, STARTED
from holdfast.stores.memories import PutMemory
from holdfast.stores.operations import AppendLiveEvents, LiveEvent, Op, OpResult, StartRun
from holdfast.stores.postgres import PgStore
from holdfast.stores.schedules import ScheduleDefinition
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.urls import create_store

pytestmark = pytest.mark.asyncio

OLD, NEW = b"o" * 32, b"n" * 32
SECRET = b'"xylophone"'


@pytest_asyncio.fixture
async def file(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest_asyncio.fixture
async def sealed(file: Path) -> AsyncIterator[EncryptedStore]:
    store = EncryptedStore(SqliteStore(file), AesEncryption(NEW))
    await store.open()
    yield store
    await store.close()


@pytest_asyncio.fixture
async def plain(file: Path, sealed: EncryptedStore) -> AsyncIterator[SqliteStore]:
    """The same data, without encryption."""
    store = SqliteStore(file)
    await store.open()
    yield store
    await store.close()


@pytest_asyncio.fixture
async def stranger(file: Path, sealed: EncryptedStore) -> AsyncIterator[EncryptedStore]:
    """The same data, with another key."""
    store = EncryptedStore(SqliteStore(file), AesEncryption(OLD))
    await store.open()
    yield store
    await store.close()


def in_file(file: Path) -> bytes:
    """All that is on the disk, also what is not in the database itself yet."""
    return b"".join(path.read_bytes() for path in file.parent.glob("runs.db*") if path.is_file())


def blobs_in(file: Path) -> list[int]:
    with sqlite3.connect(file) as connection:
        return [size for (size,) in connection.execute("SELECT length(data) FROM blobs")]


async def test_everything_that_users_hand_in_is_sealed_in_the_file(file: Path, sealed: EncryptedStore):
    run = await start_claimed_run(sealed, inputs=SECRET)
    question = ApprovalRequest(
        "xylophone?", choices=("xylophone", "no"), form_schema=SECRET, arguments=SECRET, reason="xylophone"
    )
    told = LiveEvent(3, "1.1.0", 0, "text", SECRET, 1.0)
    begun = LiveEvent(3, "1.1.0", -1, STARTED, b'{"name":"pay","arguments":"a=\'xylophone\'"}', 1.0)
    await commit_ops(
        sealed,
        append(run, 0, payload=SECRET, preview="a='xylophone'"),
        save_attempt(run, 1, progress=SECRET, error="xylophone"),
        signal(payload=SECRET),
        RequestApproval(run.key, run.epoch, 2, "q", question, 1.0),
        AppendLiveEvents(run.key, run.epoch, (begun, told)),
        PutMemory("ann", "likes", SECRET, "xylophone", 1.0),
    )
    await sealed.schedules.put([ScheduleDefinition("s", "etl", "every 60", SECRET)])
    secret = await webhook_settings.set_webhook(sealed, "agent", "https://xylophone.example")
    assert secret is not None
    hook = await webhook_settings.find_webhook(sealed, "agent")
    assert hook is not None
    assert hook.secret == secret
    transaction = await sealed.step_transactions.begin(run, Attempt(4, 1, name="pay"), is_sync=True)
    assert transaction is not None
    transaction.connection.execute("CREATE TABLE bought (what)")
    assert await transaction.commit(SECRET) is DONE

    [history] = await sealed.get_histories([run.key])
    assert (history.records[0].payload, history.records[0].preview) == (SECRET, "a='xylophone'")
    assert (history.attempts[1].progress, history.attempts[1].error) == (SECRET, "xylophone")
    assert history.attempts[4].outcome == SECRET
    assert [one.payload for one in history.signals] == [SECRET]
    assert [one.request for one in await sealed.list_approvals(ApprovalFilter())] == [question]
    feed = await sealed.get_run_updates("r", -1, 0)
    assert feed is not None
    assert [notice for _, notice in feed.live_events if notice.position == 3] == [begun, told]
    assert (await sealed.memories.list("ann"))[0].value == SECRET
    assert (await sealed.schedules.list())[0].definition.inputs == SECRET

    await commit_ops(sealed, finish(run, RunState.FAILED, output=SECRET, error=SECRET))
    ended = await read_run(sealed)
    assert (ended.inputs, ended.output, ended.error) == (SECRET, SECRET, SECRET)
    found = in_file(file)
    assert b"xylophone" not in found
    assert secret.encode() not in found
    assert b"extract" in found  # the name of a step, which stays


async def test_a_run_that_killed_its_worker_still_reports_its_steps_in_flight(sealed: EncryptedStore):
    inner = sealed.inner
    assert isinstance(inner, SqliteStore)
    for _ in range(3):
        run = await start_claimed_run(sealed) if await sealed.get_run("r") is None else await claim_run(sealed)
        told = LiveEvent(0, f"{run.epoch}.1.0", -1, STARTED, b'{"name":"pay","arguments":"card=4711","attempt":1}', 1.0)
        await commit_ops(sealed, AppendLiveEvents(run.key, run.epoch, (told,)))
        inner.workers._locks.release(inner.workers._own_workers[run.owner or 0])
        await sealed.workers.reap_dead()
    error = json.loads((await read_run(sealed)).error or b"")
    assert error["in_flight"] == [{"position": 0, "name": "pay", "attempt": 1, "at": 1.0}]


async def test_events_that_a_claim_appends_are_sealed(file: Path, sealed: EncryptedStore):
    worker = await sealed.workers.register(new_worker(), 10.0)
    await start_run(sealed, "r")
    event = LiveEvent(-1, "delivered", 1, DELIVERED, SECRET, 1.0)
    [run] = await sealed.claims.claim_each([worker], workflows=[FLOW], make_event=lambda _: event)
    updates = await sealed.get_run_updates(run.id, -1, 0)
    assert updates is not None
    assert [found for _, found in updates.live_events] == [event]
    assert b"xylophone" not in in_file(file)


async def test_records_from_before_encryption_was_enabled_stay_readable(file: Path):
    before = SqliteStore(file)
    await before.open()
    run = await start_claimed_run(before, inputs=b'{"a":1}')
    large = json.dumps("words " * 20_000).encode()
    await commit_ops(
        before, append(run, 0, payload=large), signal(payload=b"2"), PutMemory("ann", "likes", b"3", "tea", 1.0)
    )
    await commit_ops(before, release(run))
    await before.close()
    after = EncryptedStore(SqliteStore(file), AesEncryption(NEW))
    await after.open()
    taken = await claim_run(after)
    assert taken.inputs == b'{"a":1}'
    await commit_ops(after, append(taken, 1, payload=SECRET))
    [history] = await after.get_histories([taken.key])
    assert [record.payload for record in history.records] == [large, SECRET]
    assert [one.payload for one in history.signals] == [b"2"]
    assert (await after.memories.list("ann"))[0].value == b"3"
    await after.close()


async def test_keys_are_exchanged_one_after_the_other(file: Path, sealed: EncryptedStore):
    before = EncryptedStore(SqliteStore(file), AesEncryption(OLD))
    await before.open()
    await start_run(before, "a", inputs=SECRET)
    await before.close()
    between = EncryptedStore(SqliteStore(file), AesEncryption(NEW, OLD))
    await between.open()
    await start_run(between, "b", inputs=SECRET)
    assert [run.inputs for run in await between.get_runs(["a", "b"])] == [SECRET, SECRET]
    await between.close()
    assert (await read_run(sealed, "b")).inputs == SECRET
    assert is_encrypted_value((await read_run(sealed, "a")).inputs)


# Without the key


async def test_without_the_key_runs_are_listed_and_nothing_is_lost(
    sealed: EncryptedStore, plain: Store, stranger: Store, caplog: pytest.LogCaptureFixture
):
    await start_run(sealed, "theirs", inputs=SECRET)
    for store in (plain, stranger):
        run = await start_run(store, f"ours of {type(store).__name__}", inputs=b'{"a":1}')
        with caplog.at_level(logging.WARNING, "holdfast.stores"):
            listed = {run.id: run.inputs for run in await store.list_runs(RunFilter())}
            await store.get_run("theirs")
        assert listed[run.id] == b'{"a":1}'
        assert is_encrypted_value(listed["theirs"])
        assert is_encrypted_value((await read_run(store, "theirs")).inputs)
    [said] = [record.getMessage() for record in caplog.records]  # once, and not by the store without encryption
    assert f"sealed with the encryption key {AesEncryption(NEW).key_ids[0]}" in said
    assert (await read_run(sealed, "theirs")).inputs == SECRET


async def test_without_the_key_a_held_run_does_not_get_an_undecryptable_signal(
    sealed: EncryptedStore, stranger: EncryptedStore
):
    worker = await stranger.workers.register(new_worker(), 60.0)
    run = await start_run(stranger, claim_as=worker)
    await commit_ops(sealed, signal(payload=SECRET))
    await commit_ops(stranger, signal(payload=b"2"))
    assert [one.payload for _, one in (await stranger.claims.get_new_signals(worker, 0)).signals] == [b"2"]
    assert [is_encrypted_value(one.payload) for one in await list_signals(stranger, run)] == [True, False]


async def test_a_changed_value_is_not_decrypted_and_the_log_says_why(
    file: Path, sealed: EncryptedStore, caplog: pytest.LogCaptureFixture
):
    await start_run(sealed, inputs=SECRET)
    with sqlite3.connect(file) as connection:
        [(inputs,)] = connection.execute("SELECT inputs FROM runs").fetchall()
        connection.execute("UPDATE runs SET inputs = ?", (inputs[:-1] + bytes([inputs[-1] ^ 1]),))
    connection.close()
    with caplog.at_level(logging.WARNING, "holdfast.stores"):
        assert is_encrypted_value((await read_run(sealed)).inputs)
    assert "was changed since" in caplog.text


# What does not work, or works otherwise


async def test_memories_cannot_be_searched_and_the_error_says_why(sealed: EncryptedStore):
    await commit_ops(sealed, PutMemory("ann", "likes", b"1", "tea", 1.0))
    with pytest.raises(UsageError, match=r"cannot be searched: they are encrypted.*memory\.list"):
        await sealed.memories.search("ann", "tea")


async def test_runs_are_found_by_their_names_and_not_by_their_errors(sealed: EncryptedStore):
    run = await start_claimed_run(sealed, "order-7")
    error = b'{"type":"ValueError","message":"no xylophone","qualname":"ValueError","attributes":{}}'
    await commit_ops(sealed, finish(run, RunState.FAILED, error=error))
    assert await sealed.list_runs(RunFilter(text="xylophone")) == []
    assert [run.error for run in await sealed.list_runs(RunFilter(text="order"))] == [error]


async def test_large_values_are_compressed_and_come_back(file: Path, sealed: EncryptedStore):
    words, noise = (
        json.dumps("again " * 200_000).encode(),
        b'"' + os.urandom(3 * MAX_INLINE_BYTES).hex().encode() + b'"',
    )
    run = await start_claimed_run(sealed, inputs=words)
    await commit_ops(sealed, append(run, 0, payload=noise), signal(payload=words))
    [history] = await sealed.get_histories([run.key])
    assert (history.records[0].payload, history.signals[0].payload) == (noise, words)
    assert (await read_run(sealed)).inputs == words
    [kept] = blobs_in(file)  # a million bytes of words need not be kept apart at all
    assert kept < len(noise) * 0.6
    feed = await sealed.get_run_updates("r", -1, 0)
    assert feed is not None
    assert feed.records[0].payload == noise


class Forgetful(SqliteStore):
    """Does what it is told, and says that it does not know."""

    forgets = 0

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        answers = await super().commit(ops)
        if self.forgets:
            self.forgets -= 1
            raise StoreUnavailable("who knows")
        return answers


async def test_a_commit_that_is_repeated_leaves_no_second_copy_of_a_large_value(file: Path):
    inner = Forgetful(file)
    store = EncryptedStore(inner, AesEncryption(NEW))
    await store.open()
    run = await start_claimed_run(store)
    inner.forgets = 2
    op = append(run, 0, payload=b'"' + os.urandom(MAX_INLINE_BYTES).hex().encode() + b'"')
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await commit_ops(store, op)
    assert await commit_ops(store, op) == [DONE]
    assert len(blobs_in(file)) == 1
    assert not store._unconfirmed_ops
    await store.close()


async def test_equal_values_look_different_in_the_file(file: Path, sealed: EncryptedStore):
    await start_run(sealed, "a", inputs=SECRET)
    await start_run(sealed, "b", inputs=SECRET)
    with sqlite3.connect(file) as connection:
        found = connection.execute("SELECT inputs FROM runs").fetchall()
    connection.close()
    assert len(set(found)) == 2


# Opening one


async def test_a_store_is_sealed_if_it_is_given_an_encryption_or_there_are_keys(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("HOLDFAST_ENCRYPTION_KEYS", raising=False)
    url = f"sqlite:///{file}"
    assert isinstance(create_store(url), SqliteStore)
    given = create_store(url, encryption=AesEncryption(OLD))
    assert isinstance(given, EncryptedStore)
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEYS", AesEncryption.new_key())
    found = create_store("memory://?namespace=acme")
    assert isinstance(found, EncryptedStore)
    assert (found.namespace, found.url) == ("acme", unwrap_store(found).url)
    assert unwrap_store(unwrap_store(found)) is unwrap_store(found)
    also = create_store(url, encryption=AesEncryption(OLD))
    assert isinstance(also, EncryptedStore)
    assert repr(also.encryption) == repr(given.encryption)  # what is given counts
    monkeypatch.setenv("HOLDFAST_ENCRYPTION_KEYS", "nonsense")
    with pytest.raises(UsageError, match="HOLDFAST_ENCRYPTION_KEYS: key 1 of 1"):
        create_store(url)


async def test_a_document_that_cannot_be_opened_is_refused_in_words(sealed: EncryptedStore, plain: SqliteStore):
    await sealed.documents.put("policy", "etl", b'{"a":1}')
    assert (await sealed.documents.list("policy"))[0].load_json() == {"a": 1}
    [document] = await plain.documents.list("policy")
    with pytest.raises(UndecryptableValue, match="What the server keeps of policy 'etl' is sealed"):
        document.load_json()


async def test_two_who_start_the_same_run_get_the_same_values(sealed: EncryptedStore, stranger: EncryptedStore):
    [first] = await commit_ops(sealed, StartRun(new_run(inputs=SECRET)))
    [again] = await commit_ops(sealed, StartRun(new_run(inputs=SECRET)))
    assert (first.run.inputs, again.run.inputs, again.is_new) == (SECRET, SECRET, True)
    assert is_encrypted_value((await commit_ops(stranger, StartRun(new_run(inputs=SECRET))))[0].run.inputs)
    [claimed] = await sealed.claims.claim(await sealed.workers.register(new_worker(), 60.0), **CLAIM_FILTER, limit=5)
    assert claimed.inputs == SECRET


async def test_an_encrypted_store_has_the_settings_of_the_store_that_it_wraps(file: Path):
    store = PgStore("postgresql://localhost/app")
    assert store.min_overlap_count is not None
    for inner in (store, SqliteStore(file)):
        outer = EncryptedStore(inner, AesEncryption(NEW))
        assert (outer.url, outer.min_overlap_count) == (inner.url, inner.min_overlap_count)
