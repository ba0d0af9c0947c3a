"""For receivers of webhooks: is a request from the server, and what does it deliver?

    delivery = verify(request.headers, body, secret)

Requests are signed according to the Standard Webhooks specification (standardwebhooks.com), which has libraries in many
languages: ``webhook-signature`` is ``v1,`` and the base64 of an HMAC-SHA256 over ``webhook-id``, a period,
``webhook-timestamp``, a period, and the body. While a secret is being rotated, there are two signatures, separated by a
space, and one valid signature is enough.

A valid request can be sent again by anyone who has seen it, for as long as its timestamp is within the ``tolerance``.
To prevent that, remember each ``webhook-id`` for twice the tolerance, and refuse a second request with the same id:
each delivery has its own.
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
"""The beginning of a secret, before the base64 of its bytes."""
DEFAULT_TOLERANCE_S = 300.0
"""Seconds that the clocks of the server and the receiver may differ, including the transmission."""


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
        headers: the headers of the request, in any case.
        body: the body, byte for byte as it arrived.
        secret: the secret that was shown when the webhook was set (``whsec_…``); several during a rotation.
        tolerance: seconds that the request's timestamp may differ from now. For that long, anyone who has seen the
            request can repeat it.
        now: the current time; default: that of the system.
    """
    values = {name.lower(): value for name, value in headers.items()}
    missing = [name for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER) if not values.get(name)]
    if missing:
        raise WebhookVerificationFailed(
            f"the request has no header {' and no '.join(missing)}: it is no webhook of Holdfast's"
        )
    id, timestamp = values[ID_HEADER], values[TIMESTAMP_HEADER]
    secrets = [secret] if isinstance(secret, str) else list(secret)
    expected = [sign(secret, id, timestamp, body).encode() for secret in secrets]
    signatures = [signature.encode() for signature in values[SIGNATURE_HEADER].split(" ")]
    # All are compared, each in constant time, so that the time does not reveal where they differ.
    matches = [hmac.compare_digest(signature, other) for signature in signatures for other in expected]
    if not any(matches):
        raise WebhookVerificationFailed(
            "the request is not signed with this secret, or its body is not as it was sent: it must be checked byte "
            "for byte, before anything reads it as JSON"
        )
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        raise WebhookVerificationFailed(f"the header {TIMESTAMP_HEADER} is no number of seconds")
    age = (time.time() if now is None else now) - int(timestamp)
    if abs(age) > tolerance:
        raise WebhookVerificationFailed(
            f"the request was signed {abs(age):.0f} s {'ago' if age > 0 else 'from now'}, and {tolerance:g} s are "
            f"believed: either it is being repeated, or the clock here or at the server is wrong"
        )
    return json.loads(body)


def sign(secret: str, id: str, timestamp: str, body: bytes) -> str:
    """A signature for the header. Raises ``UsageError`` if the secret is invalid."""
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
