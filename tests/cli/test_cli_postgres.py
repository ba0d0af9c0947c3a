"""Commands on a PostgreSQL database: what they tell of it, of namespaces and of what is wrong, and never a password."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import postgres_server
import psycopg
import pytest
from cli_project import Outcome, Project, get_checks, make_project
from click import Context

from free_ports import free_port
from holdfast import Client, Runtime
from holdfast.cli import main
from holdfast.engine import store_readiness
from holdfast.errors import HoldfastError, RunNotFound, StoreUnavailable

SECRET = "sesame"
WITHOUT_STORE = {"demo", "replay", "check", "encryption-key", "backup", "restore"}
WAITING = {"worker", "run", "serve", "mcp"}
ARGUMENTS = {
    **dict.fromkeys(["show", "events", "cancel", "pause", "resume", "budget", "retry", "fork", "export"], ("r",)),
    "settle": ("r", "1", "--did-not-happen"),
    "approve": ("a1",),
    "deny": ("a1",),
    "enable": ("etl",),
    "worker": ("app:etl",),
    "signal": ("r", "go"),
    "send": ("mailer",),
    "start": ("etl", "later"),
    "keys": ("list",),
    "import": (__file__,),
    "run": ("pay.py",),
    "prune": ("--older-than", "1d", "--dry-run"),
    "erase": ("r", "--dry-run"),
    "mark-restored": ("--since", "1h"),
}
FILL = """
import asyncio
from app import etl, order
from holdfast import Runtime

async def main():
    for namespace in ("default", "acme"):
        async with Runtime(namespace=namespace):
            await etl("in-" + namespace)
            await order.start(1)

