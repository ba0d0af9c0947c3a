"""How full a model's context is, and where a conversation can be cut so that it fits again.

A conversation that comes near to what its model takes is compacted: its older messages are summarised, and the summary
is sent in their place (see ``agents.compaction``). Whether that must be done is found out where the model is asked, in
the step: ``Room.check`` before the call, by an estimate, and ``Room.refused`` when the provider says that it is too
long. Both tell it by ``ContextFull``, which is recorded as the step's failure, so that the decision is taken once.

Sizes are estimated from characters, and corrected by what the provider has counted of the same conversation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from holdfast.agents.models.model_resolution import check_model, name_of
from holdfast.agents.models.prices import CHARACTERS_A_TOKEN, input_tokens, size_of, size_of_parameters
from holdfast.errors import ContextFull, DefinitionError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ToolReturnPart
    from pydantic_ai.models import Model, ModelRequestParameters

    from holdfast.admission.usage import Usage
    from holdfast.agents.models.errors import Fault
    from holdfast.agents.models.model_call import Ask

WORTH = 0.25
"""The share of a conversation that must be summarised for a compaction to be made on a mere estimate."""

LEAST_EXCERPT = 400
"""Characters of a tool's result that are left in any case."""

_SAID = re.compile(
    r"maximum (?:context|prompt) length is (\d[\d,]*)|> ?(\d[\d,]*) maximum|tokens allowed \((\d[\d,]*)\)"
    r"|context (?:window|length|limit|size)(?: of| is|:)? (\d[\d,]*)",
    re.IGNORECASE,
)
"""How providers tell what their model takes."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """When older turns of a conversation are summarised, and how.

    Args:
        at: the share of the model's context window at which it is done.
        keep: the share of it that the newest messages may take, which are kept as they are.
        window: how many tokens the model takes; known for most models, and needed for those that nobody knows.
        model: who summarises; the agent's own model unless given.
    """

    at: float = 0.8
    keep: float = 0.2
    window: int | None = None
    model: str | Model | None = None

    def __post_init__(self) -> None:
        if not _is_number(self.at) or not 0 < self.at <= 1:
            raise DefinitionError(
                f"Compaction(at={self.at!r}): the share of the context window at which a conversation is compacted is "
                f"above 0 and at most 1, as in at=0.8"
            )
        if not _is_number(self.keep) or not 0 <= self.keep <= self.at / 2:
            raise DefinitionError(
                f"Compaction(keep={self.keep!r}): the newest messages that are kept may take from 0 to half of "
                f"at={self.at:g}, or the context would soon be full again"
            )
        window: Any = self.window
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise DefinitionError(
                f"Compaction(window={window!r}): the context window is a number of tokens, as in window=128_000"
            )
        if self.model is not None:
            check_model(self.model, "Compaction(model=...)")


def compaction_of(given: object, where: str) -> Compaction | None:
    """What ``Agent(compaction=...)`` was given: yes, no, or how."""
    if isinstance(given, Compaction):
        return given
    if not isinstance(given, bool):
        raise DefinitionError(
            f"{where}: compaction is True, False, or how it is done, as in Compaction(at=0.7), not {given!r}"
        )
    return Compaction() if given else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Room:
    """What an agent's model call does when the context is full."""

    __slots__ = ("_just_compacted", "_settings")

    def __init__(self, settings: Compaction, just_compacted: bool) -> None:
        self._settings = settings
        self._just_compacted = just_compacted
        """Nothing was said since the conversation was compacted: doing it again would bring nothing."""

    def check(self, ask: Ask, model: Model, messages: Sequence[ModelMessage]) -> None:
        """Raise ``ContextFull`` if the call comes near to what the model takes, as far as that is known."""
        window = self._settings.window or window_of(model)
        if window is None or self._just_compacted:
            return
        tokens = input_tokens(_counted(ask.told), ask.parameters, messages)
        if tokens <= self._settings.at * window:
            return
        cut = cut_of(messages, Size(ask.told, ask.parameters, window), self._settings)
        if cut is None or (cut.excerpt is None and cut.frees < WORTH * tokens):
            return  # the provider may take it all the same
        raise ContextFull(
            f"The model was not asked: the conversation has come to about {tokens:,} tokens, and the limit is "
            f"{self._settings.at:.0%} of the {window:,} that {name_of(model)} takes. It is compacted first.",
            window,
        )

    def refused(
        self, ask: Ask, model: str | Model, messages: Sequence[ModelMessage], fault: Fault
    ) -> ContextFull | None:
        """What a provider's refusal means: that the conversation must be compacted, unless that cannot be done."""
        if self._just_compacted:
            return None
        window = self._told_window(ask, messages, fault.words)
        if cut_of(messages, Size(ask.told, ask.parameters, window), self._settings) is None:
            return None
        return ContextFull(
            f"The conversation is too long for {name_of(model)}, which says: {fault.told} It is compacted first.",
            window,
        )

    def advice(self) -> str:
        """What a person can do when that did not help."""
        happened = (
            "The conversation was compacted just before, and is still too long"
            if self._just_compacted
            else "The conversation is too long, and nothing in it can be summarised"
        )
        return (
            f"{happened}: use a model with a longer context, tell the model's true size by Compaction(window=...), "
            f"or make the task, the instructions or what tools return shorter."
        )

    def _told_window(self, ask: Ask, messages: Sequence[ModelMessage], words: str) -> int:
        """What the model takes, in tokens as they are counted here, from all that is known after a refusal."""
        said = _SAID.search(words)
        named = 0 if said is None else int(next(filter(None, said.groups())).replace(",", ""))
        told = _counted(ask.told)
        tokens = input_tokens(told, ask.parameters, messages)
        known = [one for one in (self._settings.window, named) if one]
        if not known:  # the last call was taken: so much is sure
            known = [tokens // 2 if told is None else told.tokens]
        return max(1, min(*known, tokens))


def window_of(model: Model) -> int | None:
    """How many tokens a model takes, if the model library or its price list knows."""
    try:
        window: Any = model.context_window
    except Exception:  # a model that somebody wrote may have no profile
        return None
    return window if isinstance(window, int) and window > 0 else None


def _counted(told: Usage | None) -> Usage | None:
    """What the provider has counted, if it does count."""
    return told if told is not None and told.tokens else None


# Where to cut


class Size(NamedTuple):
    """What is known of a conversation's size."""

    told: Usage | None
    """What the provider has counted of it up to its last answer."""
    parameters: ModelRequestParameters
    window: int


class Cut(NamedTuple):
    """Where a conversation is cut: in front of an answer, so that no call loses its result."""

    summarised: int
    """How many of the oldest messages are summarised; 0: there is nothing to be, and only results are cut."""
    kept: int
    """How many of the newest are kept."""
    excerpt: int | None
    """Characters to which the results in those are cut, if they would be too long otherwise."""
    frees: int
    """About how many tokens the messages have that are summarised."""
    characters: float
    """How many characters of this conversation fill the window."""


def cut_of(messages: Sequence[ModelMessage], size: Size, settings: Compaction) -> Cut | None:
    """Where to cut a conversation that is too long; ``None``: there is nothing to compact."""
    from pydantic_ai.messages import ModelResponse

    sizes = [size_of(message) for message in messages]
    estimated = (sum(sizes) + size_of_parameters(size.parameters)) / CHARACTERS_A_TOKEN
    # What the provider has counted tells how far the rule of thumb is off for this conversation.
    off = max(1, input_tokens(_counted(size.told), size.parameters, messages)) / max(1.0, estimated)
    characters = size.window * CHARACTERS_A_TOKEN / off
    start = _start_of_kept(messages, sizes, settings.keep * characters)
    if start is None:
        return None
    excerpt = _excerpt_of(messages[start:], settings.at / 2 * characters)
    first = next(index for index, message in enumerate(messages) if isinstance(message, ModelResponse))
    if first < start:
        frees = round(sum(sizes[first:start]) / CHARACTERS_A_TOKEN * off)
        return Cut(start, len(messages) - start, excerpt, frees, characters)
    return None if excerpt is None else Cut(0, len(messages), excerpt, 0, characters)


def _start_of_kept(messages: Sequence[ModelMessage], sizes: Sequence[int], room: float) -> int | None:
    """The first message that is kept: an answer. The last one is always kept, with what came after it."""
    from pydantic_ai.messages import ModelResponse

    start: int | None = None
    waiting: set[str] = set()
    size = 0
    for index in reversed(range(len(messages))):
        message = messages[index]
        size += sizes[index]
        if start is not None and size > room:
            break
        if not isinstance(message, ModelResponse):
            waiting |= {id for part in message.parts if (id := getattr(part, "tool_call_id", None))}
            continue
        waiting -= {call.tool_call_id for call in message.tool_calls}
        if not waiting:  # else a result that would be kept would be parted from its call
            start = index
    return start


def last_turn(messages: Sequence[ModelMessage]) -> int:
    """How many of the newest messages are kept in any case."""
    start = _start_of_kept(messages, [0] * len(messages), -1)
    return 0 if start is None else len(messages) - start


def _excerpt_of(messages: Sequence[ModelMessage], room: float) -> int | None:
    """To how many characters results must be cut, so that all of it fits; ``None``: it does, or cutting is no help."""
    size = sum(map(size_of, messages))
    results = sorted(len(text) for message in messages for part in message.parts if (text := _text_of(part)))
    if size <= room or not results or results[-1] <= LEAST_EXCERPT:
        return None
    left = room - (size - sum(results))
    # The shorter ones stay as they are, and the longer ones share what is left.
    for index, one in enumerate(results):
        share = left / (len(results) - index)
        if one > share:
            return max(LEAST_EXCERPT, int(share))
        left -= one
    return None


def excerpts(messages: Sequence[ModelMessage], characters: int | None) -> list[ModelMessage]:
    """The messages, with results that are longer than this cut to their beginning and their end."""
    if characters is None:
        return list(messages)
    return [_excerpted(message, characters) for message in messages]


def _excerpted(message: ModelMessage, characters: int) -> ModelMessage:
    if all(len(_text_of(part)) <= characters for part in message.parts):
        return message
    parts = [
        replace(cast("ToolReturnPart", part), content=shortened(text, characters))
        if len(text := _text_of(part)) > characters
        else part
        for part in message.parts
    ]
    return replace(message, parts=cast(Any, parts))


def shortened(text: str, characters: int) -> str:
    """A long text's beginning and its end, with a mark between them."""
    if len(text) <= characters:
        return text
    mark = f"\n[... of {len(text):,} characters, some were left out here when the conversation was compacted ...]\n"
    room = max(0, characters - len(mark))
    end = room // 4
    return f"{text[: room - end]}{mark}{text[len(text) - end :]}"


def _text_of(part: Any) -> str:
    """What a tool's result comes to as text; nothing for what is no result, or holds files."""
    from pydantic_ai.messages import ToolReturnPart

    if type(part) is not ToolReturnPart or part.files:
        return ""
    return part.model_response_str()
