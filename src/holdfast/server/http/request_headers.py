"""Headers that endpoints read, beside those of the key: what they mean, and what may stand in them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from holdfast.server.http.problems import Problem
from holdfast.services.wire_values import TAGGED_VALUES, VALUES_HEADER

IDEMPOTENCY_KEY = "Idempotency-Key"
"""By which a caller names a request, so that sending it again changes nothing."""
LAST_EVENT_ID = "Last-Event-ID"
"""By which a reader that comes back tells the last event that it had."""
PLAIN_VALUES = "plain"


@dataclass(frozen=True, slots=True)
class HeaderRule:
    """What may stand in a header, as a pattern and in words."""

    description: str
    pattern: str
    pattern_description: str


HEADER_RULES: Final[Mapping[str, HeaderRule]] = {
    IDEMPOTENCY_KEY: HeaderRule(
        "What the caller calls this request: sending it again under the same name changes nothing, and is answered "
        "with what the first one has made.",
        r"^[!-~]([ -~]{0,253}[!-~])?$",
        "It has 1 to 255 printable ASCII characters.",
    ),
    VALUES_HEADER: HeaderRule(
        "In which form values come and go. `plain`, as they do unless it is given: as JSON, where times, bytes and the "
        "like are texts. `tagged`: in Holdfast's own form, in which nothing is lost.",
        rf"^({PLAIN_VALUES}|{TAGGED_VALUES})$",
        f"It is {PLAIN_VALUES!r} or {TAGGED_VALUES!r}.",
    ),
    LAST_EVENT_ID: HeaderRule(
        "The id of the last event that a reader of the stream had, to go on behind it.",
        r"^[A-Za-z0-9_.:+-]{1,2000}$",
        "It is the id of an event, unchanged.",
    ),
}


def check_headers(names: Iterable[str], headers: Mapping[str, str]) -> None:
    """Refuse headers with something in them that does not belong there. Raises ``Problem``."""
    for name in names:
        value, header = headers.get(name), HEADER_RULES[name]
        if value is not None and not re.match(header.pattern, value):
            raise Problem(422, "bad-header", f"The header {name} does not fit", header.pattern_description)
