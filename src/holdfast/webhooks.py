"""Webhooks, as whoever receives them sees them: is a request from the server, and what does it deliver?

    delivery = verify(request.headers, body, secret)

Requests are signed after the Standard Webhooks specification (standardwebhooks.com), for which there are libraries in
many languages: ``webhook-signature`` has ``v1,`` and the base64 of an HMAC-SHA256 over ``webhook-id``, a full stop,
``webhook-timestamp``, a full stop and the body. While a secret is being exchanged there are two signatures, with a
blank between them, and one of them is enough.

A signature does not wear out: whoever has seen a request can send it once more. That helps as long as its time is
believed, which is ``tolerance`` to either side. Who wants to be sure keeps each ``webhook-id`` for that long (twice the
tolerance), and refuses what comes a second time under the same one: each delivery has an id of its own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.errors import UsageError, WebhookVerificationFailed

ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"
SECRET_PREFIX: Final = "whsec_"
"""How a secret begins: the base64 of its bytes follows."""
DEFAULT_TOLERANCE_S = 300.0
"""Seconds by which the clocks of the server and of the receiver, and the way between them, may differ."""


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secret: str | Sequence[str],
    *,
    tolerance: float = DEFAULT_TOLERANCE_S,
    now: float | None = None,
) -> dict[str, Any]:
    """The delivery that a request brings, if it is from the server. Raises ``WebhookVerificationFailed``.

    Args:
        headers: of the request, however they are written.
        body: the body, byte for byte as it came.
        secret: what was shown when the webhook was set (``whsec_…``); several while they are being exchanged.
        tolerance: seconds by which the request's time may differ from now. So long may a request be repeated by
            whoever has seen it.
        now: the time, unless it is now.
    """
    given = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER) if not given.get(name)]
    if missing:
        raise WebhookVerificationFailed(
            f"the request has no header {' and no '.join(missing)}: it is no webhook of Holdfast's"
        )
    id, at = given[ID_HEADER], given[TIMESTAMP_HEADER]
    secrets = [secret] if isinstance(secret, str) else list(secret)
    expected = [sign(one, id, at, body).encode() for one in secrets]
    signatures = [one.encode() for one in given[SIGNATURE_HEADER].split(" ")]
    # All are compared, each in constant time, so that the time tells nothing of where they differ.
    matches = [hmac.compare_digest(one, other) for one in signatures for other in expected]
    if not any(matches):
        raise WebhookVerificationFailed(
            "the request is not signed with this secret, or its body is not as it was sent: it must be checked byte "
            "for byte, before anything reads it as JSON"
        )
    if not (at.isascii() and at.isdigit() and len(at) < 16):
        raise WebhookVerificationFailed(f"the header {TIMESTAMP_HEADER} is no number of seconds")
    off = (time.time() if now is None else now) - int(at)
    if abs(off) > tolerance:
        raise WebhookVerificationFailed(
            f"the request was signed {abs(off):.0f} s {'ago' if off > 0 else 'from now'}, and {tolerance:g} s are "
            f"believed: either it is being repeated, or the clock here or at the server is wrong"
        )
    return json.loads(body)


def sign(secret: str, id: str, timestamp: str, body: bytes) -> str:
    """A signature as it stands in the header. Raises ``UsageError`` if the secret is none."""
    mac = hmac.new(_decode_secret(secret), f"{id}.{timestamp}.".encode() + body, hashlib.sha256)
    return "v1," + base64.b64encode(mac.digest()).decode()


def _decode_secret(secret: str) -> bytes:
    try:
        if not secret.startswith(SECRET_PREFIX):
            raise ValueError(SECRET_PREFIX)
        return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (ValueError, binascii.Error):
        raise UsageError(
            f"a webhook's secret begins with {SECRET_PREFIX} and is shown once, when the webhook is set or its secret "
            f"exchanged; what was given is none"
        ) from None
