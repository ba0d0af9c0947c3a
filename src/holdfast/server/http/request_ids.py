"""Request ids, to find the same request in the logs of a caller, a proxy, and the server."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Final

REQUEST_ID_HEADER: Final = "X-Request-Id"
_HEADER_KEY: Final = REQUEST_ID_HEADER.lower()
RAW_REQUEST_ID_HEADER: Final = _HEADER_KEY.encode()
_SAFE_ID: Final = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")


def get_request_id(headers: Mapping[str, str]) -> str:
    """The caller's id for a request, or a new one if there is none or it is not safe to log."""
    given = headers.get(_HEADER_KEY)
    return given if given is not None and _SAFE_ID.fullmatch(given) else new_request_id()


def new_request_id() -> str:
    """A random id. It is for logs, and need not be hard to guess."""
    return f"{random.getrandbits(96):024x}"
