"""What the answer of a receiver means for the delivery.

The table is in ``docs/webhooks.md``; in short: a success ends the run, with the body as its output; 202 says that the
receiver goes on by itself; what the receiver refuses has failed for good; and what may be better next time is sent
again.
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
"""Refusals that are about the moment, not about the delivery."""
FIRST_DELAY_S, DELAY_FACTOR, MAX_DELAY_S = 5.0, 5.0, 3600.0
MAX_RETRY_AFTER_S = 86400.0
MAX_EXCERPT_CHARS = 300
"""Characters of an answer that are kept, to tell what went wrong."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The run ends with this."""

    output: Any


@dataclass(frozen=True, slots=True)
class Accepted:
    """The receiver does the rest through the API."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The delivery has failed."""

    type: str
    message: str
    is_retryable: bool = True
    retry_after_s: float = 0.0
    """Seconds that the receiver wants to be left alone for."""
    is_gone: bool = False
    """The receiver wants nothing any more."""


WebhookOutcome = Completed | Accepted | Failed


def interpret_response(response: WebhookResponse, now: float) -> WebhookOutcome:
    """What an answer says."""
    status = response.status
    if status == STATUS_ACCEPTED:
        return Accepted()
    if status == STATUS_NO_CONTENT:
        return Completed(None)
    if 200 <= status < 300:
        return _parse_output(response)
    told = f"the receiver answered {status}{_format_excerpt(response)}"
    if status == STATUS_GONE:
        return Failed("WebhookGone", told, is_retryable=False, is_gone=True)
    if 400 <= status < 500 and status not in RETRIED_STATUSES:
        return Failed("WebhookRefused", told, is_retryable=False)
    if 300 <= status < 400:
        told += ": redirects are followed only with 307 and 308, and only on the same host"
    return Failed("WebhookFailed", told, retry_after_s=_parse_retry_after(response, now))


def _parse_output(response: WebhookResponse) -> WebhookOutcome:
    if not response.is_complete:
        return Failed(
            "WebhookRefused",
            f"the receiver's answer {response.status} is larger than {len(response.body)} bytes, which is the most "
            "that "
            f"is taken: keep it elsewhere, and answer where it is",
            is_retryable=False,
        )
    if not response.body.strip():
        return Completed(None)
    try:
        check_json(response.body)
        # Encoded here, where a large answer keeps nobody waiting.
        return Completed(
            EncodedValue(_value_codec.encode(json.loads(response.body.decode("utf-8")), "the output of the run"))
        )
    except CodecError as error:
        return Failed("WebhookRefused", str(error), is_retryable=False)
    except ValueError as error:
        return Failed(
            "WebhookFailed",
            f"the receiver answered {response.status} with a body that is not JSON "
            f"({error}){_format_excerpt(response)}: the body "
            f"of a success is the output of the run; answer 204 if there is none",
        )


def _format_excerpt(response: WebhookResponse) -> str:
    text = response.body[: 4 * MAX_EXCERPT_CHARS].decode("utf-8", "replace")
    shown = "".join(one if one.isprintable() else " " for one in text).strip()[:MAX_EXCERPT_CHARS]
    return f": {shown}" if shown else ""


def _parse_retry_after(response: WebhookResponse, now: float) -> float:
    given = response.headers.get("retry-after", "").strip()
    try:
        if given.isascii() and given.isdigit():
            seconds = float(given[:15])
        else:
            seconds = parsedate_to_datetime(given).timestamp() - now
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)


def get_retry_delay(failure_count: int, delivery_id: str, min_delay_s: float = 0.0) -> float:
    """Seconds until a delivery is sent again that has failed so often in a row before this time.

    It is up to a fifth longer or shorter, by delivery: those that failed together should not come back together.
    """
    pause = min(FIRST_DELAY_S * DELAY_FACTOR ** min(failure_count, 20), MAX_DELAY_S)
    share = hashlib.sha256(delivery_id.encode()).digest()[0] / 255
    return max(pause * (0.8 + 0.4 * share), min_delay_s)
