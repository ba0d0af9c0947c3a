"""What a model is told of a call, beyond what every reader of its record is: see ``reports.observations``."""

from __future__ import annotations

import json
from typing import Any, Literal

from holdfast.agents.tool_results import get_parts_with_images
from holdfast.codec import read_error_info
from holdfast.reports.observations import CORRECTABLE_ERRORS
from holdfast.services.approvals import Answer


def get_failure_outcome(payload: bytes) -> Literal["retried", "failed"]:
    """Whether the model is asked to make a failed call again, otherwise; as the model library calls it."""
    return "retried" if read_error_info(payload).type in CORRECTABLE_ERRORS else "failed"


def note_changed_arguments(content: Any, answer: Answer | None, arguments: dict[str, Any], *, is_result: bool) -> Any:
    """What came of a call whose arguments a person has changed: a model that did not know would misread it."""
    who = (answer.answered_by if answer is not None else "") or "a person"
    note = f"Before approving this call, {who} changed its arguments"
    if is_result:
        told = {"note": f"{note}. It was made with these.", "arguments": arguments}
        pieces = get_parts_with_images(content)
        # An image is one only at the top of a result: within other data the model would read it as text.
        return {**told, "result": content} if pieces is None else [told, *pieces]
    return f"{note} to {json.dumps(arguments, ensure_ascii=False)}. {content}"
