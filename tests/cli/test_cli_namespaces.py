"""``--namespace`` and ``holdfast namespaces`` on a SQLite file."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from cli_project import Project

import forked_python


def test_each_namespace_has_its_runs_and_its_workers(project: Project, monkeypatch: pytest.MonkeyPatch):
    worker = forked_python.start(
        [sys.executable, "-m", "holdfast.cli", "worker", "app:etl", "--namespace", "acme"],
        cwd=project.folder,
        env=project.environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert worker.stderr is not None
        banner = worker.stderr.readline()
        assert f"serves etl from all queues of namespace acme in {project.url}\n" in banner
        code = "from holdfast import Client; print(Client(namespace='acme').run_sync('etl', 'x'))"
        assert project.python("-c", code).out == "{'sum': 6}\n"
        data = {
            check["name"]: check for check in project.here("doctor", "--json", "--namespace", "acme").json["checks"]
        }
        assert data["namespace"]["message"] == "acme, in runs.acme.db"
        assert data["store url"]["message"] == f"{project.url}?namespace=acme (from HOLDFAST_URL)"
        assert data["workers"]["message"].startswith("1 alive")
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(timeout=30)
    assert project.here("runs").err.startswith("error: there is no database at"), "that is the default one"
    for args in (["--namespace", "acme"], ["--url", f"{project.url}?namespace=acme"]):
        assert [run["id"] for run in project.here("runs", "--json", *args).json] == ["etl-x"]
    monkeypatch.setenv("HOLDFAST_NAMESPACE", "acme")
    assert [run["id"] for run in project.here("runs", "--json").json] == ["etl-x"]
    assert project.here("runs", "--namespace", "default").code == 1

    monkeypatch.delenv("HOLDFAST_NAMESPACE")
    project.folder.joinpath("runs.notes.db").write_text("of another program")
    project.folder.joinpath("runs.Acme.db").touch()
    assert project.here("namespaces").out == "acme\n"
    assert project.python("-c", "import asyncio; from app import etl; asyncio.run(etl('y'))").code == 0
    assert project.here("namespaces", "--json").json == ["default", "acme"]


def test_a_database_without_namespaces_says_so(project: Project):
    done = project.here("namespaces")
    assert (done.code, done.out, done.err) == (0, "", f"none yet in {project.url}\n")
    assert [path.name for path in project.folder.iterdir()] == ["app.py"]
    assert "lives inside the process" in project.here("namespaces", "--url", "memory://").err
