"""Commands over HTTP: the same command tells the same of a store and of a server over it."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asgi_server import running_server
from cli_project import Outcome, Project
from live_server import running_live_server
from populated_store import furnish

READING: Sequence[tuple[str, ...]] = [
    ("runs",),
    ("runs", "--state", "failed", "--workflow", "known"),
    ("runs", "--limit", "2", "--before", "waiting"),
    ("show", "failed"),
    ("events", "sent-0"),
    ("approvals",),
    ("approvals", "sent-0", "--all"),
    ("budget", "held"),
    ("costs",),
    ("dead",),
    ("agents", "--all"),
    ("disable",),
    ("schedules",),
    ("schedules", "show", "often"),
    ("queues",),
    ("queues", "show", "known"),
    ("addresses",),
    ("policies",),
    ("prune", "--older-than", "0s", "--dry-run"),
]
CHANGING: Sequence[tuple[str, ...]] = [
    ("start", "known", "--id", "begun", "--tag", "eu", "--delay", "1h"),
    ("start", "known", "--id", "begun"),
    ("signal", "waiting", "go", "3", "--id", "once"),
    ("signal", "waiting", "go", "3", "--id", "once"),
    ("pause", "waiting"),
    ("resume", "waiting"),
    ("resume", "nowhere"),
    ("budget", "waiting", "--tokens", "20"),
    ("cancel", "waiting", "done"),
    ("retry", "--state", "failed", "--since", "1d", "--error", "no such thing", "--yes"),
    ("retry", "--state", "failed", "--state", "dead", "--yes"),
    ("retry", "failed"),
    ("fork", "done", "--id", "again"),
    ("approve", "QUESTION", "--by", "ann"),
    ("deny", "QUESTION", "--by", "bob"),
    ("disable", "known"),
    ("enable", "known"),
    ("schedules", "pause", "often"),
    ("schedules", "resume", "often"),
    ("schedules", "delete", "often"),
    ("queues", "set", "known", "--concurrency", "7"),
    ("queues", "pause", "new", "--allow-unknown"),
    ("queues", "resume", "known"),
    ("queues", "reset", "known"),
    ("send", "place", '{"a": 1}', "--id", "s-9"),
    ("send", "place", '{"a": 1}', "--id", "s-9"),
    ("addresses", "set", "place", "--lease", "90", "--no-deadline"),
    ("policies", "set", "place", "--runs", "500"),
    ("policies", "delete", "known"),
    ("prune", "--older-than", "0s", "--yes"),
    ("dead", "purge", "--all", "--older-than", "0s", "--yes"),
]
REFUSED: Sequence[tuple[tuple[str, ...], str]] = [
    (("show", "wating"), "waiting"),
    (("start", "knwn"), "did you mean 'known'?"),
    (("disable", "knwn"), "did you mean 'known'?"),
    (("enable", "knwn"), "did you mean 'known'?"),
    (("queues", "pause", "defalt"), "did you mean 'default'?"),
    (("queues", "show", "knwn"), "did you mean 'known'?"),
    (("schedules", "show", "oftn"), "did you mean 'often'?"),
    (("approve", "zzz"), "there is no approval 'zzz'"),
    (("retry", "held"), "only a failed, cancelled or dead run can be retried"),
    (("fork", "done", "--at", "nine"), "nine"),
]
STORE_ONLY: Sequence[tuple[str, ...]] = [
    ("worker", "app:etl"),
    ("serve",),
    ("import", __file__),
    ("export", "--all"),
    ("namespaces",),
]


@dataclass(frozen=True)
class RemoteProject(Project):
    """A project whose commands go to a server."""

    address: str

    @property
    def url(self) -> str:
        return self.address


@dataclass(frozen=True)
class Pair:
    """Two databases with the same in them, and a server over one of them."""

    local: Project
    remote: RemoteProject
    question: str

    def both(self, *words: str) -> tuple[Outcome, Outcome]:
        """What a command says of the one and of the other."""
        args = [self.question if word == "QUESTION" else word for word in words]
        return self.local.here(*args), self.remote.here(*args)


@contextmanager
def served(url: str) -> Iterator[str]:
    """The address of a server over the store at ``url``, in a thread of its own."""
    ready, stop, places = threading.Event(), threading.Event(), list[str]()

    async def serve() -> None:
        async with running_live_server(url) as server:
            places.append(server.address)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    try:
        yield places[0]
    finally:
        stop.set()
        thread.join(20)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    local, other = (Project(tmp_path_factory.mktemp(name)) for name in ("local", "remote"))

    async def fill() -> str:
        async with running_server(local.url) as server:
            return (await furnish(server, None))["approvals"][0]

    question = asyncio.run(fill())
    shutil.copy(local.database, other.database)
    with served(other.url) as address:
        yield Pair(local, RemoteProject(other.folder, address), question)


def mask_random_values(text: str) -> Any:
    """JSON, or lines of it, without what is another one each time: moments of this very command, and where it is."""
    try:
        found: Any = json.loads(text)
    except ValueError:
        found = [json.loads(line) for line in text.splitlines()]
    masked = re.sub(r"20\d\d-\d\d-\d\d[T ][\d:.]+(\+00:00|Z| UTC)?", "WHEN", json.dumps(found))
    masked = re.sub(r"(http://127\.0\.0\.1:\d+|sqlite:///[^ \"]*runs\.db)", "URL", masked)
    return json.loads(re.sub(r"\d+ (second|minute)s? ago|\bnow\b", "AGO", masked))


def mask_times(text: str) -> str:
    """Lines for people, without moments and spans: what is "now" is "1 s ago" soon, and "59 s ago" "1 min ago".

    Columns are as wide as they must be.
    """
    masked = re.sub(r"(\d[\d.]* (ms|s|min|h|d)\b *)+ago|\bnow\b", "AGO ", text)
    masked = re.sub(r"(\d[\d.]* (ms|s|min|h|d)\b *)+", "SPAN ", masked)
    return re.sub(r" +", " ", re.sub(r"[\d:.]+( *UTC)?", "N", masked))


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_server_prints_the_same_as_its_store(pair: Pair, words: tuple[str, ...]):
    local, remote = pair.both(*words, "--json")
    assert (remote.code, remote.err) == (local.code, local.err) == (0, "")
    assert mask_random_values(remote.out) == mask_random_values(local.out)
    assert local.out.strip() not in ("[]", "", "{}") or words[0] in ("dead", "disable")


def test_lists_for_people_are_the_same(pair: Pair):
    for words in (("runs",), ("show", "held"), ("agents", "--all"), ("queues",), ("addresses",), ("approvals",)):
        local, remote = pair.both(*words)
        assert (remote.code, remote.err) == (local.code, local.err) == (0, "")
        assert mask_times(remote.out) == mask_times(local.out)


def test_an_export_is_the_same_file_and_can_be_read_again(pair: Pair, tmp_path: Path):
    local, remote = (
        project.here("export", "sent-0", "-o", str(tmp_path / name))
        for project, name in ((pair.local, "local"), (pair.remote, "remote"))
    )
    assert (local.code, remote.code) == (0, 0)
    assert (tmp_path / "remote").read_bytes() == (tmp_path / "local").read_bytes()


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_a_refusal_is_the_same_message_over_http(pair: Pair, words: tuple[str, ...], message: str):
    local, remote = pair.both(*words)
    assert local.code == remote.code == 1
    assert message in remote.err
    assert remote.err.startswith("error: ")
    there = remote.err.replace("this server's store", "URL").replace(pair.remote.url, "URL")
    assert there == local.err.replace(pair.local.url, "URL")


@pytest.mark.parametrize("words", STORE_ONLY, ids=" ".join)
def test_what_needs_the_store_itself_says_so(pair: Pair, words: tuple[str, ...]):
    refused = pair.remote.here(*words)
    assert refused.code == 1
    assert refused.err.startswith("error: ")
    assert "is a Holdfast server" in refused.err
    assert "the store" in refused.err


def test_commands_that_change_something_say_the_same(pair: Pair):
    for words in CHANGING:
        local, remote = pair.both(*words, "--json")
        assert (remote.code, remote.err) == (local.code, local.err), words
        assert mask_random_values(remote.out) == mask_random_values(local.out), words


def test_a_triggered_schedule_starts_a_run_there(pair: Pair):
    made = pair.remote.here("schedules", "trigger", "often", "--json")
    if made.code:  # the test before this one has deleted it
        assert "there is no schedule 'often'" in made.err
        return
    assert made.json["run_id"] in [run["id"] for run in pair.remote.here("runs", "--json").json]


def test_doctor_looks_at_the_server(pair: Pair):
    done = pair.remote.here("doctor", "--json")
    checks = {check["name"]: check for check in done.json["checks"]}
    assert (done.code, done.json["ok"]) == (0, True)
    assert pair.remote.url in checks["server"]["message"]
    assert "on this machine" in checks["tls"]["message"]
    assert "none is needed" in checks["key"]["message"]
    assert checks["clock"]["status"] == "ok"
    assert {"namespace", "runs", "workers", "listeners"} <= checks.keys()


def test_the_key_determines_the_namespace(pair: Pair):
    refused = pair.remote.here("runs", "--namespace", "acme")
    assert refused.code == 1
    assert "a server knows by the key whose runs are meant" in refused.err


def test_an_unreachable_server_is_reported_quickly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("holdfast.cli.shared.store_access.OPEN_TIMEOUT_S", 0.0)
    refused = RemoteProject(tmp_path, "http://127.0.0.1:9").here("runs")
    assert refused.code == 1
    assert "http://127.0.0.1:9 does not answer" in refused.err
    assert "Traceback" not in refused.err


def test_keys_are_made_used_and_revoked_over_http(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    """The last one: from the first key on, the server wants one."""
    made = pair.remote.here("keys", "create", "boss", "--scope", "admin", "--json").json
    assert "does not know the caller" in pair.remote.here("runs").err
    assert pair.remote.here("doctor").code == 1
    monkeypatch.setenv("HOLDFAST_API_KEY", made["token"])
    reader = pair.remote.here("keys", "create", "reader", "--scope", "read", "--quiet").out.strip()
    listed = pair.remote.here("keys", "list", "--json").json
    assert [(key["name"], key["scopes"]) for key in listed] == [("boss", ["admin"]), ("reader", ["read"])]
    assert pair.remote.here("audit", "--json").json[0]["action"] == "create_api_key"

    monkeypatch.setenv("HOLDFAST_API_KEY", reader)
    assert pair.remote.here("runs").code == 0
    refused = pair.remote.here("cancel", "held")
    assert refused.code == 1
    assert "It needs the scope 'operate'" in refused.err

    monkeypatch.setenv("HOLDFAST_API_KEY", made["token"])
    assert pair.remote.here("keys", "revoke", listed[1]["id"], "--json").json == {
        "id": listed[1]["id"],
        "changed": True,
        "error": None,
    }
    unknown = pair.remote.here("keys", "revoke", "nobody")
    assert unknown.code == 1
    assert "there is no key 'nobody'" in unknown.err


def test_a_key_that_may_only_submit_sends_signals_and_triggers(project: Project, monkeypatch: pytest.MonkeyPatch):
    """It may not look at what becomes of that, which is no reason to say that it was not done."""

    async def fill() -> None:
        async with running_server(project.url) as server:
            await furnish(server, None)

    asyncio.run(fill())
    key = project.here("keys", "create", "sender", "--scope", "submit", "--quiet").out.strip()
    monkeypatch.setenv("HOLDFAST_API_KEY", key)
    with served(project.url) as address:
        remote = RemoteProject(project.folder, address)
        assert "It needs the scope 'read'" in remote.here("runs").err
        sent = remote.here("send", "place", "{}", "--id", "s-10", "--json")
        assert (sent.code, sent.err) == (0, "")
        assert sent.json == {"id": "s-10", "address": "place", "state": None, "created": None}
        assert remote.here("send", "place").out.startswith("sent to 'place' as run ")
        begun = remote.here("start", "known", "--id", "begun", "--delay", "1h")
        assert (begun.code, begun.out) == (0, "run 'begun' of workflow 'known' was started\n")
        signalled = remote.here("signal", "s-10", "go", "3")
        assert (signalled.code, signalled.out) == (0, "sent signal 'go' to run 's-10'\n")
        unknown = remote.here("signal", "nowhere", "go")
        assert unknown.code == 1
        assert "there is no run 'nowhere'" in unknown.err
        triggered = remote.here("schedules", "trigger", "often", "--json")
        assert (triggered.code, triggered.err) == (0, "")
        assert triggered.json["run_id"] in [run["id"] for run in project.here("runs", "--json").json]
