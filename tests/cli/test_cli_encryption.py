"""Commands over a sealed database: with its key, with another one, and with none."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path

import pytest
from cli_project import Project, make_project

from holdfast import AesEncryption, Client, RunFailed, Runtime, ask, step, workflow
from holdfast.reports.run_info import RunErrorInfo
from holdfast.services.journal_files import Journal
from process_state import isolated_definitions

KEYS = "HOLDFAST_ENCRYPTION_KEYS"
WORD = "xylophone"
KEY, OTHER = (base64.b64encode(letter * 32).decode() for letter in (b"k", b"o"))
[KEY_ID] = AesEncryption(KEY).key_ids


async def _seed(url: str) -> None:
    @step
    async def play(what: str) -> str:
        return f"played {what}"

    @workflow(name="sealed-concert", id="concert")
    async def concert(what: str) -> str:
        return await play(what)

    @workflow(name="sealed-failure", id="failure")
    async def failure(what: str) -> str:
        raise ValueError(f"no {what} there")

    @workflow(name="sealed-question", id="question")
    async def question(what: str) -> object:
        return await ask(f"Play the {what}?")

    async with Runtime(url, encryption=AesEncryption(KEY)) as runtime:
        await (await runtime.start(concert, WORD)).result()
        with pytest.raises(RunFailed):
            await (await runtime.start(failure, WORD)).result()
        await runtime.start(question, WORD)
        async with Client(url, encryption=AesEncryption(KEY)) as client:
            while not await client.approvals():  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def concerts(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A run that has completed, one that has failed, and one that asks; all of them sealed."""
    project = make_project(tmp_path_factory.mktemp("sealed") / "project")
    with isolated_definitions():
        asyncio.run(_seed(project.url))
    return project


def test_a_key_is_made_that_can_be_used(project: Project, monkeypatch: pytest.MonkeyPatch):
    key, another = project.here("encryption-key"), project.here("encryption-key")
    assert (key.code, key.err) == (0, "")
    assert key.out != another.out
    monkeypatch.setenv(KEYS, key.out)
    assert AesEncryption.from_environment() is not None


def test_with_the_key_everything_is_as_ever(concerts: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEYS, f"{OTHER},{KEY}")
    assert f"no {WORD} there" in concerts.here("runs").out
    assert f'"played {WORD}"' in concerts.here("show", "concert").out
    assert f"Play the {WORD}?" in concerts.here("approvals").out
    assert WORD in concerts.here("events", "concert").out
    data = {check["name"]: check["message"] for check in concerts.here("doctor", "--json").json["checks"]}
    [other] = AesEncryption(OTHER).key_ids
    assert data["encryption"] == f"what is recorded is sealed with key {other}, and key {KEY_ID} can be read"
    assert concerts.here("export", "concert", "-o", str(tmp_path / "run.json")).code == 0
    assert Journal.loads((tmp_path / "run.json").read_text()).run.output == f'"played {WORD}"'.encode()


@pytest.mark.parametrize("key", ["", OTHER], ids=["none", "another"])
def test_without_the_key_runs_are_listed_and_shown_as_far_as_they_can_be(
    concerts: Project, monkeypatch: pytest.MonkeyPatch, key: str
):
    monkeypatch.setenv(KEYS, key)
    runs = concerts.here("runs")
    assert runs.code == 0
    assert [line.split()[0] for line in runs.out.splitlines()[1:]] == ["question", "failure", "concert"]
    assert {run["id"] for run in concerts.here("runs", "--json").json} == {"concert", "failure", "question"}
    for run in ("concert", "failure", "question"):
        shown = concerts.here("show", run)
        assert (shown.code, WORD in shown.out) == (0, False)
        assert f"sealed with the encryption key {KEY_ID}" in " ".join(shown.out.split())
    assert concerts.here("approvals").code == 0
    events = concerts.here("events", "concert")
    assert events.code == 1
    assert f"error: Record 0 of run 'concert' is sealed with the encryption key {KEY_ID}" in events.err


def test_an_invalid_key_is_refused_without_being_shown(concerts: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEYS, "c2VjcmV0")
    done = concerts.here("runs")
    assert done.code == 1
    assert f"error: {KEYS}: key 1 of 1 has 6 bytes" in done.err
    assert "c2VjcmV0" not in done.err
    checks = {check["name"]: check["status"] for check in concerts.here("doctor", "--json").json["checks"]}
    assert checks["store"] == "fail"


# Archives


@pytest.mark.parametrize("key", ["", OTHER, KEY], ids=["none", "another", "the key"])
def test_archives_contain_encrypted_values_as_they_are(
    concerts: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
):
    archive, copy = tmp_path / "runs.jsonl", Project(tmp_path)
    monkeypatch.setenv(KEYS, key)
    assert concerts.here("export", "--all", "-o", str(archive)).code == 0
    assert WORD not in archive.read_text()
    assert copy.here("import", str(archive)).code == 0
    monkeypatch.setenv(KEYS, KEY)
    assert f'"played {WORD}"' in copy.here("show", "concert").out
    assert f"Play the {WORD}?" in copy.here("approvals").out
    assert WORD.encode() not in copy.database.read_bytes()


def test_a_decrypted_archive_can_be_imported_with_other_keys_or_none(
    concerts: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    archive = tmp_path / "runs.jsonl"
    monkeypatch.setenv(KEYS, KEY)
    assert concerts.here("export", "--all", "--decrypted", "-o", str(archive)).code == 0
    assert WORD in archive.read_text()
    for key in (OTHER, ""):
        monkeypatch.setenv(KEYS, key)
        (tmp_path / key[:1]).mkdir(exist_ok=True)
        copy = Project(tmp_path / key[:1])
        assert copy.here("import", str(archive)).code == 0
        assert f'"played {WORD}"' in copy.here("show", "concert").out
        assert (WORD.encode() in copy.database.read_bytes()) is (not key)


@pytest.mark.parametrize("key", ["", OTHER], ids=["none", "another"])
def test_an_archive_is_not_decrypted_without_the_key(
    concerts: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
):
    monkeypatch.setenv(KEYS, key)
    done = concerts.here("export", "--all", "--decrypted", "-o", str(tmp_path / "runs.jsonl"))
    assert done.code == 1
    assert KEYS in done.err
    assert not (tmp_path / "runs.jsonl").exists()


def test_decrypted_requires_all(concerts: Project):
    done = concerts.here("export", "concert", "--decrypted")
    assert done.code == 2
    assert "go with --all" in done.err


def test_a_client_without_the_key_sees_that_values_are_encrypted(concerts: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(KEYS, raising=False)

    async def listed() -> dict[str, object]:
        async with Client(concerts.url) as client:
            return {run.id: (run.inputs, run.error) for run in await client.list()}

    words = f"(sealed with key {KEY_ID})"
    assert asyncio.run(listed())["failure"] == (words, RunErrorInfo("holdfast.errors.UnreadableRecord", words))
