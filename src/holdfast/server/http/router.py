"""Endpoints: declared once, as functions with types, and what is made of the declarations.

An endpoint is an async function of a ``Call``, of the parts of its path, and, if it wants them, of a ``body`` and a
``query``, which are pydantic models. Its return type is the model of the answer; ``None`` is answered with 204,
and a ``Response`` of its own (a stream) with that; it may have both, and choose by what the request accepts. From the
same declarations come the routes, the OpenAPI document, and the tests that ask of every endpoint who may call it.

Paths are matched part by part, while they are still quoted, so that an id may hold anything, slashes included.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, Literal, Self, Union, cast, get_args, get_type_hints
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request
from starlette.responses import Response

from holdfast.server.auth.scopes import Scope
from holdfast.server.http.problems import Problem
from holdfast.server.http.request_headers import check_headers
from holdfast.services.json_form import ValueEncoder, encode_plain, to_json_bytes

Handler = Callable[..., Awaitable[Any]]

_MAX_VIOLATIONS = 1000


class RequestModel(BaseModel):
    """What comes in: unknown fields are an error, since a misspelt option must not be left out in silence.

    Texts have no NUL characters, which databases do not take. Values (declared as ``Any``) may: they are kept as bytes.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def _validate_no_nuls(self) -> Self:
        for name, field in type(self).model_fields.items():
            if field.annotation is Any or Any in get_args(field.annotation):
                continue
            value = getattr(self, name)
            texts = cast("Iterable[Any]", value if isinstance(value, list | tuple) else (value,))
            if any(isinstance(text, str) and "\0" in text for text in texts):
                raise ValueError(f"{name} has a NUL character in it")
        return self


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One thing that can be asked for."""

    method: str
    path: str
    scope: Scope | None
    """What the caller must be allowed; ``None``: anybody may ask."""
    handler: Handler
    status: int
    body_model: type[BaseModel] | None
    query_model: type[BaseModel] | None
    response_type: TypeAdapter[Any] | None
    """``None``: it answers with a response of its own, or with nothing."""
    can_stream: bool
    is_address_scoped: bool
    """The scope is for the address in the path alone."""
    is_audited: bool
    """It stands in the audit log."""
    extra_responses: Mapping[int, str]
    """Other statuses that it may answer with, and what they mean."""
    headers: tuple[str, ...] = ()
    """Headers of the request that it reads: see ``headers``."""
    tag: str = ""
    """Under which it stands in the OpenAPI document."""
    location: str | None = None
    """The path of what a 201 has created, with ``{id}`` in place of its id."""

    @property
    def name(self) -> str:
        """What it is called in the OpenAPI document and the audit log."""
        return self.handler.__name__

    @property
    def is_mutating(self) -> bool:
        """Whether asking changes something: also whoever just listens takes work away from others."""
        return self.method != "GET" or self.scope is Scope.LISTEN

    @property
    def path_segments(self) -> tuple[str, ...]:
        """Its path, part by part; those with a name in braces stand for anything."""
        return tuple(self.path.strip("/").split("/"))

    @property
    def path_params(self) -> tuple[str, ...]:
        """The parts of its path that have names."""
        return tuple(part[1:-1] for part in self.path_segments if part.startswith("{"))


class Router:
    """A collection of endpoints."""

    def __init__(self, tag: str | None = None) -> None:
        self.endpoints: list[Endpoint] = []
        self._tag = tag
        """Under which they stand in the OpenAPI document; that of their module, unless given."""

    def __call__(
        self,
        method: str,
        path: str,
        *,
        scope: Scope | None,
        status: int = 200,
        is_address_scoped: bool = False,
        is_audited: bool | None = None,
        extra_responses: Mapping[int, str] | None = None,
        headers: tuple[str, ...] = (),
        location: str | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declare an endpoint. What changes something is audited unless it says otherwise."""

        def declare(handler: Handler) -> Handler:
            hints = get_type_hints(handler, include_extras=True)
            returns, streams = _split_response_type(hints.get("return", type(None)))
            self.endpoints.append(
                Endpoint(
                    method=method,
                    path=path,
                    scope=scope,
                    handler=handler,
                    status=204 if returns is type(None) and not streams else status,
                    body_model=hints.get("body"),
                    query_model=hints.get("query"),
                    response_type=None if returns is type(None) else TypeAdapter(returns),
                    can_stream=streams,
                    is_address_scoped=is_address_scoped,
                    is_audited=(method != "GET") if is_audited is None else is_audited,
                    extra_responses=extra_responses or {},
                    headers=headers,
                    tag=self._tag or handler.__module__.rpartition(".")[2],
                    location=location,
                )
            )
            return handler

        return declare


class PreparedResponse(Response):
    """An answer whose bytes are there already."""


def _split_response_type(returns: Any) -> tuple[Any, bool]:
    """What an endpoint returns that is data, and whether it may also return a stream."""
    kinds = get_args(returns) if isinstance(returns, UnionType) else (returns,)
    data = [kind for kind in kinds if not (inspect.isclass(kind) and issubclass(kind, Response))]
    if len(data) == len(kinds):
        return returns, False
    streams = any(kind is not PreparedResponse for kind in kinds if kind not in data)
    return (Union[tuple(data)] if data else type(None)), streams  # noqa: UP007


# Routing


