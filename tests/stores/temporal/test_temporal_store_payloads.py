"""Large payloads are kept elsewhere, and what is encrypted cannot be read by the server."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from store_values import new_run
from temporal_stores import opened_store
from temporalio.api.common.v1 import Payload
from temporalio.converter import StorageDriverClaim, StorageDriverRetrieveContext, StorageDriverStoreContext

import temporal_server
from holdfast.codec import AesEncryption
from holdfast.errors import CodecError, StoreCorrupt, StoreError, StoreUnavailable, UsageError
from holdfast.stores.operations import StartRun
from holdfast.stores.temporal.connection import EncryptionCodec, connect
from holdfast.stores.temporal.history import fetch_events, iter_payloads
from holdfast.stores.temporal.payload_storage import FolderStorage, to_external_storage
from holdfast.stores.temporal.targets import parse_target

KEY = "a" * 64


@pytest.mark.asyncio
async def test_a_folder_keeps_what_it_was_given_and_nothing_outside_of_it(tmp_path: Path):
    storage = FolderStorage(tmp_path / "deep/payloads")
    await storage.put(KEY, b"value")
    await storage.put(KEY, b"another one under the same key is never written")
    assert await storage.get(KEY) == b"value"
    assert await storage.get("b" * 64) is None
    for trick in ("../../x", "a" * 63 + "/", "A" * 64, ""):
        with pytest.raises(StoreCorrupt):
            await storage.get(trick)
        with pytest.raises(StoreCorrupt):
            await storage.put(trick, b"")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a" * 62]


@pytest.mark.asyncio
async def test_a_folder_that_cannot_be_written_to_says_so(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="check that the folder of `\\?payloads=` is there"):
        await FolderStorage(tmp_path / "file").put(KEY, b"value")


@pytest.mark.asyncio
async def test_what_was_changed_or_removed_is_noticed(tmp_path: Path):
    driver = to_external_storage(FolderStorage(tmp_path)).drivers[0]
    payload = Payload(metadata={"encoding": b"json/plain"}, data=b"1")
    [claim] = await driver.store(StorageDriverStoreContext(), [payload])
    assert await driver.retrieve(StorageDriverRetrieveContext(), [claim]) == [payload]
    [path] = [path for path in tmp_path.rglob("*") if path.is_file()]
    path.write_bytes(b"something else")
    with pytest.raises(StoreCorrupt, match="was changed"):
        await driver.retrieve(StorageDriverRetrieveContext(), [claim])
    path.unlink()
    with pytest.raises(StoreCorrupt, match="names another place"):
        await driver.retrieve(StorageDriverRetrieveContext(), [claim])
    with pytest.raises(StoreCorrupt, match="no proper key"):
        await driver.retrieve(StorageDriverRetrieveContext(), [StorageDriverClaim({"key": "../../etc/passwd"})])


def test_a_process_that_is_killed_over_a_payload_leaves_none_that_is_half_written(tmp_path: Path):
    code = """
        import asyncio, hashlib, os, sys
        from holdfast.stores.temporal.payload_storage import FolderStorage

        async def main():
            storage = FolderStorage(sys.argv[1])
            for number in range(10_000):
                data = os.urandom(500_000)
                await storage.put(hashlib.sha256(data).hexdigest(), data)
                print(number, flush=True)

        asyncio.run(main())
    """
    program = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(5):
            assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        told = 5 + len(process.stdout.read().splitlines())
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and not path.name.startswith(".draft-")]
    assert len(kept) >= told, "what was told to be kept is there"
    assert all(hashlib.sha256(path.read_bytes()).hexdigest() == path.parent.name + path.name for path in kept)


@pytest.mark.asyncio
async def test_large_inputs_are_kept_apart_and_all_is_unreadable_to_the_server(tmp_path: Path):
    encryption = AesEncryption(AesEncryption.new_key())
    place, inputs = f"payloads={tmp_path}", b'"' + b"z" * 3_000_000 + b'"'
    new = new_run(temporal_server.own("large"), workflow=temporal_server.own("sealed"), tags=("acme",), inputs=inputs)
    store = await opened_store(place, encryption=encryption)
    [started] = await store.commit([StartRun(new)])
    assert started.is_new
    found = await store.get_run(new.id)
    assert found is not None
    assert (found.inputs, found.seed, found.tags) == (new.inputs, new.seed, new.tags)

    client = await connect(parse_target(temporal_server.url()))
    raw = await client.get_workflow_handle(new.id).fetch_history()
    seen = b"".join(payload.SerializeToString() for event in raw.events for payload in iter_payloads(event))
    assert new.seed.hex().encode() not in seen
    assert len(seen) < 10_000
    assert b"zzzz" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

    plain = await opened_store()
    with pytest.raises(StoreError, match="is encrypted, and this process has no key"):
        await plain.get_run(new.id)
    other = await opened_store(place, encryption=AesEncryption(AesEncryption.new_key()))
    with pytest.raises(CodecError):
        await other.get_run(new.id)
    with pytest.raises(StoreError, match="kept elsewhere"):
        await fetch_events(client, new.id)
    for one in (store, plain, other):
        await one.close()


@pytest.mark.asyncio
async def test_a_codec_leaves_alone_what_was_not_encrypted():
    codec = EncryptionCodec(AesEncryption(AesEncryption.new_key()))
    plain = Payload(metadata={"encoding": b"json/plain", "holdfast-usage": b"{}"}, data=b"1")
    [sealed] = await codec.encode([plain])
    assert sealed.metadata == {"encoding": b"binary/encrypted"}
    assert await codec.decode([sealed, plain]) == [plain, plain]


@pytest.mark.asyncio
async def test_a_server_that_cannot_be_used_says_why():
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await connect(parse_target("temporal://127.0.0.1:1/default", {}))
    await (await opened_store()).close()
    with pytest.raises(StoreError, match="there is no namespace 'nowhere' on this server"):
        await connect(parse_target(f"temporal://{temporal_server.address()}/nowhere", {}))
    with pytest.raises(StoreError, match="no encrypted connection came about"):
        await connect(parse_target(temporal_server.url("tls=true"), {}))
    with pytest.raises(UsageError, match="tls_ca=/no/such/file: the file cannot be read"):
        await connect(parse_target(temporal_server.url("tls_ca=/no/such/file"), {}))
