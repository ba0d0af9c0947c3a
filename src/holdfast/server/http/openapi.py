"""The OpenAPI document of the endpoints, made from their declarations.

What people read in it is what stands in the code: the docstrings of endpoints, of models and of their fields.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Final, cast

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticUndefined

from holdfast.server.http.problems import MEDIA_TYPE as PROBLEM_TYPE
from holdfast.server.http.request_headers import HEADERS
from holdfast.server.http.router import Endpoint
from holdfast.server.http.server_sent_events import MEDIA_TYPE as STREAM_TYPE

_REF = "#/components/schemas/{model}"

_PATH_WORDS: Final = {
    "id": "Its id.",
    "seq": "The number of the record in the journal: the `seq` that the story tells.",
    "run": "The id of the run.",
    "delivery": "The id of the delivery.",
    "agent": "The name of the agent, workflow or address.",
    "name": "Its name.",
    "namespace": "A namespace of memories.",
    "key": "Its key in the namespace.",
    "address": "The name of the address.",
}

_PROBLEM: Final = {
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
        "faults": {
            "type": "array",
            "description": "Of values that do not fit: where, and why.",
            "items": {
                "type": "object",
                "required": ["where", "why"],
                "properties": {"where": {"type": "string"}, "why": {"type": "string"}},
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
_EVENT: Final = {
    "type": "object",
    "description": "One of the server-sent events.",
    "required": ["data"],
    "properties": {
        "id": {"type": "string", "description": "Hand it in as Last-Event-ID to go on behind it."},
        "event": {"type": "string", "description": "Its kind."},
        "data": {"type": "string", "contentMediaType": "application/json"},
    },
}
_PROBLEMS: Final = {
    "401": "No valid API key.",
    "403": "The key may not do that, or a page of another site asks.",
    "404": "There is no such thing.",
    "409": "That is not possible as things stand.",
    "422": "Values that do not fit.",
    "429": "Too many requests.",
    "default": "What went wrong.",
}


_ANSWER_HEADERS: Final = {
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


def document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """The whole document."""
    schemas, shared = _schemas(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for one in endpoints:
        paths.setdefault(one.path, {})[one.method.lower()] = _operation(one, schemas, shared)
    _tell_fields(shared, endpoints)
    _drop_defaults(shared, _reachable((schemas[one.name, "body"] for one in endpoints if one.body), shared))
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
        "tags": _tags(endpoints),
        "paths": paths,
        "components": {
            "schemas": {**shared, "Problem": _PROBLEM},
            "parameters": {name: _header(name) for name in HEADERS},
            "headers": _ANSWER_HEADERS,
            "responses": {_problem_name(status): _problem(words) for status, words in _PROBLEMS.items()},
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, as in `Authorization: Bearer hf_…`. `holdfast keys create` makes one.",
                }
            },
        },
    }


def _schemas(endpoints: Sequence[Endpoint]) -> tuple[dict[tuple[str, str], Any], dict[str, Any]]:
    """The schemas of bodies, queries and answers by endpoint, and those that they refer to."""
    inputs: list[tuple[tuple[str, str], Any, TypeAdapter[Any]]] = []
    for one in endpoints:
        for part, model in (("body", one.body), ("query", one.query)):
            if model is not None:
                inputs.append(((one.name, part), "validation", TypeAdapter(model)))
        if one.answer is not None:
            inputs.append(((one.name, "answer"), "serialization", one.answer))
    schemas, shared = TypeAdapter.json_schemas(inputs, ref_template=_REF)
    kept: dict[str, Any] = shared.get("$defs", {})
    better = {name: schema["title"] for name, schema in kept.items() if name.endswith("_") and "title" in schema}
    found = {name: _renamed(schema, better) for (name, _), schema in schemas.items()}
    return found, {better.get(name, name): _renamed(schema, better) for name, schema in kept.items()}


def _renamed(schema: Any, better: Mapping[str, str]) -> Any:
    """The same schema, with what it refers to under better names: ``RunInfoPage``, and not ``Page_RunInfo_``."""
    if isinstance(schema, list):
        return [_renamed(one, better) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    renamed = {name: _renamed(one, better) for name, one in cast("dict[str, Any]", schema).items()}
    reference = renamed.get("$ref")
    if isinstance(reference, str):
        name = reference.rpartition("/")[2]
        renamed["$ref"] = _REF.format(model=better.get(name, name))
    return renamed


def _tags(endpoints: Sequence[Endpoint]) -> list[dict[str, str]]:
    """The groups, in the order in which they come, with the first words of their modules."""
    modules = {one.group: one.handler.__module__.rpartition(".")[0] + f".{one.group}" for one in endpoints}
    return [
        {"name": group, "description": (inspect.getdoc(sys.modules[module]) or "").partition("\n")[0]}
        for group, module in modules.items()
    ]


# One endpoint


def _operation(one: Endpoint, schemas: Mapping[tuple[str, str], Any], shared: dict[str, Any]) -> dict[str, Any]:
    words = inspect.getdoc(one.handler) or ""
    summary, _, description = words.partition("\n\n")
    operation: dict[str, Any] = {
        "operationId": one.name,
        "tags": [one.group],
        "summary": " ".join(summary.split()).removesuffix("."),
        "parameters": [
            *map(_path_parameter, one.path_names),
            *_query(one, schemas, shared),
            *({"$ref": f"#/components/parameters/{name}"} for name in one.headers),
        ],
        "responses": _responses(one, schemas),
    }
    if description.strip():
        operation["description"] = description.strip()
    if one.scope is None:
        operation["security"] = []
    else:
        operation["x-scope"] = f"listen:{{{one.path_names[0]}}}" if one.on_address else str(one.scope)
    if one.body is not None:
        content = {"application/json": {"schema": schemas[one.name, "body"]}}
        is_needed = any(field.is_required() for field in one.body.model_fields.values())
        operation["requestBody"] = {"required": is_needed, "content": content}
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": f"{_PATH_WORDS[name]} Slashes in it are quoted, as %2F.",
        "schema": {"type": "string", "minLength": 1},
    }


def _header(name: str) -> dict[str, Any]:
    header = HEADERS[name]
    schema = {"type": "string", "pattern": header.pattern}
    return {"name": name, "in": "header", "required": False, "description": header.meaning, "schema": schema}


def _query(one: Endpoint, schemas: Mapping[tuple[str, str], Any], shared: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if one.query is None:
        return
    reference = schemas[one.name, "query"]["$ref"].rpartition("/")[2]
    schema = shared.pop(reference) if reference in shared else one.query.model_json_schema(ref_template=_REF)
    words = field_words(one.query)
    for name, field in schema["properties"].items():
        parameter = {"name": name, "in": "query", "required": name in schema.get("required", ())}
        described = field.get("description") or words.get(name)
        if described:
            parameter["description"] = described
        yield parameter | {"schema": _without_null(field)}


def _without_null(field: Mapping[str, Any]) -> dict[str, Any]:
    """What a query may say: there is no null in it, it is left out."""
    kept = {name: value for name, value in field.items() if name not in ("description", "title")}
    if kept.get("default", PydanticUndefined) is None:
        del kept["default"]
    choices = [choice for choice in kept.pop("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        return {**kept, **choices[0]}
    return {**kept, "anyOf": choices} if choices else kept


def _responses(one: Endpoint, schemas: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    answers: dict[str, Any] = {str(one.status): _answer(one, schemas, "The answer.")}
    if one.location is not None:
        answers["201"]["headers"] |= _headers("Location")
    for status, words in one.more.items():
        is_answer = 200 <= status < 300
        told = _answer(one, schemas, words) if is_answer else _problem(words)
        answers[str(status)] = {"description": words} if status in (204, 304) else told
    problems = ["401", "403", "429"] if one.scope is not None else []
    if one.path_names:
        problems.append("404")
    if one.method != "GET" and one.path_names:
        problems.append("409")
    if one.body is not None or one.query is not None or one.path_names:
        problems.append("422")
    for status in (*sorted(problems), "default"):
        answers.setdefault(status, {"$ref": f"#/components/responses/{_problem_name(status)}"})
    return answers


def _answer(one: Endpoint, schemas: Mapping[tuple[str, str], Any], words: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if one.answer is not None:
        content["application/json"] = {"schema": schemas[one.name, "answer"]}
    if one.streams:
        content[STREAM_TYPE] = {"schema": _EVENT}
    told: dict[str, Any] = {"description": words, "content": content} if content else {"description": "Done."}
    return told | {"headers": _headers("X-Request-Id", "RateLimit-Policy", "RateLimit")}


def _problem(words: str) -> dict[str, Any]:
    schema = {"$ref": _REF.format(model="Problem")}
    headers = _headers("X-Request-Id", "RateLimit-Policy", "RateLimit", "Retry-After")
    return {"description": words, "content": {PROBLEM_TYPE: {"schema": schema}}, "headers": headers}


def _headers(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _problem_name(status: str) -> str:
    return "Problem" if status == "default" else f"Problem{status}"


# What requests may leave out


def _reachable(schemas: Iterable[Any], shared: Mapping[str, Any]) -> set[str]:
    """The names of the shared schemas that these are made of."""
    found: set[str] = set()
    waiting: list[Any] = list(schemas)
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += cast("list[Any]", one)
        elif isinstance(one, dict):
            part = cast("dict[str, Any]", one)
            reference = part.get("$ref")
            name = reference.rpartition("/")[2] if isinstance(reference, str) else ""
            if name in shared and name not in found:
                found.add(name)
                waiting.append(shared[name])
            waiting += part.values()
    return found


def _drop_defaults(shared: Mapping[str, Any], names: Iterable[str]) -> None:
    """Say in words what fields of requests are if they are left out.

    Programs that make types of the document take a field with a ``default`` for one that is always there, and demand it
    of callers.
    """
    for name in names:
        for field in shared[name].get("properties", {}).values():
            if "default" not in field:
                continue
            default = field.pop("default")
            if default not in (None, "", [], {}):
                words = f"{field.get('description', '')} Default: {json.dumps(default)}."
                field["description"] = words.strip()


# Words for fields


def _tell_fields(shared: Mapping[str, Any], endpoints: Iterable[Endpoint]) -> None:
    """Describe the fields of shared schemas by what stands below them in the code."""
    found: dict[str, type[Any]] = {}
    for one in endpoints:
        for kind in (one.body, None if one.answer is None else cast("Any", one.answer)._type):
            _collect(kind, found)
    for schema in shared.values():
        kind = found.get(schema.get("title", ""))
        words = {} if kind is None else field_words(kind)
        for name, field in schema.get("properties", {}).items():
            if name in words and "description" not in field:
                field["description"] = words[name]


def _collect(kind: Any, found: dict[str, type[Any]]) -> None:
    """The models and dataclasses that a type is made of, by their names."""
    for part in getattr(kind, "__args__", ()):
        _collect(part, found)
    if not inspect.isclass(kind) or kind.__name__ in found:
        return
    if issubclass(kind, BaseModel):
        found[kind.__name__] = kind
        for field in kind.model_fields.values():
            _collect(field.annotation, found)
    elif is_dataclass(kind):
        found[kind.__name__] = kind
        for hint in inspect.get_annotations(kind, eval_str=True).values():
            _collect(hint, found)


def field_words(kind: type[Any]) -> dict[str, str]:
    """The texts below the fields of a class, by field."""
    words: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        words |= _texts_in(base.__module__).get(base.__qualname__, {})
    return words


@cache
def _texts_in(module: str) -> dict[str, dict[str, str]]:
    """The texts below the fields of the classes of a module of ours."""
    if not module.startswith("holdfast."):
        return {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except OSError:  # the sources are not there: then there is less to tell
        return {}
    return {one.name: dict(_texts(one.body)) for one in tree.body if isinstance(one, ast.ClassDef)}


def _texts(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            yield field.target.id, inspect.cleandoc(text.value.value)
