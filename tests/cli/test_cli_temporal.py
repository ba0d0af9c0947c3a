"""Commands on a Temporal server: the same words as on any store, and plain ones for what there is not."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import temporal_server
from holdfast.cli import main
from holdfast.errors import StoreError
from holdfast.services.archive_files import iter_archive_lines
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.operations import NewRun, StartRun
from holdfast.stores.urls import create_store
from temporal_server import own


@pytest.fixture
def run_id(monkeypatch: pytest.MonkeyPatch) -> str:
    """A run that nobody executes."""
    url = temporal_server.url()
    monkeypatch.setenv("HOLDFAST_URL", url)
    monkeypatch.delenv("HOLDFAST_NAMESPACE", raising=False)
    name = own("cli")

    async def start() -> None:
        store = create_store(url)
        for _ in range(300):
            try:
                await store.open()
            except StoreError:
                await asyncio.sleep(0.1)
            else:
                break
        new = NewRun(name, own("flow"), b'{"n":1}', b"digest", name.encode(), time.time(), tags=("cli",))
        await store.commit([StartRun(new)])
        await store.close()

    asyncio.run(start())
    return name


def run_cli(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, list(words))
    assert result.exit_code == code, result.output
    return result.output


def test_a_run_is_shown_listed_signalled_paused_and_cancelled(run_id: str):
    shown = json.loads(run_cli("show", run_id, "--json"))
    assert (shown["state"], shown["inputs"], shown["tags"]) == ("pending", {"n": 1}, ["cli"])
    assert "no live worker serves workflow" in shown["stall_reason"]
    until = time.monotonic() + 10
    while run_id not in run_cli("runs", "--tag", "cli"):
        assert time.monotonic() < until, "it is not listed"
    run_cli("signal", run_id, "go", "1")
    run_cli("pause", run_id)
    assert "paused" in run_cli("show", run_id)
    run_cli("resume", run_id)
    run_cli("cancel", run_id)
    assert json.loads(run_cli("show", run_id, "--json"))["cancel_state"] == "requested"
    assert "there is no run" in run_cli("show", own("nobody"), code=1)


def test_doctor_reports_the_server(run_id: str):
    checks = {check["name"]: check for check in json.loads(run_cli("doctor", "--json"))["checks"]}
    assert checks["server"]["message"].startswith("Temporal 1.")
    assert checks["tags"]["message"] == "searched for by HoldfastTags"
    assert "default" in run_cli("namespaces").splitlines()


def test_doctor_reports_an_unreachable_server(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_URL", "temporal://127.0.0.1:1/default?api_key=sesame")
    output = run_cli("doctor", code=1)
    assert "127.0.0.1:1" in output
    assert "sesame" not in output


# What is refused, as docs/temporal.md lists it

DOCS = Path(__file__).parents[2] / "docs" / "temporal.md"

COMMANDS: dict[str, tuple[str, ...]] = {
    "start": ("nobody-serves-it",),
    "runs": (),
    "show": ("RUN",),
    "signal": ("RUN", "go"),
    "approvals": (),
    "approve": ("no-approval",),
    "deny": ("no-approval",),
    "cancel": ("RUN",),
    "pause": ("RUN",),
    "resume": ("RUN",),
    "budget": ("RUN",),
    "costs": (),
    "retry": ("RUN",),
    "settle": ("RUN", "1", "--did-not-happen"),
    "fork": ("RUN",),
    "dead": (),
    "dead show": ("RUN",),
    "dead retry": ("RUN",),
    "dead purge": ("RUN", "--yes"),
    "prune": ("--older-than", "1d", "--yes"),
    "erase": ("RUN", "--yes"),
    "backup": ("copy.db",),
    "restore": ("copy.db",),
    "mark-restored": ("--since", "1h"),
    "agents": (),
    "disable": ("FLOW",),
    "enable": ("FLOW",),
    "schedules": (),
    "schedules show": ("nightly",),
    "schedules pause": ("nightly",),
    "schedules resume": ("nightly",),
    "schedules trigger": ("nightly",),
    "schedules delete": ("nightly",),
    "queues": (),
    "queues show": ("llm",),
    "queues set": ("llm", "--concurrency", "2"),
    "queues reset": ("llm",),
    "queues pause": ("default",),
    "queues resume": ("llm",),
    "send": ("mail",),
    "addresses": (),
    "addresses set": ("mail", "--lease", "10"),
    "policies": (),
    "policies set": ("agent", "--runs", "3"),
    "policies delete": ("agent",),
    "serve": ("--port", "0"),
    "keys create": ("ci", "--scope", "read"),
    "keys list": (),
    "keys revoke": ("3f2a90c1d4e7",),
    "audit": (),
    "export": ("RUN",),
    "export --all": (),
    "import": ("ARCHIVE",),
    "namespaces": (),
    "doctor": (),
}
"""Every command that asks a store, and what it needs to get as far as that."""

NOT_TRIED = {"demo", "run", "mcp", "worker", "events", "tail", "encryption-key", "replay", "check"}
"""They follow runs or execute them until they are stopped, or ask no store."""


def leaves(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[str]:
    """The commands that do something, by the words that call them."""
    if not isinstance(command, click.Group):
        yield " ".join(words)
        return
    if words and command.invoke_without_command:
        yield " ".join(words)
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        yield from leaves(inner, (*words, name))


def read_documented_refusals() -> set[str]:
    """The commands in the table of what is refused; a group stands for all that is in it."""
    section = DOCS.read_text().split("### Refused")[1].split("\n#")[0]
    firsts = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    return {words for first in firsts for words in re.findall(r"`holdfast ([^`]+)`", first)}


async def announce(flow: str) -> None:
    store = create_store(temporal_server.url())
    await store.open()
    await store.announce_workflows([WorkflowSpec(flow, ())])
    await store.close()


async def archived() -> str:
    """What ``holdfast export --all`` writes for a run."""
    store = create_store("memory://")
    await store.open()
    await store.commit([StartRun(NewRun("r", "flow", b"{}", b"digest", b"0123456789abcdef", 1000.0))])
    written = [line async for line in iter_archive_lines(store, ["r"], decrypted=False)]
    await store.close()
    return "\n".join(written) + "\n"


def test_every_command_that_asks_a_store_is_tried_here():
    assert {name.partition(" --")[0] for name in COMMANDS} | NOT_TRIED == set(leaves(main))


def test_the_table_of_what_is_refused_is_true(run_id: str, tmp_path: Path):
    archive = tmp_path / "runs.jsonl"
    archive.write_text(asyncio.run(archived()))
    flow = json.loads(run_cli("show", run_id, "--json"))["workflow"]
    asyncio.run(announce(flow))
    given = {"RUN": run_id, "FLOW": flow, "ARCHIVE": str(archive)}
    refused: dict[str, str] = {}
    for name, arguments in COMMANDS.items():
        words = [given.get(word, word) for word in arguments]
        result = CliRunner().invoke(main, [*name.split(), *words])
        assert result.exit_code != 2, f"{name}: {result.output}"
        assert result.exception is None or isinstance(result.exception, SystemExit), f"{name}: {result.exception!r}"
        if "not on Temporal" in result.output:
            assert result.exit_code == 1, name
            refused[name] = result.output
    documented = read_documented_refusals()
    groups = {name for name in documented if any(other.startswith(f"{name} ") for other in refused)}
    covered = {name for name in COMMANDS if name in documented or name.split()[0] in groups}
    assert set(refused) == covered
    for name, what in {"send": "addresses", "keys list": "API keys", "policies": "policies"}.items():
        assert f"{what}: not on Temporal" in refused[name]
