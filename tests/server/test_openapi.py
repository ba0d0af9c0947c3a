"""The OpenAPI document: valid, complete, and stable in what programs are made from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import validate

from holdfast.server.endpoints import ENDPOINTS
from holdfast.server.http.openapi import build_document


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return build_document(ENDPOINTS, version="1.0")


def operations(told: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in told["paths"].values():
        yield from path.values()


def test_the_document_is_valid(told: dict[str, Any]):
    validate(told)


def test_every_endpoint_is_in_it_under_an_id_of_its_own_with_words_and_a_scope(told: dict[str, Any]):
    ids = Counter(one["operationId"] for one in operations(told))
    assert ids == Counter(one.name for one in ENDPOINTS)
    assert max(ids.values()) == 1
    groups = {tag["name"]: tag["description"] for tag in told["tags"]}
    for one in operations(told):
        assert one["summary"], one["operationId"]
        assert groups[one["tags"][0]], one["operationId"]
        assert ("x-scope" in one) != (one.get("security") == []), one["operationId"]
        assert "default" in one["responses"]


def test_what_is_referred_to_is_there_and_has_a_plain_name(told: dict[str, Any]):
    names = told["components"]["schemas"]
    assert [name for name in names if not re.fullmatch(r"[A-Z][A-Za-z]+", name)] == []
    run = names["RunInfo"]["properties"]
    assert run["stall_advice"]["description"].startswith("Why it does not continue")


def test_requests_need_name_only_what_is_required_also_for_programs_that_take_a_default_for_always_there(
    told: dict[str, Any],
):
    schemas = told["components"]["schemas"]
    bodies = [
        one["requestBody"]["content"]["application/json"]["schema"] for one in operations(told) if "requestBody" in one
    ]
    waiting, seen = [body["$ref"].rpartition("/")[2] for body in bodies], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for field in schemas[name].get("properties", {}).values():
            assert "default" not in field, (name, field)
        waiting += re.findall(r"#/components/schemas/(\w+)", str(schemas[name]))
    assert len(seen) > 20
    assert schemas["StartBody"]["required"] == ["workflow"]
    assert schemas["ClaimBody"]["properties"]["name"]["description"]
    assert "Default: 1." in schemas["StepBody"]["properties"]["attempts"]["description"]


def test_it_says_where_the_server_is_and_which_headers_answers_have(told: dict[str, Any]):
    assert told["servers"][0]["url"] == "/"
    start = told["paths"]["/v1/runs"]["post"]["responses"]
    assert set(start["201"]["headers"]) == {"X-Request-Id", "RateLimit-Policy", "RateLimit", "Location"}
    assert "Location" not in start["200"]["headers"]
    assert "Retry-After" in told["components"]["responses"]["Problem429"]["headers"]
    assert "request_id" in told["components"]["schemas"]["Problem"]["properties"]