asyncio.run(main())
"""

IMPATIENT = """
import sys
from holdfast.cli import main
from holdfast.engine import store_readiness
store_readiness.UNREACHABLE_TIMEOUT_S = 0.0
main(sys.argv[1:])
"""


@dataclass(frozen=True)
class PostgresProject(Project):
    """A folder with an ``app.py``, and a database on a server. What it says never has the password in it."""

    address: str

    @property
    def url(self) -> str:
        return self.address

    def here(self, *args: str) -> Outcome:
        done = super().here(*args)
        assert SECRET not in done.out + done.err, args
        return done


def with_user(url: str, user: str, path: str | None = None) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{user}:{SECRET}@{host}", path=path or parts.path))


@pytest.fixture(scope="module")
def pg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresProject]:
    """Two namespaces, in each of which a run has ended, and one waits."""
    folder = make_project(tmp_path_factory.mktemp("pg") / "project").folder
    with postgres_server.database(empty=True) as plain:
        user = psycopg.conninfo.conninfo_to_dict(plain)["user"]
        project = PostgresProject(folder, with_user(plain, str(user)))
        done = project.python("-c", FILL)
        assert done.code == 0, done.err
        yield project


@pytest.fixture
def unreachable(tmp_path: Path) -> PostgresProject:
    url = f"postgresql://user:{SECRET}@127.0.0.1:{free_port()}/db?namespace=acme"
    return PostgresProject(make_project(tmp_path / "project").folder, url)


def ids(done: Outcome) -> set[str]:
    assert done.code == 0, done.err
    return {run["id"] for run in done.json}


def test_commands_work_as_on_any_store(pg: PostgresProject):
    for line in [
        "runs",
        "show etl-in-acme",
        "events etl-in-acme",
        "agents --all",
        "approvals",
        f"export etl-in-acme -o {pg.folder}/journal.json",
        "budget order-1",
        "disable",
        "pause order-1",
        "resume order-1",
        "signal order-1 approved",
        "cancel order-1",
        "fork etl-in-acme --id fork",
        "disable etl",
        "enable etl",
        "doctor",
    ]:
        args = line.split()
        done = pg.here(*args, "--namespace", "acme")
        assert done.code == 0, (args, done.err)
    assert ids(pg.here("runs", "--json", "--namespace", "acme")) == {"etl-in-acme", "order-1", "fork"}
    assert ids(pg.here("runs", "--json")) == {"etl-in-default", "order-1"}


def test_suggested_commands_name_the_same_namespace(pg: PostgresProject):
    assert pg.here("namespaces", "--json").json == ["default", "acme"]
    assert pg.here("namespaces").out == "default\nacme\n"
    assert "more: holdfast runs --limit 1 --namespace acme --before" in (
        pg.here("runs", "--limit", "1", "--namespace", "acme").out
    )
    elsewhere = pg.here("runs", "--limit", "1", "--url", f"{pg.url}&application_name=x", "--namespace", "acme").out
    assert "more: holdfast runs --limit 1 --url 'postgresql://" in elsewhere
    assert ":***@" in elsewhere
    assert "no run 'etl-in-acme' in postgresql://" in pg.here("show", "etl-in-acme").err
    for namespace, message in {"bolt": "there are default and acme", "A!": "cannot be the name of a namespace"}.items():
        done = pg.here("runs", "--namespace", namespace)
        assert done.code == 1
        assert message in done.err
    assert pg.here("runs", "--namespace", "bolt", "--url", f"{pg.url}&namespace=acme").code == 1
    assert pg.here("namespaces", "--json").json == ["default", "acme"], "looking makes none"


def test_doctor_reports_the_state_of_the_database(pg: PostgresProject):
    found = get_checks(pg.here("doctor", "--json", "--namespace", "acme"))
    messages = {name: found[name]["message"] for name in found}
    assert messages["server"].startswith("PostgreSQL ")
    assert "acme, in the schema holdfast_acme of " in messages["namespace"]
    assert messages["namespace"].endswith("; others here: default")
    assert "up to date" in messages["database"]
    assert "may read and write the tables" in messages["privileges"]
    assert found["durability"]["status"] == (
        "ok" if "fsync=on, full_page_writes=on" in messages["durability"] else "warn"
    )
    assert "a durable commit" in messages["commit"]
    assert "notifications are heard" in messages["notifications"]
    assert "the server's counts" in messages["clock"]
    assert "iB in all" in messages["tables"]
    assert messages["workers"].startswith("0 alive")
    assert "completed" in messages["runs"]
    assert (
        "no tables are there yet"
        in get_checks(pg.here("doctor", "--json", "--namespace", "new"))["database"]["message"]
    )
    assert pg.here("namespaces", "--json").json == ["default", "acme"]


def test_problems_of_a_database_are_described(pg: PostgresProject):
    schema = psycopg.connect(pg.url, autocommit=True)
    name = urlsplit(pg.url).path[1:]
    with schema as admin:
        admin.execute(f"CREATE ROLE {name}_stranger LOGIN")
        admin.execute(f"CREATE ROLE {name}_nobody NOLOGIN")
        try:
            for url, problem in {
                with_user(pg.url, f"{name}_stranger"): "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES",
                with_user(pg.url, f"{name}_stranger") + "&namespace=new": "GRANT CREATE ON DATABASE",
                with_user(pg.url, f"{name}_nobody"): "refuses this user",
                with_user(pg.url, "postgres", "/nowhere"): "is not there",
                pg.url.replace("postgresql://", "mysql://"): "no store is known for mysql",
            }.items():
                if "namespace=new" not in url:
                    done = pg.here("runs", "--url", url)
                    assert done.code == 1
                    assert problem in done.err
                done = pg.here("doctor", "--json", "--url", url)
                assert done.code == 1
                [failed] = [check for check in get_checks(done).values() if check["status"] == "fail"]
                assert problem in failed["message"] + failed["advice"]
        finally:
            admin.execute(f"DROP ROLE {name}_stranger")
            admin.execute(f"DROP ROLE {name}_nobody")


def test_no_command_shows_the_password_of_a_server_that_cannot_be_reached(unreachable: PostgresProject):
    (unreachable.folder / "pay.py").write_text("from holdfast import once\n\nonce('charge-42', print)\n")
    for name in set(main.list_commands(Context(main))) - WITHOUT_STORE:
        args = [name, *ARGUMENTS.get(name, ())]
        # These wait for a while; and the modules of a worker are not to be loaded here.
        done = unreachable.python("-c", IMPATIENT, *args) if name in WAITING else unreachable.here(*args)
        assert (done.code, SECRET in done.out + done.err) == (1, False), (args, done)
        assert "user:***@127.0.0.1" in done.out + done.err
        assert "cannot be reached" in done.out + done.err


@pytest.mark.asyncio
async def test_no_error_and_no_object_shows_the_password(
    pg: PostgresProject,
    unreachable: PostgresProject,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(store_readiness, "UNREACHABLE_TIMEOUT_S", 0.0)
    texts: list[str] = []

    def note(error: HoldfastError) -> None:
        texts.extend(traceback.format_exception(error))

    async with Client(pg.url) as client, Runtime(pg.url, workflows=[]) as runtime:
        provider = runtime.store_provider
        for ask in (client.get, client.cancel, client.wait, provider.read, provider.read_journal):
            with pytest.raises(RunNotFound) as raised:
                await ask("nothing")
            note(raised.value)
        texts += [repr(client), client.url, repr(runtime), runtime.url, (await runtime.store_provider.store()).url]
    for make in (Client(unreachable.url), Runtime(unreachable.url, workflows=[])):
        with pytest.raises(StoreUnavailable) as unavailable:
            async with make:
                pass
        note(unavailable.value)
        texts += [repr(make), make.url]
    assert not [text for text in (*texts, caplog.text) if SECRET in text]
    assert sum("***" in text for text in texts) >= 8
