"""``ModelOptions``: how the models of an agent, or of an ``@llm_step``, are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.admission.retry_policy import RetryPolicy
from holdfast.agents.models.chain import DEFAULT_TIMEOUT_S, ModelChain, RetryPolicies
from holdfast.agents.models.errors import DEFAULT_RETRY_POLICY
from holdfast.agents.models.model_resolution import get_model_name, validate_models
from holdfast.authoring.step import validate_retry_policy
from holdfast.errors import DefinitionError

if TYPE_CHECKING:
    from pydantic_ai.models import Model
    from pydantic_ai.settings import ModelSettings


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How models are called."""

    settings: ModelSettings | Mapping[str, Any] | None = None
    """The model library's ``ModelSettings``, such as ``{"temperature": 0}``."""
    timeout: Duration = DEFAULT_TIMEOUT_S
    """How long one attempt of a model call may take."""
    retry: RetryPolicy | Mapping[str, RetryPolicy] | None = None
    """How a model call without an answer is repeated: a ``RetryPolicy``, or policies for some of the models by name.
    Default: for a day, at least every five minutes. A tool has its own: ``@tool(retry=...)``."""
    stream: bool = True
    """Whether answers are requested as streams, so that followers of a run (see ``Handle.events``) read them as they
    are written. Models that cannot stream are called without."""

    def __post_init__(self) -> None:
        if self.settings is not None and not isinstance(self.settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(
                f"ModelOptions: settings is a mapping, as in settings={{'temperature': 0}}, not {self.settings!r}"
            )
        declared_seconds(self.timeout, "ModelOptions: timeout")
        if isinstance(self.retry, Mapping):
            for model, policy in self.retry.items():
                validate_retry_policy(policy, f"ModelOptions, model {model}")
        elif self.retry is not None:
            validate_retry_policy(self.retry, "ModelOptions")
        if not isinstance(self.stream, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"ModelOptions: stream={self.stream!r} is True or False")


def make_model_chain(
    model: str | Model, fallback: str | Model | Sequence[str | Model], options: ModelOptions | None, subject: str
) -> ModelChain:
    """The chain of a model and its fallbacks. Raises ``DefinitionError``."""
    if options is None:
        options = ModelOptions()
    elif not isinstance(options, ModelOptions):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(
            f"{subject}: model_options is a ModelOptions, as in ModelOptions(timeout=60), not {options!r}"
        )
    models = validate_models(model, fallback, subject)
    return ModelChain(
        models,
        cast("Mapping[str, Any] | None", options.settings),
        declared_seconds(options.timeout, f"{subject}: timeout") or DEFAULT_TIMEOUT_S,
        options.stream,
        _resolve_retry_policies(options.retry, models, subject),
    )


def _resolve_retry_policies(retry: RetryPolicies | None, models: Sequence[str | Model], subject: str) -> RetryPolicies:
    """Policies by the models' recorded names."""
    if not isinstance(retry, Mapping):
        return DEFAULT_RETRY_POLICY if retry is None else retry
    names = [get_model_name(model) for model in models]
    policies: dict[str, RetryPolicy] = {}
    for model, policy in retry.items():
        name = get_model_name(model) if isinstance(model, str) else repr(model)  # pyright: ignore[reportUnnecessaryIsInstance]
        if name not in names:
            raise DefinitionError(f"{subject}: retry has a policy for {name}, but its models are {', '.join(names)}")
        policies[name] = policy
    return policies
