"""The OpenAPI document of the endpoints, made from their declarations.

What people read in it is what stands in the code: the docstrings of endpoints, of models and of their fields.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final, cast

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticUndefined, core_schema
from typing_extensions import override

from holdfast.server.http.problems import MEDIA_TYPE as PROBLEM_TYPE
from holdfast.server.http.request_headers import HEADER_RULES
from holdfast.server.http.router import Endpoint
from holdfast.server.http.server_sent_events import MEDIA_TYPE as STREAM_TYPE

_SCHEMA_REF = "#/components/schemas/{model}"

_PATH_DESCRIPTIONS: Final = {
    "id": "Its id.",
    "seq": "The number of the record in the journal: its `seq` in the run report.",
    "run": "The id of the run.",
    "delivery": "The id of the delivery.",
    "agent": "The name of the agent, workflow or address.",
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
        "type": {"type": "string", "description": "What kind of problem it is: programs may rely on it."},
        "title": {"type": "string", "description": "The kind in words."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "What happened, and what to do about it."},
        "request_id": {"type": "string", "description": "The id of the request, as in its header `X-Request-Id`."},
        "run_id": {"type": "string", "description": "The run that it is about."},
        "approval_id": {"type": "string", "description": "The question that it is about."},
        "violations": {
            "type": "array",
            "description": "The values that do not fit: where each one is, and why it does not fit.",
            "items": {
                "type": "object",
                "required": ["path", "message"],
                "properties": {
                    "path": {
                        "type": "string",
                        "description": "In the body, as in `kwargs.customer`; of the query, as in `query.limit`.",
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
        "id": {"type": "string", "description": "Hand it in as Last-Event-ID to go on behind it."},
        "event": {"type": "string", "description": "Its kind."},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
_PROBLEM_DESCRIPTIONS: Final = {
    "401": "No valid API key.",
    "403": "The key may not do that, or a page of another site asks.",
    "404": "There is no such thing.",
    "409": "That is not possible as things stand.",
    "422": "Values that do not fit.",
    "429": "Too many requests.",
    "default": "What went wrong.",
}


_RESPONSE_HEADERS: Final = {
    "X-Request-Id": {
        "description": "The id of the request: the one that it gave itself, or a new one.",
        "schema": {"type": "string"},
    },
    "RateLimit-Policy": {
        "description": "How many requests the key may make (`q`) in how many seconds (`w`).",
        "schema": {"type": "string", "examples": ['"default";q=1000;w=2']},
    },
    "RateLimit": {
        "description": "How many requests are left (`r`), and in how many seconds all are there again (`t`).",
        "schema": {"type": "string", "examples": ['"default";r=998;t=1']},
    },
    "Location": {"description": "The path of what was created.", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds to wait before the next try.", "schema": {"type": "integer"}},
}


def build_document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """The whole document."""
    schemas, shared = _build_schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _build_operation(one, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": version,
            "description": "Runs of workflows and agents that survive crashes, over HTTP.\n\nA request may name "
            "itself in the header `X-Request-Id`; every answer has that header, and every problem a `request_id`.",
        },
        "servers": [{"url": "/", "description": "The server that has told this document."}],
        "security": [{"key": []}],
        "tags": _build_tags(endpoints),
        "paths": paths,
        "components": {
            "schemas": {**shared, "Problem": _PROBLEM_SCHEMA},
            "parameters": {name: _build_header_parameter(name) for name in HEADER_RULES},
            "headers": _RESPONSE_HEADERS,
            "responses": {
                _get_problem_name(status): _build_problem_response(words)
                for status, words in _PROBLEM_DESCRIPTIONS.items()
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
    """The schemas of bodies and answers by endpoint, and those that they refer to."""
    inputs: list[tuple[tuple[str, str], Any, TypeAdapter[Any]]] = []
    for one in endpoints:
        if one.body_model is not None:
            inputs.append(((one.name, "body"), "validation", TypeAdapter(one.body_model)))
        if one.response_type is not None:
            inputs.append(((one.name, "answer"), "serialization", one.response_type))
    schemas, shared = TypeAdapter.json_schemas(inputs, ref_template=_SCHEMA_REF, schema_generator=_SchemaGenerator)
    kept: dict[str, Any] = shared.get("$defs", {})
    better = {name: schema["title"] for name, schema in kept.items() if name.endswith("_") and "title" in schema}
    found = {name: _rename_refs(schema, better) for (name, _), schema in schemas.items()}
    return found, {better.get(name, name): _rename_refs(schema, better) for name, schema in kept.items()}


def _rename_refs(schema: Any, new_names: Mapping[str, str]) -> Any:
    """The same schema, with what it refers to under better names: ``RunInfoPage``, and not ``Page_RunInfo_``."""
    if isinstance(schema, list):
        return [_rename_refs(one, new_names) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    renamed = {name: _rename_refs(one, new_names) for name, one in cast("dict[str, Any]", schema).items()}
    reference = renamed.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        renamed["$ref"] = _SCHEMA_REF.format(model=new_names.get(name, name))
    return renamed


def _build_tags(endpoints: Sequence[Endpoint]) -> list[dict[str, str]]:
    """The groups, in the order in which they come, with the first words of their modules."""
    modules = {one.tag: one.handler.__module__.rpartition(".")[0] + f".{one.tag}" for one in endpoints}
    return [
        {"name": group, "description": (inspect.getdoc(sys.modules[module]) or "").partition("\n")[0]}
        for group, module in modules.items()
    ]


# One endpoint


def _build_operation(endpoint: Endpoint, schemas: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    words = inspect.getdoc(endpoint.handler) or ""
    summary, _, description = words.partition("\n\n")
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
    """What a query may say: there is no null in it, it is left out."""
    kept = {name: value for name, value in field.items() if name not in ("description", "title")}
    if kept.get("default", PydanticUndefined) is None:
        del kept["default"]
    choices = [choice for choice in kept.pop("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        return {**kept, **choices[0]}
    return {**kept, "anyOf": choices} if choices else kept


def _build_responses(endpoint: Endpoint, schemas: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {str(endpoint.status): _build_response(endpoint, schemas, "The answer.")}
    if endpoint.location is not None:
        answers["201"]["headers"] |= _build_header_refs("Location")
    for status, words in endpoint.extra_responses.items():
        is_answer = 200 <= status < 300
        told = _build_response(endpoint, schemas, words) if is_answer else _build_problem_response(words)
        answers[str(status)] = {"description": words} if status in (204, 304) else told
    problems = ["401", "403", "429"] if endpoint.scope is not None else []
    if endpoint.path_params:
        problems.append("404")
    if endpoint.method != "GET" and endpoint.path_params:
        problems.append("409")
    if endpoint.body_model is not None or endpoint.query_model is not None or endpoint.path_params:
        problems.append("422")
    for status in (*sorted(problems), "default"):
        answers.setdefault(status, {"$ref": f"#/components/responses/{_get_problem_name(status)}"})
    return answers


def _build_response(endpoint: Endpoint, schemas: Mapping[tuple[str, str], Any], description: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if endpoint.response_type is not None:
        content["application/json"] = {"schema": schemas[endpoint.name, "answer"]}
    if endpoint.can_stream:
        content[STREAM_TYPE] = {"schema": _EVENT_SCHEMA}
    told: dict[str, Any] = {"description": description, "content": content} if content else {"description": "Done."}
    return told | {"headers": _build_header_refs("X-Request-Id", "RateLimit-Policy", "RateLimit")}


def _build_problem_response(description: str) -> dict[str, Any]:
    schema = {"$ref": _SCHEMA_REF.format(model="Problem")}
    headers = _build_header_refs("X-Request-Id", "RateLimit-Policy", "RateLimit", "Retry-After")
    return {"description": description, "content": {PROBLEM_TYPE: {"schema": schema}}, "headers": headers}


def _build_header_refs(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _get_problem_name(status: str) -> str:
    return "Problem" if status == "default" else f"Problem{status}"


# Words for fields


class _SchemaGenerator(GenerateJsonSchema):
    """Describes the fields of models and dataclasses by the texts below them in the code.

    pydantic could do that itself (``use_attribute_docstrings``), but reads the sources of all classes when the server
    starts, and leaves out the fields that a dataclass inherits.
    """

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
        return self.mode == "serialization" or super().field_is_required(field, total)  # answers have all fields

    def _describe_fields(self, kind: type[Any], schema: JsonSchemaValue) -> JsonSchemaValue:
        words = _read_field_docs(kind)
        for name, field in schema.get("properties", {}).items():
            if name in words:
                field.setdefault("description", words[name])
            self._describe_default(field)
        return schema

    def _describe_default(self, field: JsonSchemaValue) -> None:
        """Say in words what a field of a body is if it is left out; answers have all fields.

        Programs that make types of the document take a field with a ``default`` for one that is always there, and
        demand it of callers.
        """
        default = field.pop("default", None)
        if self.mode == "validation" and default not in (None, "", [], {}):
            field["description"] = f"{field.get('description', '')} Default: {json.dumps(default)}.".strip()


class _QuerySchemaGenerator(_SchemaGenerator):
    """The same for queries, whose parameters have defaults."""

    @override
    def _describe_default(self, field: JsonSchemaValue) -> None:
        pass


def _read_field_docs(kind: type[Any]) -> dict[str, str]:
    """The texts below the fields of a class, by field."""
    words: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        words |= _read_module_docs(base.__module__).get(base.__qualname__, {})
    return words


@cache
def _read_module_docs(module: str) -> dict[str, dict[str, str]]:
    """The texts below the fields of the classes of a module of ours."""
    if not module.startswith("holdfast."):
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:  # the sources are not there: then there is less to tell
        return {}
    return {one.name: dict(_iterate_field_docs(one.body)) for one in tree.body if isinstance(one, ast.ClassDef)}


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
