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
def document() -> dict[str, Any]:
    return build_document(ENDPOINTS, version="1.0")


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in document["paths"].values():
        yield from path.values()


def test_the_document_is_valid(document: dict[str, Any]):
    validate(document)


def test_every_endpoint_is_in_the_document_with_its_own_id_a_description_and_a_scope(document: dict[str, Any]):
    ids = Counter(one["operationId"] for one in operations(document))
    assert ids == Counter(one.name for one in ENDPOINTS)
    assert max(ids.values()) == 1
    groups = {tag["name"]: tag["description"] for tag in document["tags"]}
    for one in operations(document):
        assert one["summary"], one["operationId"]
        assert groups[one["tags"][0]], one["operationId"]
        assert ("x-scope" in one) != (one.get("security") == []), one["operationId"]
        assert "default" in one["responses"]


def test_every_reference_resolves_and_has_a_readable_name(document: dict[str, Any]):
    names = document["components"]["schemas"]
    assert [name for name in names if not re.fullmatch(r"[A-Z][A-Za-z]+", name)] == []
    run = names["RunInfo"]["properties"]
    assert run["stall_advice"]["description"].startswith("Why it does not continue")


def test_optional_fields_of_bodies_have_no_default_in_the_schema(
    document: dict[str, Any],
):
    schemas = document["components"]["schemas"]
    bodies = [
        one["requestBody"]["content"]["application/json"]["schema"]
        for one in operations(document)
        if "requestBody" in one
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


def test_it_says_where_the_server_is_and_which_headers_answers_have(document: dict[str, Any]):
    assert document["servers"][0]["url"] == "/"
    start = document["paths"]["/v1/runs"]["post"]["responses"]
    assert set(start["201"]["headers"]) == {"X-Request-Id", "RateLimit-Policy", "RateLimit", "Location"}
    assert "Location" not in start["200"]["headers"]
    assert "Retry-After" in document["components"]["responses"]["Problem429"]["headers"]
    assert "request_id" in document["components"]["schemas"]["Problem"]["properties"]
