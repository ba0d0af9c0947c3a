"""Request headers that endpoints read, besides the API key: their meaning, and their valid values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.services.problems import Problem
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


def check_headers(names: Iterable[str], headers: Mapping[str, str]) -> None:
    """Refuse headers with invalid values. Raises ``Problem``."""
    for name in names:
        value = headers.get(name.lower())
        if value is not None and not re.match((rule := HEADER_RULES[name]).pattern, value):
            raise Problem(422, "bad-header", f"The header {name} does not fit", rule.pattern_description)
