"""Every endpoint, asked with whatever fits its description and whatever does not: every answer is one that is promised.

Requests are made by schemathesis from the OpenAPI document. None may end in a fault of the server's, and every answer
must be one that the document tells of. `--requests 500` makes so many of each kind for each endpoint, and `--stores
all` asks servers over SQLite and PostgreSQL as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import schemathesis
from asgi_server import running_server
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from populated_store import Known, furnish, known_parts
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast import __version__
from holdfast.server.app import Settings
from holdfast.server.endpoints import ENDPOINTS
from holdfast.server.http.openapi import build_document

KEYS = ("security", "securitySchemes")


def _without_keys(part: Any) -> Any:
    """Who may ask for what is tested elsewhere: here, everything is asked with a key that may do all."""
    if isinstance(part, dict):
        return {name: _without_keys(one) for name, one in part.items() if name not in KEYS}
    return [_without_keys(one) for one in part] if isinstance(part, list) else part


DOCUMENT = schemathesis.openapi.from_dict(_without_keys(build_document(ENDPOINTS, version=__version__)))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]

FEW = 5
"""Requests of each kind for each endpoint, unless more are asked for."""


@contextmanager
def open_tester(url: str) -> Iterator[tuple[Callable[[Any], None], Known]]:
    """A function that sends a case to a server of its own, and what there is on that."""
    with asyncio.Runner() as runner:
        scene = running_server(url, settings=Settings(requests_per_s=1e9))
        served = runner.run(scene.__aenter__())
        token = runner.run(served.key("admin", "listen:*"))
        known = runner.run(furnish(served, token))
        served.app.platform.closing.set()  # so that nobody waits for anything
        caller = served.caller(token)

        def ask(case: Any) -> None:
            sent = case.as_transport_kwargs(base_url="http://localhost")
            wanted = {
                name: sent[name] for name in ("method", "url", "params", "headers", "json", "data") if name in sent
            }
            wanted["content"] = wanted.pop("data", None)
            try:
                request = caller.build_request(**{name: value for name, value in wanted.items() if value is not None})
            except httpx2.InvalidURL:
                reject()  # longer than anybody would send it
            response = runner.run(caller.send(request))
            case.validate_response(response, checks=CHECKS)

        try:
            yield ask, known
        finally:
            runner.run(scene.__aexit__(None, None, None))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store" in metafunc.fixturenames:
        others = ["sqlite", "postgres"] if metafunc.config.getoption("--stores") == "all" else []
        metafunc.parametrize("store", ["memory", *others])


@contextmanager
def place(store: str, folder: Path) -> Iterator[str]:
    """The URL of a store of this kind."""
    if store == "postgres":
        import postgres_server

        with postgres_server.database() as url:
            yield url
    else:
        yield "memory://" if store == "memory" else f"sqlite:///{folder}/runs.db"


def _kinds() -> Iterator[Any]:
    """Each endpoint with what fits, and, if there is anything that may not fit, with what does not."""
    for one in ENDPOINTS:
        yield pytest.param(one.name, GenerationMode.POSITIVE, id=f"{one.name}-fits")
        if one.body_model is not None or one.query_model is not None or one.headers:
            yield pytest.param(one.name, GenerationMode.NEGATIVE, id=f"{one.name}-fits-not")


@pytest.mark.parametrize(("name", "mode"), list(_kinds()))
def test_every_response_is_documented(
    name: str, mode: GenerationMode, store: str, tmp_path: Path, pytestconfig: pytest.Config
):
    number = pytestconfig.getoption("--requests")
    [operation] = [one.ok() for one in DOCUMENT.get_all_operations() if one.ok().definition.raw["operationId"] == name]

    with place(store, tmp_path) as url, open_tester(url) as (ask, known):
        parts = known_parts(operation.path, known)
        chosen = {name: st.sampled_from([*there, *there, None]) for name, there in parts.items()}

        @settings(
            max_examples=number or FEW,
            derandomize=not number,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), path=st.fixed_dictionaries(chosen), what=st.booleans())
        def each(case: Any, path: dict[str, str | None], what: bool) -> None:
            for name in case.path_parameters or {}:
                if path[name] is not None:
                    case.path_parameters[name] = path[name]
            if mode.is_positive and what:
                _of_what_is_known(case)
            ask(case)

        each()


def _of_what_is_known(case: Any) -> None:
    """Let a start be one of a workflow that there is, with inputs that it takes."""
    if not isinstance(case.body, dict) or "workflow" not in case.body:
        return
    values = list(case.body.get("kwargs", {}).values())
    case.body["workflow"] = "known"
    case.body.pop("version", None)
    if "calls" in case.body:
        case.body["calls"] = [{"args": [one]} for one in case.body["calls"]]
    else:
        case.body |= {"args": [], "kwargs": {"payload": values}}
