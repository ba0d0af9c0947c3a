"""The files in ``deploy/``: what they say fits together, and their commands work, stop cleanly, and lose nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
import yaml
from app_processes import World
from containers import (
    Container,
    PidOneContainer,
    find_isolation,
    make_app_folder,
    parse_seconds,
    read_dockerfile,
    read_unit,
    run_container,
    with_ports,
)
from ledger import check_end
from postgres_processes import PgWorld, Proxy
from test_process_supervisor import read_probe

from free_ports import free_port
from holdfast import Client
from holdfast.cli.server.serve import serve
from holdfast.cli.worker import worker
from waits import wait_until_sync

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
KUBERNETES = {
    (one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
}
UNIT = read_unit(DEPLOY / "holdfast-worker.service")
STOP_MARGIN_S = 5
"""Seconds that a process may take beyond its grace: to hand over, and for threads that hang."""


@pytest.fixture
def fleet(pg_world: PgWorld) -> Iterator[PgWorld]:
    """A world on PostgreSQL that the user of a container can reach."""
    proxy = Proxy(pg_world.url)
    pg_world.url = proxy.url
    make_app_folder(pg_world)
    yield pg_world
    for app in pg_world.apps:
        app.clean_up()
    proxy.close()


def get_default_grace_s(arguments: list[str]) -> float:
    """The grace of a command without ``--grace``."""
    command = {"worker": worker, "serve": serve}[arguments[0]]
    assert "--grace" not in arguments
    (option,) = [option for option in command.params if option.name == "grace_s"]
    return parse_seconds(str(option.default).removesuffix(" s"))


def wait_until_ready(container: Container, port: int) -> None:
    wait_until_sync(lambda: read_probe(port, "/readyz")[0] == 200, "it is ready", describe=lambda: container)


def make_key(world: World) -> str:
    """An API key, as its user makes it: in a container of the server's image."""
    made = run_container(world, ["keys", "create", "me", "--scope", "admin"]).ends()
    (line,) = made.stdout_lines
    return line


# What the files say


def test_the_image_runs_without_root_keeps_no_cache_and_takes_signals():
    instructions = read_dockerfile(DEPLOY / "Dockerfile")
    stages = [at for at, (word, _) in enumerate(instructions) if word == "FROM"]
    assert len(stages) == 2
    final = dict(instructions[stages[1] :])
    assert int(final["USER"].split(":")[0]) > 0
    assert json.loads(final["ENTRYPOINT"]) == ["holdfast"], "a shell would not pass signals on"
    assert json.loads(final["CMD"])[0] == "worker"
    assert all("--no-cache-dir" in rest for word, rest in instructions if word == "RUN" and "pip" in rest)
    assert not [rest for word, rest in instructions[stages[1] :] if word == "RUN"], "it only copies what was built"
    for word, rest in instructions:
        if word == "COPY" and not rest.startswith("--from"):
            assert all((DEPLOY / name).exists() for name in rest.split()[:-1])


def test_whatever_stops_a_process_waits_longer_than_its_grace():
    for name in ("server", "worker"):
        service, container = COMPOSE[name], get_pod(name)["containers"][0]
        grace_s = get_default_grace_s(service["command"]) + STOP_MARGIN_S
        assert parse_seconds(service["stop_grace_period"]) >= grace_s
        pre_stop_s = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert get_pod(name)["terminationGracePeriodSeconds"] >= grace_s + pre_stop_s
    assert float(UNIT["TimeoutStopSec"]) >= get_default_grace_s(["worker"]) + STOP_MARGIN_S
    assert UNIT["KillMode"] == "mixed"


