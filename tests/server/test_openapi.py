"""The OpenAPI document: valid, complete, and stable in what programs are made from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_spec_validator import validate

from holdfast.server.endpoints import ENDPOINTS
from holdfast.server.openapi import document


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return document(ENDPOINTS, version="1.0")


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
    assert run["stalled"]["description"].startswith("Why it does not go on")
