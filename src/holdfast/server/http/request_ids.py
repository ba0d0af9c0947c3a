"""Request ids, to find the same request in the logs of a caller, a proxy and the server."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Final

REQUEST_ID: Final = "X-Request-Id"
SCOPE: Final = "holdfast.request_id"
"""Where it is kept in the scope of a request."""
_FITTING: Final = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")


def request_id_of(headers: Mapping[str, str]) -> str:
    """The caller's id for a request, or a new one if there is none or it is not safe to log."""
    given = headers.get(REQUEST_ID, "")
    return given if _FITTING.fullmatch(given) else new_request_id()


def new_request_id() -> str:
    """A random id."""
    return secrets.token_hex(12)
