"""Endpoints: declared once, as functions with types, and what is made of the declarations.

An endpoint is an async function of a ``Call``, of the parts of its path, and, if it wants them, of a ``body`` and a
``query``, which are pydantic models. Its return type is the model of the answer; ``None`` is answered with 204, and a
``Response`` of its own (a stream) with that; it may have both, and choose by what the request accepts. From the same
declarations come the routes, the OpenAPI document, and the tests that ask of every endpoint who may call it.

Paths are matched part by part, while they are still quoted, so that an id may hold anything, slashes included.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Final, Self, Union, cast, get_args, get_type_hints
from urllib.parse import quote, unquote

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from starlette.requests import Request
from starlette.responses import Response

from holdfast.server.auth.scopes import Scope
from holdfast.server.http.problems import Json, Problem
from holdfast.server.http.request_headers import check_headers

Handler = Callable[..., Awaitable[Any]]

_MOST_FAULTS = 1000


class Body(BaseModel):
    """What comes in: unknown fields are an error, since a misspelt option must not be left out in silence.

    Texts have no NUL characters, which databases do not take. Values (declared as ``Any``) may: they are kept as bytes.
    """

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def _without_nuls(self) -> Self:
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
    body: type[BaseModel] | None
    query: type[BaseModel] | None
    answer: TypeAdapter[Any] | None
    """``None``: it answers with a response of its own, or with nothing."""
    streams: bool
    on_address: bool
    """The scope is for the address in the path alone."""
    audited: bool
    """It stands in the audit log."""
    more: Mapping[int, str]
    """Other statuses that it may answer with, and what they mean."""
    headers: tuple[str, ...] = ()
    """Headers of the request that it reads: see ``headers``."""
    group: str = ""
    """Under which it stands in the OpenAPI document."""
    location: str | None = None
    """The path of what a 201 has created, with ``{id}`` in place of its id."""

    @property
    def name(self) -> str:
        """What it is called in the OpenAPI document and the audit log."""
        return self.handler.__name__

    @property
    def changes(self) -> bool:
        """Whether asking changes something: also whoever just listens takes work away from others."""
        return self.method != "GET" or self.scope is Scope.LISTEN

    @property
    def parts(self) -> tuple[str, ...]:
        """Its path, part by part; those with a name in braces stand for anything."""
        return tuple(self.path.strip("/").split("/"))

    @property
    def path_names(self) -> tuple[str, ...]:
        """The parts of its path that have names."""
        return tuple(part[1:-1] for part in self.parts if part.startswith("{"))


class Api:
    """A collection of endpoints."""

    def __init__(self, group: str | None = None) -> None:
        self.endpoints: list[Endpoint] = []
        self._group = group
        """Under which they stand in the OpenAPI document; that of their module, unless given."""

    def __call__(
        self,
        method: str,
        path: str,
        *,
        scope: Scope | None,
        status: int = 200,
        on_address: bool = False,
        audited: bool | None = None,
        more: Mapping[int, str] | None = None,
        headers: tuple[str, ...] = (),
        location: str | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declare an endpoint. What changes something is audited unless it says otherwise."""

        def declare(handler: Handler) -> Handler:
            hints = get_type_hints(handler, include_extras=True)
            returns, streams = _without_response(hints.get("return", type(None)))
            self.endpoints.append(
                Endpoint(
                    method=method,
                    path=path,
                    scope=scope,
                    handler=handler,
                    status=204 if returns is type(None) and not streams else status,
                    body=hints.get("body"),
                    query=hints.get("query"),
                    answer=None if returns is type(None) else TypeAdapter(returns),
                    streams=streams,
                    on_address=on_address,
                    audited=(method != "GET") if audited is None else audited,
                    more=more or {},
                    headers=headers,
                    group=self._group or handler.__module__.rpartition(".")[2],
                    location=location,
                )
            )
            return handler

        return declare


class Prepared(Response):
    """An answer whose bytes are there already: the same data, without making them anew."""


def _without_response(returns: Any) -> tuple[Any, bool]:
    """What an endpoint returns that is data, and whether it may also return a stream."""
    kinds = get_args(returns) if isinstance(returns, UnionType) else (returns,)
    data = [kind for kind in kinds if not (inspect.isclass(kind) and issubclass(kind, Response))]
    if len(data) == len(kinds):
        return returns, False
    streams = any(kind is not Prepared for kind in kinds if kind not in data)
    return (Union[tuple(data)] if data else type(None)), streams  # noqa: UP007


