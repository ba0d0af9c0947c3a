"""The message that replaces summarized messages.

Its metadata, which no provider sees, contains the number of answers that it replaces, so that code that counts the
answers of a conversation (a scripted model, the next summary) includes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from datetime import datetime

    from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart, UserPromptPart

    from holdfast.reports.plans import Plan
    from holdfast.reports.recorded_reply import RecordedCompaction

_METADATA_KEY = "holdfast"

REQUEST_METADATA: dict[str, Any] = {_METADATA_KEY: {"compaction": True}}
"""The metadata of a request for a summary."""


def is_summary_request(messages: Sequence[ModelMessage]) -> bool:
    """Whether these messages request a summary."""
    return bool(_get_metadata(messages[0]).get("compaction"))


def count_answers(messages: Sequence[ModelMessage]) -> int:
    """The number of a model's answers, with those that a summary replaces."""
    from pydantic_ai.messages import ModelResponse

    answers = [type(message) for message in messages].count(ModelResponse)
    return answers + (_get_metadata(messages[0]).get("answers", 0) if messages else 0)


def count_kept(messages: Sequence[ModelMessage]) -> int:
    """How many of the messages after a summary are older than it; 0 if there is no summary."""
    return _get_metadata(messages[0]).get("kept", 0)


def make_summary_message(
    summary: str,
    compacted: RecordedCompaction,
    system: Sequence[ModelRequestPart],
    task: Sequence[UserPromptPart],
    instructions: str | None,
    plan: Plan | None,
    timestamp: datetime,
) -> ModelRequest:
    """The message that replaces summarized ones. It repeats the task, if that was one of them, and the plan."""
    from pydantic_ai.messages import ModelRequest, UserPromptPart

    still = " The task above still holds." if task else ""
    text = (
        f"[The conversation up to here was summarised, because it became too long: {compacted.summarized_count} "
        f"messages, {compacted.answer_count} of them answers of yours.{still} Go on from here.]\n\n{summary}"
    )
    if plan:
        text += "\n\nYour plan, as you have written it last:\n"
        text += "\n".join(f"- {item.task} ({item.status})" for item in plan)
    return ModelRequest(
        [*system, *task, UserPromptPart(text, timestamp=timestamp)],
        timestamp=timestamp,
        instructions=instructions,
        metadata={_METADATA_KEY: {"answers": compacted.answer_count, "kept": compacted.kept_count}},
    )


def _get_metadata(message: ModelMessage) -> dict[str, Any]:
    mark: Any = (message.metadata or {}).get(_METADATA_KEY)
    return cast("dict[str, Any]", mark) if isinstance(mark, dict) else {}
