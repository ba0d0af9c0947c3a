"""The OpenAPI document of the endpoints, made from their declarations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from holdfast.server.api import Endpoint

_REF = "#/components/schemas/{model}"
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}


def document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """The whole document."""
    inputs: list[tuple[str, str, TypeAdapter[Any]]] = []
    for one in endpoints:
        if one.body is not None:
            inputs.append((one.name, "body", TypeAdapter(one.body)))
        if one.answer is not None:
            inputs.append((one.name, "answer", one.answer))
    schemas, shared = TypeAdapter.json_schemas(
        [
            ((name, part), "validation" if part == "body" else "serialization", adapter)
            for name, part, adapter in inputs
        ],
        ref_template=_REF,
    )
    found = {name: schema for (name, _), schema in schemas.items()}
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        path = re.sub(r"{(\w+):path}", r"{\1}", one.path)
        paths.setdefault(path, {})[one.method.lower()] = _operation(one, found)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": version},
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": {**shared.get("$defs", {}), "Problem": _PROBLEM},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(one: Endpoint, schemas: dict[tuple[str, str], Any]) -> dict[str, Any]:
    words = inspect.getdoc(one.handler) or ""
    summary, _, description = words.partition("\n")
    operation: dict[str, Any] = {
        "operationId": one.name,
        "summary": summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in one.path_names),
            *_query(one),
        ],
        "responses": {str(one.status): _answer(one, schemas), "default": _problem()},
    }
    if description.strip():
        operation["description"] = description.strip()
    if one.scope is None:
        operation["security"] = []
    else:
        operation["x-scope"] = f"listen:{{{one.path_names[0]}}}" if one.on_address else str(one.scope)
    if one.body is not None:
        content = {"application/json": {"schema": schemas[one.name, "body"]}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _query(one: Endpoint) -> list[dict[str, Any]]:
    if one.query is None:
        return []
    schema = one.query.model_json_schema(ref_template=_REF)
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field}
        for name, field in schema["properties"].items()
    ]


def _answer(one: Endpoint, schemas: dict[tuple[str, str], Any]) -> dict[str, Any]:
    if one.streams:
        return {"description": "a stream of events", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    if one.answer is None:
        return {"description": "done"}
    return {"description": "the answer", "content": {"application/json": {"schema": schemas[one.name, "answer"]}}}


def _problem() -> dict[str, Any]:
    schema = {"$ref": _REF.format(model="Problem")}
    return {"description": "what went wrong", "content": {"application/problem+json": {"schema": schema}}}
