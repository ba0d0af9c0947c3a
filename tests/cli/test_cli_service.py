"""Options of ``holdfast worker`` and ``holdfast serve`` for several processes and probes."""

from __future__ import annotations

import socket

import pytest
from cli_project import Project


@pytest.mark.parametrize("words", [["worker", "app", "--processes", "2"], ["serve", "--workers", "2"]])
def test_several_processes_cannot_share_a_store_in_memory(project: Project, words: list[str]):
    done = project.here(*words, "--url", "memory://")
    assert done.code == 1
    assert "memory:// belongs to one process, and --processes starts several" in " ".join(done.err.split())


@pytest.mark.parametrize("words", [["worker", "app"], ["serve", "--port", "0"]])
@pytest.mark.parametrize("address", ["7180", "localhost", ":7180", "localhost:70000"])
def test_a_probe_address_has_a_host_and_a_port(project: Project, words: list[str], address: str):
    done = project.here(*words, "--probe-address", address)
    assert done.code == 2
    assert f"'{address}' is not an address: write HOST:PORT" in " ".join(done.err.split())


@pytest.mark.parametrize("words", [["worker", "app"], ["serve"]])
@pytest.mark.parametrize("count", ["0", "some"])
def test_there_is_at_least_one_process(project: Project, words: list[str], count: str):
    assert project.here(*words, "--processes", count).code == 2


def test_a_port_in_use_is_one_error_before_any_process_starts(project: Project):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = project.here("serve", "--processes", "3", "--port", str(port))
        assert done.code == 1
        assert done.err.startswith(f"error: cannot listen on 127.0.0.1:{port}: ")
        done = project.here("worker", "app", "--processes", "3", "--probe-address", f"127.0.0.1:{port}")
        assert done.code == 1
        assert done.err.startswith(f"error: cannot answer probes on 127.0.0.1:{port}: ")
        assert not project.database.exists()
