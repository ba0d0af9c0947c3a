"""What the response of a receiver means for the delivery.

``docs/webhooks.md`` has the table. In short: a success ends the run, with the body as its output. After a 202, the
receiver continues through the API. If the receiver refuses the delivery, it has failed for good. Other failures are
retried.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from holdfast.codec import EncodedValue, codec_for
from holdfast.errors import CodecError
from holdfast.server.http.json_scanner import check_json
from holdfast.server.webhooks.http_client import WebhookResponse

_value_codec = codec_for(Any)

STATUS_ACCEPTED = 202
STATUS_NO_CONTENT = 204
STATUS_GONE = 410
RETRIED_STATUSES = (408, 425, 429)
"""Refusals that may pass."""
FIRST_DELAY_S, DELAY_FACTOR, MAX_DELAY_S = 5.0, 5.0, 3600.0
MAX_RETRY_AFTER_S = 86400.0
MAX_EXCERPT_CHARS = 300
"""Characters of a response that are part of an error message."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The run ends with an output."""

    output: Any


@dataclass(frozen=True, slots=True)
class Accepted:
    """The receiver continues through the API."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The delivery has failed."""

    type: str
    message: str
    is_retryable: bool = True
    retry_after_s: float = 0.0
    """Minimum seconds before the next request, as the receiver asked."""
    is_gone: bool = False
    """The receiver wants no more deliveries."""


WebhookOutcome = Completed | Accepted | Failed


def interpret_response(response: WebhookResponse, now: float) -> WebhookOutcome:
    """The outcome of a delivery, according to the receiver's response."""
    status = response.status
    if status == STATUS_ACCEPTED:
        return Accepted()
    if status == STATUS_NO_CONTENT:
        return Completed(None)
    if 200 <= status < 300:
        return _parse_output(response)
    message = f"the receiver answered {status}{_format_excerpt(response)}"
    if status == STATUS_GONE:
        return Failed("WebhookGone", message, is_retryable=False, is_gone=True)
    if 400 <= status < 500 and status not in RETRIED_STATUSES:
        return Failed("WebhookRefused", message, is_retryable=False)
    if 300 <= status < 400:
        message += ": redirects are followed only with 307 and 308, and only on the same host"
    return Failed("WebhookFailed", message, retry_after_s=_parse_retry_after(response, now))


def _parse_output(response: WebhookResponse) -> WebhookOutcome:
    if not response.is_complete:
        return Failed(
            "WebhookRefused",
            f"the receiver's answer {response.status} is larger than {len(response.body)} bytes, which is the most "
            f"that is taken: keep it elsewhere, and answer where it is",
            is_retryable=False,
        )
    if not response.body.strip():
        return Completed(None)
    try:
        check_json(response.body)
        output = json.loads(response.body.decode("utf-8"))
        # Encoded here, where a large response does not block the event loop.
        return Completed(EncodedValue(_value_codec.encode(output, "the output of the run")))
    except CodecError as error:
        return Failed("WebhookRefused", str(error), is_retryable=False)
    except ValueError as error:
        return Failed(
            "WebhookFailed",
            f"the receiver answered {response.status} with a body that is not JSON ({error})"
            f"{_format_excerpt(response)}: the body of a success is the output of the run; answer 204 if there is none",
        )


def _format_excerpt(response: WebhookResponse) -> str:
    text = response.body[: 4 * MAX_EXCERPT_CHARS].decode("utf-8", "replace")
    excerpt = "".join(char if char.isprintable() else " " for char in text).strip()[:MAX_EXCERPT_CHARS]
    return f": {excerpt}" if excerpt else ""


def _parse_retry_after(response: WebhookResponse, now: float) -> float:
    header = response.headers.get("retry-after", "").strip()
    try:
        if header.isascii() and header.isdigit():
            seconds = float(header[:15])
        else:
            seconds = parsedate_to_datetime(header).timestamp() - now
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def get_retry_delay(failure_count: int, delivery_id: str, min_delay_s: float = 0.0) -> float:
    """Seconds until a failed delivery is sent again; ``failure_count`` consecutive failures came before this one.

    The delay is up to a fifth longer or shorter, depending on the delivery, so that deliveries that failed together are
    not all sent again together.
    """
    delay_s = min(FIRST_DELAY_S * DELAY_FACTOR ** min(failure_count, 20), MAX_DELAY_S)
    jitter = hashlib.sha256(delivery_id.encode()).digest()[0] / 255
    return max(delay_s * (0.8 + 0.4 * jitter), min_delay_s)