def test_containers_have_no_more_rights_than_they_need():
    for name in ("server", "worker"):
        assert COMPOSE[name]["read_only"]
        assert COMPOSE[name]["cap_drop"] == ["ALL"]
        assert get_pod(name)["securityContext"]["runAsNonRoot"]
        context = get_pod(name)["containers"][0]["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]


def get_pod(name: str) -> dict[str, Any]:
    return KUBERNETES["Deployment", f"holdfast-{name}"]["spec"]["template"]["spec"]


def test_probes_and_services_name_ports_that_containers_listen_on():
    for name in ("server", "worker"):
        (container,) = get_pod(name)["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert f"0.0.0.0:{ports['probes']}" in container["args"]
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "probes"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probes"}
    (port,) = KUBERNETES["Service", "holdfast-server"]["spec"]["ports"]
    (default,) = [option.default for option in serve.params if option.name == "port"]
    assert port["port"] == ports_of("server")[port["targetPort"]] == default
    assert COMPOSE["server"]["ports"] == [f"127.0.0.1:{default}:{default}"]


def ports_of(name: str) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in get_pod(name)["containers"][0]["ports"]}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_accepts_the_unit(tmp_path: Path):
    unit = (DEPLOY / "holdfast-worker.service").read_text()
    (tmp_path / "holdfast-worker.service").write_text(unit.replace("/srv/app/venv/bin/holdfast", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "holdfast-worker.service"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "holdfast-worker.service" not in done.stderr, "it warns of nothing in the unit"


# What their commands do


def test_the_command_of_the_image_is_healthy_while_it_works_and_loses_nothing_when_it_stops(fleet: PgWorld):
    instructions = dict(read_dockerfile(DEPLOY / "Dockerfile"))
    port = free_port()
    check = json.loads(instructions["HEALTHCHECK"].partition("CMD ")[2].replace("7180", str(port)))
    assert check[0] == "python"

    def is_healthy() -> bool:
        return subprocess.run([sys.executable, *check[1:]], capture_output=True, check=False).returncode == 0

    assert not is_healthy()
    container = run_container(fleet, with_ports(json.loads(instructions["CMD"]), probes=port), PidOneContainer)
    wait_until_sync(is_healthy, "it is healthy", describe=lambda: container)
    runs = [fleet.client.start_sync("busy", f"{n}", 100) for n in range(4)]
    fleet.wait_for_line("nap", "finish")
    container.send(signal.SIGTERM)
    container.ends()
    assert not is_healthy()
    assert {journal.state for journal in fleet.journals().values()} == {"pending"}, "they were handed over"

    successor = run_container(fleet, with_ports(json.loads(instructions["CMD"]), probes=port))
    wait_until_ready(successor, port)
    for run in runs:
        assert fleet.wait_for_end(run).deliveries == 0
    assert len(fleet.lines("nap", "start")) == 4 * 100, "no step was executed twice"
    successor.send(signal.SIGTERM)
    successor.ends()


def test_the_services_of_compose_lose_nothing_when_one_is_killed_and_all_are_stopped(fleet: PgWorld):
    key, http, probes = make_key(fleet), free_port(), [free_port() for _ in range(3)]
    assert COMPOSE["worker"]["deploy"]["replicas"] == 2

    def start(name: str, at: int) -> Container:
        arguments = with_ports(COMPOSE[name]["command"], probes=probes[at], http=http if name == "server" else None)
        return run_container(fleet, arguments)

    def start_all() -> list[Container]:
        containers = [start("server", 0), start("worker", 1), start("worker", 2)]
        for container, port in zip(containers, probes, strict=True):
            wait_until_ready(container, port)
        return containers

    server, victim, survivor = start_all()
    client = Client(f"http://127.0.0.1:{http}", api_key=key)
    runs = [client.start_sync("busy", f"{n}", 60) for n in range(6)]
    pids = victim.process_pids
    wait_until_sync(lambda: any(fleet.lines("nap", "finish", pid=pid) for pid in pids), "it executes a run")
    for pid in [victim.pid, *pids]:  # as when the container runs out of memory
        os.kill(pid, signal.SIGKILL)
    for container in (server, survivor):
        container.send(signal.SIGTERM)
        container.ends()
    assert read_probe(probes[0], "/healthz") == (0, {})

    containers = start_all()
    for run in runs:
        assert client.wait_sync(run, 60) == 60
    client.close_sync()
    check_end(fleet.snapshot(), killed=pids)
    for container in containers:
        container.send(signal.SIGTERM)
        container.ends()


def test_the_pods_of_kubernetes_are_ready_and_tell_an_autoscaler_how_many_runs_wait(fleet: PgWorld):
    key, http, probes = make_key(fleet), free_port(), [free_port(), free_port()]
    (server_args,), (worker_args,) = (
        [one["args"] for one in get_pod(name)["containers"]] for name in ("server", "worker")
    )
    server = run_container(fleet, with_ports(server_args, probes=probes[0], http=http))
    wait_until_ready(server, probes[0])
    scaled, _ = yaml.safe_load_all((DEPLOY / "autoscaling.yaml").read_text())
    assert ("Deployment", scaled["spec"]["scaleTargetRef"]["name"]) in KUBERNETES
    (trigger,) = scaled["spec"]["triggers"]
    url = httpx2.URL(trigger["metadata"]["url"])

    def read_waiting() -> int:
        headers = {"authorization": f"Bearer {key}", "host": f"{url.host}:{url.port}"}
        value = httpx2.get(f"http://127.0.0.1:{http}{url.path}", headers=headers).json()
        for word in trigger["metadata"]["valueLocation"].split("."):
            value = value[word]
        return value

    assert read_waiting() == 0
    pods = run_container(fleet, with_ports(worker_args, probes=probes[1]))
    wait_until_ready(pods, probes[1])
    pods.send(signal.SIGTERM)
    pods.ends()
    runs = [fleet.client.start_sync("shared", f"{n}") for n in range(3)]
    assert read_waiting() == 3
    pods = run_container(fleet, with_ports(worker_args, probes=probes[1]))
    for run in runs:
        fleet.wait_for_end(run)
    assert read_waiting() == 0
    for container in (pods, server):
        container.send(signal.SIGTERM)
        container.ends()


def test_the_command_of_the_unit_serves_a_sqlite_file(world: World):
    (world.folder / "app.py").write_text((DEPLOY / "app.py").read_text())
    words = shlex.split(UNIT["ExecStart"])
    assert re.fullmatch(r"/.*/bin/holdfast", words[0])
    port = free_port()
    service = world.service(*with_ports(words[1:], probes=port))
    wait_until_sync(lambda: read_probe(port, "/readyz")[0] == 200, "it is ready", describe=lambda: service)
    assert world.client.run_sync("report", "acme") == "acme: 4"
    service.send(signal.SIGTERM)
    service.ends()


@pytest.mark.skipif(not find_isolation(own_pids=True), reason="needs a process namespace of its own")
def test_a_supervisor_that_is_process_1_reaps_what_tools_leave_behind(fleet: PgWorld):
    (fleet.folder / "app.py").write_text(
        "import subprocess\nfrom holdfast import step, workflow\n"
        "@step\ndef leave_orphan() -> None:\n    subprocess.run(['sh', '-c', 'sleep 0.1 & exec true'])\n"
        "@workflow\nasync def leave() -> None:\n    await leave_orphan()\n"
    )
    container = run_container(fleet, ["worker", "app", "--processes", "1"], PidOneContainer)
    container.wait_for_log("is ready")
    fleet.client.run_sync("leave")
    supervisor = psutil.Process(container.main_pid)
    wait_until_sync(lambda: len(supervisor.children()) == 1, "only the worker is left", describe=supervisor.children)
    container.send(signal.SIGTERM)
    container.ends()
