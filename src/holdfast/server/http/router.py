"""Endpoints: declared once, as typed functions. Routing, parsing, and responses follow from the declarations.

An endpoint is an async function of a ``Call``, the parameters of its path, and optionally a ``body`` and a ``query``,
which are pydantic models. Its return type is the model of the response. ``None`` becomes a 204. An endpoint may also
return a ``Response``, such as a stream, and choose by what the request accepts. The routes, the OpenAPI document, and
the tests of who may call an endpoint come from the same declarations.

Paths are matched segment by segment, before they are unquoted, so that an id may contain anything, slashes included.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any, Final, Literal, Self, Union, cast, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, quote, unquote

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails, from_json

from holdfast.server.auth.scopes import Scope
from holdfast.server.http.request import Request
from holdfast.server.http.request_headers import check_headers
from holdfast.server.http.response import Response, StreamingResponse, TextResponse
from holdfast.services.json_form import ValueEncoder, encode_plain, to_json_bytes
from holdfast.services.problems import Problem

Handler = Callable[..., Awaitable[Any]]

_MAX_VIOLATIONS = 1000
_JSON: Final = "application/json"


class RequestModel(BaseModel):
    """A model of a request. Unknown fields are an error, since a misspelled option must not be ignored silently.

    Texts have no NUL characters, which databases refuse. Values (declared as ``Any``) may: they are stored as bytes.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def _validate_no_nuls(self) -> Self:
        values = self.__dict__
        for name in _list_text_fields(type(self)):
            value = values[name]
            if isinstance(value, str):
                has_nul = "\0" in value
            elif isinstance(value, list | tuple):
                has_nul = any(isinstance(text, str) and "\0" in text for text in cast("Iterable[Any]", value))
            else:
                continue
            if has_nul:
                raise ValueError(f"{name} has a NUL character in it")
        return self


@cache
def _list_text_fields(model: type[BaseModel]) -> list[str]:
    """The fields that may have texts and are not values."""
    fields = model.model_fields.items()
    return [name for name, field in fields if field.annotation is not Any and Any not in get_args(field.annotation)]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The declaration of an endpoint."""

    method: str
    path: str
    scope: Scope | None
    """The scope that the caller needs; ``None``: no key is needed."""
    handler: Handler
    status: int
    body_model: type[BaseModel] | None
    query_model: type[BaseModel] | None
    response_type: TypeAdapter[Any] | None
    """``None``: it returns a stream, or nothing."""
    can_stream: bool
    is_text: bool
    """It returns a text for machines that is not JSON."""
    is_address_scoped: bool
    """The caller needs the scope only for the address in the path."""
    is_audited: bool
    """Whether the audit log has an entry for each request."""
    commits_audit_entry: bool
    """It commits its change with ``Call.commit``, which writes the entry in the same transaction."""
    extra_responses: Mapping[int, str]
    """Other statuses of responses, and what they mean."""
    headers: tuple[str, ...]
    """Request headers that it reads: see ``request_headers``."""
    tag: str
    """Its group in the OpenAPI document."""
    location: str | None
    """The path of what a 201 has created, with ``{id}`` in place of its id."""

    is_mutating: bool = field(init=False)
    """Whether a request changes something: a listener's request does, since it takes work away from others."""
    default_query: BaseModel | None = field(init=False)
    """The query of a request that has none; ``None``: some parameter is required."""
    list_params: frozenset[str] = field(init=False)
    """Parameters of the query that may be repeated."""

    def __post_init__(self) -> None:
        fields = {} if self.query_model is None else self.query_model.model_fields
        lists = frozenset(name for name, one in fields.items() if get_origin(one.annotation) in (list, tuple))
        has_default = self.query_model is not None and not any(one.is_required() for one in fields.values())
        default = self.query_model.model_validate({}) if self.query_model is not None and has_default else None
        object.__setattr__(self, "is_mutating", self.method != "GET" or self.scope is Scope.LISTEN)
        object.__setattr__(self, "list_params", lists)
        object.__setattr__(self, "default_query", default)

    @property
    def name(self) -> str:
        """Its name in the OpenAPI document and the audit log."""
        return self.handler.__name__

    @property
    def path_segments(self) -> tuple[str, ...]:
        """The segments of its path; those in braces are parameters."""
        return tuple(self.path.strip("/").split("/"))

    @property
    def path_params(self) -> tuple[str, ...]:
        """The names of the parameters in its path."""
        return tuple(segment[1:-1] for segment in self.path_segments if segment.startswith("{"))


