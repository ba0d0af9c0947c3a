"""A model with its fallbacks, and the state of each during a call.

After a transient failure, a model is called again after its own backoff, for as long as its policy says. If there are
other models, the first failure of a model is followed by one quick retry, because most problems are over in a second;
then the next model is called. A model in backoff is skipped. Only when every remaining model is in backoff does the
call wait, until the first of them may be called again.

The state is the progress of the step, so that neither a crash nor a long wait restarts the chain.
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
"""How long one attempt may take."""

MAX_QUICK_RETRY_S = 5.0
"""A model whose first backoff is at most this long is called again before the next model."""

RetryPolicies = RetryPolicy | Mapping[str, RetryPolicy]
"""One policy for all models, or policies for some of them by name."""


@dataclass(frozen=True, slots=True)
class ModelChain:
    """A model, its fallbacks in order, and how to call them."""

    models: tuple[str | Model, ...]
    settings: Mapping[str, Any] | None = None
    """The model library's ``ModelSettings``."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """How long one attempt may take."""
    should_stream: bool = True
    """Whether answers are requested as streams, so that followers of the run read them while they arrive."""
    retry: RetryPolicies = DEFAULT_RETRY_POLICY

    def get_retry_policy(self, model: str | Model) -> RetryPolicy:
        """The retry policy of one model."""
        if isinstance(self.retry, RetryPolicy):
            return self.retry
        return self.retry.get(get_model_name(model), DEFAULT_RETRY_POLICY)


@dataclass(slots=True)
class ModelState:
    """The state of one model of a chain during a call."""

    model: str
    attempts: int = 0
    """Failed attempts."""
    error: str = ""
    """The last failure."""
    failing_since: float | None = None
    retry_at: float = 0.0
    """It is not called earlier."""
    is_given_up: bool = False
    """It is not called again."""


@dataclass(frozen=True, slots=True)
class ChainState:
    """The state of a chain's models during a call."""

    models: list[ModelState]

    @classmethod
    def from_progress(cls, progress: Any, chain: ModelChain) -> ChainState:
        """The state from earlier attempts of the step; a new one if the chain has changed since."""
        names = [get_model_name(model) for model in chain.models]
        if isinstance(progress, dict):  # an @llm_step may have progress of its own
            saved: Any = cast("dict[str, Any]", progress).get("models")
            if isinstance(saved, list) and [state.get("model") for state in cast("list[Any]", saved)] == names:
                return cls([ModelState(**state) for state in cast("list[Any]", saved)])
        return cls([ModelState(name) for name in names])

    def to_progress(self) -> dict[str, Any]:
        """The state as progress of the step."""
        return {"models": [asdict(state) for state in self.models]}

    def choose_index(self, now: float) -> int:
        """The index of the model to call: the first that may be called now, else the one with the earliest retry."""
        return min(self._get_remaining(), key=lambda index: max(self.models[index].retry_at, now))

    def record_failure(self, index: int, failure: ModelFailure, wait_s: float | None, now: float) -> float | None:
        """Note that a model gave no answer, and may be called again after ``wait_s`` (``None``: never).

        Returns the seconds until the next request; ``None``: no model is left.
        """
        state = self.models[index]
        state.error = failure.description
        if wait_s is None:
            state.is_given_up = True
        else:
            state.retry_at = now + wait_s
            if state.attempts == 1 and wait_s <= MAX_QUICK_RETRY_S:
                return wait_s
        retry_times = [self.models[remaining].retry_at for remaining in self._get_remaining()]
        return max(0.0, min(retry_times) - now) if retry_times else None

    def list_failed(self, except_index: int) -> list[FailedModel]:
        """The models that gave no answer, without the one at this index."""
        others = [state for index, state in enumerate(self.models) if index != except_index and state.attempts]
        return [FailedModel(state.model, state.error, state.attempts) for state in others]

    def describe_failures(self) -> str:
        """Why no model has answered so far."""
        return "; ".join(f"{state.model}: {state.error}" for state in self.models if state.attempts)

    def _get_remaining(self) -> list[int]:
        return [index for index, state in enumerate(self.models) if not state.is_given_up]