class RouteTable:
    """Finds the endpoint of a path."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._by_shape: dict[tuple[int, str], list[tuple[tuple[str, ...], Endpoint]]] = {}
        """By the number of parts, and the one behind the version; each with its parts."""
        for one in endpoints:
            self._by_shape.setdefault((len(one.path_segments), one.path_segments[1]), []).append(
                (one.path_segments, one)
            )
        for found in self._by_shape.values():  # those without names first: `/v1/runs/batch` is no run
            found.sort(key=lambda pair: [part.startswith("{") for part in pair[0]])

    def find(self, method: str, raw_path: bytes) -> tuple[Endpoint, dict[str, str]]:
        """The endpoint, and the parts of the path that have names. Raises ``Problem``."""
        parts = raw_path.partition(b"?")[0].decode("latin-1").removeprefix("/").split("/")
        allowed: list[str] = []
        for pattern, one in self._by_shape.get((len(parts), parts[1]), ()) if len(parts) > 1 else ():
            values = _match_path(pattern, parts)
            if values is None:
                continue
            if one.method == method or (method == "HEAD" and one.method == "GET"):
                return one, values
            allowed += ["GET", "HEAD"] if one.method == "GET" else [one.method]
        if allowed:
            names = ", ".join(sorted(set(allowed)))
            raise Problem(
                405,
                "no-such-method",
                "The path does not take that method",
                f"It takes {names}.",
                headers={"Allow": names},
            )
        raise Problem(404, "no-such-path", "There is nothing at that path", "GET /v1/openapi.json tells what there is.")


def _match_path(pattern: tuple[str, ...], segments: list[str]) -> dict[str, str] | None:
    values: dict[str, str] = {}
    for wanted, part in zip(pattern, segments, strict=True):
        if wanted.startswith("{"):
            try:
                value = unquote(part, errors="strict")
            except UnicodeDecodeError:
                return None
            if not value or not value.isprintable():  # nothing has such a name or id
                return None
            values[wanted[1:-1]] = value
        elif wanted != part:
            return None
    return values


# What comes in and goes out


def parse_arguments(endpoint: Endpoint, request: Request, path_params: Mapping[str, str]) -> dict[str, Any]:
    """The arguments that an endpoint takes, beside the call and the body. Raises ``Problem``."""
    check_headers(endpoint.headers, request.headers)
    arguments: dict[str, Any] = dict(path_params)
    if endpoint.query_model is not None:
        arguments["query"] = _parse_query(endpoint.query_model, request)
    return arguments


def parse_body(model: type[BaseModel], data: bytearray, media_type: str) -> BaseModel:
    """The body that was read from a request. Raises ``Problem``."""
    is_empty = not data.strip()
    if not is_empty and media_type.partition(";")[0].strip().lower() != "application/json":
        raise Problem(
            415, "not-json", "The body must be JSON", "Send it with the header Content-Type: application/json."
        )
    try:
        if is_empty:
            return model.model_validate({})
        if _HUGE_INT.search(data):
            raise ValueError("a number has more digits than can be told")
        # JSON has numbers and texts of its own: a text that looks like a number is none.
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        raise _validation_problem(error, _parse_json(data), "body") from None
    except ValueError as error:
        raise Problem(422, "bad-input", "The body is no JSON", f"{error}.") from None


def _parse_json(data: bytearray) -> Any:
    try:
        return from_json(data)
    except ValueError:
        return None


def build_response(
    endpoint: Endpoint, value: Any, status: int | None = None, encode_value: ValueEncoder = encode_plain
) -> Response:
    """What is sent back."""
    if isinstance(value, Response):
        return value
    if endpoint.response_type is None or (value is None and status == 204):
        return Response(status_code=status or endpoint.status)
    content = to_json_bytes(value, encode_value, adapter=endpoint.response_type)
    response = PreparedResponse(content, status or endpoint.status, media_type="application/json")
    if endpoint.location is not None and response.status_code == 201:
        response.headers["Location"] = endpoint.location.format(id=quote(cast("Any", value).id, safe=""))
    return response


def _parse_query(model: type[BaseModel], request: Request) -> BaseModel:
    """Values of the query by name; those that the model wants several of as lists. Raises ``Problem``."""
    several = {name for name, field in model.model_fields.items() if _is_list_type(field.annotation)}
    given = request.query_params
    values = {name: given.getlist(name) if name in several else given[name] for name in given}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _validation_problem(error, values, "query") from None


def _is_list_type(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) in (list, tuple)


def _validation_problem(error: ValidationError, sent: Any, source: Literal["body", "query"]) -> Problem:
    if error.error_count() > _MAX_VIOLATIONS:  # telling them one by one would cost more than they are worth
        detail = f"{error.error_count():,} values in the {source} do not fit: see GET /v1/openapi.json."
        return Problem(422, "bad-input", "The values do not fit", detail)
    prefix = ["query"] if source == "query" else []
    violations = [
        {"path": ".".join([*prefix, *_find_path(sent, one)]), "message": one["msg"][:500]}
        for one in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    detail = "; ".join(f"{one['path'] or source}: {one['message']}" for one in violations[:5])
    return Problem(422, "bad-input", "The values do not fit", detail, violations=violations[:50])


def _find_path(sent: Any, error: ErrorDetails) -> Iterator[str]:
    """The path of an error in what was sent. pydantic also names which choice of a union it tried."""
    for index, part in enumerate(error["loc"], 1):
        if (isinstance(sent, Mapping) and part in sent) or (isinstance(sent, list) and isinstance(part, int)):
            sent = cast("Any", sent)[part]
            yield str(part)[:100]
        elif error["type"] == "missing" and index == len(error["loc"]):
            yield str(part)[:100]


_HUGE_INT: Final = re.compile(rb'"\$int"\s*:\s*"-?[0-9a-fA-F]{3500}')
"""A tagged number that Python would not write in decimal any more; plain ones of that length it does not read."""
