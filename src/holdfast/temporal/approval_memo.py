"""Questions of a run, as people see them: all that are open are one entry of its memo."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from holdfast.codec import check_size
from holdfast.stores.approvals import AskApproval
from holdfast.stores.temporal.payloads import MOST


def shown(asked: AskApproval) -> dict[str, Any]:
    """A question, as it stands in the memo."""
    question = asked.question
    return {
        "id": asked.id,
        "position": asked.position,
        **{name: value.decode() if isinstance(value, bytes) else value for name, value in question._asdict().items()},
        "asked_at": asked.at,
        "expires_at": asked.expires_at,
    }


def check_room(open_ones: Iterable[AskApproval], new: AskApproval, most: int) -> None:
    """Raises ``ValueTooLarge`` if a question does not fit beside those that are open."""
    if most > MOST:
        return  # there is another place for what is large
    together = json.dumps([shown(one) for one in (*open_ones, new)]).encode()
    check_size(together, f"what the run asks people, with question {new.id},", MOST)
