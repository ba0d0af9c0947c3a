"""A server over a sealed store: what agents hand it is on no disk, and without the key it opens nothing to anybody."""

from __future__ import annotations

from pathlib import Path

import pytest
from asgi_server import running_server

from holdfast import AesEncryption, Client, UndecryptableValue
from holdfast.client.http.problems import error_from_response

pytestmark = pytest.mark.asyncio

KEYS = "HOLDFAST_ENCRYPTION_KEYS"
WORD = "xylophone"


def on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def test_deliveries_and_stored_settings_are_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEYS, AesEncryption.new_key())
    async with running_server(f"sqlite:///{tmp_path / 'runs.db'}") as served:
        http = served.caller(await served.key("admin", "listen:*"))
        sent = await http.post("/v1/addresses/band/send", json={"payload": {"play": WORD}})
        taken = await http.post("/v1/addresses/band/claim", json={}, params={"wait": 5})
        assert taken.status_code == 200, taken.text
        delivery = taken.json()
        assert delivery["payload"] == {"play": WORD}
        place = f"/v1/deliveries/{delivery['id']}"
        step = {"name": "tune", "output": WORD}
        assert (await http.post(f"{place}/steps", json=step)).status_code == 200
        assert (await http.post(f"{place}/complete", json={"output": f"{WORD} played"})).status_code == 200
        run = (await http.get(f"/v1/runs/{sent.json()['id']}")).json()
        assert run["output"] == f"{WORD} played"
        found = on_disk(tmp_path)
        assert b"band" in found
        assert WORD.encode() not in found


async def test_a_server_without_the_encryption_key_admits_no_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    monkeypatch.setenv(KEYS, AesEncryption.new_key())
    async with running_server(url) as served:
        token = await served.key("admin")
        assert (await served.caller(token).get("/v1/whoami")).status_code == 200
    for other in ("", AesEncryption.new_key()):
        monkeypatch.setenv(KEYS, other)
        async with running_server(url) as served:
            assert (await served.caller().get("/v1/whoami")).status_code == 401
            answer = await served.caller(token).get("/v1/whoami")
            assert (answer.status_code, answer.json()["type"]) == (500, "undecryptable-value")
            assert KEYS in answer.json()["detail"]
            assert isinstance(error_from_response(500, answer.json(), "http://x", "GET /v1/whoami"), UndecryptableValue)


async def test_a_run_that_the_server_cannot_decrypt_is_reported_and_others_are_not_affected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Client(url, encryption=AesEncryption(AesEncryption.new_key())) as client:
        sealed = (await client.send("band", {"play": WORD})).run_id
    monkeypatch.delenv(KEYS, raising=False)
    async with running_server(url) as served, Client(url) as client:
        plain = (await client.send("orchestra", {"play": "drum"})).run_id
        listed = (await served.caller().get("/v1/runs")).json()["items"]
        assert {run["id"] for run in listed} == {sealed, plain}
        assert (await served.caller().get(f"/v1/runs/{plain}")).json()["inputs"] == {"payload": {"play": "drum"}}
