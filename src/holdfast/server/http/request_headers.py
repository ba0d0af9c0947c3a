"""Request headers that endpoints read, besides the API key: their meaning, and their valid values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Receive, Scope

from holdfast.server.http.problems import Problem
from holdfast.services.wire_values import TAGGED_VALUES, VALUES_HEADER

IDEMPOTENCY_KEY = "Idempotency-Key"
LAST_EVENT_ID = "Last-Event-ID"
PLAIN_VALUES = "plain"


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """The description and the valid values of a header."""

    description: str
    pattern: str
    pattern_description: str


HEADER_RULES: Final[Mapping[str, HeaderRule]] = {
    IDEMPOTENCY_KEY: HeaderRule(
        "The caller's name for this request. Sending it again with the same key changes nothing, and the response has "
        "what the first request made.",
        r"^[!-~]([ -~]{0,253}[!-~])?$",
        "It has 1 to 255 printable ASCII characters.",
    ),
    VALUES_HEADER: HeaderRule(
        "The form of values in the request and the response. `plain` (the default): JSON, where times, bytes, and the "
        "like are texts. `tagged`: Holdfast's own form, which loses nothing.",
        rf"^({PLAIN_VALUES}|{TAGGED_VALUES})$",
        f"It is {PLAIN_VALUES!r} or {TAGGED_VALUES!r}.",
    ),
    LAST_EVENT_ID: HeaderRule(
        "The id of the last event that the reader of a stream got, to continue after it.",
        r"^[A-Za-z0-9_.:+-]{1,2000}$",
        "It is the id of an event, unchanged.",
    ),
}


class IndexedHeaders(Headers):
    """The headers of a request, by name: Starlette's own look at all of them for each one."""

    def __init__(self, raw: Iterable[tuple[bytes, bytes]]) -> None:
        super().__init__(raw=list(raw))
        self._values: dict[str, list[str]] = {}
        for name, value in self.raw:
            self._values.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))

    def __getitem__(self, key: str) -> str:
        return self._values[key.lower()][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, key: Any) -> bool:
        return key.lower() in self._values

    def get(self, key: str, default: Any = None) -> Any:
        """The first value of a header."""
        values = self._values.get(key.lower())
        return default if values is None else values[0]

    def getlist(self, key: str) -> list[str]:
        """All values of a header."""
        return self._values.get(key.lower(), [])


class IncomingRequest(Request):
    """A request with indexed headers."""

    def __init__(self, scope: Scope, receive: Receive, headers: IndexedHeaders) -> None:
        super().__init__(scope, receive)
        self._headers = headers


def check_headers(names: Iterable[str], headers: Mapping[str, str]) -> None:
    """Refuse headers with invalid values. Raises ``Problem``."""
    for name in names:
        value = headers.get(name)
        if value is not None and not re.match((rule := HEADER_RULES[name]).pattern, value):
            raise Problem(422, "bad-header", f"The header {name} does not fit", rule.pattern_description)
