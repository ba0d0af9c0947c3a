"""``holdfast serve``, ``keys`` and ``audit`` on the command line."""

from __future__ import annotations

import json
import re
import sys

import pytest
from cli_project import Project

TOKEN = re.compile(r"hf_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


def test_a_key_is_made_shown_once_listed_and_revoked(project: Project):
    made = project.here("keys", "create", "ci", "--scope", "submit", "--scope", "read", "--expires", "30d")
    assert made.code == 0
    shown = TOKEN.fullmatch(made.out.strip())  # so that it can be piped; the rest is said beside it
    assert shown
    assert "for namespace default: read, submit, until" in made.err
    quiet = project.here("keys", "create", "boss", "--scope", "admin", "--namespace", "acme", "--quiet")
    assert TOKEN.fullmatch(quiet.out.strip())
    assert quiet.err == ""
    as_json = project.here("keys", "create", "l", "--scope", "listen:jobs", "--expires", "2099-01-31", "--json").json
    assert TOKEN.fullmatch(as_json["token"])
    assert as_json["expires_at"].startswith(("2099-01-30", "2099-01-31"))

    listed = project.here("keys", "list", "--json").json
    assert [(key["name"], key["namespace"], key["scopes"]) for key in listed] == [
        ("ci", "default", ["read", "submit"]),
        ("boss", "acme", ["admin"]),
        ("l", "default", ["listen:jobs"]),
    ]
    assert [key["name"] for key in project.here("keys", "list", "--namespace", "acme", "--json").json] == ["boss"]
    output = project.here("keys", "list")
    assert shown[0] not in output.out
    assert "expires in 29 d" in output.out
    assert project.database.read_bytes().find(shown[0].split("_", 2)[2].encode()) == -1

    assert (
        project.here("keys", "revoke", shown[1]).out
        == f"key {shown[1]} is revoked: servers stop accepting it within two seconds\n"
    )
    assert project.here("keys", "revoke", shown[1], "--json").json == {"id": shown[1], "changed": False, "error": None}
    assert re.search(rf"^{shown[1]} .* revoked now$", project.here("keys", "list").out, re.M)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["create", "x"], 2, "Missing option '--scope'"),
        (["create", "x", "--scope", "everything"], 1, "'everything' is no scope"),
        (["create", " ", "--scope", "read"], 1, "a key's name has 1 to 100"),
        (["create", "x", "--scope", "read", "--expires", "2001-01-01"], 1, "that is over"),
        (["create", "x", "--scope", "read", "--expires", "soon"], 2, "is not a date or time"),
        (["create", "x", "--scope", "read", "--quiet", "--json"], 2, "give one of them"),
        (["create", "x", "--scope", "read", "--url", "memory://"], 1, "lives inside the process"),
        (["list"], 1, "there is no database at"),
        (["revoke", "0" * 12], 1, "there is no database at"),
    ],
)
def test_invalid_options_are_errors(project: Project, words: list[str], code: int, says: str):
    done = project.here("keys", *words)
    assert done.code == code
    assert says in " ".join(done.err.split())


def test_a_key_that_is_not_there_cannot_be_revoked(project: Project):
    assert project.here("keys", "create", "x", "--scope", "read").code == 0
    done = project.here("keys", "revoke", "nobody")
    assert done.code == 1
    assert "there is no key 'nobody': `holdfast keys list`" in done.err


def test_the_audit_log_is_shown(project: Project):
    assert project.here("audit").code == 1  # there is no database yet
    assert project.here("keys", "create", "x", "--scope", "read").code == 0
    assert "no changes were requested" in project.here("audit").out
    code = (
        "import asyncio\n"
        "from holdfast.stores.audit_log import AuditEvent\n"
        "from holdfast.stores.urls import create_store, resolve_store_url\n"
        "async def main():\n"
        "    store = create_store(resolve_store_url())\n"
        "    await store.open()\n"
        "    await store.audit_log.append([AuditEvent(1.8e9 + n, 'k1', 'ci', 'cancel_run', f'run-{n}\\x1b[31m', "
        "'denied' if n % 2 else 'allowed', '10.0.0.1') for n in range(3)])\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    assert project.python("-c", code).code == 0
    output = project.here("audit", "--limit", "2").out.splitlines()
    assert [line.split()[3:5] for line in output[1:]] == [["allowed", "cancel_run"], ["denied", "cancel_run"]]
    assert "run-2\\x1b[31m" in output[1]
    entries = json.loads(project.here("audit", "--json").out)
    assert [entry["target"] for entry in entries] == [f"run-{n}\x1b[31m" for n in (2, 1, 0)]
    assert entries[0] == {
        "id": 3,
        "at": "2027-01-15T08:00:02Z",
        "key_id": "k1",
        "key_name": "ci",
        "action": "cancel_run",
        "target": "run-2\x1b[31m",
        "outcome": "allowed",
        "remote_address": "10.0.0.1",
    }


def test_a_server_says_what_it_needs_and_where_it_may_not_listen(project: Project):
    refused = project.here("serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.code == 1
    assert "holdfast keys create" in refused.err
    code = "import sys\nsys.modules['uvicorn'] = None\nfrom holdfast.cli import main\nmain(['serve'])\n"
    missing = project.python("-c", code)
    assert missing.code == 1
    assert "pip install 'holdfast-agents[server]'" in missing.err
    assert "Traceback" not in missing.err


def test_a_key_that_is_not_known_does_not_keep_others_from_being_revoked(project: Project):
    first, second = (project.here("keys", "create", name, "--scope", "read", "--json").json["id"] for name in "ab")
    done = project.here("keys", "revoke", first, "0" * 12, second)
    assert done.code == 1
    assert [line.split()[1] for line in done.out.splitlines()] == [first, second]
    assert done.err.startswith(f"error: there is no key '{'0' * 12}'")
    assert all(key["revoked_at"] for key in project.here("keys", "list", "--json").json)


def test_a_server_without_its_packages_says_which_extra_to_install(project: Project, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("holdfast.server.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "re2", None)
    refused = project.here("serve", "--port", "0")
    assert refused.code == 1
    assert refused.err.startswith("error: a server needs packages that are not installed here")
    assert "pip install 'holdfast-agents[server]'" in refused.err
