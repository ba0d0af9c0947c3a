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

from holdfast.codec import Encoded, codec_for
from holdfast.errors import CodecError
from holdfast.server.http.json_scanner import scan
from holdfast.server.webhooks.http_client import Answer

_values = codec_for(Any)

GOES_ON = 202
NOTHING = 204
GONE = 410
TRIED_AGAIN = (408, 425, 429)
"""Refusals that are about the moment, not about the delivery."""
FIRST_PAUSE, PAUSE_GROWS, LONGEST_PAUSE = 5.0, 5.0, 3600.0
LONGEST_RETRY_AFTER = 86400.0
EXCERPT = 300
"""Characters of an answer that are kept, to tell what went wrong."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The run ends with this."""

    output: Any


@dataclass(frozen=True, slots=True)
class GoesOn:
    """The receiver does the rest through the API."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The delivery has failed."""

    type: str
    message: str
    retry: bool = True
    after: float = 0.0
    """Seconds that the receiver wants to be left alone for."""
    is_gone: bool = False
    """The receiver wants nothing any more."""


Meaning = Completed | GoesOn | Failed


def meaning(answer: Answer, now: float) -> Meaning:
    """What an answer says."""
    status = answer.status
    if status == GOES_ON:
        return GoesOn()
    if status == NOTHING:
        return Completed(None)
    if 200 <= status < 300:
        return _output(answer)
    told = f"the receiver answered {status}{_excerpt(answer)}"
    if status == GONE:
        return Failed("WebhookGone", told, retry=False, is_gone=True)
    if 400 <= status < 500 and status not in TRIED_AGAIN:
        return Failed("WebhookRefused", told, retry=False)
    if 300 <= status < 400:
        told += ": redirects are followed only with 307 and 308, and only on the same host"
    return Failed("WebhookFailed", told, after=_retry_after(answer, now))


def _output(answer: Answer) -> Meaning:
    if not answer.is_whole:
        return Failed(
            "WebhookRefused",
            f"the receiver's answer {answer.status} is larger than {len(answer.body)} bytes, which is the most that "
            f"is taken: keep it elsewhere, and answer where it is",
            retry=False,
        )
    if not answer.body.strip():
        return Completed(None)
    try:
        scan(answer.body)
        # Encoded here, where a large answer keeps nobody waiting.
        return Completed(Encoded(_values.encode(json.loads(answer.body.decode("utf-8")), "the output of the run")))
    except CodecError as error:
        return Failed("WebhookRefused", str(error), retry=False)
    except ValueError as error:
        return Failed(
            "WebhookFailed",
            f"the receiver answered {answer.status} with a body that is not JSON ({error}){_excerpt(answer)}: the body "
            f"of a success is the output of the run; answer 204 if there is none",
        )


def _excerpt(answer: Answer) -> str:
    text = answer.body[: 4 * EXCERPT].decode("utf-8", "replace")
    shown = "".join(one if one.isprintable() else " " for one in text).strip()[:EXCERPT]
    return f": {shown}" if shown else ""


def _retry_after(answer: Answer, now: float) -> float:
    given = answer.headers.get("retry-after", "").strip()
    try:
        if given.isascii() and given.isdigit():
            seconds = float(given[:15])
        else:
            seconds = parsedate_to_datetime(given).timestamp() - now
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


def pause_before(failures: int, delivery_id: str, after: float = 0.0) -> float:
    """Seconds until a delivery is sent again that has failed so often in a row before this time.

    It is up to a fifth longer or shorter, by delivery: those that failed together should not come back together.
    """
    pause = min(FIRST_PAUSE * PAUSE_GROWS ** min(failures, 20), LONGEST_PAUSE)
    share = hashlib.sha256(delivery_id.encode()).digest()[0] / 255
    return max(pause * (0.8 + 0.4 * share), after)