# Routing


class Routes:
    """Finds the endpoint of a path."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._by_shape: dict[tuple[int, str], list[tuple[tuple[str, ...], Endpoint]]] = {}
        """By the number of parts, and the one behind the version; each with its parts."""
        for one in endpoints:
            self._by_shape.setdefault((len(one.parts), one.parts[1]), []).append((one.parts, one))
        for found in self._by_shape.values():  # those without names first: `/v1/runs/batch` is no run
            found.sort(key=lambda pair: [part.startswith("{") for part in pair[0]])

    def find(self, method: str, raw_path: bytes) -> tuple[Endpoint, dict[str, str]]:
        """The endpoint, and the parts of the path that have names. Raises ``Problem``."""
        parts = raw_path.partition(b"?")[0].decode("latin-1").removeprefix("/").split("/")
        allowed: list[str] = []
        for pattern, one in self._by_shape.get((len(parts), parts[1]), ()) if len(parts) > 1 else ():
            values = _match(pattern, parts)
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


def _match(pattern: tuple[str, ...], parts: list[str]) -> dict[str, str] | None:
    values: dict[str, str] = {}
    for wanted, part in zip(pattern, parts, strict=True):
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


def arguments_of(endpoint: Endpoint, request: Request, path: Mapping[str, str]) -> dict[str, Any]:
    """The arguments that an endpoint takes, beside the call and the body. Raises ``Problem``."""
    check_headers(endpoint.headers, request.headers)
    arguments: dict[str, Any] = dict(path)
    if endpoint.query is not None:
        arguments["query"] = _checked(endpoint.query, _query(endpoint.query, request), "query")
    return arguments


def body_of(model: type[BaseModel], data: bytearray, media_type: str) -> BaseModel:
    """The body that was read from a request. Raises ``Problem``."""
    is_empty = not data.strip()
    if not is_empty and media_type.partition(";")[0].strip().lower() != "application/json":
        raise Problem(
            415, "not-json", "The body must be JSON", "Send it with the header Content-Type: application/json."
        )
    try:
        if is_empty:
            return model.model_validate({})
        if _ENDLESS.search(data):
            raise ValueError("a number has more digits than can be told")
        # JSON has numbers and texts of its own: a text that looks like a number is none.
        return model.model_validate_json(data, strict=True)
    except ValidationError as error:
        raise _invalid(error, "body") from None
    except ValueError as error:
        raise Problem(422, "bad-input", "The body is no JSON", f"{error}.") from None


def answer_of(endpoint: Endpoint, value: Any, status: int | None = None) -> Response:
    """What is sent back."""
    if isinstance(value, Response):
        return value
    if endpoint.answer is None or (value is None and status == 204):
        return Response(status_code=status or endpoint.status)
    response = Json(endpoint.answer.dump_python(value, mode="json"), status or endpoint.status)
    if endpoint.location is not None and response.status_code == 201:
        response.headers["Location"] = endpoint.location.format(id=quote(cast("Any", value).id, safe=""))
    return response


def _query(model: type[BaseModel], request: Request) -> dict[str, Any]:
    """Values of the query by name; those that the model wants several of as lists."""
    several = {name for name, field in model.model_fields.items() if _is_list(field.annotation)}
    given = request.query_params
    return {name: given.getlist(name) if name in several else given[name] for name in given}


def _is_list(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) in (list, tuple)


def _checked(model: type[BaseModel], values: Mapping[str, Any], where: str) -> BaseModel:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _invalid(error, where) from None


def _invalid(error: ValidationError, where: str) -> Problem:
    if error.error_count() > _MOST_FAULTS:  # telling them one by one would cost more than they are worth
        detail = f"{error.error_count():,} values in the {where} do not fit: see GET /v1/openapi.json."
        return Problem(422, "bad-input", "The values do not fit", detail)
    faults = [
        {"where": ".".join([where, *(str(part)[:100] for part in fault["loc"])]), "why": fault["msg"][:500]}
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    detail = "; ".join(f"{fault['where']}: {fault['why']}" for fault in faults[:5])
    return Problem(422, "bad-input", "The values do not fit", detail, faults=faults[:50])


_ENDLESS: Final = re.compile(rb'"\$int"\s*:\s*"-?[0-9a-fA-F]{3500}')
"""A tagged number that Python would not write in decimal any more; plain ones of that length it does not read."""
