"""How full a model's context is, and where a conversation can be cut so that it fits again.

A conversation that nearly fills its model's context window is compacted: a summary replaces its older messages (see
``agents.compaction``). The step of the model call decides whether this is necessary: ``ContextLimit.check`` by an
estimate before the call, and ``ContextLimit.interpret_rejection`` when the provider rejects the conversation as too
long. Both raise ``ContextFull``, which is recorded as the step's failure, so that the decision is made once.

Sizes are estimated from characters, and corrected by the provider's token count of the same conversation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.agents.models.model_resolution import check_model, get_model_name
from holdfast.agents.models.prices import (
    CHARS_PER_TOKEN,
    count_message_chars,
    count_parameter_chars,
    estimate_input_tokens,
)
from holdfast.errors import ContextFull, DefinitionError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ToolReturnPart
    from pydantic_ai.models import Model, ModelRequestParameters

    from holdfast.admission.usage import Usage
    from holdfast.agents.models.errors import ModelFailure
    from holdfast.agents.models.model_call import ModelCall

MIN_SUMMARY_SHARE = 0.25
"""A compaction that is based on an estimate must summarize at least this share of the conversation."""

MIN_EXCERPT_CHARS = 400
"""Characters of a tool's result that are kept in any case."""

_WINDOW_PATTERN = re.compile(
    r"maximum (?:context|prompt) length is (\d[\d,]*)|> ?(\d[\d,]*) maximum|tokens allowed \((\d[\d,]*)\)"
    r"|context (?:window|length|limit|size)(?: of| is|:)? (\d[\d,]*)",
    re.IGNORECASE,
)
"""How providers state the size of a context window in their messages."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """When and how older turns of a conversation are summarized.

    Args:
        trigger_share: the share of the model's context window at which a conversation is compacted.
        keep_share: the share of the window that the newest messages, which are kept as they are, may take.
        window: the model's context window in tokens. It is known for most models.
        model: the model that summarizes. Default: the agent's own.
    """

    trigger_share: float = 0.8
    keep_share: float = 0.2
    window: int | None = None
    model: str | Model | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.trigger_share) or not 0 < self.trigger_share <= 1:
            raise DefinitionError(
                f"Compaction(trigger_share={self.trigger_share!r}): the share of the context window at which a "
                f"conversation is compacted is above 0 and at most 1, as in trigger_share=0.8"
            )
        if not _is_number(self.keep_share) or not 0 <= self.keep_share <= self.trigger_share / 2:
            raise DefinitionError(
                f"Compaction(keep_share={self.keep_share!r}): the newest messages that are kept may take from 0 to "
                f"half of trigger_share={self.trigger_share:g}, or the context would soon be full again"
            )
        window: Any = self.window
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise DefinitionError(
                f"Compaction(window={window!r}): the context window is a number of tokens, as in window=128_000"
            )
        if self.model is not None:
            check_model(self.model, "Compaction(model=...)")


def validate_compaction(value: object, subject: str) -> Compaction | None:
    """The settings that ``Agent(compaction=...)`` means; ``None``: no compaction."""
    if isinstance(value, Compaction):
        return value
    if not isinstance(value, bool):
        raise DefinitionError(
            f"{subject}: compaction is True, False, or how it is done, as in Compaction(trigger_share=0.7), not "
            f"{value!r}"
        )
    return Compaction() if value else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class ContextLimit:
    """How an agent's model call detects a full context."""

    __slots__ = ("_is_just_compacted", "_settings")

    def __init__(self, settings: Compaction, is_just_compacted: bool) -> None:
        self._settings = settings
        self._is_just_compacted = is_just_compacted
        """There are no new messages since the last compaction, so another one would not help."""

    def check(self, model_call: ModelCall, model: Model, messages: Sequence[ModelMessage]) -> None:
        """Raise ``ContextFull`` if the call nearly fills the model's context window, if that is known."""
        window = self._settings.window or get_context_window(model)
        if window is None or self._is_just_compacted:
            return
        tokens = estimate_input_tokens(_get_counted_usage(model_call.last_usage), model_call.parameters, messages)
        if tokens <= self._settings.trigger_share * window:
            return
        cut = find_cut(messages, ConversationSize(model_call.last_usage, model_call.parameters, window), self._settings)
        if cut is None or (cut.max_result_length is None and cut.freed_tokens < MIN_SUMMARY_SHARE * tokens):
            return  # the provider may accept it anyway
        raise ContextFull(
            f"The model was not asked: the conversation has come to about {tokens:,} tokens, and the limit is "
            f"{self._settings.trigger_share:.0%} of the {window:,} that {get_model_name(model)} takes. It is compacted "
            f"first.",
            window,
        )

    def interpret_rejection(
        self, model_call: ModelCall, model: str | Model, messages: Sequence[ModelMessage], failure: ModelFailure
    ) -> ContextFull | None:
        """The error for a conversation that the provider rejects as too long; ``None`` if it cannot be compacted."""
        if self._is_just_compacted:
            return None
        window = self._infer_window(model_call, messages, failure.message)
        size = ConversationSize(model_call.last_usage, model_call.parameters, window)
        if find_cut(messages, size, self._settings) is None:
            return None
        return ContextFull(
            f"The conversation is too long for {get_model_name(model)}, which says: {failure.description} It is "
            "compacted first.",
            window,
        )

    def make_hint(self) -> str:
        """Advice for a person when compaction did not help."""
        happened = (
            "The conversation was compacted just before, and is still too long"
            if self._is_just_compacted
            else "The conversation is too long, and nothing in it can be summarised"
        )
        return (
            f"{happened}: use a model with a longer context, tell the model's true size by Compaction(window=...), "
            f"or make the task, the instructions or what tools return shorter."
        )

    def _infer_window(self, model_call: ModelCall, messages: Sequence[ModelMessage], message: str) -> int:
        """The context window in tokens as they are estimated here, from everything known after a rejection."""
        match = _WINDOW_PATTERN.search(message)
        named = 0 if match is None else int(next(filter(None, match.groups())).replace(",", ""))
        counted = _get_counted_usage(model_call.last_usage)
        tokens = estimate_input_tokens(counted, model_call.parameters, messages)
        known = [window for window in (self._settings.window, named) if window]
        if not known:  # the provider accepted the last call, so the window has at least its size
            known = [tokens // 2 if counted is None else counted.tokens]
        return max(1, min(*known, tokens))


def get_context_window(model: Model) -> int | None:
    """The context window of a model in tokens, if the model library or its price list knows it."""
    try:
        window: Any = model.context_window
    except Exception:  # a user's own model may have no profile
        return None
    return window if isinstance(window, int) and window > 0 else None


def _get_counted_usage(usage: Usage | None) -> Usage | None:
    """The provider's token count, if it counts."""
    return usage if usage is not None and usage.tokens else None


# Where to cut


class ConversationSize(NamedTuple):
    """The known facts about a conversation's size."""

    last_usage: Usage | None
    """The provider's token count up to the last answer."""
    parameters: ModelRequestParameters
    window: int


class CutPoint(NamedTuple):
    """Where to cut a conversation: before an answer, so that no call is separated from its result."""

    summarized_count: int
    """How many of the oldest messages are summarized; 0: none, only results are truncated."""
    kept_count: int
    """How many of the newest messages are kept."""
    max_result_length: int | None
    """The length to which tool results in the kept messages are truncated, if they would be too long otherwise."""
    freed_tokens: int
    """Estimated tokens of the summarized messages."""
    window_chars: float
    """How many characters of this conversation fill the window."""


def find_cut(messages: Sequence[ModelMessage], size: ConversationSize, settings: Compaction) -> CutPoint | None:
    """Where to cut a conversation that is too long; ``None``: there is nothing to compact."""
    from pydantic_ai.messages import ModelResponse

    sizes = [count_message_chars(message) for message in messages]
    estimated = (sum(sizes) + count_parameter_chars(size.parameters)) / CHARS_PER_TOKEN
    # The provider's count corrects the rule of thumb for this conversation.
    counted = estimate_input_tokens(_get_counted_usage(size.last_usage), size.parameters, messages)
    correction = max(1, counted) / max(1.0, estimated)
    characters = size.window * CHARS_PER_TOKEN / correction
    start = _find_kept_start(messages, sizes, settings.keep_share * characters)
    if start is None:
        return None
    excerpt = _compute_result_limit(messages[start:], settings.trigger_share / 2 * characters)
    first = next(index for index, message in enumerate(messages) if isinstance(message, ModelResponse))
    if first < start:
        freed = round(sum(sizes[first:start]) / CHARS_PER_TOKEN * correction)
        return CutPoint(start, len(messages) - start, excerpt, freed, characters)
    return None if excerpt is None else CutPoint(0, len(messages), excerpt, 0, characters)


def _find_kept_start(messages: Sequence[ModelMessage], sizes: Sequence[int], max_chars: float) -> int | None:
    """The index of the first kept message, an answer. The last answer and everything after it are always kept."""
    from pydantic_ai.messages import ModelResponse

    start: int | None = None
    unmatched_results: set[str] = set()
    size = 0
    for index in reversed(range(len(messages))):
        message = messages[index]
        size += sizes[index]
        if start is not None and size > max_chars:
            break
        if not isinstance(message, ModelResponse):
            unmatched_results |= {id for part in message.parts if (id := getattr(part, "tool_call_id", None))}
            continue
        unmatched_results -= {call.tool_call_id for call in message.tool_calls}
        if not unmatched_results:  # otherwise a kept result would be separated from its call
            start = index
    return start


def count_last_turn(messages: Sequence[ModelMessage]) -> int:
    """How many of the newest messages are always kept."""
    start = _find_kept_start(messages, [0] * len(messages), -1)
    return 0 if start is None else len(messages) - start


def _compute_result_limit(messages: Sequence[ModelMessage], max_chars: float) -> int | None:
    """The length to which results are truncated so that all fit; ``None``: they fit, or truncating does not help."""
    size = sum(map(count_message_chars, messages))
    results = [len(text) for message in messages for part in message.parts if (text := _get_result_text(part))]
    if size <= max_chars or max(results, default=0) <= MIN_EXCERPT_CHARS:
        return None
    return compute_fair_share(results, max_chars - (size - sum(results)), MIN_EXCERPT_CHARS)


def compute_fair_share(sizes: Sequence[int], total: float, minimum: int) -> int | None:
    """The size to which the larger ones are cut so that all fit into ``total``; ``None``: all fit as they are."""
    for index, size in enumerate(sorted(sizes)):
        share = max(minimum, int(total / (len(sizes) - index)))
        if size > share:
            return share
        total -= size
    return None


def truncate_results(messages: Sequence[ModelMessage], max_chars: int | None) -> list[ModelMessage]:
    """The messages, with longer results reduced to their beginning and end."""
    if max_chars is None:
        return list(messages)
    return [_truncate_message(message, max_chars) for message in messages]


def _truncate_message(message: ModelMessage, max_chars: int) -> ModelMessage:
    if all(len(_get_result_text(part)) <= max_chars for part in message.parts):
        return message
    parts = [
        replace(cast("ToolReturnPart", part), content=truncate_middle(text, max_chars))
        if len(text := _get_result_text(part)) > max_chars
        else part
        for part in message.parts
    ]
    return replace(message, parts=cast(Any, parts))


def truncate_middle(text: str, max_chars: int) -> str:
    """The beginning and the end of a long text, with a mark between them."""
    if len(text) <= max_chars:
        return text
    mark = f"\n[... of {len(text):,} characters, some were left out here when the conversation was compacted ...]\n"
    room = max(0, max_chars - len(mark))
    end = room // 4
    return f"{text[: room - end]}{mark}{text[len(text) - end :]}"


def _get_result_text(part: Any) -> str:
    """A tool's result as text; ``""`` for other parts, and for results with files."""
    from pydantic_ai.messages import ToolReturnPart

    if type(part) is not ToolReturnPart or part.files:
        return ""
    return part.model_response_str()
