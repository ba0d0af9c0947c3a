"""How full a model's context is, and where a conversation can be cut so that it fits again.

A conversation that comes near to what its model takes is compacted: its older messages are summarised, and the summary
is sent in their place (see ``agents.compaction``). Whether that must be done is found out where the model is asked, in
the step: ``ContextLimit.check`` before the call, by an estimate, and ``ContextLimit.interpret_rejection`` when the
provider says that it is too long. Both tell it by ``ContextFull``, which is recorded as the step's failure, so that the
decision is taken once.

Sizes are estimated from characters, and corrected by what the provider has counted of the same conversation.
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
"""The share of a conversation that must be summarised for a compaction to be made on a mere estimate."""

MIN_EXCERPT_CHARS = 400
"""Characters of a tool's result that are left in any case."""

_WINDOW_PATTERN = re.compile(
    r"maximum (?:context|prompt) length is (\d[\d,]*)|> ?(\d[\d,]*) maximum|tokens allowed \((\d[\d,]*)\)"
    r"|context (?:window|length|limit|size)(?: of| is|:)? (\d[\d,]*)",
    re.IGNORECASE,
)
"""How providers tell what their model takes."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """When older turns of a conversation are summarised, and how.

    Args:
        trigger_share: the share of the model's context window at which it is done.
        keep_share: the share of it that the newest messages may take, which are kept as they are.
        window: how many tokens the model takes; known for most models, and needed for those that nobody knows.
        model: who summarises; the agent's own model unless given.
    """

    trigger_share: float = 0.8
    keep_share: float = 0.2
    window: int | None = None
    model: str | Model | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.trigger_share) or not 0 < self.trigger_share <= 1:
            raise DefinitionError(
                f"Compaction(trigger_share={self.trigger_share!r}): the share of the context window at which a "
                "conversation is "
                "compacted is "
                f"above 0 and at most 1, as in trigger_share=0.8"
            )
        if not _is_number(self.keep_share) or not 0 <= self.keep_share <= self.trigger_share / 2:
            raise DefinitionError(
                f"Compaction(keep_share={self.keep_share!r}): the newest messages that are kept may take from 0 to "
                "half of "
                f"trigger_share={self.trigger_share:g}, or the context would soon be full again"
            )
        window: Any = self.window
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise DefinitionError(
                f"Compaction(window={window!r}): the context window is a number of tokens, as in window=128_000"
            )
        if self.model is not None:
            check_model(self.model, "Compaction(model=...)")


def validate_compaction(value: object, subject: str) -> Compaction | None:
    """What ``Agent(compaction=...)`` was given: yes, no, or how."""
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
    """What an agent's model call does when the context is full."""

    __slots__ = ("_is_just_compacted", "_settings")

    def __init__(self, settings: Compaction, is_just_compacted: bool) -> None:
        self._settings = settings
        self._is_just_compacted = is_just_compacted
        """Nothing was said since the conversation was compacted: doing it again would bring nothing."""

    def check(self, model_call: ModelCall, model: Model, messages: Sequence[ModelMessage]) -> None:
        """Raise ``ContextFull`` if the call comes near to what the model takes, as far as that is known."""
        window = self._settings.window or get_context_window(model)
        if window is None or self._is_just_compacted:
            return
        tokens = estimate_input_tokens(_get_counted_usage(model_call.last_usage), model_call.parameters, messages)
        if tokens <= self._settings.trigger_share * window:
            return
        cut = find_cut(messages, ConversationSize(model_call.last_usage, model_call.parameters, window), self._settings)
        if cut is None or (cut.max_result_length is None and cut.freed_tokens < MIN_SUMMARY_SHARE * tokens):
            return  # the provider may take it all the same
        raise ContextFull(
            f"The model was not asked: the conversation has come to about {tokens:,} tokens, and the limit is "
            f"{self._settings.trigger_share:.0%} of the {window:,} that {get_model_name(model)} takes. It is compacted "
            "first.",
            window,
        )

    def interpret_rejection(
        self, model_call: ModelCall, model: str | Model, messages: Sequence[ModelMessage], failure: ModelFailure
    ) -> ContextFull | None:
        """What a provider's refusal means: that the conversation must be compacted, unless that cannot be done."""
        if self._is_just_compacted:
            return None
        window = self._infer_window(model_call, messages, failure.message)
        if (
            find_cut(messages, ConversationSize(model_call.last_usage, model_call.parameters, window), self._settings)
            is None
        ):
            return None
        return ContextFull(
            f"The conversation is too long for {get_model_name(model)}, which says: {failure.description} It is "
            "compacted first.",
            window,
        )

    def make_hint(self) -> str:
        """What a person can do when that did not help."""
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
        """What the model takes, in tokens as they are counted here, from all that is known after a refusal."""
        said = _WINDOW_PATTERN.search(message)
        named = 0 if said is None else int(next(filter(None, said.groups())).replace(",", ""))
        told = _get_counted_usage(model_call.last_usage)
        tokens = estimate_input_tokens(told, model_call.parameters, messages)
        known = [one for one in (self._settings.window, named) if one]
        if not known:  # the last call was taken: so much is sure
            known = [tokens // 2 if told is None else told.tokens]
        return max(1, min(*known, tokens))


def get_context_window(model: Model) -> int | None:
    """How many tokens a model takes, if the model library or its price list knows."""
    try:
        window: Any = model.context_window
    except Exception:  # a model that somebody wrote may have no profile
        return None
    return window if isinstance(window, int) and window > 0 else None


def _get_counted_usage(usage: Usage | None) -> Usage | None:
    """What the provider has counted, if it does count."""
    return usage if usage is not None and usage.tokens else None


# Where to cut


class ConversationSize(NamedTuple):
    """What is known of a conversation's size."""

    last_usage: Usage | None
    """What the provider has counted of it up to its last answer."""
    parameters: ModelRequestParameters
    window: int


class CutPoint(NamedTuple):
    """Where a conversation is cut: in front of an answer, so that no call loses its result."""

    summarized_count: int
    """How many of the oldest messages are summarised; 0: there is nothing to be, and only results are cut."""
    kept_count: int
    """How many of the newest are kept."""
    max_result_length: int | None
    """Characters to which the results in those are cut, if they would be too long otherwise."""
    freed_tokens: int
    """About how many tokens the messages have that are summarised."""
    window_chars: float
    """How many characters of this conversation fill the window."""


def find_cut(messages: Sequence[ModelMessage], size: ConversationSize, settings: Compaction) -> CutPoint | None:
    """Where to cut a conversation that is too long; ``None``: there is nothing to compact."""
    from pydantic_ai.messages import ModelResponse

    sizes = [count_message_chars(message) for message in messages]
    estimated = (sum(sizes) + count_parameter_chars(size.parameters)) / CHARS_PER_TOKEN
    # What the provider has counted tells how far the rule of thumb is off for this conversation.
    off = max(1, estimate_input_tokens(_get_counted_usage(size.last_usage), size.parameters, messages)) / max(
        1.0, estimated
    )
    characters = size.window * CHARS_PER_TOKEN / off
    start = _find_kept_start(messages, sizes, settings.keep_share * characters)
    if start is None:
        return None
    excerpt = _compute_result_limit(messages[start:], settings.trigger_share / 2 * characters)
    first = next(index for index, message in enumerate(messages) if isinstance(message, ModelResponse))
    if first < start:
        frees = round(sum(sizes[first:start]) / CHARS_PER_TOKEN * off)
        return CutPoint(start, len(messages) - start, excerpt, frees, characters)
    return None if excerpt is None else CutPoint(0, len(messages), excerpt, 0, characters)


def _find_kept_start(messages: Sequence[ModelMessage], sizes: Sequence[int], max_chars: float) -> int | None:
    """The first message that is kept: an answer. The last one is always kept, with what came after it."""
    from pydantic_ai.messages import ModelResponse

    start: int | None = None
    waiting: set[str] = set()
    size = 0
    for index in reversed(range(len(messages))):
        message = messages[index]
        size += sizes[index]
        if start is not None and size > max_chars:
            break
        if not isinstance(message, ModelResponse):
            waiting |= {id for part in message.parts if (id := getattr(part, "tool_call_id", None))}
            continue
        waiting -= {call.tool_call_id for call in message.tool_calls}
        if not waiting:  # else a result that would be kept would be parted from its call
            start = index
    return start


def count_last_turn(messages: Sequence[ModelMessage]) -> int:
    """How many of the newest messages are kept in any case."""
    start = _find_kept_start(messages, [0] * len(messages), -1)
    return 0 if start is None else len(messages) - start


def _compute_result_limit(messages: Sequence[ModelMessage], max_chars: float) -> int | None:
    """To how many characters results must be cut, so that all of it fits; ``None``: it does, or cutting is no help."""
    size = sum(map(count_message_chars, messages))
    results = sorted(len(text) for message in messages for part in message.parts if (text := _get_result_text(part)))
    if size <= max_chars or not results or results[-1] <= MIN_EXCERPT_CHARS:
        return None
    left = max_chars - (size - sum(results))
    # The shorter ones stay as they are, and the longer ones share what is left.
    for index, one in enumerate(results):
        share = left / (len(results) - index)
        if one > share:
            return max(MIN_EXCERPT_CHARS, int(share))
        left -= one
    return None


def truncate_results(messages: Sequence[ModelMessage], max_chars: int | None) -> list[ModelMessage]:
    """The messages, with results that are longer than this cut to their beginning and their end."""
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
    """A long text's beginning and its end, with a mark between them."""
    if len(text) <= max_chars:
        return text
    mark = f"\n[... of {len(text):,} characters, some were left out here when the conversation was compacted ...]\n"
    room = max(0, max_chars - len(mark))
    end = room // 4
    return f"{text[: room - end]}{mark}{text[len(text) - end :]}"


def _get_result_text(part: Any) -> str:
    """What a tool's result comes to as text; nothing for what is no result, or holds files."""
    from pydantic_ai.messages import ToolReturnPart

    if type(part) is not ToolReturnPart or part.files:
        return ""
    return part.model_response_str()
