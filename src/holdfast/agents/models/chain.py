"""A model with its fallbacks, and what is known of each while a call is on its way.

A model that fails in a way that may pass is asked again after its own backoff, for as long as its policy says. Where
there are other models to ask, the first failure of a model is followed by one quick retry, because most trouble is over
in a second; then the next model is asked. A model that waits is passed over. Only when every model that is left waits
does the call wait as well, until the first of them may be asked again.

What is known is kept as the progress of the step, so that neither a crash nor a long wait begins the chain anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.agents.models.errors import DEFAULT_RETRY_POLICY, ModelFailure
from holdfast.agents.models.model_resolution import get_model_name
from holdfast.reports.recorded_reply import FailedModel

if TYPE_CHECKING:
    from pydantic_ai.models import Model

DEFAULT_TIMEOUT_S = 300.0
"""How long one attempt may take by default."""

MAX_QUICK_RETRY_S = 5.0
"""Seconds. A model that may be asked again so soon after its first failure is, before another one is."""

RetryPolicies = RetryPolicy | Mapping[str, RetryPolicy]
"""One policy for all models, or one for each of some of them, by name."""


@dataclass(frozen=True, slots=True)
class ModelChain:
    """A model, its fallbacks in order, and how they are asked."""

    models: tuple[str | Model, ...]
    settings: Mapping[str, Any] | None = None
    """The model library's ``ModelSettings``."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """Seconds that one attempt may take."""
    should_stream: bool = True
    """Whether answers are asked for as streams, so that whoever follows the run reads them while they come."""
    retry: RetryPolicies = DEFAULT_RETRY_POLICY

    def get_retry_policy(self, model: str | Model) -> RetryPolicy:
        """How often a model is asked again, and when."""
        if isinstance(self.retry, RetryPolicy):
            return self.retry
        return self.retry.get(get_model_name(model), DEFAULT_RETRY_POLICY)


@dataclass(slots=True)
class ModelState:
    """What is known of one model of a chain while a call is on its way."""

    model: str
    attempts: int = 0
    """How often it has been asked in vain."""
    error: str = ""
    """Why, the last time."""
    failing_since: float | None = None
    retry_at: float = 0.0
    """It is not asked before."""
    is_given_up: bool = False
    """It is not asked again."""


class ChainState:
    """What is known of a chain's models while a call is on its way."""

    def __init__(self, models: list[ModelState]) -> None:
        self.models = models

    @classmethod
    def from_progress(cls, progress: Any, chain: ModelChain) -> ChainState:
        """As earlier attempts of the step have left it; anew, if the chain is another one now."""
        names = [get_model_name(model) for model in chain.models]
        if isinstance(progress, dict):  # an @llm_step may have progress of its own
            kept: Any = cast("dict[str, Any]", progress).get("models")
            if isinstance(kept, list) and [one.get("model") for one in cast("list[Any]", kept)] == names:
                return cls([ModelState(**one) for one in cast("list[Any]", kept)])
        return cls([ModelState(name) for name in names])

    def to_progress(self) -> dict[str, Any]:
        """As progress."""
        return {"models": [asdict(one) for one in self.models]}

    def choose_index(self, now: float) -> int:
        """The place of the model to ask: the first that may be asked now, else the one that may be soonest."""
        found = self.find_available(now)
        if found is not None:
            return found
        return min(self._get_remaining(), key=lambda place: self.models[place].retry_at)

    def find_available(self, now: float) -> int | None:
        """The place of the first model that may be asked now, if there is one."""
        return next((place for place in self._get_remaining() if self.models[place].retry_at <= now), None)

    def record_failure(self, index: int, failure: ModelFailure, wait_s: float | None, now: float) -> float | None:
        """Note that a model gave no answer, and may be asked again after ``wait_s`` (``None``: it may not).

        Returns the seconds until the next request; ``None``: there is none, since no model is left.
        """
        state = self.models[index]
        state.error = failure.description
        if wait_s is None:
            state.is_given_up = True
        else:
            state.retry_at = now + wait_s
            if state.attempts == 1 and wait_s <= MAX_QUICK_RETRY_S:
                return wait_s
        left = [self.models[place].retry_at for place in self._get_remaining()]
        return max(0.0, min(left) - now) if left else None

    def list_failed(self, except_index: int) -> list[FailedModel]:
        """The models that gave no answer, without that at this place."""
        others = [one for place, one in enumerate(self.models) if place != except_index and one.attempts]
        return [FailedModel(one.model, one.error, one.attempts) for one in others]

    def describe_failures(self) -> str:
        """Why no model has answered so far, in words."""
        return "; ".join(f"{one.model}: {one.error}" for one in self.models if one.attempts)

    def _get_remaining(self) -> list[int]:
        return [place for place, one in enumerate(self.models) if not one.is_given_up]
