"""The OpenAPI document of the endpoints, made from their declarations.

Its descriptions are the docstrings of endpoints, models, and fields.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticUndefined, core_schema
from typing_extensions import override

from holdfast.server.http.request_headers import HEADER_RULES
from holdfast.server.http.router import Endpoint
from holdfast.server.http.server_sent_events import MEDIA_TYPE as STREAM_TYPE
from holdfast.services.problems import MEDIA_TYPE as PROBLEM_TYPE

_SCHEMA_REF = "#/components/schemas/{model}"

_PATH_DESCRIPTIONS: Final = {
    "id": "Its id.",
    "seq": "The number of the record in the journal: its `seq` in the run report.",
    "run": "The id of the run.",
    "delivery": "The id of the delivery.",
    "agent": "The name of the agent, workflow, or address.",
    "name": "Its name.",
    "namespace": "A namespace of memories.",
    "key": "Its key in the namespace.",
    "address": "The name of the address.",
}

_PROBLEM_SCHEMA: Final = {
    "type": "object",
    "description": "What went wrong (RFC 9457).",
    "required": ["type", "title", "status"],
    "properties": {
        "type": {"type": "string", "description": "The kind of problem, for programs."},
        "title": {"type": "string", "description": "The kind in words."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What happened, and what to do about it."},
        "request_id": {"type": "string", "description": "The id of the request, as in the header `X-Request-Id`."},
        "run_id": {"type": "string", "description": "The run that it is about."},
        "approval_id": {"type": "string", "description": "The approval that it is about."},
        "violations": {
            "type": "array",
            "description": "The invalid values: where each one is, and why it is invalid.",
            "items": {
                "type": "object",
                "required": ["path", "message"],
                "properties": {
                    "path": {
                        "type": "string",
                        "description": "In the body, as in `kwargs.customer`; in the query, as in `query.limit`.",
                    },
                    "message": {"type": "string"},
                },
            },
        },
    },
    "examples": [
        {
            "type": "run-not-found",
            "title": "There is no such run",
            "status": 404,
            "detail": "there is no run 'onboarding-acme' in this server's store",
            "run_id": "onboarding-acme",
        }
    ],
}
_EVENT_SCHEMA: Final = {
    "type": "object",
    "description": "One of the server-sent events.",
    "required": ["data"],
    "properties": {
        "id": {"type": "string", "description": "Send it as Last-Event-ID to continue after this event."},
        "event": {"type": "string", "description": "Its kind."},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
_PROBLEM_DESCRIPTIONS: Final = {
    "401": "No valid API key.",
    "403": "The key may not do that, or the request comes from a page of another site.",
    "404": "Not found.",
    "409": "Not possible in the current state.",
    "422": "Invalid values.",
    "429": "Too many requests.",
    "default": "What went wrong.",
}
_RESPONSE_HEADERS: Final = {
    "X-Request-Id": {
        "description": "The id of the request: the one that it has sent, or a new one.",
        "schema": {"type": "string"},
    },
    "RateLimit-Policy": {
        "description": "How many requests the key may make (`q`) in how many seconds (`w`).",
        "schema": {"type": "string", "examples": ['"default";q=1000;w=2']},
    },
    "RateLimit": {
        "description": "How many requests are left (`r`), and seconds until all are available again (`t`).",
        "schema": {"type": "string", "examples": ['"default";r=998;t=1']},
    },
    "Location": {"description": "The path of what was created.", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds to wait before the next try.", "schema": {"type": "integer"}},
}


def build_document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """The whole document."""
    schemas, shared = _build_schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _build_operation(endpoint, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": version,
            "description": "Runs of workflows and agents that survive crashes, over HTTP.\n\nA request may have an "
            "id in the header `X-Request-Id`; every response has that header, and every problem a `request_id`.",
        },
        "servers": [{"url": "/", "description": "The server of this document."}],
        "security": [{"key": []}],
        "tags": _build_tags(endpoints),
        "paths": paths,
        "components": {
            "schemas": {**shared, "Problem": _PROBLEM_SCHEMA},
            "parameters": {name: _build_header_parameter(name) for name in HEADER_RULES},
            "headers": _RESPONSE_HEADERS,
            "responses": {
                _get_problem_name(status): _build_problem_response(description)
                for status, description in _PROBLEM_DESCRIPTIONS.items()
            },
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, as in `Authorization: Bearer hf_…`. `holdfast keys create` makes one.",
                }
            },
        },
    }


def _build_schemas(endpoints: Sequence[Endpoint]) -> tuple[dict[tuple[str, str], Any], dict[str, Any]]:
    """The schemas of bodies and responses by endpoint, and those that they refer to."""
    inputs: list[tuple[tuple[str, str], Any, TypeAdapter[Any]]] = []
    for endpoint in endpoints:
        if endpoint.body_model is not None:
            inputs.append(((endpoint.name, "body"), "validation", TypeAdapter(endpoint.body_model)))
        if endpoint.response_type is not None:
            inputs.append(((endpoint.name, "response"), "serialization", endpoint.response_type))
    schemas, shared = TypeAdapter.json_schemas(inputs, ref_template=_SCHEMA_REF, schema_generator=_SchemaGenerator)
    return {name: schema for (name, _), schema in schemas.items()}, shared.get("$defs", {})


def _build_tags(endpoints: Sequence[Endpoint]) -> list[dict[str, str]]:
    """The groups of endpoints, each with the first line of its module's docstring."""
    modules = {endpoint.tag: endpoint.handler.__module__.rpartition(".")[0] for endpoint in endpoints}
    return [
        {"name": tag, "description": (inspect.getdoc(sys.modules[f"{package}.{tag}"]) or "").partition("\n")[0]}
        for tag, package in modules.items()
    ]