class Router:
    """A collection of endpoints."""

    def __init__(self, tag: str | None = None) -> None:
        self.endpoints: list[Endpoint] = []
        self._tag = tag
        """Their group in the OpenAPI document; default: the name of their module."""

    def __call__(
        self,
        method: str,
        path: str,
        *,
        scope: Scope | None,
        status: int = 200,
        is_address_scoped: bool = False,
        is_audited: bool | None = None,
        commits_audit_entry: bool = False,
        extra_responses: Mapping[int, str] | None = None,
        headers: tuple[str, ...] = (),
        location: str | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declare an endpoint. By default, the audit log has all requests that are not a GET."""

        def declare(handler: Handler) -> Handler:
            hints = get_type_hints(handler, include_extras=True)
            returned, kinds = _split_response_type(hints.get("return", type(None)))
            self.endpoints.append(
                Endpoint(
                    method=method,
                    path=path,
                    scope=scope,
                    handler=handler,
                    status=204 if returned is type(None) and not kinds else status,
                    body_model=hints.get("body"),
                    query_model=hints.get("query"),
                    response_type=None if returned is type(None) else TypeAdapter(returned),
                    can_stream=StreamingResponse in kinds,
                    is_text=TextResponse in kinds,
                    is_address_scoped=is_address_scoped,
                    is_audited=(method != "GET") if is_audited is None else is_audited,
                    commits_audit_entry=commits_audit_entry,
                    extra_responses=extra_responses or {},
                    headers=headers,
                    tag=self._tag or handler.__module__.rpartition(".")[2],
                    location=location,
                )
            )
            return handler

        return declare


def _split_response_type(returned: Any) -> tuple[Any, Collection[type[Response]]]:
    """The type of the data that an endpoint returns, and the other kinds of responses."""
    kinds = get_args(returned) if isinstance(returned, UnionType) else (returned,)
    data = [kind for kind in kinds if not (inspect.isclass(kind) and issubclass(kind, Response))]
    others = [kind for kind in kinds if kind not in data]
    if not others:
        return returned, ()
    return (Union[tuple(data)] if data else type(None)), others  # noqa: UP007


# Routing


class RouteTable:
    """Finds the endpoint of a path."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._by_shape: dict[tuple[int, str], list[tuple[tuple[str, ...], Endpoint]]] = {}
        """By the number of segments, and the segment after the version; each endpoint with its segments."""
        for endpoint in endpoints:
            segments = endpoint.path_segments
            self._by_shape.setdefault((len(segments), segments[1]), []).append((segments, endpoint))
        for candidates in self._by_shape.values():  # literal segments first: `/v1/runs/batch` is not a run
            candidates.sort(key=lambda pair: [segment.startswith("{") for segment in pair[0]])

    def find(self, method: str, raw_path: bytes) -> tuple[Endpoint, dict[str, str]]:
        """The endpoint of a path, and the values of its parameters. Raises ``Problem``."""
        segments = raw_path.partition(b"?")[0].decode("latin-1").removeprefix("/").split("/")
        allowed: list[str] = []
        for pattern, endpoint in self._by_shape.get((len(segments), segments[1]), ()) if len(segments) > 1 else ():
            values = _match_path(pattern, segments)
            if values is None:
                continue
            if endpoint.method == method or (method == "HEAD" and endpoint.method == "GET"):
                return endpoint, values
            allowed += ["GET", "HEAD"] if endpoint.method == "GET" else [endpoint.method]
        if allowed:
            names = ", ".join(sorted(set(allowed)))
            raise Problem(
                405,
                "method-not-allowed",
                "The path does not take that method",
                f"It takes {names}.",
                headers={"Allow": names},
            )
        raise Problem(
            404, "path-not-found", "There is nothing at that path", "GET /v1/openapi.json tells what there is."
        )


def _match_path(pattern: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    values: dict[str, str] = {}
    for expected, segment in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            try:
                value = unquote(segment, errors="strict")
            except UnicodeDecodeError:
                return None
            if not value or not value.isprintable():  # nothing has such a name or id
                return None
            values[expected[1:-1]] = value
        elif expected != segment:
            return None
    return values


# Requests and responses


def parse_arguments(endpoint: Endpoint, request: Request, path_params: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of an endpoint, except for the call and the body. Raises ``Problem``."""
    check_headers(endpoint.headers, request.headers)
    arguments: dict[str, Any] = dict(path_params)
    if endpoint.query_model is not None:
        is_default = not request.scope["query_string"] and endpoint.default_query is not None
        arguments["query"] = (
            endpoint.default_query if is_default else _parse_query(endpoint.query_model, endpoint.list_params, request)
        )
    return arguments


def parse_body(model: type[BaseModel], data: bytes | bytearray, media_type: str) -> BaseModel:
    """The body of a request. Raises ``Problem``."""
    is_empty = not data.strip()
    if not is_empty and media_type != _JSON and media_type.partition(";")[0].strip().lower() != _JSON:
        raise Problem(
            415, "not-json", "The body must be JSON", "Send it with the header Content-Type: application/json."
        )
    try:
        if is_empty:
            return model.model_validate({})
        if _HUGE_INT.search(data):
            raise ValueError("a number has more digits than can be told")
        # Strict: JSON has its own numbers and texts, so a text that looks like a number is not a number.
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        raise _validation_problem(error, _parse_json(data), "body") from None
    except ValueError as error:
        raise Problem(422, "bad-input", "The body is no JSON", f"{error}.") from None


def _parse_json(data: bytes | bytearray) -> Any:
    try:
        return from_json(data)
    except ValueError:
        return None


def build_response(
    endpoint: Endpoint, value: Any, status: int | None = None, encode_value: ValueEncoder = encode_plain
) -> Response:
    """The response with the value that an endpoint has returned."""
    if isinstance(value, Response):
        return value
    if endpoint.response_type is None or (value is None and status == 204):
        return Response(status=status or endpoint.status)
    content = to_json_bytes(value, encode_value, adapter=endpoint.response_type)
    response = Response(content, status or endpoint.status, media_type=_JSON)
    if endpoint.location is not None and response.status == 201:
        location = endpoint.location.format(id=quote(cast("Any", value).id, safe=""))
        response.headers.append((b"location", location.encode()))
    return response


def _parse_query(model: type[BaseModel], lists: Collection[str], request: Request) -> BaseModel:
    """The query of a request. Raises ``Problem``."""
    values: dict[str, Any] = {}
    for name, value in parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True):
        if name in lists:
            values.setdefault(name, []).append(value)
        else:
            values[name] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _validation_problem(error, values, "query") from None


def _validation_problem(error: ValidationError, sent: Any, source: Literal["body", "query"]) -> Problem:
    if error.error_count() > _MAX_VIOLATIONS:  # listing them would cost more than it is worth
        detail = f"{error.error_count():,} values in the {source} do not fit: see GET /v1/openapi.json."
        return Problem(422, "bad-input", "The values do not fit", detail)
    prefix = ["query"] if source == "query" else []
    violations = [
        {"path": ".".join([*prefix, *_find_path(sent, details)]), "message": details["msg"][:500]}
        for details in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    detail = "; ".join(f"{violation['path'] or source}: {violation['message']}" for violation in violations[:5])
    return Problem(422, "bad-input", "The values do not fit", detail, violations=violations[:50])


def _find_path(sent: Any, error: ErrorDetails) -> Iterator[str]:
    """The path of an error in what was sent, without the choices of a union, which pydantic includes."""
    for index, part in enumerate(error["loc"], 1):
        if (isinstance(sent, Mapping) and part in sent) or (isinstance(sent, list) and isinstance(part, int)):
            sent = cast("Any", sent)[part]
            yield str(part)[:100]
        elif error["type"] == "missing" and index == len(error["loc"]):
            yield str(part)[:100]


_HUGE_INT: Final = re.compile(rb'"\$int"\s*:\s*"-?[0-9a-fA-F]{3500}')
"""A tagged number that Python would refuse to write in decimal; plain numbers of that length it refuses to read."""
