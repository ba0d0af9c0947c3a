from __future__ import annotations

import http.client
import json

import pytest

from holdfast import Runtime, UsageError
from holdfast.engine.journal_engine import JournalEngine
from holdfast.processes.probe_listener import ProbeListener, ProbeResponse, make_probe_routes
from holdfast.processes.readiness import Readiness


def request(port: int, path: str, method: str = "GET") -> tuple[int, str, bytes]:
    """Status, content type, and body of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path)
    response = connection.getresponse()
    return response.status, response.headers["Content-Type"], response.read()


def test_a_process_is_healthy_from_the_start_and_ready_while_it_has_no_reason_not_to_be():
    readiness = Readiness()
    with ProbeListener("127.0.0.1", 0, make_probe_routes(readiness)) as listener:
        assert request(listener.port, "/healthz") == (200, "application/json", b'{"ok": true}\n')
        status, _, body = request(listener.port, "/readyz")
        assert (status, json.loads(body)) == (503, {"ready": False, "reason": "it is starting"})
        readiness.get_reason = lambda: ""
        status, _, body = request(listener.port, "/readyz?verbose")
        assert (status, json.loads(body)) == (200, {"ready": True, "reason": None})
        assert request(listener.port, "/readyz", "HEAD") == (200, "application/json", b"")
        assert request(listener.port, "/")[0] == 404
        assert request(listener.port, "/healthz", "POST")[0] == 501


def test_a_listener_answers_what_else_it_is_given():
    routes = make_probe_routes(Readiness()) | {"/metrics": lambda: ProbeResponse(200, b"up 1\n", "text/plain")}
    with ProbeListener("127.0.0.1", 0, routes) as listener:
        assert request(listener.port, "/metrics") == (200, "text/plain", b"up 1\n")


def test_an_address_in_use_is_a_usage_error():
    with (
        ProbeListener("127.0.0.1", 0, {}) as listener,
        pytest.raises(UsageError, match=f"cannot answer probes on 127.0.0.1:{listener.port}"),
    ):
        ProbeListener("127.0.0.1", listener.port, {})


@pytest.mark.asyncio
async def test_a_runtime_is_ready_between_its_start_and_its_end():
    runtime = Runtime("memory://")
    assert runtime.not_ready_reason == "it is starting"
    await runtime.open()
    assert runtime.not_ready_reason == ""
    engine = runtime._engine
    assert isinstance(engine, JournalEngine)
    engine.membership._lease_valid_until = 0.0
    assert runtime.not_ready_reason == "its lease has passed, because the store did not respond"
    await runtime.close()
    assert runtime.not_ready_reason == "it is stopping"