# One endpoint


def _build_operation(endpoint: Endpoint, schemas: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    summary, _, description = (inspect.getdoc(endpoint.handler) or "").partition("\n\n")
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "tags": [endpoint.tag],
        "summary": " ".join(summary.split()).removesuffix("."),
        "parameters": [
            *map(_build_path_parameter, endpoint.path_params),
            *_build_query_parameters(endpoint.query_model),
            *({"$ref": f"#/components/parameters/{name}"} for name in endpoint.headers),
        ],
        "responses": _build_responses(endpoint, schemas),
    }
    if description.strip():
        operation["description"] = description.strip()
    if endpoint.scope is None:
        operation["security"] = []
    else:
        operation["x-scope"] = (
            f"listen:{{{endpoint.path_params[0]}}}" if endpoint.is_address_scoped else str(endpoint.scope)
        )
    if endpoint.body_model is not None:
        content = {"application/json": {"schema": schemas[endpoint.name, "body"]}}
        is_needed = any(field.is_required() for field in endpoint.body_model.model_fields.values())
        operation["requestBody"] = {"required": is_needed, "content": content}
    return operation


def _build_path_parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": f"{_PATH_DESCRIPTIONS[name]} Slashes in it are quoted, as %2F.",
        "schema": {"type": "string", "minLength": 1},
    }


def _build_header_parameter(name: str) -> dict[str, Any]:
    header = HEADER_RULES[name]
    schema = {"type": "string", "pattern": header.pattern}
    return {"name": name, "in": "header", "required": False, "description": header.description, "schema": schema}


def _build_query_parameters(model: type[BaseModel] | None) -> Iterator[dict[str, Any]]:
    if model is None:
        return
    schema = model.model_json_schema(ref_template=_SCHEMA_REF, schema_generator=_QuerySchemaGenerator)
    for name, field in schema["properties"].items():
        parameter = {"name": name, "in": "query", "required": name in schema.get("required", ())}
        if "description" in field:
            parameter["description"] = field["description"]
        yield parameter | {"schema": _drop_null(field)}


def _drop_null(field: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a query parameter: a query has no null, the parameter is left out instead."""
    schema = {name: value for name, value in field.items() if name not in ("description", "title")}
    if schema.get("default", PydanticUndefined) is None:
        del schema["default"]
    choices = [choice for choice in schema.pop("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        return {**schema, **choices[0]}
    return {**schema, "anyOf": choices} if choices else schema


def _build_responses(endpoint: Endpoint, schemas: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {str(endpoint.status): _build_response(endpoint, schemas, "The response.")}
    if endpoint.location is not None:
        responses["201"]["headers"] |= _build_header_refs("Location")
    for status, description in endpoint.extra_responses.items():
        if status in (204, 304):
            responses[str(status)] = {"description": description}
        elif status < 300:
            responses[str(status)] = _build_response(endpoint, schemas, description)
        else:
            responses[str(status)] = _build_problem_response(description)
    problems = ["401", "403", "429"] if endpoint.scope is not None else []
    if endpoint.path_params:
        problems.append("404")
    if endpoint.method != "GET" and endpoint.path_params:
        problems.append("409")
    if endpoint.body_model is not None or endpoint.query_model is not None or endpoint.path_params:
        problems.append("422")
    for status in (*sorted(problems), "default"):
        responses.setdefault(status, {"$ref": f"#/components/responses/{_get_problem_name(status)}"})
    return responses


def _build_response(endpoint: Endpoint, schemas: Mapping[tuple[str, str], Any], description: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if endpoint.response_type is not None:
        content["application/json"] = {"schema": schemas[endpoint.name, "response"]}
    if endpoint.is_text:
        content["text/plain"] = {"schema": {"type": "string"}}
    if endpoint.can_stream:
        content[STREAM_TYPE] = {"schema": _EVENT_SCHEMA}
    response: dict[str, Any] = {"description": description, "content": content} if content else {"description": "Done."}
    return response | {"headers": _build_header_refs("X-Request-Id", "RateLimit-Policy", "RateLimit")}


def _build_problem_response(description: str) -> dict[str, Any]:
    schema = {"$ref": _SCHEMA_REF.format(model="Problem")}
    headers = _build_header_refs("X-Request-Id", "RateLimit-Policy", "RateLimit", "Retry-After")
    return {"description": description, "content": {PROBLEM_TYPE: {"schema": schema}}, "headers": headers}


def _build_header_refs(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _get_problem_name(status: str) -> str:
    return "Problem" if status == "default" else f"Problem{status}"


# Descriptions of fields


class _SchemaGenerator(GenerateJsonSchema):
    """Describes the fields of models and dataclasses by their docstrings.

    pydantic could do that itself (``use_attribute_docstrings``), but it reads the sources of all classes when the
    server starts, and leaves out the fields that a dataclass inherits.
    """

    @override
    def normalize_name(self, name: str) -> str:
        """A readable name of a generic model: ``RunInfoPage``, and not ``Page_RunInfo_``."""
        generic, _, parameter = name.removesuffix("]").partition("[")
        return super().normalize_name(parameter + generic)

    @override
    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return self._describe_fields(schema["cls"], super().model_schema(schema))

    @override
    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return self._describe_fields(schema["cls"], super().dataclass_schema(schema))

    @override
    def field_is_required(
        self, field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField, total: bool
    ) -> bool:
        return self.mode == "serialization" or super().field_is_required(field, total)  # responses have all fields

    def _describe_fields(self, model: type[Any], schema: JsonSchemaValue) -> JsonSchemaValue:
        docs = _read_field_docs(model)
        for name, field in schema.get("properties", {}).items():
            if name in docs:
                field.setdefault("description", docs[name])
            self._describe_default(field)
        return schema

    def _describe_default(self, field: JsonSchemaValue) -> None:
        """Put the default of a body's field into its description; responses have all fields.

        Programs that generate types from the document take a field with a ``default`` for one that is always there, and
        require callers to send it.
        """
        default = field.pop("default", None)
        if self.mode == "validation" and default not in (None, "", [], {}):
            field["description"] = f"{field.get('description', '')} Default: {json.dumps(default)}.".strip()


class _QuerySchemaGenerator(_SchemaGenerator):
    """For queries, whose parameters keep their defaults."""

    @override
    def _describe_default(self, field: JsonSchemaValue) -> None:
        pass


def _read_field_docs(model: type[Any]) -> dict[str, str]:
    """The docstrings of a class's fields, by field."""
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        docs |= _read_module_docs(base.__module__).get(base.__qualname__, {})
    return docs


@cache
def _read_module_docs(module: str) -> dict[str, dict[str, str]]:
    """The docstrings of fields in one of Holdfast's modules, by class and field."""
    if not module.startswith("holdfast."):
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:  # without the source, there are no descriptions
        return {}
    return {node.name: dict(_iterate_field_docs(node.body)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _iterate_field_docs(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            yield field.target.id, inspect.cleandoc(text.value.value)
